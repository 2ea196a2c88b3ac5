"""AsyncGroupConsumer: the same consumer for asyncio, on the application's own loop.

The coordinator runs on that loop.  librdkafka's handle lives on a thread of its own, one per consumer, because its calls
block; the loop never waits for it.  Nothing is fetched ahead of the application beyond librdkafka's own bounded queue, so a
slow application slows the fetching down.  A cancelled call loses nothing: what its fetch brings is kept for the next call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, Message

from assignors.base import Assignor
from consumer_coord import commits, group_metadata
from consumer_coord.blocking import choose_assignors
from consumer_coord.config import parse
from consumer_coord.coordinator import ConsumerCoordinator
from consumer_coord.data_plane import DataPlane, after, native, partition_of, partition_of_message, position_of
from consumer_coord.data_plane_security import message_failure
from consumer_coord.environment import now
from consumer_coord.errors import (
    ClosedError,
    ConcurrentUseError,
    CoordinatorError,
    FatalError,
)
from consumer_coord.handover import Callback, Callbacks, Handover, LookUp, Partitions, Positions
from consumer_coord.kafka_exceptions import kafka_exceptions
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.runtime import shared_clusters
from consumer_coord.start_offsets import starting_positions
from consumer_coord.subscription import librdkafka_pattern
from consumer_coord.topic_partition import TopicPartition, listed

logger = logging.getLogger(__name__)

Rows: TypeAlias = "list[confluent_kafka.TopicPartition]"
T = TypeVar("T")

#: How long librdkafka may wait before the loop looks up again.
_SLICE_S = 0.05
_REBALANCING_SLICE_S = 0.005

#: How many messages iteration asks librdkafka for at a time.
_BATCH = 500


class AsyncGroupConsumer:
    """Consume as a member of a group from asyncio code::

        async with AsyncGroupConsumer(config, assignors=[MyAssignor()]) as consumer:
            await consumer.subscribe(["orders"])
            async for message in consumer:
                await work_on(message)

    ``config`` is one dictionary of Kafka's settings for both planes.  One task at a time may wait for messages.  Callbacks
    may be coroutine functions; they run inside ``poll``, ``consume``, iteration and ``close``.  With automatic commits a
    message counts as finished when the next one is asked for.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        assignors: Sequence[Assignor | type[Assignor]] | None = None,
        **keywords: Any,
    ) -> None:
        settings = dict(config)
        with kafka_exceptions():
            self._settings = parse(settings)
            self._assignors = choose_assignors(settings, self._settings, assignors)
            self._data = DataPlane(self._settings.librdkafka, **keywords)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="consumer-coord-fetch")
        self._core: ConsumerCoordinator | None = None
        self._handover: Handover | None = None
        self._busy = False
        self._in_callback = False
        self._closed = False
        #: Fetched, not handed out yet.
        self._buffer: deque[Message] = deque()
        #: Handed out by the last call: finished when the next call comes.
        self._in_hand: list[Message] = []
        self._fetching: asyncio.Future[list[Message]] | None = None
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._commit_due = 0.0
        self._committing: asyncio.Future[Any] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _start(self) -> ConsumerCoordinator:
        if self._closed:
            raise ClosedError("the consumer is closed")
        if self._core is None:
            cluster = shared_clusters().acquire(self._settings.client)
            self._core = ConsumerCoordinator(self._settings.coordinator, cluster, self._assignors)
            self._handover = Handover(self._core, _Holder(self))
        return self._core

    @property
    def _hand(self) -> Handover:
        self._start()
        assert self._handover is not None
        return self._handover

    async def close(self, timeout: float | None = None) -> None:
        """Commit what is finished (automatic commits), revoke, leave the group, end; at most ``timeout`` seconds."""
        if self._closed:
            return
        if self._in_callback:
            raise ConcurrentUseError("close may not be called inside a rebalance callback")
        self._closed = True
        core, failure = self._core, None
        try:
            self._in_hand = []
            if core is not None and self._handover is not None:
                with kafka_exceptions():
                    failure = await self._handover.give_up_all()
        finally:
            # Whatever is cancelled from here on, nothing stays behind.
            await asyncio.shield(asyncio.ensure_future(self._end(None if timeout is None else timeout * 1000)))
        if failure is not None:
            with kafka_exceptions():
                raise failure

    async def _end(self, timeout_ms: float | None) -> None:
        try:
            if self._core is not None:
                await self._core.close(timeout_ms)
                await shared_clusters().release(self._settings.client)
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._data.handle.close)
            self._thread.shutdown(wait=False)

    # -- subscription -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics; one that starts with ``^`` is a pattern.  Replaces the former subscription."""
        with kafka_exceptions():
            core = self._start()
            if isinstance(topics, str):
                raise TypeError(f"subscribe takes a list of topics, not the text {topics!r}")
            if any(topic.startswith("^") for topic in topics):
                core.subscribe_pattern(librdkafka_pattern(topics))
            else:
                core.subscribe(topics)
            self._hand.callbacks = Callbacks(on_assign, on_revoke, on_lost)
            self._commit_due = now() + self._settings.coordinator.auto_commit_interval_ms / 1000

    async def unsubscribe(self) -> None:
        """Commit what is finished, give everything up, and leave the group."""
        with kafka_exceptions():
            self._in_hand = []
            failure = await self._hand.give_up_all()
            await self._start().unsubscribe()
            if failure is not None:
                raise failure

    # -- messages -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after ``timeout`` seconds (None or negative: wait for ever)."""
        messages = await self._take(1, timeout)
        return messages[0] if messages else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """At least one and at most ``num_messages`` messages, or none after ``timeout`` seconds (negative: for ever)."""
        return await self._take(num_messages, timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, however long it takes; a message with an error is raised as KafkaException."""
        while not self._closed:
            message = await self.poll()
            if message is not None:
                if message.error() is not None:
                    raise message_failure(message, self._settings.librdkafka)
                return message
        raise StopAsyncIteration

    async def _take(self, most: int, timeout: float | None) -> list[Message]:
        with kafka_exceptions():
            core = self._start()
            if self._in_callback or self._busy:
                raise ConcurrentUseError(
                    "one task at a time waits for messages, and none inside a rebalance callback: share messages by a queue"
                )
            self._busy = True
            try:
                self._in_hand = []
                began = now()
                deadline = None if timeout is None or timeout < 0 else Deadline.after(timeout * 1000)
                while True:
                    core.polls += 1
                    if core.attention or self._auto_commit_is_due():
                        await self._attend(core)
                    if self._buffer or not await self._fetch(core, max(most, _BATCH), deadline):
                        core.poll_times.looked(began, 0)
                        return self._hand_out(most)
            finally:
                self._busy = False

    def _hand_out(self, most: int) -> list[Message]:
        self._in_hand = [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]
        return list(self._in_hand)

    async def _fetch(self, core: ConsumerCoordinator, most: int, deadline: Deadline | None) -> bool:
        """Wait for messages, one slice; False when the time is up.  What a cancelled call waited for is not lost."""
        if self._fetching is None:
            left_s = _SLICE_S if deadline is None else min(_SLICE_S, deadline.remaining_ms / 1000)
            slice_s = min(left_s, _REBALANCING_SLICE_S) if core.rebalancing or self._hand.pending else left_s
            self._fetching = asyncio.ensure_future(self._on_thread(lambda: self._consume(most, slice_s)))
        await asyncio.wait({self._fetching})
        fetched, self._fetching = self._fetching, None
        self._buffer.extend(fetched.result())
        return bool(self._buffer) or deadline is None or not deadline.passed

    def _consume(self, most: int, slice_s: float) -> list[Message]:
        # consume() would wait for the whole slice unless all of `most` came: wait for one, then take what is there.
        first = self._data.handle.poll(slice_s)
        if first is None:
            return []
        return [first, *self._data.handle.consume(most - 1, 0)] if most > 1 else [first]

    async def _on_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _attend(self, core: ConsumerCoordinator) -> None:
        """The rare path: whatever came up since the last call."""
        core.polled()
        if self._auto_commit_is_due():
            await self._auto_commit(core)
        change = core.assignment.change()
        failure = None
        if change:
            await self._settle_fetch()
            failure = await self._hand.carry_out(change)
        await self._hand.start_pending()
        if failure is not None:
            raise failure

    async def _settle_fetch(self) -> None:
        """A fetch of a cancelled call may still run: what it brings belongs to the former assignment."""
        if self._fetching is not None:
            await asyncio.wait({self._fetching})
            fetched, self._fetching = self._fetching, None
            self._buffer.extend(fetched.result())

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self, message: Message | None = None, offsets: Rows | None = None, timeout: float | None = None
    ) -> Rows:
        """Commit a message's offset + 1, given offsets, or everything handed out so far; rows tell each ``error``.

        Raises when nothing could be committed at all.
        """
        with kafka_exceptions():
            core = self._start()
            if message is not None and offsets is not None:
                raise ValueError("message and offsets are mutually exclusive")
            if message is not None:
                wanted = {partition_of_message(message): after(message)}
            elif offsets is not None:
                wanted = {partition_of(row): position_of(row) for row in offsets if row.offset >= 0}
            else:
                wanted = await self._finished(in_hand_too=True)
                if not wanted:
                    raise commits.nothing_to_commit()
            result = await core.commit(wanted, timeout_ms=None if timeout is None else timeout * 1000)
            failures = [error for error in result.values() if error is not None]
            if failures and len(failures) == len(result):
                raise failures[0]
            return commits.to_rows(wanted, result)

    async def committed(self, partitions: Rows, timeout: float | None = None) -> Rows:
        """The group's committed offsets, ``OFFSET_INVALID`` where there are none."""
        with kafka_exceptions():
            wanted = [partition_of(row) for row in partitions]
            found = await self._start().committed(wanted, None if timeout is None else timeout * 1000)
            return [native(partition, at) if at is not None else native(partition) for partition, at in found.items()]

    async def _finished(self, *, in_hand_too: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions of what was handed out, up to what still waits here."""
        held = frozenset(self._data.assigned)
        positions = await self._on_thread(lambda: self._data.positions(held))
        waiting = list(self._buffer) if in_hand_too else [*self._in_hand, *self._buffer]
        for message in reversed(waiting):
            partition = partition_of_message(message)
            if message.error() is None and partition in positions:
                positions[partition] = OffsetAndMetadata(after(message).offset - 1, positions[partition].leader_epoch)
        return positions

    def _auto_commit_is_due(self) -> bool:
        return self._settings.coordinator.enable_auto_commit and self._commit_due <= now()

    async def _auto_commit(self, core: ConsumerCoordinator) -> None:
        self._commit_due = now() + self._settings.coordinator.auto_commit_interval_ms / 1000
        if self._committing is not None and not self._committing.done():
            return
        finished = await self._finished()
        wanted = {partition: at for partition, at in finished.items() if self._committed.get(partition) != at}
        if wanted:
            limit_ms = self._settings.coordinator.default_api_timeout_ms
            self._committing = core.offsets.start_commit(wanted, timeout_ms=limit_ms)
            self._committing.add_done_callback(lambda done: self._auto_committed(done, wanted))

    def _auto_committed(self, done: asyncio.Future[Any], wanted: Positions) -> None:
        if done.cancelled():
            return
        error = done.exception()
        result = dict.fromkeys(wanted, error) if error is not None else done.result()
        failed = {partition: why for partition, why in result.items() if why is not None}
        self._committed.update({partition: at for partition, at in wanted.items() if partition not in failed})
        if failed:
            logger.warning("automatic commit of %s failed: %s", listed(failed), next(iter(failed.values())))

    async def position(self, partitions: Rows) -> Rows:
        """Behind the last message handed out, ``OFFSET_INVALID`` before the first."""
        finished = await self._finished(in_hand_too=True)
        wanted = [partition_of(row) for row in partitions]
        return [native(partition, finished.get(partition, OffsetAndMetadata(OFFSET_INVALID))) for partition in wanted]

    async def seek(self, partition: confluent_kafka.TopicPartition) -> None:
        """Go on at another offset of an assigned partition; inside on_assign, begin there."""
        with kafka_exceptions():
            wanted = partition_of(partition)
            if wanted in self._hand.pending:
                await self._hand.begin_at(wanted, position_of(partition), later=self._in_callback)
                return
            if wanted not in self._data.assigned:
                raise FatalError(f"seek: {wanted} is not assigned to this consumer")
            await self._settle_fetch()
            self._drop({wanted})
            await self._on_thread(lambda: self._data.handle.seek(partition))

    async def incremental_assign(self, partitions: Rows) -> None:
        """Inside on_assign: the offsets to start at."""
        with kafka_exceptions():
            if not self._in_callback:
                raise FatalError("incremental_assign belongs inside on_assign: the group assigns partitions")
            self._hand.choose({partition_of(row): position_of(row) for row in partitions if row.offset != OFFSET_INVALID})

    async def pause(self, partitions: Rows) -> None:
        """Hand out nothing of these partitions until :meth:`resume`, what was fetched ahead included."""
        with kafka_exceptions():
            wanted = self._must_hold(partitions, "pause")
            await self._settle_fetch()
            # What is fetched ahead comes again after the resume.
            first = {tp: at for tp, at in (await self._finished(in_hand_too=True)).items() if tp in wanted}
            kept = {partition_of_message(message) for message in self._buffer}
            await self._on_thread(lambda: self._data.pause(wanted))
            for partition in wanted & kept:
                self._drop({partition})
                again = native(partition, first[partition])
                await self._on_thread(functools.partial(self._data.handle.seek, again))

    async def resume(self, partitions: Rows) -> None:
        """Hand out messages of these partitions again."""
        with kafka_exceptions():
            wanted = self._must_hold(partitions, "resume")
            await self._on_thread(lambda: self._data.resume(wanted))

    def _must_hold(self, rows: Rows, what: str) -> set[TopicPartition]:
        wanted = {partition_of(row) for row in rows}
        foreign = wanted - self._data.assigned - self._hand.pending
        if foreign:
            raise FatalError(f"{what}: {listed(foreign)} are not assigned to this consumer")
        return wanted

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._buffer = deque(message for message in self._buffer if partition_of_message(message) not in gone)
        self._in_hand = [message for message in self._in_hand if partition_of_message(message) not in gone]

    # -- what it is ---------------------------------------------------------------------------------------------------

    def assignment(self) -> Rows:
        """What this consumer holds now."""
        return [native(partition) for partition in sorted(self._start().assignment.held)]

    def memberid(self) -> str:
        """The member id that the coordinator gave, empty before."""
        return self._start().member_id

    def generation(self) -> int:
        """The group's generation as of the last join, -1 outside the group."""
        return self._start().generation

    def metrics(self) -> Mapping[str, float]:
        """The coordinator's counters and timings under the Java client's names."""
        return self._start().metrics()

    async def consumer_group_metadata(self) -> Any:
        """For ``Producer.send_offsets_to_transaction``; see :class:`~consumer_coord.consumer.GroupConsumer`."""
        with kafka_exceptions():
            core = self._start()
            return group_metadata.encode(core.group_id, await core.hold_joins(), core.group_instance_id)

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance (KIP-568)."""
        with kafka_exceptions():
            self._start().enforce_rebalance(reason)


class _Holder:
    """What ``handover.py`` asks of the one who holds partitions."""

    def __init__(self, consumer: AsyncGroupConsumer) -> None:
        self._consumer = consumer

    async def call(self, callback: Callback, partitions: Partitions) -> None:
        consumer = self._consumer
        consumer._in_callback = True
        try:
            returned = callback(consumer, [native(partition) for partition in sorted(partitions)])
            if inspect.isawaitable(returned):
                await _awaited(returned)
        finally:
            consumer._in_callback = False

    async def before_revoke(self, partitions: Partitions) -> None:
        consumer = self._consumer
        if not consumer._settings.coordinator.enable_auto_commit:
            return
        finished = {tp: at for tp, at in (await consumer._finished()).items() if tp in partitions}
        for partition in finished:
            consumer._committed.pop(partition, None)
        if not finished:
            return
        core = consumer._core
        assert core is not None
        try:
            result = await core.commit(finished, timeout_ms=consumer._settings.coordinator.rebalance_timeout_ms)
        except CoordinatorError as error:
            result = dict.fromkeys(finished, error)
        commits.warn_of_failed(result)

    async def start(self, positions: Positions) -> None:
        await self._consumer._on_thread(lambda: self._consumer._data.start(positions))

    async def stop(self, partitions: Partitions) -> None:
        await self._consumer._on_thread(lambda: self._consumer._data.stop(partitions))
        self._consumer._drop(partitions)

    def look_up(self, partitions: Partitions) -> LookUp:
        consumer = self._consumer
        core = consumer._start()
        limit_ms = consumer._settings.coordinator.default_api_timeout_ms
        return asyncio.ensure_future(
            starting_positions(core, partitions, consumer._settings.auto_offset_reset, limit_ms)
        )


async def _awaited(value: Awaitable[object]) -> None:
    await value
