"""What ``consumer.track_records`` returns: the reading half of ``consumer/record_tracker.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.engine import Engine
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class TrackedReading:
    """One uninterrupted pass through a partition's log; a new ownership, a seek and a reset begin another."""

    number: int
    start: OffsetAndMetadata
    #: Whether :attr:`start` is the group's commit, with its metadata.
    from_commit: bool
    #: Whether the group revokes the partition.
    releasing: bool


class Tracking:
    """The consumer of a :class:`RecordTracker`: what is read, and how to read it. ``consumer.track_records`` returns it.

    The coroutines run on the consumer's loop.
    """

    def __init__(self, engine: Engine, turn: Callable[[], AbstractAsyncContextManager[Engine]]) -> None:
        """Keep the engine; ``turn`` returns a context in which the caller may use it."""
        self._engine = engine
        self._turn = turn
        self._table: object = None
        self._readings: Mapping[TopicPartition, TrackedReading] = {}

    async def take(self, most: int, timeout_s: float, only: frozenset[TopicPartition] | None = None) -> list[Any]:
        """Return about ``most`` messages, as soon as there are any; none after ``timeout_s`` seconds.

        ``only``: read only these partitions during this call.
        """
        async with self._turn() as engine:
            engine.core.application.polls += 1
            if not await engine.gather(1, most, timeout_s, only=only, tracked=True):
                return []
            # No await between the check and the return of the caller, so the records still belong to this member.
            return engine.take(len(engine.worker.ready))

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        """Return the readings of the partitions whose start is known; the same object until something changes."""
        table = self._engine.table
        if table is not self._table:
            found = {
                partition: TrackedReading(
                    number=one.serial,
                    start=one.start,
                    from_commit=one.starts_at_commit,
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

    def commit_soon(self) -> None:
        """Commit in the present or next call, without waiting for ``auto.commit.interval.ms``; callable on the loop."""
        self._engine.auto.hurry()

    async def commit(self, timeout_s: float) -> bool:
        """Commit what is finished, and wait for the response; return False if there was none in time. A failure is logged."""
        async with self._turn() as engine:
            return await engine.commit_tracked(timeout_s)

    async def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        """Return the offsets after the last records of these partitions; omit those whose leader does not respond in time."""
        return await self._engine.log_ends(partitions, timeout_s)

    async def stop(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """End the tracking, and continue to read these partitions at these positions, where they are still assigned."""
        async with self._turn() as engine:
            engine.track(None)
            for partition, at in positions.items():
                if partition in engine.table:
                    await engine.seek(partition, at)
