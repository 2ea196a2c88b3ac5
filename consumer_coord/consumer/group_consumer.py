"""GroupConsumer: ``confluent_kafka.Consumer`` with a coordinator, and so assignors, in Python.

The protocol runs on the process's background loop; the application's thread owns librdkafka's handle and the callbacks.
``poll`` and ``consume`` look at one flag; when it is up they carry out what the group wants, step by step: lost, revoked,
added.  A rebalance that changes nothing for this member costs its application nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeAlias

import confluent_kafka
from confluent_kafka import Message

from assignors.base import Assignor
from consumer_coord import commits, group_metadata
from consumer_coord.blocking import BlockingCoordinator
from consumer_coord.data_plane import DataPlane, after, native, partition_of, partition_of_message, position_of
from consumer_coord.data_plane_security import message_failure
from consumer_coord.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigurationError,
    CoordinatorError,
    FatalError,
    WakeupError,
)
from consumer_coord.handover import Callback, Callbacks, Handover, LookUp, Partitions, Positions, run_through
from consumer_coord.kafka_exceptions import kafka_exceptions, to_kafka_exception
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.start_offsets import starting_positions
from consumer_coord.subscription import librdkafka_pattern
from consumer_coord.topic_partition import TopicPartition, listed

logger = logging.getLogger(__name__)

Rows: TypeAlias = "list[confluent_kafka.TopicPartition]"

#: How long librdkafka may wait before we look up again.
_SLICE_S = 0.1
#: While the group rebalances, how long messages may wait for us, who wait for the group.
_REBALANCING_SLICE_S = 0.05

_FOREVER_S = 365 * 86_400.0


class GroupConsumer:
    """A drop-in for ``confluent_kafka.Consumer`` with ``assignors=``.

    ``config`` is one dictionary of Kafka's settings for both planes.  Use it from one thread at a time (a second one gets
    :class:`~consumer_coord.errors.ConcurrentUseError`); only :meth:`wakeup` is safe from any.  Errors are this package's
    and ``KafkaException`` at once.  Also a context manager, and an iterator over messages.
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
        self._auto_store = str(settings.get("enable.auto.offset.store", True)).lower() in ("true", "1", "t")
        with kafka_exceptions():
            self._coordinator = BlockingCoordinator(settings, assignors=assignors)
            try:
                self._data = DataPlane(self._coordinator.config.librdkafka, **keywords)
            except BaseException:
                self._coordinator.close()
                raise
        self._core = self._coordinator.core
        self._looked = self._core.poll_times.looked
        self._settings = self._coordinator.config
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._thread = 0
        self._in_callback = False
        self._closed = False
        self._woken = False
        self._manual = False
        #: With enable.auto.offset.store=false: what store_offsets() said.
        self._stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self._auto = commits.AutoCommit(self._coordinator, self._data)
        self._asynchronous = commits.AsynchronousCommits(self._coordinator, self._committed_callback)
        self._handover = Handover(self._core, _Holder(self))

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

    def _enter(self, *, in_callback: bool = True) -> bool:
        """Take the consumer for this thread; False when it is taken already, by a callback's caller."""
        self._coordinator.check_process()
        if self._lock.acquire(blocking=False):
            self._thread = threading.get_ident()
            if self._closed:
                self._leave()
                raise to_kafka_exception(ClosedError("Consumer closed"))
            return True
        if self._thread != threading.get_ident():
            raise to_kafka_exception(
                ConcurrentUseError("two threads use one consumer at once: give each thread its own, or guard it by a lock")
            )
        if not in_callback:
            raise to_kafka_exception(
                ConcurrentUseError("poll, consume, subscribe and close may not be called inside a rebalance callback")
            )
        return False

    def _leave(self) -> None:
        self._thread = 0
        self._lock.release()

    def wakeup(self) -> None:
        """Make a poll that waits, or the next one, raise :class:`WakeupError`; safe from any thread."""
        self._woken = True
        self._core.rouse()

    # -- subscription -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics; one that starts with ``^`` is a pattern.  Replaces the former subscription.

        Callbacks get the consumer and a list of TopicPartition, and run inside poll, consume and close.
        """
        with kafka_exceptions(), _Used(self, in_callback=False):
            if self._manual:
                raise FatalError("subscribe after assign: end the manual assignment with unassign() first")
            for callback in (on_assign, on_revoke, on_lost):
                if callback is not None and not callable(callback):
                    raise TypeError(f"{callback!r} is not callable")
            if isinstance(topics, str) or not all(isinstance(topic, str) for topic in topics):
                raise TypeError(f"subscribe takes a list of topics, not {topics!r}")
            if any(topic.startswith("^") for topic in topics):
                self._coordinator.subscribe_pattern(librdkafka_pattern(topics))
            else:
                self._coordinator.subscribe(topics)
            self._handover.callbacks = Callbacks(on_assign, on_revoke, on_lost)
            self._auto.start()

    def unsubscribe(self) -> None:
        """Commit what is finished, give everything up, and leave the group."""
        with kafka_exceptions(), _Used(self, in_callback=False):
            if not self._manual:
                failure = run_through(self._handover.give_up_all())
                self._coordinator.unsubscribe()
                if failure is not None:
                    raise failure

    def assign(self, partitions: Rows) -> None:
        """Manual assignment, without a group's protocol; inside on_assign, the offsets to start at."""
        with kafka_exceptions(), _Used(self) as nested:
            if nested:
                self._choose(partitions)
                return
            self._check_manual("assign")
            self._data.stop(self._data.assigned)
            self._data.start({partition_of(row): position_of(row) for row in partitions})
            self._manual = True

    def incremental_assign(self, partitions: Rows) -> None:
        """The same, in addition to what is assigned."""
        with kafka_exceptions(), _Used(self) as nested:
            if nested:
                self._choose(partitions)
                return
            self._check_manual("incremental_assign")
            self._data.start({partition_of(row): position_of(row) for row in partitions})
            self._manual = True

    def unassign(self) -> None:
        """End a manual assignment; inside on_revoke there is nothing left to do."""
        with kafka_exceptions(), _Used(self) as nested:
            if not nested:
                self._check_manual("unassign")
                self._data.stop(self._data.assigned)
                self._manual = False

    def incremental_unassign(self, partitions: Rows) -> None:
        """End the manual assignment of some partitions; inside on_revoke there is nothing left to do."""
        with kafka_exceptions(), _Used(self) as nested:
            if not nested:
                self._check_manual("incremental_unassign")
                self._data.stop({partition_of(row) for row in partitions})

    def _check_manual(self, what: str) -> None:
        if self._on_group:
            raise FatalError(f"{what}: the group assigns partitions; unsubscribe first, or call it inside on_assign")

    @property
    def _on_group(self) -> bool:
        return bool(self._core.subscribed)

    def _choose(self, rows: Rows) -> None:
        chosen = {partition_of(row): position_of(row) for row in rows}
        self._handover.choose({tp: at for tp, at in chosen.items() if at.offset != confluent_kafka.OFFSET_INVALID})

    # -- messages -----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after ``timeout`` seconds (None or negative: wait for ever)."""
        if not self._acquire(False):
            self._enter(in_callback=False)
        try:
            core = self._core
            core.polls += 1
            if core.attention:
                self._attend()
            data = self._data
            if data.ahead:
                return data.ahead.popleft()
            began = monotonic()
            message = data.handle.poll(0) if timeout == 0 else self._poll_slices(timeout)
            if message is not None:
                message = data.read_ahead(message)
            self._looked(began, len(data.ahead))
            return message
        finally:
            self._release()

    def _poll_slices(self, timeout: float | None) -> Message | None:
        left = _FOREVER_S if timeout is None or timeout < 0 else timeout
        ends = monotonic() + left
        wait_s = 0.0 if self._waits_for_group else min(left, _SLICE_S)
        while left > 0:
            message: Message | None = self._data.handle.poll(wait_s)
            if message is not None:
                # At once: in between its partition might be given up before the application has seen it.
                return message
            self._between_slices()
            left = ends - monotonic()
            wait_s = self._wait_s(left)
        return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to ``num_messages`` messages, waiting at most ``timeout`` seconds for all of them (negative: for ever)."""
        if not self._acquire(False):
            self._enter(in_callback=False)
        try:
            core = self._core
            core.polls += 1
            if core.attention:
                self._attend()
            data = self._data
            began = monotonic()
            messages = data.take(num_messages) if data.ahead else []
            if len(messages) < num_messages:
                messages += data.handle.consume(num_messages - len(messages), 0)
            left = 0.0 if timeout == 0 else _FOREVER_S if timeout is None or timeout < 0 else timeout
            ends = monotonic() + left
            # What is in hand goes out before a rebalance changes who owns it.
            while len(messages) < num_messages and left > 0 and not (messages and core.attention):
                messages += data.handle.consume(num_messages - len(messages), self._wait_s(left))
                if not messages:
                    self._between_slices()
                left = ends - monotonic()
            self._looked(began, len(data.ahead))
            return messages
        finally:
            self._release()

    @property
    def _waits_for_group(self) -> bool:
        """True when the group is likelier to have news than librdkafka."""
        return not self._data.assigned or self._core.rebalancing or bool(self._handover.pending)

    def _wait_s(self, left_s: float) -> float:
        """How long librdkafka may wait.

        Nothing wakes it for the group.  So with nothing to fetch, and while the group rebalances, the wait is done here,
        where the group can ring: then a hand-over waits for nothing, and messages a moment.
        """
        core = self._core
        if core.attention or not self._waits_for_group:
            return min(left_s, _REBALANCING_SLICE_S if core.attention and self._data.assigned else _SLICE_S)
        core.bell.clear()
        if not core.attention:
            core.bell.wait(min(left_s, _REBALANCING_SLICE_S if self._data.assigned else _SLICE_S))
        return 0.0

    def _between_slices(self) -> None:
        self._core.polls += 1
        if self._core.attention:
            self._attend()

    # -- what the group wants -----------------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Look at everything that may have come up since the last poll; the rare path of poll and consume."""
        if self._closed:
            raise to_kafka_exception(ClosedError("Consumer closed"))
        self._thread = threading.get_ident()
        try:
            with kafka_exceptions():
                self._coordinator.polled()
                if self._woken:
                    self._woken = False
                    raise WakeupError("wakeup() was called")
                self._auto.poll(self._finished)
                self._asynchronous.poll()
                change = self._core.assignment.change()
                failure = run_through(self._handover.carry_out(change)) if change else None
                try:
                    run_through(self._handover.start_pending())
                except CoordinatorError:
                    # The first one wins; what failed after it fails again at the next poll.
                    if failure is None:
                        raise
                if failure is not None:
                    raise failure
        finally:
            # While poll goes on, calls of this thread are no callback's any more, and those of another one never were.
            self._thread = 0

    def _commit_before_revoke(self, partitions: Partitions) -> None:
        """Automatic commit of what moves; a failure is logged, because the rebalance goes on all the same."""
        if self._settings.coordinator.enable_auto_commit:
            finished = {tp: at for tp, at in self._finished().items() if tp in partitions}
            self._auto.commit_now(finished, self._settings.coordinator.rebalance_timeout_ms)
        self._asynchronous.poll()

    def _finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions of what the application has finished: all it was given, or what it stored."""
        if self._auto_store:
            return self._data.positions(self._data.assigned)
        return {partition: at for partition, at in self._stored.items() if partition in self._data.assigned}

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self, message: Message | None = None, offsets: Rows | None = None, asynchronous: bool = True
    ) -> Rows | None:
        """Commit a message's offset + 1, given offsets, or all that is finished; with the group's generation.

        Asynchronously it returns None at once, and ``on_commit`` tells the outcome inside a later poll; else it returns
        a list of TopicPartition, each with its ``error``, and raises when nothing could be committed at all.
        """
        with kafka_exceptions(), _Used(self):
            wanted = self._to_commit(message, offsets)
            if asynchronous:
                self._asynchronous.start(wanted)
                return None
            self._asynchronous.poll()
            result = self._coordinator.commit(wanted)
            rows = commits.to_rows(wanted, result)
            failures = [error for error in result.values() if error is not None]
            if failures and len(failures) == len(result):
                raise failures[0]
            return rows

    def _to_commit(self, message: Message | None, rows: Rows | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if message is not None and rows is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            if message.error() is not None:
                raise ValueError("a message with an error has no offset to commit")
            return {partition_of_message(message): after(message)}
        if rows is not None:
            return {partition_of(row): position_of(row) for row in rows if row.offset >= 0}
        finished = self._finished()
        if not finished:
            raise to_kafka_exception(commits.nothing_to_commit())
        return finished

    def store_offsets(self, message: Message | None = None, offsets: Rows | None = None) -> None:
        """Say what is finished, for the next commit without arguments; needs ``enable.auto.offset.store=false``."""
        with kafka_exceptions(), _Used(self):
            if self._auto_store:
                raise ConfigurationError("store_offsets needs enable.auto.offset.store=false")
            wanted = self._to_commit(message, offsets if message is None else None)
            foreign = wanted.keys() - self._data.assigned
            if foreign:
                raise FatalError(f"{listed(foreign)} are not assigned to this consumer")
            self._stored.update(wanted)

    def committed(self, partitions: Rows, timeout: float | None = None) -> Rows:
        """The group's committed offsets, ``OFFSET_INVALID`` where there are none."""
        with kafka_exceptions(), _Used(self):
            found = self._coordinator.committed([partition_of(row) for row in partitions], _ms(timeout))
            return [native(partition, at) if at is not None else native(partition) for partition, at in found.items()]

    def _committed_callback(self, rows: Rows, error: CoordinatorError | None) -> None:
        if self._on_commit is not None:
            self._on_commit(None if error is None else to_kafka_exception(error).args[0], rows)
        elif error is not None:
            logger.warning("an asynchronous commit failed: %s", error)

    def position(self, partitions: Rows) -> Rows:
        """Behind the last message handed out, ``OFFSET_INVALID`` before the first."""
        with kafka_exceptions(), _Used(self):
            rows: Rows = self._data.position(list(partitions))
            return rows

    def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        """Go on at another offset of an assigned partition; inside on_assign, begin there."""
        with kafka_exceptions(), _Used(self):
            if partition_of(partition) in self._handover.pending:
                run_through(
                    self._handover.begin_at(partition_of(partition), position_of(partition), later=self._in_callback)
                )
                return
            self._stored.pop(partition_of(partition), None)
            self._data.seek(partition)

    def get_watermark_offsets(
        self, partition: confluent_kafka.TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int] | None:
        """(first offset, end offset) of a partition."""
        with _Used(self):
            limit = {} if timeout is None else {"timeout": timeout}
            offsets: tuple[int, int] | None = self._data.handle.get_watermark_offsets(partition, cached=cached, **limit)
            return offsets

    def offsets_for_times(self, partitions: Rows, timeout: float | None = None) -> Rows:
        """For each row, whose offset is milliseconds since 1970, the first offset that is not older."""
        with _Used(self):
            rows: Rows = self._data.handle.offsets_for_times(partitions, *([] if timeout is None else [timeout]))
            return rows

    # -- what it is ---------------------------------------------------------------------------------------------------

    def assignment(self) -> Rows:
        """What this consumer holds now."""
        with kafka_exceptions(), _Used(self):
            held = self._data.assigned if self._manual else self._core.assignment.held
            return [native(partition) for partition in sorted(held)]

    def pause(self, partitions: Rows) -> None:
        """Hand out nothing of these partitions until :meth:`resume`; survives rebalances that keep them."""
        with kafka_exceptions(), _Used(self):
            self._data.pause(self._must_hold(partitions, "pause"))

    def resume(self, partitions: Rows) -> None:
        """Hand out messages of these partitions again."""
        with kafka_exceptions(), _Used(self):
            self._data.resume(self._must_hold(partitions, "resume"))

    def _must_hold(self, rows: Rows, what: str) -> set[TopicPartition]:
        wanted = {partition_of(row) for row in rows}
        foreign = wanted - self._data.assigned - self._handover.pending
        if foreign:
            raise FatalError(f"{what}: {listed(foreign)} are not assigned to this consumer")
        return wanted

    def memberid(self) -> str:
        """The member id that the coordinator gave, empty before."""
        return self._core.member_id

    def generation(self) -> int:
        """The group's generation as of the last join, -1 outside the group."""
        return self._core.generation

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """The cluster's metadata, as confluent-kafka's ClusterMetadata."""
        with _Used(self):
            if topic is None:
                return self._data.handle.list_topics(timeout=timeout)
            return self._data.handle.list_topics(topic, timeout)

    def consumer_group_metadata(self) -> Any:
        """For ``Producer.send_offsets_to_transaction``: fenced by our generation and member (KIP-447).

        The next JoinGroup waits for the next poll, at most half the rebalance timeout: no rebalance aborts a transaction
        that is shorter.
        """
        with kafka_exceptions(), _Used(self):
            state = self._coordinator.hold_joins()
            return group_metadata.encode(self._core.group_id, state, self._core.group_instance_id)

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance (KIP-568), with a reason for the broker's log."""
        with kafka_exceptions(), _Used(self):
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
        if self._closed:
            return
        with kafka_exceptions():
            self._enter(in_callback=False)
            try:
                self._close(_ms(timeout))
            finally:
                self._leave()

    def _close(self, timeout_ms: float | None) -> None:
        failure: CoordinatorError | None = None
        self._auto.stop()
        try:
            self._coordinator.check_process()
            if self._manual:
                self._commit_before_revoke(frozenset(self._data.assigned))
            else:
                failure = run_through(self._handover.give_up_all())
            self._asynchronous.finish(timeout_ms)
        finally:
            self._closed = True
            self._core.attention = True
            try:
                self._coordinator.close(timeout_ms)
            finally:
                self._data.handle.close()
        if failure is not None:
            raise failure


class _Holder:
    """What ``handover.py`` asks of the one who holds partitions; none of it suspends."""

    def __init__(self, consumer: GroupConsumer) -> None:
        self._consumer = consumer

    async def call(self, callback: Callback, partitions: Partitions) -> None:
        consumer = self._consumer
        consumer._in_callback = True
        try:
            callback(consumer, [native(partition) for partition in sorted(partitions)])
        finally:
            consumer._in_callback = False

    async def before_revoke(self, partitions: Partitions) -> None:
        self._consumer._commit_before_revoke(partitions)

    async def start(self, positions: Positions) -> None:
        self._consumer._data.start(positions)

    async def stop(self, partitions: Partitions) -> None:
        self._consumer._data.stop(partitions)
        for partition in partitions:
            self._consumer._stored.pop(partition, None)

    def look_up(self, partitions: Partitions) -> LookUp:
        core, settings = self._consumer._core, self._consumer._settings
        limit_ms = settings.coordinator.default_api_timeout_ms
        return self._consumer._coordinator.submit(
            lambda: starting_positions(core, partitions, settings.auto_offset_reset, limit_ms)
        )


class _Used:
    """The consumer is in use by this thread while the block runs; True inside when a callback's caller has it."""

    def __init__(self, consumer: GroupConsumer, *, in_callback: bool = True) -> None:
        self._consumer = consumer
        self._in_callback = in_callback

    def __enter__(self) -> bool:
        self._taken = self._consumer._enter(in_callback=self._in_callback)
        return not self._taken

    def __exit__(self, *details: object) -> None:
        if self._taken:
            self._consumer._leave()


def _ms(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else timeout * 1000
