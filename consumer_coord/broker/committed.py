"""The committed offsets of one group, including those of open transactions (``OffsetMetadataManager.Offsets``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from consumer_coord.wire.offsets_topic import OffsetCommitValue


@attrs.frozen
class StoredOffset:
    """A committed offset, with the offset of the commit's record in ``__consumer_offsets``."""

    value: OffsetCommitValue
    record_offset: int


#: Topic -> partition -> offset.
_ByPartition = dict[str, dict[int, StoredOffset]]


class GroupOffsets:
    """A group's committed offsets, and for each open transaction the offsets that it will commit."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: _ByPartition = {}
        self._pending: dict[int, _ByPartition] = {}

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    def get(self, topic: str, partition: int) -> StoredOffset | None:
        """Return the committed offset of one partition; None if no offset is committed."""
        return self._committed.get(topic, {}).get(partition)

    def topics(self) -> Iterator[tuple[str, dict[int, StoredOffset]]]:
        """Iterate over all committed offsets by topic; the caller must not change the group during the iteration."""
        return iter(self._committed.items())

    def put(self, topic: str, partition: int, offset: StoredOffset, producer_id: int = -1) -> None:
        """Store a commit, unless a later commit is in the log.

        With a ``producer_id``, the commit is part of a transaction, and becomes effective when the transaction commits.
        """
        by_topic = self._committed if producer_id == -1 else self._pending.setdefault(producer_id, {})
        partitions = by_topic.setdefault(topic, {})
        present = partitions.get(partition)
        if present is None or present.record_offset < offset.record_offset:
            partitions[partition] = offset

    def moved(self, placed: Iterable[tuple[str, int, int]], base_offset: int) -> None:
        """Update the ``record_offset`` of commits that were appended again: (topic, partition, index in the new batch)."""
        for topic, partition, place in placed:
            offset = self._committed[topic][partition]
            self._committed[topic][partition] = attrs.evolve(offset, record_offset=base_offset + place)

    def remove(self, topic: str, partition: int) -> None:
        """Apply a tombstone: remove the partition's committed offset, and its offsets in open transactions."""
        _remove(self._committed, topic, partition)
        for producer_id in list(self._pending):
            _remove(self._pending[producer_id], topic, partition)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """End a transaction. If a partition has two commits, transactional or not, the later commit in the log wins."""
        pending = self._pending.pop(producer_id, {})
        if not committed:
            return
        for topic, partitions in pending.items():
            for partition, offset in partitions.items():
                self.put(topic, partition, offset)

    @property
    def open_transactions(self) -> tuple[int, ...]:
        """The producer ids of open transactions with offsets of this group."""
        return tuple(self._pending)

    def has_pending(self, topic: str, partition: int) -> bool:
        """Return whether an open transaction has an offset for this partition."""
        return any(partition in pending.get(topic, ()) for pending in self._pending.values())

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Iterate once over each partition that has an offset, either committed or in an open transaction."""
        seen: dict[tuple[str, int], None] = {}
        for by_topic in (self._committed, *self._pending.values()):
            for topic, partitions in by_topic.items():
                seen.update(dict.fromkeys((topic, partition) for partition in partitions))
        return iter(seen)


def _remove(by_topic: _ByPartition, topic: str, partition: int) -> None:
    partitions = by_topic.get(topic)
    if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
        del by_topic[topic]
