"""What ``consumer.track_records`` returns: the reading half of ``consumer/record_tracker.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.engine import Engine
from consumer_coord.errors import IllegalStateError
from consumer_coord.group.subscription import TopicSubscription
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.topic_ids import topic_ids
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

#: How long a topic may take to be known by all brokers, in milliseconds, and the time between two looks, in seconds.
_TOPICS_MS: Final = 3_000.0
_AGAIN_S: Final = 0.2


@attrs.frozen
class TrackedReading:
    """One uninterrupted pass through a partition's log; a new ownership, a seek and a reset begin another."""

    number: int
    #: Where it began; with the metadata of the group's commit, if it began there.
    start: OffsetAndMetadata
    #: Whether the group revokes the partition.
    releasing: bool


class Tracking:
    """The consumer of a :class:`RecordTracker`: what is read, and how to read it. ``consumer.track_records`` returns it.

    The coroutines run on the consumer's loop.
    """

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
        """Return about ``most`` messages, as soon as there are any; none after ``timeout_s`` seconds.

        ``only``: read only these partitions during this call. ``sink`` is called on the loop with the messages, before anything
        else can happen to them.
        """
        async with self._turn() as engine:
            engine.core.application.polls += 1
            ready = await engine.gather(1, most, timeout_s, only=only, tracked=True)
            # No await between the check and the sink, or the return of the caller: the records still belong to this member.
            messages = engine.take(len(engine.reader.ready)) if ready else []
            if sink is not None:
                sink(messages)
            return messages

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        """Return the readings of the partitions whose start is known; the same object until something changes."""
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
        """Whether the coordinator cannot have removed this member, so that its partitions have no other owner."""
        return not self._engine.suspended

    def look_again(self) -> None:
        """Ask :meth:`RecordTracker.may_release` again in the present or next call; callable from any thread."""
        self._engine.core.application.wake()

    async def commit(self, timeout_s: float) -> bool:
        """Commit what is finished, and wait for the response; return False if there was none in time. A failure is logged."""
        async with self._turn() as engine:
            return await engine.commit_tracked(timeout_s)

    async def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        """Return the offsets after the last records of these partitions; omit those whose leader does not respond in time."""
        return await self._engine.log_ends(partitions, timeout_s)

    def wall_clock_ms(self) -> int:
        """Return the time of the machine, in milliseconds since 1970."""
        return self._engine.core.cluster.environment.wall_clock_ms()

    async def read_also(self, topics_for: Callable[[Collection[str]], frozenset[str]]) -> None:
        """Also subscribe to the topics that ``topics_for`` returns for those of the application; :meth:`stop` ends that.

        ``topics_for`` gets no topics if the application has subscribed to none by its name. Raise
        :class:`~consumer_coord.errors.IllegalStateError` if a topic does not exist. An error ends the tracking.
        """
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

    async def stop(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """End the tracking, and continue to read these partitions at these positions, where they are still assigned."""
        async with self._turn() as engine:
            engine.track(None)
            if self._added:
                await engine.subscribe(self._subscription().topics, engine.callbacks)
            for partition, at in positions.items():
                if partition in engine.table:
                    await engine.seek(partition, at)


async def _must_exist(cluster: ClusterClient, topics: frozenset[str]) -> None:
    deadline = Deadline.after(_TOPICS_MS)
    # A broker may learn of a new topic a moment later than the one that created it.
    while missing := sorted(topics - (await topic_ids(cluster, topics, deadline.remaining_ms)).keys()):
        if deadline.remaining_ms <= 1000 * _AGAIN_S:
            raise IllegalStateError(f"process() also reads these topics, so create them first: {', '.join(missing)}")
        await asyncio.sleep(_AGAIN_S)


class BlockingTracking:
    """What :class:`Tracking` is for the consumer of threads: the same calls, which block."""

    def __init__(self, tracking: Tracking, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        """Run the coroutines of ``tracking`` with ``run``, which takes the consumer's turn."""
        self._tracking = tracking
        self._run = run

    def take(
        self, most: int, timeout_s: float, only: frozenset[TopicPartition] | None, sink: Callable[[list[Any]], object]
    ) -> None:
        """Pass messages to ``sink``, on the loop's thread; see :meth:`Tracking.take`."""
        self._run(lambda: self._tracking.take(most, timeout_s, only, sink=sink))

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        """See :meth:`Tracking.readings`; callable from any thread, but from one at a time."""
        return self._tracking.readings()

    @property
    def leased(self) -> bool:
        """See :attr:`Tracking.leased`; readable from any thread."""
        return self._tracking.leased

    def look_again(self) -> None:
        """See :meth:`Tracking.look_again`."""
        self._tracking.look_again()

    def wall_clock_ms(self) -> int:
        """See :meth:`Tracking.wall_clock_ms`; callable from any thread."""
        return self._tracking.wall_clock_ms()

    def read_also(self, topics_for: Callable[[Collection[str]], frozenset[str]]) -> None:
        """See :meth:`Tracking.read_also`."""
        self._run(lambda: self._tracking.read_also(topics_for))

    def commit(self, timeout_s: float) -> bool:
        """See :meth:`Tracking.commit`."""
        return bool(self._run(lambda: self._tracking.commit(timeout_s)))

    def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        """See :meth:`Tracking.log_ends`."""
        found: Mapping[TopicPartition, int] = self._run(lambda: self._tracking.log_ends(partitions, timeout_s))
        return found

    def stop(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """See :meth:`Tracking.stop`."""
        self._run(lambda: self._tracking.stop(positions))
