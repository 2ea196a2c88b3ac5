"""What ``consumer.track_records`` returns: the reading half of ``record_tracker.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from consumer_coord.consumer.cluster_queries import log_ends
from consumer_coord.consumer.engine import Engine
from consumer_coord.errors import IllegalStateError
from consumer_coord.group.subscription import TopicSubscription
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.topic_ids import topic_ids
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.record_tracker import TrackedReading
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

#: How long a topic may take to be known by all brokers, in milliseconds, and the time between two looks, in seconds.
_TOPICS_MS: Final = 3_000.0
_AGAIN_S: Final = 0.2


class MemberTracking:
    """See :class:`~consumer_coord.record_tracker.Tracking`, also for the methods."""

    def __init__(
        self,
        engine: Engine,
        turn: Callable[[], AbstractAsyncContextManager[Engine]],
        subscription: Callable[[], TopicSubscription],
    ) -> None:
        """Keep the engine; ``turn`` returns a context in which the caller may use it, ``subscription`` the application's."""
        self._engine = engine
        self._turn = turn
        self._subscription = subscription
        #: Whether :meth:`read_also` has added topics.
        self._added = False
        self._table: object = None
        self._readings: Mapping[TopicPartition, TrackedReading] = {}

    async def take(
        self,
        most: int,
        timeout_s: float,
        only: frozenset[TopicPartition] | None = None,
        *,
        sink: Callable[[list[Any]], object] | None = None,
    ) -> list[Any]:
        async with self._turn() as engine:
            engine.core.application.polls += 1
            ready = await engine.gather(1, most, timeout_s, only=only, tracked=True)
            # No await between the check and the sink, or the return of the caller: the records still belong to this member.
            messages = engine.take(len(engine.reader.ready)) if ready else []
            if sink is not None:
                sink(messages)
            return messages

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        table = self._engine.table
        if table is not self._table:
            found = {
                partition: TrackedReading(
                    number=one.serial,
                    start=one.start,
                    releasing=one.releasing,
                )
                for partition, one in table.items()
                if one.start is not None and one.read_or_releasing
            }
            self._table = table
            if found != self._readings:
                self._readings = found
        return self._readings

    @property
    def leased(self) -> bool:
        return not self._engine.suspended

    def look_again(self) -> None:
        self._engine.core.application.wake()

    async def commit(self, timeout_s: float) -> bool:
        async with self._turn() as engine:
            return await engine.commit_tracked(timeout_s)

    async def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        return await log_ends(self._engine, partitions, timeout_s)

    def wall_clock_ms(self) -> int:
        return self._engine.core.cluster.environment.wall_clock_ms()

    async def read_also(self, topics_for: Callable[[Collection[str]], frozenset[str]]) -> None:
        async with self._turn() as engine:
            try:
                subscribed = self._subscription().topics
                if topics := topics_for(subscribed):
                    await _must_exist(engine.core.cluster, topics)
                    await engine.subscribe({*subscribed, *topics}, engine.callbacks)
                    self._added = True
            except BaseException:
                engine.track(None)
                raise

    async def stop(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        async with self._turn() as engine:
            engine.track(None)
            if self._added:
                await engine.subscribe(self._subscription().topics, engine.callbacks)
            for partition, (number, at) in positions.items():
                reading = engine.table.get(partition)
                if reading is not None and reading.serial == number:
                    await engine.seek(partition, at)


async def _must_exist(cluster: ClusterClient, topics: frozenset[str]) -> None:
    deadline = Deadline.after(_TOPICS_MS)
    # A broker may learn of a new topic a moment later than the one that created it.
    while missing := sorted(topics - (await topic_ids(cluster, topics, deadline.remaining_ms)).keys()):
        if deadline.remaining_ms <= 1000 * _AGAIN_S:
            raise IllegalStateError(f"process() also reads these topics, so create them first: {', '.join(missing)}")
        await asyncio.sleep(_AGAIN_S)


class BlockingMemberTracking:
    """See :class:`~consumer_coord.record_tracker.BlockingTracking`, also for the methods."""

    def __init__(self, tracking: MemberTracking, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        """Run the coroutines of ``tracking`` with ``run``, which takes the consumer's turn."""
        self._tracking = tracking
        self._run = run

    def take(
        self, most: int, timeout_s: float, only: frozenset[TopicPartition] | None, sink: Callable[[list[Any]], object]
    ) -> None:
        self._run(lambda: self._tracking.take(most, timeout_s, only, sink=sink))

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        return self._tracking.readings()

    @property
    def leased(self) -> bool:
        return self._tracking.leased

    def look_again(self) -> None:
        self._tracking.look_again()

    def wall_clock_ms(self) -> int:
        return self._tracking.wall_clock_ms()

    def read_also(self, topics_for: Callable[[Collection[str]], frozenset[str]]) -> None:
        self._run(lambda: self._tracking.read_also(topics_for))

    def commit(self, timeout_s: float) -> bool:
        return bool(self._run(lambda: self._tracking.commit(timeout_s)))

    def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        found: Mapping[TopicPartition, int] = self._run(lambda: self._tracking.log_ends(partitions, timeout_s))
        return found

    def stop(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        self._run(lambda: self._tracking.stop(positions))
