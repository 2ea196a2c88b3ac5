"""AsyncGroupConsumer: a group consumer for asyncio, on the application's own loop.

This module adapts the engine to tasks. The coordinator and the reader run on the application's loop.

The methods are those of ``confluent_kafka.aio.AIOConsumer``, and common methods of aiokafka's consumer under aiokafka's names.
For the latter, a partition is any object with a ``topic`` and a ``partition``. The keys of a returned dictionary are the
objects that the caller passed; ``getmany``, and calls without partitions, return confluent-kafka's TopicPartition as keys. Some
methods that read memory in aiokafka are coroutines here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, Unpack, overload

from assignors.base import Assignor
from consumer_coord.assignor_loading import choose_assignors
from consumer_coord.column_names import COLUMNS
from consumer_coord.config import parse
from consumer_coord.confluent.arguments import Topics, constructor_arguments, flag
from consumer_coord.confluent.group_lines import group_lines
from consumer_coord.confluent.kafka_exceptions import (
    kafka_exceptions,
    raise_converted,
    to_kafka_exception,
)
from consumer_coord.confluent.topic_partitions import (
    GivenRows,
    Row,
    Rows,
    commit_reports,
    native,
    partition_of,
    raise_if_all_failed,
    rows,
    seconds,
)
from consumer_coord.confluent.types import KafkaError, Message
from consumer_coord.consumer.arrow_arguments import MAX_BYTES, MAX_RECORDS
from consumer_coord.consumer.assembly import prepared
from consumer_coord.consumer.async_unclosed import LoopMember
from consumer_coord.consumer.callback_types import Callback, Partitions
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S, Engine
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.librdkafka.handle import Librdkafka
from consumer_coord.consumer.librdkafka.security_errors import Refusals, message_failure
from consumer_coord.consumer.librdkafka.statistics import completed
from consumer_coord.consumer.metrics_push import MetricsPush
from consumer_coord.consumer.shared_calls import SharedCalls
from consumer_coord.consumer.task_access import TaskAccess
from consumer_coord.consumer.task_columns import TaskColumns
from consumer_coord.consumer.task_turns import TaskTurns
from consumer_coord.consumer.tracking import MemberTracking
from consumer_coord.consumer.which_plane import reads_with_librdkafka
from consumer_coord.errors import (
    ClosedError,
    ConcurrentUseError,
    CoordinatorError,
)
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.log_text import get_logger
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.shared_clusters import Clusters, shared_clusters
from consumer_coord.record_tracker import RecordTracker, Tracking
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.columns import ArrowColumns
    from consumer_coord.consumer.reading.reader import Reader
    from consumer_coord.consumer.reports import Reports
    from consumer_coord.health import Health
    from consumer_coord.lag.partition_lag import PartitionLag
    from consumer_coord.process import Counts, ProcessOptions

logger: Final = get_logger(__name__)

T = TypeVar("T")

#: Maximum number of messages taken from librdkafka in one call, and that ``getmany`` returns if ``max_records`` is not given.
_BATCH = 500
#: Interval at which a call that reads some partitions lets the others be read, in seconds.
_SLICE_S = 0.1


class AsyncGroupConsumer:
    """Consume as a member of a group from asyncio code.

    Example::

        async with AsyncGroupConsumer(config, assignors=[MyAssignor()]) as consumer:
            await consumer.subscribe(["orders"])
            async for message in consumer:
                await work_on(message)

    ``config`` is one dictionary of Kafka's settings, for the group and for librdkafka. Tasks that use the consumer at the same
    time take turns: a task that waits for messages yields to other tasks ten times a second. Commits of given offsets do not
    wait for other tasks. The rebalance callbacks and the callbacks in the settings (``on_commit``, ``error_cb``, ``stats_cb``,
    ``throttle_cb``) may be coroutine functions. All callbacks run inside ``poll``, ``consume``, iteration, ``unsubscribe`` and
    ``close``, and may use the consumer. With automatic commits, a message counts as finished when its task requests the next
    message. A cancelled call loses no messages.
    """

    _metrics_push: MetricsPush | None = None
    #: What this package's own Fetch of messages reports to callbacks; None if librdkafka reports.
    _reports: Reports | None = None
    #: A function that receives the name and the text of each step of the group, for ``debug=cgrp``.
    _steps: Callable[[str, str], None] | None = None

    def __init__(
        self,
        config: Mapping[str, Any],
        max_workers: int = 1,
        executor: concurrent.futures.Executor | None = None,
        *,
        assignors: Sequence[Assignor | type[Assignor]] | None = None,
        **keywords: Any,
    ) -> None:
        """Check the settings. ``max_workers`` and ``executor`` are those of ``AIOConsumer``, and have no effect."""
        if executor is None and max_workers < 1:
            raise ValueError("max_workers must be at least 1")
        if not isinstance(config, Mapping):
            raise TypeError(f"expected a dictionary of settings, not {config!r}")
        settings, handed_over = constructor_arguments(config, keywords)
        self._on_commit: Callable[[Any, Rows], object] | None = settings.pop("on_commit", None)
        with kafka_exceptions():
            self._auto_store = flag(settings, "enable.auto.offset.store", default=True)
            parsed = parse(settings, needs_brokers=False)
            chosen = choose_assignors(settings, parsed, assignors)
            fetches = reads_with_librdkafka(parsed)
            self._librdkafka = Librdkafka(parsed.librdkafka, fetches=fetches, **handed_over)
            self._refusals = Refusals(self._librdkafka.settings)
        self._steps = group_lines(settings, handed_over.get("logger"))
        self._fetches = fetches
        self._settings = parsed
        self._assignors = chosen
        self._made: Engine | None = None
        #: The task that may take messages without a look; see :meth:`_offer`.
        self._offered_to: object = None
        #: The object that makes the member leave the group if the consumer is not closed; None before the first use.
        self._member: LoopMember | None = None
        self._access = TaskAccess(self._start, self._used, lambda: self._in_callback, self._finish_in_order)
        self._shared = SharedCalls(self._access, parsed, raise_if_all_failed)
        self._engine_loop: EngineLoop | None = None
        self._turns = TaskTurns(
            parsed.coordinator.max_poll_interval_ms,
            lambda: 0.0 if self._engine_loop is None else self._engine_loop.callback_runs_s,
        )
        self._deliveries = Deliveries[object](_has_ended, _has_failed)
        self._columns = TaskColumns(parsed, self._used, self._deliveries)
        #: The exception that was being handled when this consumer was created. close() ignores this exception.
        self._handled = sys.exc_info()[1]
        self._closing: asyncio.Task[CoordinatorError | None] | None = None

    def __repr__(self) -> str:
        used = (
            f"of group {self._settings.coordinator.group_id!r}: not used yet"
            if self._made is None
            else self._made.core.described()
        )
        return f"<{type(self).__name__} {used}>"

    # -- opening and closing ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._shut(None, finished=error is None)

    def _check_open(self) -> None:
        # A callback that close() calls may still commit.
        if self._closing is not None and not self._in_callback:
            raise to_kafka_exception(ClosedError("the consumer is closed"))

    def _start(self) -> Engine:
        """Return the engine, which is created on the loop that first uses the consumer."""
        self._check_open()
        if self._member is not None:
            with kafka_exceptions():
                self._member.check_loop()
        if self._made is None:
            settings = self._settings
            cluster = shared_clusters().acquire(settings.client)
            core = ConsumerCoordinator(settings.coordinator, cluster, self._assignors)
            core.show_steps(self._steps)
            engine_loop = self._engine_loop = EngineLoop(core)
            make = prepared(
                settings,
                self,
                self._librdkafka,
                fetches=self._fetches,
                call=self._call,
                events=self._between_slices,
                deliveries=self._deliveries,
                auto_store=self._auto_store,
                reports_automatic=self._on_commit is not None,
            )
            parts = make(core, engine_loop)
            self._made, self._reports, self._metrics_push = parts.engine, parts.reports, parts.metrics_push
            core.application.at_hand = parts.reader.at_hand
            self._member = LoopMember(self, core, _released(shared_clusters(), settings.client, parts.reader))
        return self._made

    @property
    def _core(self) -> ConsumerCoordinator:
        return self._start().core

    @property
    def _in_callback(self) -> bool:
        return self._engine_loop is not None and self._engine_loop.in_callback

    def _used(self, *, in_callback: bool = True) -> _Turn:
        """Return a context manager that provides the engine, and excludes other tasks (except inside a callback)."""
        return _Turn(self, in_callback)

    async def _between_slices(self) -> None:
        """Call pending callbacks, and let other tasks use the consumer."""
        await self._deliver_events()
        if self._turns.waited_for and await self._turns.pass_on():
            # Other tasks may have changed the state: check the group before delivering a message.
            self._core.application.look_again()

    async def start(self) -> None:
        """Find the group's coordinator, so that this call, and not the first poll, reports a wrong address or password."""
        with kafka_exceptions():
            await self._start().core.ensure_coordinator_ready()

    async def stop(self) -> None:
        """Close the consumer, as ``close()`` does."""
        await self.close()

    @property
    def _consumer(self) -> Self:
        """Return this consumer, because Logprep calls ``_consumer.memberid()`` of an ``AIOConsumer``."""
        return self

    async def close(self, timeout: float | None = None, leave_group: bool | None = None) -> None:
        """Commit finished records (if commits are automatic), revoke all partitions, and leave the group.

        All steps except callbacks end within ``timeout`` seconds. Their default is ``default.api.timeout.ms``, about 15 s if no
        broker responds. If a call of ``close`` is cancelled, closing continues, and a further call waits until the consumer is
        closed. The last records that this task received count as finished, unless the task was cancelled, or close is called
        while an exception is handled.

        ``leave_group`` is that of :meth:`~consumer_coord.consumer.group_consumer.GroupConsumer.close`.
        """
        await self._shut(timeout, leave_group, finished=self._in_order)

    @property
    def _in_order(self) -> bool:
        """Return False if this task is cancelled, or handles an exception raised after this consumer was created; else True."""
        task = asyncio.current_task()
        return sys.exc_info()[1] is self._handled and not (task is not None and task.cancelling())

    async def _shut(self, timeout: float | None, leave_group: bool | None = None, *, finished: bool) -> None:
        if self._in_callback:
            raise to_kafka_exception(ConcurrentUseError("close may not be called inside a rebalance callback"))
        if self._closing is None:
            self._end_offer()
            if self._member is not None and not self._member.orphaned:
                with kafka_exceptions():
                    self._member.check_loop()
            if finished:
                self._deliveries.finish(asyncio.current_task())
            self._closing = asyncio.ensure_future(self._close(timeout, leave_group))
        elif self._closing.done():
            return
        failure = await asyncio.shield(self._closing)
        if failure is not None:
            raise to_kafka_exception(failure)

    async def _close(self, timeout: float | None, leave_group: bool | None) -> CoordinatorError | None:
        limit_s = seconds(timeout, self._settings.coordinator.default_api_timeout_ms / 1000)
        engine, failure = self._made, None
        if self._member is not None:
            self._member.close()
            if self._member.orphaned:
                # The member ended with its loop, so only the data plane must be closed.
                engine = None
        loop = asyncio.get_running_loop()
        ends = loop.time() + limit_s
        try:
            if engine is not None:
                # A waiting poll ends at its next check of the group.
                engine.closing = True
                if timeout is None:
                    engine.core.prepare_to_close()
                engine.core.application.wake()
                call = object()
                await self._turns.take(call)
                try:
                    failure = await engine.finish(max(0.0, ends - loop.time()))
                    await self._report_outcomes()
                finally:
                    self._turns.give(call)
        except CoordinatorError as error:
            failure = error
        finally:
            try:
                if engine is not None:
                    if self._metrics_push is not None:
                        await self._metrics_push.close(max(0.0, ends - loop.time()) * 1000)
                    await engine.reader.close()
                    await engine.core.close(max(0.0, ends - loop.time()) * 1000, leave_group=leave_group)
                    await shared_clusters().release(self._settings.client)
            finally:
                if self._made is not None:
                    await self._made.reader.close()
        return failure

    # -- subscription -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Topics,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics; a topic that starts with ``^`` is a pattern. Replace the former subscription, or assignment."""
        await self._shared.subscribe(topics, on_assign, on_revoke, on_lost)

    async def unsubscribe(self) -> None:
        """Commit finished records, revoke all partitions, and leave the group, within ``default.api.timeout.ms``.

        The time in callbacks counts, but does not end them.
        """
        async with self._used(in_callback=False) as engine:
            self._finish_in_order()
            await self._shared.end_subscription(engine)

    async def _call(self, callback: Callback, partitions: Partitions) -> None:
        self._shared.took_part = False
        returned = callback(self, rows(partitions))
        if inspect.isawaitable(returned):
            await returned

    # -- messages -----------------------------------------------------------------------------------------------------

    def _at_hand(self, count: int) -> deque[Any] | None:
        """Return the queue of fetched messages if ``count`` may be delivered without further checks, otherwise None."""
        engine = self._made
        if engine is None or self._closing is not None or self._turns.taken:
            return None
        core, ready = engine.core, engine.reader.ready
        if len(ready) < count or not engine.at_hand or self._in_callback or engine.tracker is not None:
            return None
        core.application.polls += 1
        if self._deliveries.left:
            # This task may have read a record of a failed task again, and finishes that record by this call.
            self._asked()
        return ready

    async def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None after ``timeout`` seconds (None or negative: wait for ever)."""
        task = asyncio.current_task()
        message: Message | None
        if self._made is not None and task is self._offered_to:
            message = self._made.reader.at_hand.message
            if message is not None:
                return message
        ready = self._at_hand(1)
        if ready is not None:
            message = ready.popleft()
            self._deliveries.last[task] = message
            self._offer(task)
            return message
        messages = await self._take(1, 1, timeout)
        return messages[0] if messages else None

    def _offer(self, task: object) -> None:
        """Let the next polls of this task take the other messages that are ready, until something happens."""
        engine = self._made
        if engine is not None and task is not None and not self._deliveries.left:
            at_hand, self._offered_to = engine.reader.at_hand, task
            at_hand.user = get_ident()
            at_hand.offer(self._deliveries.last, engine.core.lease.until, at_hand.changes, task)
            at_hand.user = 0

    def _end_offer(self) -> None:
        if self._made is not None:
            self._made.reader.at_hand.messages = self._offered_to = None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to ``num_messages`` messages; wait for all of them, at most ``timeout`` seconds (negative: for ever)."""
        if self._made is not None and num_messages > 0 and self._at_hand(num_messages) is not None:
            return self._delivered(self._made.take(num_messages))
        return await self._take(num_messages, num_messages, timeout)

    def __aiter__(self) -> Self:
        return self

    def wakeup(self) -> None:
        """Make the running poll, or the next poll, raise :class:`WakeupError`.

        Another thread calls ``loop.call_soon_threadsafe(consumer.wakeup)``.
        """
        if self._closing is None:
            (self._made or self._access.opened()).wakeup()

    async def __anext__(self) -> Message:
        """Return the next message, without a time limit; for a message with an error, raise KafkaException."""
        try:
            message = await self.poll()
        except ClosedError:
            if self._closing is None:
                raise
            message = None
        if message is None:
            raise StopAsyncIteration
        if message.error() is not None:
            raise message_failure(message, self._settings.librdkafka)
        return message

    async def getmany(
        self, *partitions: Any, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[Any, list[Message]]:
        """Return up to ``max_records`` messages by partition; wait at most ``timeout_ms`` milliseconds for the first message.

        With ``partitions``, return only messages of these partitions; other messages wait for a later call.
        """
        found: dict[Any, list[Message]] = {}
        by_partition: dict[tuple[Any, Any], list[Message]] = {}
        most = _BATCH if max_records is None else max_records
        for message in await self._take_of(partitions, most, timeout_ms / 1000):
            key = (message.topic(), message.partition())
            if key not in by_partition:
                by_partition[key] = found[native(TopicPartition(*key))] = []
            by_partition[key].append(message)
        return found

    @overload
    async def getone(self, *partitions: Any) -> Message: ...

    @overload
    async def getone(self, *partitions: Any, timeout_ms: float | None) -> Message | None: ...

    async def getone(self, *partitions: Any, timeout_ms: float | None = None) -> Message | None:
        """Return the next message (only of ``partitions``, if given), or None after ``timeout_ms`` milliseconds.

        Without ``timeout_ms``, wait for ever.
        """
        found = await self._take_of(partitions, 1, FOREVER_S if timeout_ms is None else timeout_ms / 1000)
        return found[0] if found else None

    async def _take_of(self, partitions: Iterable[Any], most: int, timeout_s: float) -> list[Message]:
        """Return up to ``most`` messages of these partitions (if empty: of all); after ``timeout_s`` seconds, an empty list.

        If the first message is an error, raise the error.
        """
        if most < 1:
            raise ValueError("max_records must be at least 1")
        wanted = frozenset(partition_of(row) for row in partitions)
        now = asyncio.get_running_loop().time
        ends = now() + timeout_s
        while True:
            async with self._used(in_callback=False) as engine:
                engine.core.application.polls += 1
                self._asked()
                if await _gather_of(engine, wanted, max(0.0, ends - now())):
                    picked = engine.reader.take_of(wanted, most)
                    if picked and picked[0].error() is not None:
                        raise message_failure(picked[0], self._settings.librdkafka)
                    if picked:
                        return self._delivered(picked)
            if now() >= ends:
                return []

    async def _take(self, least: int, most: int, timeout: float | None) -> list[Message]:
        async with self._used(in_callback=False) as engine:
            engine.core.application.polls += 1
            self._asked()
            if await engine.gather(least, max(most, _BATCH), seconds(timeout, FOREVER_S)):
                return self._delivered(engine.take(most))
            return []

    def _finish_in_order(self) -> None:
        if self._in_order:
            self._asked()

    def _asked(self) -> None:
        self._deliveries.finish(asyncio.current_task())
        # If records of a failed task are left, each poll must look whether it has read one of them again.
        self._end_offer()

    def _delivered(self, messages: list[Message]) -> list[Message]:
        self._deliveries.last[asyncio.current_task()] = tuple(messages)
        return messages

    async def _deliver_events(self) -> None:
        if self._engine_loop is not None:
            # The callback of a cancelled call may still run.
            await self._engine_loop.wait_idle()
        assert self._made is not None
        for callback, what in self._librdkafka.events():
            if callback is not None:
                await self._call_application(callback, await completed(what, self._made))
            if self._reports is None and isinstance(what, KafkaError):
                self._refusals.note(what)
        self._refusals.settle(self._made.core, joins=not self._made.manual)
        await self._report_outcomes()

    async def _report_outcomes(self) -> None:
        on_commit, answered = self._on_commit, () if self._made is None else self._made.commits.take()
        for error, rows_of_it in commit_reports(answered, wanted=on_commit is not None):
            assert on_commit is not None
            await self._call_application(on_commit, error, rows_of_it)

    async def _call_application(self, callback: Callable[..., object], *what: Any) -> None:
        """Call a callback of the settings; a coroutine function continues if the caller is cancelled."""
        returned = callback(*what)
        if inspect.isawaitable(returned):
            assert self._engine_loop is not None
            await self._engine_loop.through(_awaited(returned))

    # -- columns ------------------------------------------------------------------------------------------------------

    async def consume_arrow(
        self,
        max_records: int = MAX_RECORDS,
        *,
        max_bytes: int = MAX_BYTES,
        timeout: float | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> ArrowColumns:
        """Return records as Arrow columns as soon as any are available, or an empty batch after ``timeout`` seconds.

        The arguments are those of :meth:`~consumer_coord.consumer.group_consumer.GroupConsumer.consume_arrow`. Records are
        decoded on the event loop in steps of a megabyte; other tasks and heartbeats run between the steps. A cancelled call
        loses no records.
        """
        return await self._columns.read(self._columns.request(columns, max_records, max_bytes), seconds(timeout, FOREVER_S))

    def arrow_batches(
        self,
        until: Literal["now"] | GivenRows = "now",
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] = COLUMNS,
    ) -> AsyncIterator[ArrowColumns]:
        """Iterate over batches until every assigned partition has been read to its end; for batch jobs.

        The arguments are those of :meth:`~consumer_coord.consumer.group_consumer.GroupConsumer.arrow_batches`. If an ``anext``
        is cancelled, no record is lost, and the next ``anext`` continues.
        """
        self._check_open()
        return self._columns.batches(until, columns, max_records, max_bytes)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self,
        message: Message | ArrowColumns | None = None,
        offsets: GivenRows | None = None,
        asynchronous: bool = True,
        timeout: float | None = None,
    ) -> Rows | None:
        """Commit a message's offset + 1, a batch of columns, given offsets, or all delivered records.

        Automatic commits count the records before a committed offset as finished.

        With ``asynchronous``, return None at once, and report the outcome to ``on_commit`` inside a later poll. Otherwise
        return a list of TopicPartition, each with its ``error``, within ``timeout`` seconds; raise an error if no offset was
        committed.
        """
        return await self._shared.commit(message, offsets, asynchronous, timeout)

    async def process(
        self,
        handle: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 200,
        stop: asyncio.Event | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Counts:
        """Handle records in up to ``concurrency`` tasks, and commit by itself; return the counts when ``stop`` is set.

        ``handle(message)`` is a coroutine function. Records of one key are handled one after another, in the order of their
        offsets; ``options`` choose another order, bounds, and what happens to failed records: see
        :class:`~consumer_coord.process.ProcessOptions`. Inside the handler, :func:`consumer_coord.process.context` tells
        whether its result still counts.

        What is finished is committed every ``auto.commit.interval.ms`` and before a partition is released, also with
        ``enable.auto.commit=false``. The committed offset is the lowest unfinished one. Its metadata has the finished ones
        above it, in at most ``metadata_max_bytes`` characters (the brokers' ``offset.metadata.max.bytes``), so that the next
        owner does not handle them again; a plain consumer may ignore it. Beyond ``most_records`` or ``most_bytes`` unfinished
        records, divided among the partitions, a partition is not read.

        Running handlers get ``drain_timeout`` seconds to finish when the group revokes their partition, when ``stop`` is set,
        when the task that awaits this call is cancelled, and when a handler raises. After that they are cancelled, and their
        records stay unfinished. Without ``on_failure``, the exception of a handler ends this call, which raises it, and commits
        nothing after its record; finished records above it are in the metadata. A
        :class:`~consumer_coord.process.FailurePolicy` has attempts, and skips the record, produces a dead letter, or has it
        handled again later. With ``batches``, ``handle`` takes a list of messages: see
        :class:`~consumer_coord.process.Batches`. Meanwhile, nothing else may read from this consumer.
        """
        from consumer_coord.process.asyncio_driver import AsyncProcess
        from consumer_coord.process.processing import ProcessSettings

        settings = ProcessSettings.checked(concurrency=concurrency, **options)
        return await AsyncProcess(handle, settings, self._settings.coordinator.group_id, stop).run(self)

    async def track_records(self, tracker: RecordTracker) -> Tracking:
        """Let ``tracker`` decide what is committed and when a partition is released; read with the returned object alone.

        For applications that work on several records at once: see :mod:`consumer_coord.record_tracker`. Records that
        were received before count as finished. :meth:`Tracking.stop` ends it.
        """
        async with self._used(in_callback=False) as engine:
            self._asked()
            engine.track(tracker)
            return MemberTracking(engine, lambda: self._used(in_callback=False), lambda: self._shared.subscribed)

    async def store_offsets(self, message: Message | None = None, offsets: GivenRows | None = None) -> None:
        """Store finished positions for the next ``commit()`` without offsets; needs ``enable.auto.offset.store=false``."""
        self._shared.store_offsets(message, offsets)

    async def committed(self, partitions: GivenRows, timeout: float | None = None) -> Rows:
        """Return the group's committed offsets; ``OFFSET_INVALID`` for a partition without a committed offset."""
        return await self._shared.committed(partitions, timeout)

    async def position(self, partitions: GivenRows) -> Rows:
        """Return the positions after the last delivered messages; ``OFFSET_INVALID`` before the first message."""
        return await self._shared.position(partitions)

    async def seek(self, partition: Row) -> None:
        """Continue at another offset of an assigned partition; inside on_assign, begin there."""
        await self._shared.seek(partition)

    async def seek_to_beginning(self, *partitions: Any) -> None:
        """Continue at the first record of these partitions, or of all assigned partitions."""
        await self._shared.seek_by_time(partitions, EARLIEST, "seek_to_beginning")

    async def seek_to_end(self, *partitions: Any) -> None:
        """Continue after the last record of these partitions, or of all assigned partitions."""
        await self._shared.seek_by_time(partitions, LATEST, "seek_to_end")

    async def seek_to_committed(self, *partitions: Any) -> dict[Any, int | None]:
        """Continue at the group's committed offsets of these partitions, or of all assigned partitions.

        A partition without a committed offset keeps its position.
        """
        return await self._shared.seek_to_committed(partitions)

    async def beginning_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """Return the offset of the first record of each partition."""
        return await self._shared.offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """Return the offset after the last record of each partition; with ``read_committed``, the last stable offset."""
        return await self._shared.offsets(partitions, LATEST)

    async def highwater(self, partition: Any) -> int | None:
        """Return a partition's end offset from its last Fetch response, without a request; None before the first response."""
        row = native(partition_of(partition))
        found = await self.get_watermark_offsets(row, cached=True)
        return None if found is None or found[1] < 0 else found[1]

    async def get_watermark_offsets(
        self, partition: Row, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int] | None:
        """Return (first offset, end offset) of a partition; with ``cached``, from memory, without a request to a broker."""
        return await self._shared.get_watermark_offsets(partition, timeout, cached)

    async def offsets_for_times(self, partitions: GivenRows, timeout: float | None = None) -> Rows:
        """For each row, return the first offset at or after the time in the row's ``offset`` (in ms since 1970)."""
        return await self._shared.offsets_for_times(partitions, timeout)

    # -- manual assignment --------------------------------------------------------------------------------------------

    async def assign(self, partitions: GivenRows) -> None:
        """Assign partitions manually, without a group.

        While subscribed, also inside on_assign, select which of the group's assigned partitions to read, and from which
        offsets. This member keeps the other partitions, but does not read them.
        """
        await self._shared.assign(partitions, instead=True)

    async def incremental_assign(self, partitions: GivenRows) -> None:
        """Assign partitions manually, in addition to the partitions already assigned.

        While subscribed, add partitions that the group did not assign, such as the partitions of a side topic. Rebalances do
        not affect them, and other members may read them too. These partitions end with ``incremental_unassign``,
        ``unsubscribe`` or ``close``.
        """
        await self._shared.assign(partitions, instead=False)

    async def unassign(self) -> None:
        """End a manual assignment, or stop reading all of the group's assigned partitions; inside on_revoke, do nothing."""
        await self._shared.unassign()

    async def incremental_unassign(self, partitions: GivenRows) -> None:
        """End the manual assignment of some partitions, or stop reading them; inside on_revoke, keep the group's partitions."""
        await self._shared.unassign(partitions)

    async def pause(self, partitions: GivenRows) -> None:
        """Stop delivering messages of these partitions, also fetched ones, until :meth:`resume` or a revocation.

        An eager rebalance revokes all partitions; see :meth:`~consumer_coord.consumer.group_consumer.GroupConsumer.pause`.
        """
        await self._shared.pause(partitions)

    async def resume(self, partitions: GivenRows) -> None:
        """Deliver messages of these partitions again."""
        await self._shared.resume(partitions)

    # -- state --------------------------------------------------------------------------------------------------------

    async def assignment(self) -> Rows:
        """Return the partitions that this consumer owns now, without waiting for a running poll."""
        return self._shared.assignment(self._access.opened())

    def paused(self) -> frozenset[Any]:
        """Return the paused partitions."""
        return self._shared.paused(self._start())

    def subscription(self) -> frozenset[str]:
        """Return the topics that this consumer subscribes to; with a pattern, the matching topics."""
        return self._shared.subscription()

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the cluster's metadata, as confluent-kafka's ClusterMetadata."""
        return await self._shared.list_topics(topic, timeout)

    async def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the cluster's id; None if no broker reports it within ``timeout`` seconds (negative: wait for ever)."""
        return await self._shared.cluster_id(timeout)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of new connections; mechanisms without passwords ignore them.

        Members on one loop with the same settings share their connections, so they also share the credentials.
        """
        await self._shared.set_sasl_credentials(username, password)

    def memberid(self) -> str | None:
        """Return the member id that the coordinator assigned, or None before the first join."""
        return self._shared.memberid()

    def generation(self) -> int:
        """Return the group's generation at this member's last join; -1 outside the group."""
        return self._shared.generation()

    def metrics(self) -> Mapping[str, float]:
        """Return the coordinator's counters and timings under the Java client's names."""
        engine = self._access.opened()
        return {**engine.core.metrics(), **engine.figures()}

    async def lag(self, timeout: float | None = None, *, seconds: bool = True) -> Mapping[TopicPartition, PartitionLag]:
        """Return how far the group is behind in each assigned partition.

        ``records`` and ``seconds`` of a :class:`~consumer_coord.lag.partition_lag.PartitionLag` count from the committed
        offset: ``seconds`` is the age of the first record after it, and needs a small Fetch to each leader. Either is None if a
        broker does not answer; ``unknown`` and ``seconds_unknown`` then say why. ``timeout`` is in seconds (default:
        ``default.api.timeout.ms``).
        """
        return await self._shared.lag(timeout, seconds=seconds)

    async def health(self, limit: float = 60.0) -> Health:
        """Return whether this consumer receives what its partitions have; see :meth:`GroupConsumer.health`."""
        return await self._shared.health(limit)

    def report_handlers(
        self, report: Callable[[], Mapping[TopicPartition, float]], figures: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        """Let :meth:`health` know of handlers that run while this consumer polls; see :meth:`GroupConsumer.report_handlers`."""
        self._shared.report_handlers(report, figures)

    async def consumer_group_metadata(self) -> Any:
        """Return metadata for ``Producer.send_offsets_to_transaction``, as ``GroupConsumer.consumer_group_metadata`` does."""
        return await self._shared.consumer_group_metadata()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance (KIP-568)."""
        with kafka_exceptions():
            self._core.enforce_rebalance(reason)


class _Turn:
    """The context manager that :meth:`AsyncGroupConsumer._used` returns.

    This is a class, because every poll enters this context, and a generator would be slower.
    """

    __slots__ = ("_consumer", "_in_callback")

    def __init__(self, consumer: AsyncGroupConsumer, in_callback: bool) -> None:
        self._consumer = consumer
        self._in_callback = in_callback

    async def __aenter__(self) -> Engine:
        consumer = self._consumer
        with kafka_exceptions():
            engine = consumer._start()
            if consumer._in_callback:
                if not self._in_callback:
                    raise ConcurrentUseError(
                        "this method may not be called inside a rebalance callback: call it after the callback has returned"
                    )
                return engine
            try:
                await consumer._turns.take(self)
                consumer._end_offer()
                # Check again, because the consumer may have been closed during the wait.
                return consumer._start()
            except BaseException:
                consumer._turns.give(self)
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Do nothing inside a callback, because a callback does not take the turn.
        self._consumer._turns.give(self)
        if isinstance(error, CoordinatorError):
            raise_converted(error)


def _released(clusters: Clusters, client: ClientConfig, reader: Reader) -> Callable[[], Coroutine[Any, Any, None]]:
    async def release() -> None:
        try:
            await clusters.release(client)
        finally:
            await reader.close()

    return release


async def _awaited(returned: Awaitable[Any]) -> None:
    await returned


def _has_ended(task: object) -> bool:
    return not isinstance(task, asyncio.Task) or task.done()


def _has_failed(task: object) -> bool:
    return isinstance(task, asyncio.Task) and task.done() and (task.cancelled() or task.exception() is not None)


async def _gather_of(engine: Engine, wanted: frozenset[TopicPartition], timeout_s: float) -> bool:
    """Wait for messages, at most 0.1 s if ``wanted`` is not empty; return False if no message may be delivered."""
    if not wanted:
        return await engine.gather(1, _BATCH, timeout_s)
    return await engine.gather(1, _BATCH, min(timeout_s, _SLICE_S), only=wanted)
