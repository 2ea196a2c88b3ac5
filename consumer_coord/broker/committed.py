"""The committed offsets of one group, including those of open transactions (``OffsetMetadataManager.Offsets``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import attrs

from consumer_coord.wire.schema import ZERO_UUID


@attrs.frozen
class OffsetAndMetadata:
    """A committed offset.

    ``record_offset`` is the offset of the commit's record in ``__consumer_offsets``, or -1 until the record is written.

    ``expire_timestamp_ms`` is set for clients that send a retention time (OffsetCommit v2 to v4), otherwise -1. ``topic_id`` is
    the zero UUID if unknown.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    record_offset: int = -1
    topic_id: uuid.UUID = ZERO_UUID


#: Topic -> partition -> offset.
_ByPartition = dict[str, dict[int, OffsetAndMetadata]]


class GroupOffsets:
    """A group's committed offsets, and for each open transaction the offsets that it will commit."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: _ByPartition = {}
        self._pending: dict[int, _ByPartition] = {}

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    def get(self, topic: str, partition: int) -> OffsetAndMetadata | None:
        """Return the committed offset of one partition; None if no offset is committed."""
        return self._committed.get(topic, {}).get(partition)

    def topics(self) -> Iterator[tuple[str, dict[int, OffsetAndMetadata]]]:
        """Iterate over all committed offsets by topic; the caller must not change the group during the iteration."""
        return iter(self._committed.items())

    def put(self, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        """Store a commit outside of a transaction."""
        self._committed.setdefault(topic, {})[partition] = offset

    def moved(self, placed: Iterable[tuple[str, int, int]], base_offset: int) -> None:
        """Update the ``record_offset`` of commits that were appended again: (topic, partition, index in the new batch)."""
        for topic, partition, place in placed:
            offset = self._committed[topic][partition]
            self._committed[topic][partition] = attrs.evolve(offset, record_offset=base_offset + place)

    def put_pending(self, producer_id: int, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        """Store an offset of a transaction. The offset becomes effective when the transaction commits."""
        self._pending.setdefault(producer_id, {}).setdefault(topic, {})[partition] = offset

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
                present = self.get(topic, partition)
                if present is None or offset.record_offset > present.record_offset:
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
