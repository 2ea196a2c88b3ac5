"""GroupConsumer: ``confluent_kafka.Consumer`` with a coordinator, and so assignors, in Python.

A skin over the engine for threads: arguments, confluent-kafka's types, whose turn it is.  The protocol runs on the process's
background loop; the thread that calls carries out what the group wants, and calls the callbacks.

**Turns.**  One thread at a time uses the engine; another one waits for its turn, which a long poll passes on between two slices
of waiting.  The turn is an attribute, ``_user``, and not a lock: a signal handler may raise in any call, also in that of
``lock.release()``, but never between the statements that end ``poll`` and call nothing.  So a message is handed out and
the turn given back, or neither.  (CPython runs signal handlers, and other threads, between calls only.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import islice
from threading import get_ident
from types import TracebackType
from typing import Any, Self, TypeVar

import confluent_kafka
from confluent_kafka import Message

from assignors.base import Assignor
from consumer_coord.consumer import group_metadata
from consumer_coord.consumer.blocking import BlockingCoordinator
from consumer_coord.consumer.blocking_home import BlockingHome
from consumer_coord.consumer.engine import FOREVER_S, Engine, EngineSettings
from consumer_coord.consumer.handover import Callback, Callbacks, Partitions, Topics, are_names, run_through
from consumer_coord.consumer.librdkafka.exceptions import kafka_exceptions, to_kafka_exception
from consumer_coord.consumer.librdkafka.plane import Inline, Librdkafka, native, partition_of, position_of, rows
from consumer_coord.consumer.librdkafka.rows import (
    Positions,
    Rows,
    committed_rows,
    is_lapsed,
    known_positions_of,
    nothing_to_commit,
    positions_of,
    raise_if_all_failed,
    seconds,
    to_commit,
    to_rows,
)
from consumer_coord.consumer.librdkafka.security import message_failure, raise_if_refused
from consumer_coord.consumer.reader import MOST_AHEAD
from consumer_coord.consumer.start_positions import ResetPolicy
from consumer_coord.errors import ClosedError, ConcurrentUseError, CoordinatorError, FatalError
from consumer_coord.group.committed_offsets import CommitResult
from consumer_coord.group.subscription import librdkafka_pattern
from consumer_coord.printable import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

#: A thread that waits for its turn looks so often.
_TURN_S = 0.001
#: A poll that passes its turn on takes it again after this long if the other thread did not come.
_PASS_S = 0.02


class GroupConsumer:
    """A drop-in for ``confluent_kafka.Consumer`` with ``assignors=``.

    ``config`` is one dictionary of Kafka's settings for both planes.  Calls from several threads wait for each other;
    :meth:`wakeup` and commits of given offsets wait for nobody.  Errors are this package's and ``KafkaException`` at once.
    Also a context manager, and an iterator over messages.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        assignors: Sequence[Assignor | type[Assignor]] | None = None,
        **keywords: Any,
    ) -> None:
        settings = dict(config)
        self._on_commit: Callable[[Any, Rows], object] | None = settings.pop("on_commit", None)
        auto_store = str(settings.get("enable.auto.offset.store", True)).lower() in ("true", "1", "t")
        with kafka_exceptions():
            self._coordinator = BlockingCoordinator(settings, assignors=assignors)
            try:
                self._librdkafka = Librdkafka(self._coordinator.config.librdkafka, **keywords)
            except BaseException:
                self._coordinator.close()
                raise
        self._settings = self._coordinator.config
        self._core = self._coordinator.core
        self._home = BlockingHome(self._coordinator)
        self._engine = Engine(
            self._core,
            Inline(self._librdkafka),
            self._home,
            EngineSettings(
                reset=ResetPolicy(
                    self._settings.auto_offset_reset,
                    self._settings.isolation_level == "read_committed",
                    looks_up=True,
                ),
                auto_store=auto_store,
                resets_itself=self._settings.librdkafka.get("auto.offset.reset") == "error",
                is_lapsed=is_lapsed,
            ),
            call=self._call,
            told=self._tell_commit,
            events=self._between_slices,
        )
        self._reader = self._engine.reader
        self._lease_clock = self._core.lease.clock
        #: The thread whose turn it is, 0 for none; and how many wait for theirs.
        self._user = 0
        self._waiting = 0
        #: The thread that a rebalance callback runs on.
        self._calling = 0
        self._closed = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next message, however long it takes; a message with an error is raised as KafkaException."""
        message = self.poll()
        if message is None:
            raise StopIteration
        if message.error() is not None:
            raise message_failure(message, self._settings.librdkafka)
        return message

    def wakeup(self) -> None:
        """Make a poll that waits, or the next one, raise :class:`WakeupError`; safe from any thread."""
        self._engine.wakeup()

    # -- whose turn it is -----------------------------------------------------------------------------------------------

    def _wait_for_turn(self, me: int) -> None:
        """Returns when nobody has the turn: the caller takes it by its next statement."""
        self._coordinator.check_process()
        if self._user == me:
            raise to_kafka_exception(
                ConcurrentUseError(
                    "poll, consume, subscribe and close may not be called inside a rebalance callback or a signal handler that"
                    " interrupts one of them"
                )
            )
        self._waiting += 1
        try:
            while self._user:
                # A thread that polls without a pause passes its turn on when it looks.
                self._core.application.attention = True
                time.sleep(_TURN_S)
        finally:
            self._waiting -= 1

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], *, in_callback: bool = True) -> T:
        """Run a coroutine of the engine in this thread's turn; inside a callback it is the turn of the callback's caller."""
        me, mine = get_ident(), False
        with kafka_exceptions():
            if self._user == me and in_callback and self._calling == me:
                return run_through(work())
            try:
                self._coordinator.check_process()
                if self._user:
                    self._wait_for_turn(me)
                self._user = me
                mine = True
                if self._closed:
                    raise ClosedError("Consumer closed")
                return run_through(work())
            finally:
                if mine and self._user == me:
                    self._user = 0

    async def _between_slices(self) -> None:
        """Call what librdkafka has to tell, and let other threads have a turn."""
        settings = self._librdkafka.settings
        for callback, what in self._librdkafka.events():
            if callback is not None:
                callback(what)
            if isinstance(what, confluent_kafka.KafkaError):
                raise_if_refused(what, settings)
        if self._waiting:
            self._pass_turn()

    def _pass_turn(self) -> None:
        me = self._user
        self._user = 0
        ends = time.monotonic() + _PASS_S
        while self._waiting and not self._user and time.monotonic() < ends:
            time.sleep(_TURN_S / 2)
        if self._user:
            self._wait_for_turn(me)
        self._user = me
        # Whatever the other one did: look before anything is handed out.
        self._core.application.attention = True

    async def _call(self, callback: Callback, partitions: Partitions) -> None:
        self._calling = get_ident()
        try:
            callback(self, rows(partitions))
        finally:
            self._calling = 0

    # -- messages -----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after ``timeout`` seconds (None or negative: wait for ever)."""
        me, mine = get_ident(), False
        try:
            if self._user:
                self._wait_for_turn(me)
            self._user = me
            mine = True
            core = self._core
            core.application.polls += 1
            ahead = self._reader.ahead
            if not ahead and self._engine.plain:
                # By far most often: messages wait in librdkafka, and nothing else is up.
                self._reader.unsure = True
                self._reader.arrived(self._fetch(MOST_AHEAD))
                ahead = self._reader.ahead
            if core.application.attention or not ahead or self._lease_clock() >= core.lease.until:
                if not self._gather(1, MOST_AHEAD, timeout):
                    self._user = 0
                    return None
                ahead = self._reader.ahead
            message: Message = ahead[0]
            # No call between the statements of this line: see the module.
            self._user = 0; del ahead[0]; return message  # noqa: E702
        except BaseException:
            if mine and self._user == me:
                self._user = 0
            raise

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to ``num_messages`` messages, waiting at most ``timeout`` seconds for all of them (negative: for ever)."""
        me, mine = get_ident(), False
        try:
            if self._user:
                self._wait_for_turn(me)
            self._user = me
            mine = True
            core, reader = self._core, self._reader
            core.application.polls += 1
            if not reader.ahead and self._engine.plain:
                reader.unsure = True
                messages = self._fetch(num_messages)
                if len(messages) == num_messages and self._lease_clock() < core.lease.until:
                    behind = reader.tracked(messages)
                    self._user = 0; reader.behind, reader.unsure = behind, False; return messages  # noqa: E702
                reader.arrived(messages)
            if not self._gather(num_messages, num_messages, timeout):
                self._user = 0
                return []
            ahead = reader.ahead
            if len(ahead) <= num_messages:
                messages, rest = list(ahead), deque[Any]()
            else:
                messages, rest = list(islice(ahead, num_messages)), deque(islice(ahead, num_messages, None))
            # No call between the statements of this line: see the module.
            self._user = 0; reader.ahead = rest; return messages  # noqa: E702
        except BaseException:
            if mine and self._user == me:
                self._user = 0
            raise

    def _fetch(self, most: int) -> list[Message]:
        """What waits in librdkafka; an interrupt on the way leaves the reader unsure, and it looks what is missing."""
        began = self._home.now()
        messages: list[Message] = self._librdkafka.handle.consume(most, 0)
        if messages:
            self._core.application.poll_times.record_fetch(began, len(messages) - 1)
            if self._librdkafka.told:
                self._core.application.attention = True
        return messages

    def _gather(self, least: int, most: int, timeout: float | None) -> bool:
        if self._closed:
            raise to_kafka_exception(ClosedError("Consumer closed"))
        with kafka_exceptions():
            if self._core.application.attention:
                self._coordinator.check_process()
            return run_through(self._engine.gather(least, most, seconds(timeout, FOREVER_S)))

    # -- subscription -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Topics,
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics; one that starts with ``^`` is a pattern.  Replaces the former subscription.

        Callbacks get the consumer and a list of TopicPartition, and run inside poll, consume and close.
        """

        async def subscribe() -> None:
            if self._engine.manual:
                raise FatalError("subscribe after assign: end the manual assignment with unassign() first")
            for callback in (on_assign, on_revoke, on_lost):
                if callback is not None and not callable(callback):
                    raise TypeError(f"{callback!r} is not callable")
            if not are_names(topics):
                raise TypeError(f"subscribe takes a list of topics, not {topics!r}")
            if any(topic.startswith("^") for topic in topics):
                self._coordinator.subscribe_pattern(librdkafka_pattern(topics))
            else:
                self._coordinator.subscribe(topics)
            named = () if any(topic.startswith("^") for topic in topics) else topics
            self._engine.subscribed(Callbacks(on_assign, on_revoke, on_lost), named)

        self._run(subscribe, in_callback=False)

    def unsubscribe(self) -> None:
        """Commit what is finished, give everything up, and leave the group."""

        async def unsubscribe() -> None:
            if not self._engine.manual:
                limit_s = self._settings.coordinator.default_api_timeout_ms / 1000
                failure = await self._engine.give_up_all(time.monotonic() + limit_s)
                self._coordinator.unsubscribe()
                if failure is not None:
                    raise failure

        self._run(unsubscribe, in_callback=False)

    def assign(self, partitions: Rows) -> None:
        """Manual assignment, without a group's protocol; inside on_assign, the offsets to start at."""
        self._assign(partitions, "assign", instead=True)

    def incremental_assign(self, partitions: Rows) -> None:
        """The same, in addition to what is assigned."""
        self._assign(partitions, "incremental_assign", instead=False)

    def _assign(self, partitions: Rows, what: str, *, instead: bool) -> None:
        async def assign() -> None:
            if self._calling == get_ident():
                self._engine.choose(known_positions_of(partitions))
                return
            self._check_manual(what)
            await self._engine.assign(positions_of(partitions), instead=instead)

        self._run(assign)

    def unassign(self) -> None:
        """End a manual assignment; inside on_revoke there is nothing left to do."""
        self._unassign(None, "unassign")

    def incremental_unassign(self, partitions: Rows) -> None:
        """End the manual assignment of some partitions; inside on_revoke there is nothing left to do."""
        self._unassign(partitions, "incremental_unassign")

    def _unassign(self, partitions: Rows | None, what: str) -> None:
        async def unassign() -> None:
            if self._calling != get_ident():
                self._check_manual(what)
                gone = self._reader.assigned if partitions is None else {partition_of(row) for row in partitions}
                await self._engine.unassign(frozenset(gone))

        self._run(unassign)

    def _check_manual(self, what: str) -> None:
        if self._core.protocol.subscribed:
            raise FatalError(f"{what}: the group assigns partitions; unsubscribe first, or call it inside on_assign")

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self, message: Message | None = None, offsets: Rows | None = None, asynchronous: bool = True
    ) -> Rows | None:
        """Commit a message's offset + 1, given offsets, or all that is finished; with the group's generation.

        Asynchronously it returns None at once, and ``on_commit`` tells the outcome inside a later poll; else it returns
        a list of TopicPartition, each with its ``error``, and raises when nothing could be committed at all.
        """
        with kafka_exceptions():
            self._coordinator.check_process()
            if self._closed:
                raise ClosedError("Consumer closed")
            wanted: Positions | None = to_commit(message, offsets)
            if wanted is None:
                wanted = self._run(self._engine.finished_now)
                if not wanted:
                    raise nothing_to_commit()
            if asynchronous:
                if self._engine.commits.full:
                    self._run(self._engine.commits.make_room)
                self._engine.commits.start(wanted)
                return None
            result = run_through(self._engine.commit(wanted, None))
            raise_if_all_failed(result)
            return to_rows(wanted, result)

    def _tell_commit(self, wanted: Positions, result: CommitResult) -> None:
        error = next((failure for failure in result.values() if failure is not None), None)
        if self._on_commit is not None:
            self._on_commit(None if error is None else to_kafka_exception(error).args[0], to_rows(wanted, result))
        elif error is not None:
            logger.warning("an asynchronous commit failed: %s", error)

    def store_offsets(self, message: Message | None = None, offsets: Rows | None = None) -> None:
        """Say what is finished, for the next commit without arguments; needs ``enable.auto.offset.store=false``."""

        async def store() -> None:
            wanted = to_commit(message, offsets if message is None else None)
            self._engine.store(await self._engine.finished_now() if wanted is None else wanted)

        self._run(store)

    def committed(self, partitions: Rows, timeout: float | None = None) -> Rows:
        """The group's committed offsets, ``OFFSET_INVALID`` where there are none."""
        with kafka_exceptions():
            found = self._coordinator.committed([partition_of(row) for row in partitions], _ms(timeout))
            return committed_rows(found)

    def position(self, partitions: Rows) -> Rows:
        """Behind the last message handed out, ``OFFSET_INVALID`` before the first."""

        async def position() -> Rows:
            wanted = [partition_of(row) for row in partitions]
            found = await self._engine.positions(wanted)
            return [native(partition, found.get(partition)) for partition in wanted]

        return self._run(position)

    def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        """Go on at another offset of an assigned partition; inside on_assign, begin there."""
        self._run(
            lambda: self._engine.seek(
                partition_of(partition), position_of(partition), in_callback=self._calling == get_ident()
            )
        )

    def get_watermark_offsets(
        self, partition: confluent_kafka.TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int] | None:
        """(first offset, end offset) of a partition."""
        limit = {} if timeout is None else {"timeout": timeout}

        async def ask() -> tuple[int, int] | None:
            found: tuple[int, int] | None = self._handle.get_watermark_offsets(partition, cached=cached, **limit)
            return found

        return self._run(ask)

    def offsets_for_times(self, partitions: Rows, timeout: float | None = None) -> Rows:
        """For each row, whose offset is milliseconds since 1970, the first offset that is not older."""

        async def ask() -> Rows:
            found: Rows = self._handle.offsets_for_times(partitions, *([] if timeout is None else [timeout]))
            return found

        return self._run(ask)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def _handle(self) -> Any:
        return self._librdkafka.handle

    def assignment(self) -> Rows:
        """What this consumer holds now."""

        async def held() -> Rows:
            return rows(self._reader.assigned if self._engine.manual else self._core.assignment.held)

        return self._run(held)

    def pause(self, partitions: Rows) -> None:
        """Hand out nothing of these partitions until :meth:`resume`; survives rebalances that keep them."""
        self._run(lambda: self._engine.pause({partition_of(row) for row in partitions}))

    def resume(self, partitions: Rows) -> None:
        """Hand out messages of these partitions again."""
        self._run(lambda: self._engine.resume({partition_of(row) for row in partitions}))

    def memberid(self) -> str:
        """The member id that the coordinator gave, empty before."""
        return self._core.member_id

    def generation(self) -> int:
        """The group's generation as of the last join, -1 outside the group."""
        return self._core.generation

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """The cluster's metadata, as confluent-kafka's ClusterMetadata."""

        async def ask() -> Any:
            if topic is None:
                return self._handle.list_topics(timeout=timeout)
            return self._handle.list_topics(topic, timeout)

        return self._run(ask)

    def consumer_group_metadata(self) -> Any:
        """For ``Producer.send_offsets_to_transaction``: fenced by our generation and member (KIP-447).

        The next JoinGroup waits for the next poll, at most half the rebalance timeout: no rebalance aborts a transaction
        that is shorter.
        """

        async def encode() -> Any:
            state = self._coordinator.hold_joins()
            return group_metadata.encode(self._core.config.group_id, state, self._core.config.group_instance_id)

        return self._run(encode)

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance (KIP-568), with a reason for the broker's log."""
        with kafka_exceptions():
            self._coordinator.enforce_rebalance(reason)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Not offered: the control plane reads its credentials once."""
        raise to_kafka_exception(
            FatalError("set_sasl_credentials is not supported: make a new consumer with the new credentials")
        )

    def metrics(self) -> Mapping[str, float]:
        """The coordinator's counters and timings under the Java client's names."""
        with kafka_exceptions():
            return self._coordinator.metrics()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Commit what is finished (automatic commits), revoke, leave the group, end; at most ``timeout`` seconds."""
        if not self._closed:
            # A poll of another thread that waits ends at its next slice.
            self._run(lambda: self._close(timeout), in_callback=False)

    async def _close(self, timeout: float | None) -> None:
        limit_s = seconds(timeout, self._settings.coordinator.default_api_timeout_ms / 1000)
        ends = time.monotonic() + limit_s
        failure: CoordinatorError | None = None
        try:
            if not self._engine.closing:
                failure = await self._engine.finish(limit_s)
        finally:
            # An interrupt may come anywhere: another close goes on from here.
            self._engine.closing = True
            self._core.application.attention = True
            try:
                self._coordinator.close(max(0.0, ends - time.monotonic()) * 1000)
            except Exception:
                self._closed = True
                raise
            finally:
                self._handle.close()
            self._closed = True
        if failure is not None:
            raise failure


def _ms(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else timeout * 1000
