"""The committed offsets of one group, those of open transactions among them (``OffsetMetadataManager.Offsets``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import attrs

from consumer_coord.wire.schema import ZERO_UUID


@attrs.frozen
class OffsetAndMetadata:
    """One committed offset. ``record_offset`` is where it stands in ``__consumer_offsets``, -1 before it does.

    ``expire_timestamp_ms`` comes from clients that ask for a retention of their own (OffsetCommit v2 to v4), -1
    otherwise. ``topic_id`` is the zero UUID where it is not known.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    record_offset: int = -1
    topic_id: uuid.UUID = ZERO_UUID


#: topic -> partition -> offset
_ByPartition = dict[str, dict[int, OffsetAndMetadata]]


class GroupOffsets:
    """What a group committed: topic -> partition -> offset, and the same again for each open transaction."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: _ByPartition = {}
        self._pending: dict[int, _ByPartition] = {}

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    def get(self, topic: str, partition: int) -> OffsetAndMetadata | None:
        """The committed offset of one partition."""
        return self._committed.get(topic, {}).get(partition)

    def topics(self) -> Iterator[tuple[str, dict[int, OffsetAndMetadata]]]:
        """All committed offsets by topic; do not change the group while you iterate."""
        return iter(self._committed.items())

    def put(self, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        """A commit outside of a transaction."""
        self._committed.setdefault(topic, {})[partition] = offset

    def moved(self, placed: Iterable[tuple[str, int, int]], base_offset: int) -> None:
        """Offsets stand in the log once more now: (topic, partition, place behind ``base_offset``)."""
        for topic, partition, place in placed:
            offset = self._committed[topic][partition]
            self._committed[topic][partition] = attrs.evolve(offset, record_offset=base_offset + place)

    def put_pending(self, producer_id: int, topic: str, partition: int, offset: OffsetAndMetadata) -> None:
        """A commit within a transaction: it counts when the transaction does."""
        self._pending.setdefault(producer_id, {}).setdefault(topic, {})[partition] = offset

    def remove(self, topic: str, partition: int) -> None:
        """A tombstone: neither the committed offset nor one of an open transaction survives it."""
        _remove(self._committed, topic, partition)
        for producer_id in list(self._pending):
            _remove(self._pending[producer_id], topic, partition)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A transaction of ``producer_id`` ended. Of two commits the one later in the log stays, whatever its kind."""
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
        """Whether an open transaction has an offset for this partition."""
        return any(partition in pending.get(topic, ()) for pending in self._pending.values())

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Every partition with a committed offset or one in an open transaction, each once."""
        seen: dict[tuple[str, int], None] = {}
        for by_topic in (self._committed, *self._pending.values()):
            for topic, partitions in by_topic.items():
                seen.update(dict.fromkeys((topic, partition) for partition in partitions))
        return iter(seen)


def _remove(by_topic: _ByPartition, topic: str, partition: int) -> None:
    partitions = by_topic.get(topic)
    if partitions is not None and partitions.pop(partition, None) is not None and not partitions:
        del by_topic[topic]
