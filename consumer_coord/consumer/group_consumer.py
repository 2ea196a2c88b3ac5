"""GroupConsumer: a ``confluent_kafka.Consumer`` with a coordinator in Python, and therefore with assignors in Python.

This module adapts the engine to threads, and to confluent-kafka's arguments and types. The protocol runs on the process's
background loop; the calling thread carries out the group's changes and calls the callbacks.

:mod:`~consumer_coord.consumer.thread_turns` decides which thread may use the engine, and which calls a callback may make.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from itertools import islice
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from assignors.base import Assignor
from consumer_coord.column_names import COLUMNS
from consumer_coord.confluent.arguments import (
    FormerKeywords,
    Topics,
    check_timeout,
    commit_keywords,
    constructor_arguments,
    flag,
)
from consumer_coord.confluent.group_lines import group_lines
from consumer_coord.confluent.kafka_exceptions import (
    drop_in_exceptions,
    kafka_exceptions,
    to_kafka_exception,
)
from consumer_coord.confluent.topic_partitions import GivenRows, Row, Rows, commit_reports, raise_if_any_failed, rows, seconds
from consumer_coord.confluent.tracing import traced
from consumer_coord.confluent.types import Consumer, KafkaError, Message
from consumer_coord.confluent.types import TopicPartition as NativePartition
from consumer_coord.consumer.arrow_arguments import MAX_BYTES, MAX_RECORDS
from consumer_coord.consumer.assembly import Parts, prepared
from consumer_coord.consumer.callback_types import Callback, Partitions
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.librdkafka.handle import Librdkafka
from consumer_coord.consumer.librdkafka.security_errors import Refusals, message_failure
from consumer_coord.consumer.librdkafka.statistics import completed
from consumer_coord.consumer.metrics_push import MetricsPush
from consumer_coord.consumer.shared_calls import SharedCalls
from consumer_coord.consumer.thread_access import ThreadAccess, run_blocking
from consumer_coord.consumer.thread_columns import ThreadColumns
from consumer_coord.consumer.thread_turns import ThreadTurns
from consumer_coord.consumer.thread_waits import MOST_READY, ThreadWaits
from consumer_coord.consumer.tracking import BlockingMemberTracking, MemberTracking
from consumer_coord.consumer.which_plane import reads_with_librdkafka
from consumer_coord.errors import (
    ClosedError,
    CoordinatorError,
)
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.log_text import get_logger
from consumer_coord.record_tracker import BlockingTracking, RecordTracker
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.health import Health
    from consumer_coord.lag.partition_lag import PartitionLag
    from consumer_coord.process import Counts, ProcessOptions

logger: Final = get_logger(__name__)

#: confluent-kafka's limit of ``num_messages`` in one ``consume()``.
_MOST_MESSAGES = 1_000_000
_ConfluentConsumer: Any = Consumer

#: The attributes that ``__init__`` sets; see :class:`_NotMade`.
_MADE_OF = (
    "_coordinator",
    "_core",
    "_engine",
    "_turns",
    "_waits",
    "_columns",
    "_shared",
    "_librdkafka",
    "_settings",
    "_at_hand",
    "_deliveries",
)


def _check_count(num_messages: object) -> None:
    if not isinstance(num_messages, int):
        raise TypeError(f"num_messages takes a whole number, not {num_messages!r}")
    if not 0 <= num_messages <= _MOST_MESSAGES:
        raise ValueError("num_messages must be between 0 and 1000000 (1M)")


class _NotMade:
    """The attributes before ``__init__``: if a subclass omits ``super().__init__()``, its consumer counts as closed.

    A ``__getattr__`` of the consumer would work, too. But each read of an attribute in ``poll`` would take four times as long.
    """

    closed = True

    def __getattr__(self, name: str) -> Any:
        raise to_kafka_exception(ClosedError("Consumer closed"))

    def __call__(self) -> Any:
        raise to_kafka_exception(ClosedError("Consumer closed"))


class _InitSignature:
    """Shows the arguments of ``__init__`` when ``inspect.signature`` inspects the class."""

    def __get__(self, consumer: object, kind: type[Any]) -> inspect.Signature:
        signature = inspect.signature(kind.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class GroupConsumer(_ConfluentConsumer):  # type: ignore[misc]  # its C class, which takes part in isinstance only
    """A drop-in replacement for ``confluent_kafka.Consumer`` with the additional argument ``assignors``.

    ``config`` is one dictionary of Kafka's settings, for the group and for librdkafka; keyword arguments add settings. Calls
    from several threads wait for each other; :meth:`wakeup` and commits of given offsets do not wait. ``poll`` and ``consume``
    return background errors as messages with ``error()``, or raise them if ``poll.raises.errors`` is true. An error that a call
    raises is both an error of this package and a ``KafkaException``. A consumer is also a context manager, and an iterator over
    messages.

    ``isinstance`` accepts this class as a ``confluent_kafka.Consumer``, although librdkafka's handle belongs to another object.
    """

    #: Replaces the signature of ``__new__``, which accepts any arguments, because a subclass may have a different ``__init__``.
    __signature__: _InitSignature = _InitSignature()

    #: The exception that was being handled when this consumer was created. close() ignores this exception.
    _handled: BaseException | None = None
    _metrics_push: MetricsPush | None = None
    _librdkafka: Librdkafka

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Create the consumer without its attributes."""
        consumer: Self = super().__new__(traced(cls))
        # Create the dictionary first: CPython 3.11 then reads attributes of a subclass of a C class three times as fast.
        consumer.__dict__.update(dict.fromkeys(_MADE_OF, _NotMade()))
        return consumer

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        assignors: Sequence[Assignor | type[Assignor]] | None = None,
        **keywords: Any,
    ) -> None:
        settings, handed_over = constructor_arguments(config, keywords)
        self._on_commit: Callable[[Any, Rows], object] | None = settings.pop("on_commit", None)
        with kafka_exceptions():
            auto_store = flag(settings, "enable.auto.offset.store", default=True)
            self._coordinator = BlockingCoordinator(settings, assignors=assignors, needs_brokers=False)
            fetches = reads_with_librdkafka(self._coordinator.config)
            try:
                self._librdkafka = Librdkafka(self._coordinator.config.librdkafka, fetches=fetches, **handed_over)
            except BaseException:
                self._coordinator.close()
                raise
        self._settings = self._coordinator.config
        self._core = self._coordinator.core
        self._core.show_steps(group_lines(settings, handed_over.get("logger")))
        self._deliveries = Deliveries[int](_has_ended, lambda thread: False)
        self._handled = sys.exc_info()[1]
        self._refusals = Refusals(self._librdkafka.settings)
        make = prepared(
            self._settings,
            self,
            self._librdkafka,
            fetches=fetches,
            call=self._call,
            events=self._between_slices,
            deliveries=self._deliveries,
            auto_store=auto_store,
            reports_automatic=self._on_commit is not None,
        )
        parts = self._coordinator.call(lambda: self._made(make))
        engine = self._engine = parts.engine
        self._reports, self._metrics_push = parts.reports, parts.metrics_push
        self._at_hand = self._core.application.at_hand = engine.reader.at_hand
        turns = ThreadTurns(self._coordinator, engine)
        self._waits = ThreadWaits(
            engine,
            turns,
            self._deliveries,
            raises=self._settings.poll_raises_errors,
            reported=self._librdkafka.reported,
            report=self._report_all,
            events=self._between_slices,
        )
        self._columns = ThreadColumns(self._settings, engine, turns, self._waits, self._deliveries)
        access = ThreadAccess(engine, turns, self._coordinator, self._finish_in_order)
        self._shared = SharedCalls(access, self._settings, raise_if_any_failed)
        # The last one, because a consumer without it counts as closed.
        self._turns = turns

    async def _made(self, make: Callable[[ConsumerCoordinator, EngineLoop], Parts]) -> Parts:
        return make(self._core, EngineLoop(self._core, other_threads=True))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core.described()}>"

    # -- opening and closing ------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._shut(None, finished=error is None)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Return the next message, without a time limit; for a message with an error, raise the error."""
        message = self.poll()
        while message is None:
            # A callback unsubscribed or closed the consumer, and may have subscribed again.
            if self._turns.closed or not (self._core.protocol.subscribed or self._engine.manual):
                raise StopIteration
            message = self.poll()
        if message.error() is not None:
            failure, self._waits.failure = self._waits.failure, None
            raise message_failure(message, self._settings.librdkafka) if failure is None else to_kafka_exception(failure)
        return message

    def wakeup(self) -> None:
        """Make the running poll, or the next poll, raise :class:`WakeupError`; callable from any thread."""
        self._engine.wakeup()

    # -- calling the application --------------------------------------------------------------------------------------

    async def _between_slices(self) -> None:
        """Call the callbacks of the settings, and yield the turn to other threads."""
        for callback, what in self._librdkafka.events():
            if callback is not None:
                await self._call_back(callback, await completed(what, self._engine))
            if self._reports is None and isinstance(what, KafkaError):
                self._refusals.note(what)
        self._refusals.settle(self._core, joins=not self._engine.manual)
        await self._report_commits()
        if self._turns.waiting:
            await BlockingCall.on_caller(self._turns.pass_on)
        if notes := self._core.application.failures.notes:
            # An error of a background task must end a blocking poll.
            raise notes.popleft()

    async def _call(self, callback: Callback, partitions: Partitions) -> None:
        self._shared.took_part = False
        try:
            await self._report_commits()
        finally:
            # The partitions change hands even if on_commit raises, so the application must learn of the change.
            await self._call_back(callback, self, rows(partitions))

    async def _report_commits(self) -> None:
        """Report the outcomes of asynchronous commits to ``on_commit``, all in one call on the application's thread."""
        if self._engine.commits.news or self._engine.commits.due:
            await BlockingCall.on_caller(self._report_all)

    def _report_all(self) -> None:
        on_commit = self._on_commit
        for error, rows_of_it in commit_reports(self._engine.commits.take(), wanted=on_commit is not None):
            assert on_commit is not None
            self._turns.call_out(on_commit, error, rows_of_it)

    async def _call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function of the application on the application's thread."""
        await BlockingCall.on_caller(lambda: self._turns.call_out(callback, *arguments))

    # -- messages -----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None after ``timeout`` seconds (None or negative: wait for ever).

        A message with ``error()`` reports an error. Inside a callback, a poll returns messages but processes no change of the
        group.
        """
        at_hand = self._at_hand
        message: Message | None = at_hand.message
        if message is not None:
            return message
        me, mine = get_ident(), False
        try:
            if at_hand.user and not self._turns.may_take(me):
                return next(iter(self._waits.poll_inside(1, timeout)), None)
            at_hand.user = me
            mine = True
            ready, last = self._waits.make_ready(1, MOST_READY, timeout, offers=True), self._deliveries.last
            if not ready:
                at_hand.user = 0
                return None
            message = ready[0]
            # No function is called from here to the return, because a signal handler may raise in one (see ``thread_turns``).
            at_hand.user = 0
            del ready[0]
            last[me] = message
            return message
        except BaseException:
            self._fail_call(me, mine, timeout)
            raise

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to ``num_messages`` messages; wait for all of them, at most ``timeout`` seconds (negative: for ever)."""
        _check_count(num_messages)
        me, mine = get_ident(), False
        try:
            if self._at_hand.user and not self._turns.may_take(me):
                return self._waits.poll_inside(num_messages, timeout)
            self._at_hand.user = me
            mine = True
            waits = self._waits
            ready = waits.make_ready(num_messages, num_messages, timeout)
            if ready is waits.errors:
                messages, rest = list(ready), deque[Any]()
                self._at_hand.user = 0
                waits.errors = rest
                return messages
            delivered = ready
            if len(ready) <= num_messages:
                # The reader gets another queue, so nobody else changes this one.
                messages, rest = list(ready), deque()
            else:
                messages, rest = list(islice(ready, num_messages)), deque(islice(ready, num_messages, None))
                delivered = deque(messages)
            # No function is called from here to the return, because a signal handler may raise in one (see ``thread_turns``).
            self._at_hand.user = 0
            self._deliveries.last[me] = delivered
            self._at_hand.ready = rest
            return messages
        except BaseException:
            self._fail_call(me, mine, timeout)
            raise

    def _fail_call(self, me: int, mine: bool, timeout: float | None) -> None:
        """End the turn of a failed call if the turn is ``mine``; raise :class:`TypeError` if the timeout is invalid."""
        if mine and self._at_hand.user == me:
            self._at_hand.user = 0
        check_timeout(timeout)

    # -- columns ------------------------------------------------------------------------------------------------------

    def consume_arrow(
        self,
        max_records: int = MAX_RECORDS,
        *,
        max_bytes: int = MAX_BYTES,
        timeout: float | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> ArrowColumns:
        """Return records as Arrow columns as soon as any are available, or an empty batch after ``timeout`` seconds.

        A batch has at most ``max_records`` records and, after decompression, about ``max_bytes`` bytes. If ``timeout`` is None
        or negative, the call waits for ever. ``columns`` selects from ``consumer_coord.columns.COLUMNS``. pyarrow, Polars and
        DuckDB import the result without a copy. With automatic commits, the records count as finished when this thread requests
        the next records.

        Calls for messages and for columns may be mixed: they share the positions, and each record is delivered once. (If
        librdkafka fetches, ``IllegalStateError`` is raised.) Raise
        :class:`~consumer_coord.columns.UnreadableRecordError` for damaged records, after the records before them were
        delivered. To skip damaged records, seek.
        """
        me, mine = get_ident(), False
        try:
            request = self._columns.request(columns, max_records, max_bytes)
            timeout_s = seconds(timeout, FOREVER_S)
            if self._at_hand.user:
                self._columns.wait_for_turn(me)
            self._at_hand.user = me
            mine = True
            self._at_hand.messages = None
            self._at_hand.polls += 1
            self._deliveries.finish(me)
            batch, delivered, reader, cursors = self._columns.next_batch(request, timeout_s)
            # No function is called from here to the return, because a signal handler may raise in one (see ``thread_turns``).
            self._at_hand.user = 0
            if delivered:
                self._deliveries.last[me] = delivered
                reader.cursors = cursors
            return batch
        finally:
            if mine and self._at_hand.user == me:
                self._at_hand.user = 0

    def arrow_batches(
        self,
        until: Literal["now"] | GivenRows = "now",
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[ArrowColumns]:
        """Iterate over batches until every assigned partition has been read to its end; for batch jobs.

        With ``until="now"``, the end of a partition is the end of its log when this call first saw the partition assigned. With
        a list of TopicPartition, for instance the result of ``offsets_for_times``, only these partitions are read, each up to
        its offset (exclusive); ``OFFSET_END`` means the same end as ``"now"``. Reading ends when the position reaches the end,
        so the call does not wait for records that were compacted, aborted, or removed by a truncation. While a partition is
        paused, the call waits. If the group assigns no partition to the member, the iteration ends after ten seconds. Raise
        ``ConfigurationError`` if a partition of the list has no offset.
        """
        return self._columns.batches(until, columns, max_records, max_bytes)

    # -- records in parallel --------------------------------------------------------------------------------------------

    def process(
        self,
        handle: Callable[[Message], object],
        *,
        workers: int | Executor = 16,
        stop: threading.Event | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Counts:
        """Handle records in ``workers`` threads, and commit by itself; return the counts when ``stop`` is set.

        ``handle(message)`` is a function. In place of the number of threads, ``workers`` takes an Executor, whose workers may
        be processes; then the function must be importable. ``options`` are :class:`~consumer_coord.process.ProcessOptions`;
        order and commits are those of :meth:`~consumer_coord.consumer.async_consumer.AsyncGroupConsumer.process`. Messages are
        passed on as they are: let the handler deserialize them, so that a record that cannot be is a failure like any other.
        This thread polls the group, and runs the callbacks, until the end; an exception in it, such as Ctrl-C's, ends the
        process as ``stop`` does, and is raised.

        Running handlers get ``drain_timeout`` seconds to finish when the group revokes their partition, when ``stop`` is set,
        and when a handler raises. A thread cannot be cancelled: after that, ``context().lost`` is set, the result is ignored,
        and a key waits for its former handler. If a worker process dies, the records that it held are handled once more, each
        alone in a process; the record with which a process dies again has failed.
        """
        from consumer_coord.process.processing import ProcessSettings
        from consumer_coord.process.thread_driver import ThreadProcess, slots

        settings = ProcessSettings.checked(concurrency=slots(workers), **options)
        return ThreadProcess(handle, workers, settings, self._settings.coordinator.group_id, stop).run(self)

    def track_records(self, tracker: RecordTracker) -> BlockingTracking:
        """Let ``tracker`` decide what is committed and when a partition is released; read with the returned object alone.

        See :meth:`~consumer_coord.consumer.async_consumer.AsyncGroupConsumer.track_records`. The tracker is called on the
        loop's thread.
        """

        async def track() -> MemberTracking:
            self._engine.track(tracker)
            return MemberTracking(self._engine, lambda: nullcontext(self._engine), lambda: self._shared.subscribed)

        self._deliveries.finish(get_ident())
        return BlockingMemberTracking(self._turns.run(track), self._run_tracked)

    def _run_tracked(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        result = self._turns.run(work)
        if self._turns.requested:
            self._turns.run(self._turns.do_requested)
        return result

    # -- subscription, assignment -------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics; a topic that starts with ``^`` is a pattern. Replace the former subscription, or assignment.

        Callbacks get the consumer and a list of TopicPartition, and run inside poll, consume and close. An application that
        collects the messages of several calls should commit the messages of revoked partitions in ``on_revoke``.
        """
        run_blocking(self._shared.subscribe, topics, on_assign, on_revoke, on_lost)

    def unsubscribe(self) -> None:
        """Commit finished records, revoke all partitions, and leave the group; inside a callback, do so when it returns.

        As with confluent-kafka, ``on_revoke`` runs in the next poll, not in this call. If there is a callback, all steps happen
        then: in the next ``poll``, ``consume``, ``subscribe``, ``assign``, ``unassign`` or ``close``.
        """

        def unsubscribe() -> Coroutine[Any, Any, None]:
            return self._shared.end_subscription(self._engine)

        if self._turns.in_callback:
            self._turns.do_later(unsubscribe)
            return
        self._finish_in_order()
        callbacks = self._engine.callbacks
        if self._core.assignment.held and (callbacks.on_revoke or callbacks.on_lost):
            self._turns.use(lambda: self._turns.do_later(unsubscribe))
            self._core.application.look_again()
            return
        self._turns.run(unsubscribe)

    def assign(self, partitions: GivenRows) -> None:
        """Assign partitions manually, without a group.

        While subscribed, also inside on_assign, select which of the group's assigned partitions to read, and from which
        offsets. This member keeps the other partitions, but does not read them.
        """
        run_blocking(self._shared.assign, partitions, instead=True)

    def incremental_assign(self, partitions: GivenRows) -> None:
        """Assign partitions manually, in addition to the partitions already assigned.

        While subscribed, add partitions that the group did not assign, such as the partitions of a side topic. Rebalances do
        not affect them, and other members may read them too. These partitions end with ``incremental_unassign``,
        ``unsubscribe`` or ``close``.
        """
        run_blocking(self._shared.assign, partitions, instead=False)

    def unassign(self) -> None:
        """End a manual assignment, or stop reading all of the group's assigned partitions; inside on_revoke, do nothing."""
        run_blocking(self._shared.unassign)

    def incremental_unassign(self, partitions: GivenRows) -> None:
        """End the manual assignment of some partitions, or stop reading them; inside on_revoke, keep the group's partitions."""
        run_blocking(self._shared.unassign, partitions)

    def pause(self, partitions: GivenRows) -> None:
        """Stop delivering messages of these partitions until :meth:`resume`, or until the group revokes them.

        Cooperative rebalances and the consumer protocol revoke only partitions that move. An eager rebalance, such as one with
        the default ``range,cooperative-sticky``, revokes all: pause again in ``on_assign``.
        """
        run_blocking(self._shared.pause, partitions)

    def resume(self, partitions: GivenRows) -> None:
        """Deliver messages of these partitions again."""
        run_blocking(self._shared.resume, partitions)

    def paused(self) -> frozenset[NativePartition]:
        """Return the paused partitions."""
        return self._turns.use(lambda: self._shared.paused(self._engine))

    def assignment(self) -> Rows:
        """Return the partitions that this consumer owns now."""
        return self._turns.use(lambda: self._shared.assignment(self._engine))

    def subscription(self) -> frozenset[str]:
        """Return the topics that this consumer subscribes to; with a pattern, the matching topics."""
        return self._shared.subscription()

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | ArrowColumns | None = None,
        offsets: GivenRows | None = None,
        asynchronous: bool = True,
        **deprecated: Unpack[FormerKeywords],
    ) -> Rows | None:
        """Commit a message's offset + 1, a batch of columns, given offsets, or all delivered records.

        Automatic commits count the records before a committed offset as finished.

        With ``asynchronous``, return None at once, and report the outcome to ``on_commit`` inside a later poll. Otherwise
        return a list of TopicPartition, or raise an error if any offset could not be committed; the other offsets are
        committed.
        """
        if deprecated:
            asynchronous = commit_keywords(asynchronous, deprecated)
        return run_blocking(self._shared.commit, message, offsets, asynchronous)

    def store_offsets(self, message: Message | None = None, offsets: GivenRows | None = None) -> None:
        """Store finished positions for the next ``commit()`` without offsets; needs ``enable.auto.offset.store=false``."""
        self._shared.store_offsets(message, offsets)

    def committed(self, partitions: GivenRows, timeout: float | None = None) -> Rows:
        """Return the group's committed offsets; ``OFFSET_INVALID`` for a partition without a committed offset."""
        return run_blocking(self._shared.committed, partitions, timeout)

    def position(self, partitions: GivenRows) -> Rows:
        """Return the positions after the last delivered messages; ``OFFSET_INVALID`` before the first message."""
        return run_blocking(self._shared.position, partitions)

    def seek(self, partition: Row) -> None:
        """Continue at another offset of an assigned partition; inside on_assign, begin there."""
        run_blocking(self._shared.seek, partition)

    def seek_to_beginning(self, *partitions: Row) -> None:
        """Continue at the first record of these partitions, or of all assigned partitions."""
        run_blocking(self._shared.seek_by_time, list(partitions), EARLIEST, "seek_to_beginning")

    def seek_to_end(self, *partitions: Row) -> None:
        """Continue after the last record of these partitions, or of all assigned partitions."""
        run_blocking(self._shared.seek_by_time, list(partitions), LATEST, "seek_to_end")

    def beginning_offsets(self, partitions: Iterable[Row]) -> dict[Row, int]:
        """Return the offset of the first record of each partition."""
        return run_blocking(self._shared.offsets, partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[Row]) -> dict[Row, int]:
        """Return the offset after the last record of each partition; with ``read_committed``, the last stable offset."""
        return run_blocking(self._shared.offsets, partitions, LATEST)

    def get_watermark_offsets(
        self, partition: Row, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int] | None:
        """Return (first offset, end offset) of a partition; with ``cached``, from memory, without a request to a broker."""
        return run_blocking(self._shared.get_watermark_offsets, partition, timeout, cached)

    def offsets_for_times(self, partitions: GivenRows, timeout: float | None = None) -> Rows:
        """For each row, return the first offset at or after the time in the row's ``offset`` (in ms since 1970)."""
        return run_blocking(self._shared.offsets_for_times, partitions, timeout)

    def lag(self, timeout: float | None = None, *, seconds: bool = True) -> Mapping[TopicPartition, PartitionLag]:
        """Return how far the group is behind in each assigned partition.

        ``records`` and ``seconds`` of a :class:`~consumer_coord.lag.partition_lag.PartitionLag` count from the committed
        offset: ``seconds`` is the age of the first record after it, and needs a small Fetch to each leader. Either is None if a
        broker does not answer; ``unknown`` and ``seconds_unknown`` then say why. ``timeout`` is in seconds (default:
        ``default.api.timeout.ms``). This also works while another thread polls.
        """
        return run_blocking(self._shared.lag, timeout, seconds=seconds)

    # -- the group, the cluster ---------------------------------------------------------------------------------------

    def memberid(self) -> str | None:
        """Return the member id that the coordinator assigned, or None before the first join."""
        return self._shared.memberid()

    def generation(self) -> int:
        """Return the group's generation at this member's last join; -1 outside the group."""
        return self._shared.generation()

    def consumer_group_metadata(self) -> Any:
        """Return metadata for ``Producer.send_offsets_to_transaction``, fenced by this generation and member (KIP-447).

        After this call, the next JoinGroup waits for the next poll, but at most half the rebalance timeout. So no rebalance
        aborts a transaction that takes less time. With a manual assignment, the broker does not fence the transaction, as with
        confluent-kafka.
        """
        return run_blocking(self._shared.consumer_group_metadata)

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance (KIP-568), with a reason for the broker's log."""
        self._turns.check_open()
        with drop_in_exceptions():
            self._coordinator.enforce_rebalance(reason)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the cluster's id; None if no broker reports it within ``timeout`` seconds (negative: wait for ever)."""
        return run_blocking(self._shared.cluster_id, timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the cluster's metadata, as confluent-kafka's ClusterMetadata."""
        self._turns.check_open("Handle has been closed")
        return run_blocking(self._shared.list_topics, topic, timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of new connections; mechanisms without passwords ignore them.

        Members of one process with the same settings share their connections, so they also share the credentials.
        """
        run_blocking(self._shared.set_sasl_credentials, username, password)

    def health(self, limit: float = 60.0) -> Health:
        """Return whether this consumer receives what its partitions have: the answer for probes and alerts.

        The consumer is unhealthy if records of a partition wait for delivery, or nothing is known about the partition, for more
        than ``limit`` seconds, unless the application is the reason. A time counts from the first call that saw it, so call
        this method every few seconds. Nothing is asked of brokers, except with librdkafka. This also works while another thread
        polls.
        """
        return run_blocking(self._shared.health, limit)

    def report_handlers(
        self, report: Callable[[], Mapping[TopicPartition, float]], figures: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """Let :meth:`health` know of handlers that run while this consumer polls, and :meth:`metrics` of their ``figures``.

        ``report`` returns the partitions whose records are in handlers, and for how long the oldest handler has worked, in
        seconds. It is called on another thread and must not wait. A paused partition with handlers counts as paused for them:
        they have ``max.poll.interval.ms``.
        """
        self._shared.report_handlers(report, figures)

    def metrics(self) -> Mapping[str, float]:
        """Return the coordinator's counters and timings under the Java client's names."""
        with kafka_exceptions():
            return {**self._coordinator.metrics(), **self._engine.figures()}

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, leave_group: bool | None = None) -> None:
        """Commit finished records (if commits are automatic), revoke all partitions, and leave the group.

        All steps except callbacks end within ``timeout`` seconds. Their default is ``default.api.timeout.ms``, about 15 s if no
        broker responds. The last record that this thread received counts as finished, unless close is called while an exception
        is handled, for instance in ``finally:`` after the processing raised.

        ``leave_group`` says whether the member leaves (KIP-1092, Java's ``CloseOptions``). None: a dynamic member leaves; the
        partitions of a static member (``group.instance.id``) wait until its session expires. True: a static member leaves, too.
        False: the partitions of a dynamic member wait as well.
        """
        self._shut(timeout, leave_group, finished=self._in_order)

    @property
    def _in_order(self) -> bool:
        """Return False while the caller handles an exception that was raised after this consumer was created."""
        return sys.exc_info()[1] is self._handled

    def _finish_in_order(self) -> None:
        if self._in_order:
            self._deliveries.finish(get_ident())

    def _shut(self, timeout: float | None, leave_group: bool | None = None, *, finished: bool) -> None:
        if self._turns.closed:
            return
        if self._turns.in_callback:
            # Close after the callback has returned, because until then the group waits for the callback.
            self._turns.do_later(lambda: self._close(timeout, leave_group))
            return
        if finished:
            self._deliveries.finish(get_ident())
        # A blocking poll of another thread ends at its next check of the group.
        try:
            self._turns.run(lambda: self._close(timeout, leave_group))
        except ClosedError:
            # Another thread closed the consumer while this thread waited for its turn.
            if not self._turns.closed:
                raise

    async def _close(self, timeout: float | None, leave_group: bool | None) -> None:
        limit_s = seconds(timeout, self._settings.coordinator.default_api_timeout_ms / 1000)
        ends = time.monotonic() + limit_s
        failure: CoordinatorError | None = None
        if timeout is None:
            self._core.prepare_to_close()
        try:
            if not self._engine.closing:
                failure = await self._engine.finish(limit_s)
                await self._report_commits()
        finally:
            # If an interrupt occurs during these steps, the next close continues with them.
            self._engine.closing = True
            self._core.application.look_again()
            try:
                if self._metrics_push is not None:
                    await self._metrics_push.close(max(0.0, ends - time.monotonic()) * 1000)
                await self._engine.reader.close()
                await self._coordinator.end(max(0.0, ends - time.monotonic()) * 1000, leave_group=leave_group)
            except Exception:
                self._turns.closed = True
                raise
            self._turns.closed = True
        if failure is not None:
            raise failure


def _has_ended(thread: int) -> bool:
    """Return whether a thread has ended; Python does not report whether an exception ended it."""
    return all(one.ident != thread for one in threading.enumerate())
