"""The positions that the application stores for later commits, with ``enable.auto.offset.store`` off."""

from __future__ import annotations

from collections.abc import Iterable

from consumer_coord import lazy_attrs as attrs
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition


@attrs.define(eq=False)
class _Stored:
    position: OffsetAndMetadata | None = None
    sealed: bool = False


class StoredPositions:
    """The stored position of each assigned partition.

    The positions may change with each record, so they are no part of the engine's immutable table. Any thread may call
    :meth:`put`. The engine, on its loop, seals a partition, and then reads the position for the partition's last commit: no
    commit would include a position that is stored later.
    """

    def __init__(self) -> None:
        self._stored: dict[TopicPartition, _Stored] = {}

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Accept positions of partitions, which have none yet; called before the partitions are in the engine's table."""
        for partition in partitions:
            self._stored[partition] = _Stored()

    def end(self, partition: TopicPartition) -> None:
        """Forget a partition that is no longer assigned."""
        self._stored.pop(partition, None)

    def put(self, partition: TopicPartition, at: OffsetAndMetadata) -> bool:
        """Store a position; return False if no later commit would include it."""
        stored = self._stored.get(partition)
        if stored is None or stored.sealed:
            return False
        stored.position = at
        # The engine may seal the partition between the two statements above: it sets ``sealed``, and then reads the position.
        # So if ``sealed`` is still false here, the engine reads this position or a later one.
        return not stored.sealed

    def seal(self, partitions: Iterable[TopicPartition]) -> None:
        """Accept no further positions of these partitions."""
        for partition in partitions:
            self._stored[partition].sealed = True

    def sealed(self, partition: TopicPartition) -> bool:
        """Return whether no further positions are accepted."""
        return self._stored[partition].sealed

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Return the position that was stored last; None before the first, and if the partition is not assigned."""
        stored = self._stored.get(partition)
        return None if stored is None else stored.position
