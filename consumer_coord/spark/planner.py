"""Record which offsets a query has planned, has finished and may commit. This module uses no I/O and no clock.

Two rules make commits safe. First, a range is committed only when Spark reports that its batch is finished *and* the query has
owned the partition without interruption since planning (the same ownership number). Second, only planning changes a position:
successive batches read a partition without gap or overlap, so every offset is in exactly one batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.start_offsets import History
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class Holding:
    """An owned partition: the start of the next batch, and the group's commit.

    ``confirmed``: the end of the last finished batch that was planned since the query became the owner.
    """

    topic_id: uuid.UUID
    ownership: int
    position: int
    committed: int
    confirmed: int = -1


@attrs.frozen
class Limits:
    """Limits of a batch in records; None means no limit. ``max_delay_ms`` limits the wait for ``min_offsets``."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0


@attrs.frozen
class PlannedCommit:
    """An offset to commit, with the ownership number and the topic id at planning."""

    offset: int
    ownership: int
    topic_id: uuid.UUID


@attrs.frozen
class _Batch:
    before: Offsets
    end: Offsets
    ownerships: Mapping[TopicPartition, int]


class Planner:
    """The owned partitions, plans and finished ranges of one query."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._held: dict[TopicPartition, Holding] = {}
        self._batch: _Batch | None = None
        self._history = History()
        self._last_batch_ms: float | None = None
        self._turn = 0

    @property
    def held(self) -> Mapping[TopicPartition, Holding]:
        """Return the partitions that the query owns now."""
        return self._held

    @property
    def unfinished(self) -> Offsets | None:
        """Return the end of the last planned batch; None if Spark has reported this batch as finished."""
        return None if self._batch is None else self._batch.end

    # -- finishing --------------------------------------------------------------------------------------------------

    def confirm(self, finished: Offsets) -> None:
        """Record that Spark has finished everything up to ``finished``; :meth:`uncommitted` then returns the offsets to commit.

        A repeated call has no effect.
        """
        batch, self._batch = self._batch, None
        if batch is not None and finished != batch.end:
            # Spark did not run the planned batch, so plan its offsets again instead of skipping them.
            self._roll_back(batch)
            batch = None
        self._history = self._history.with_finished(finished)
        for partition, span in finished.spans():
            holding = self._still_held(batch, partition)
            if holding is not None:
                self._held[partition] = attrs.evolve(holding, confirmed=span.end)

    def _roll_back(self, batch: _Batch) -> None:
        for partition, span in batch.end.spans():
            holding = self._still_held(batch, partition)
            if holding is not None:
                self._held[partition] = attrs.evolve(holding, position=span.start)

    def _still_held(self, batch: _Batch | None, partition: TopicPartition) -> Holding | None:
        """Return the partition's holding if the query has owned it since ``batch`` was planned, and the topic is unchanged."""
        holding = self._held.get(partition)
        if batch is None or holding is None or holding.ownership != batch.ownerships.get(partition):
            return None
        return holding if holding.topic_id == batch.end.topics[partition.topic].id else None

    def committed(self, partition: TopicPartition, commit: PlannedCommit) -> None:
        """Record that the group's coordinator has accepted ``commit``."""
        holding = self._held.get(partition)
        if holding is None or (holding.ownership, holding.topic_id) != (commit.ownership, commit.topic_id):
            return
        if commit.offset > holding.committed:
            self._held[partition] = attrs.evolve(holding, committed=commit.offset)

    def uncommitted(self) -> Mapping[TopicPartition, PlannedCommit]:
        """Return the offsets to commit: finished, owned without interruption since planning, and above the group's commit."""
        return {
            partition: PlannedCommit(holding.confirmed, holding.ownership, holding.topic_id)
            for partition, holding in self._held.items()
            if holding.confirmed > holding.committed
        }

    # -- owning -----------------------------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """Return the :class:`History`: facts from the checkpoint, and from the query since its start."""
        return self._history

    def cut(self, partition: TopicPartition, planned: int, end: int) -> None:
        """Record that a log ends at ``end``, before ``planned``, the planned end of a batch that is read again."""
        self._history = attrs.evolve(self._history, cuts={**self._history.cuts, partition: (planned, end)})

    def forget(self, topic: str) -> None:
        """Forget the finished offsets of a topic that was deleted and created again."""
        self._history = self._history.without(topic)

    def take_up(self, partition: TopicPartition, holding: Holding) -> None:
        """Add a partition that the query now owns."""
        self._held[partition] = holding

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that were revoked or lost."""
        for partition in partitions:
            self._held.pop(partition, None)

    def move(self, partition: TopicPartition, position: int) -> None:
        """Change the partition's position after a loss of data."""
        self._held[partition] = attrs.evolve(self._held[partition], position=position)

    # -- planning ---------------------------------------------------------------------------------------------------

    def plan(
        self,
        start: Offsets,
        latest: Mapping[TopicPartition, int],
        limits: Limits,
        *,
        cluster: str,
        generation: int,
        now_ms: float,
    ) -> Offsets | None:
        """Return the end of the next batch, or None if there is not enough data and the partitions have not changed.

        Also return None while two owned partitions belong to different topics of the same name, because a batch has one id for
        each name.

        ``latest``: partition -> the offset up to which the batch may read. Other partitions have no data.
        """
        if len({(partition.topic, holding.topic_id) for partition, holding in self._held.items()}) > len(
            {partition.topic for partition in self._held}
        ):
            return None
        ready = {
            partition: max(0, latest.get(partition, holding.position) - holding.position)
            for partition, holding in sorted(self._held.items())
        }
        takes = self._admit(ready, limits, now_ms)
        if not any(takes.values()) and self._is_final(start):
            return None
        topics: dict[str, dict[int, Span]] = {}
        for partition in ready:
            holding = self._held[partition]
            until = holding.position + takes[partition]
            topics.setdefault(partition.topic, {})[partition.partition] = Span(holding.position, until, generation)
        end = Offsets(
            self._group,
            cluster,
            {topic: TopicSpans(self._topic_id(topic), spans) for topic, spans in topics.items()},
        )
        self._batch = _Batch(start, end, {partition: holding.ownership for partition, holding in self._held.items()})
        for partition, span in end.spans():
            self._held[partition] = attrs.evolve(self._held[partition], position=span.end)
        if any(takes.values()):
            self._last_batch_ms = now_ms
        return end

    def _topic_id(self, topic: str) -> uuid.UUID:
        return next(holding.topic_id for partition, holding in self._held.items() if partition.topic == topic)

    def _is_final(self, start: Offsets) -> bool:
        """Return whether a batch would add nothing: the partitions are unchanged, and no position is ahead of the commit.

        After a restart a position may be ahead of the group's commit. A batch of the former membership has read the records in
        between. So the next batch contains the position without data, and the query commits the position after that batch.
        """
        if any(holding.committed < holding.position != holding.confirmed for holding in self._held.values()):
            return False
        before = {partition: (start.topics[partition.topic].id, span.end) for partition, span in start.spans()}
        return before == {partition: (holding.topic_id, holding.position) for partition, holding in self._held.items()}

    def _admit(self, ready: Mapping[TopicPartition, int], limits: Limits, now_ms: float) -> Mapping[TopicPartition, int]:
        total = sum(ready.values())
        waited_ms = None if self._last_batch_ms is None else now_ms - self._last_batch_ms
        if (
            limits.min_offsets is not None
            and total < limits.min_offsets
            and waited_ms is not None
            and waited_ms < limits.max_delay_ms
        ):
            return dict.fromkeys(ready, 0)
        if limits.max_offsets is None or total <= limits.max_offsets:
            return ready
        takes = {partition: limits.max_offsets * size // total for partition, size in ready.items()}
        left = limits.max_offsets - sum(takes.values())
        # Rounding leaves some records undistributed. Distribute these records in turn, so that a small partition next to a
        # large partition makes progress.
        waiting = [partition for partition, size in ready.items() if size > takes[partition]]
        for step in range(left):
            takes[waiting[(self._turn + step) % len(waiting)]] += 1
        self._turn += left
        return takes
