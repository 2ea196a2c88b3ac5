"""The coordinator's view of the cluster's topics (``CoordinatorMetadataImage``), with hashes of topics (KIP-1101)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from consumer_coord.broker.consumer_group.member import Partitions
from consumer_coord.broker.consumer_group.xxh3 import xxh3_64
from consumer_coord.broker.topics import Partition, Topic, Topics

_MAGIC = b"\0"
_MASK = (1 << 64) - 1


class MetadataImage:
    """The current topics. ``rack_of`` returns a broker's rack, or None if the broker has no rack."""

    def __init__(self, topics: Topics, rack_of: Callable[[int], str | None] = lambda _: None) -> None:
        self.topics = topics
        self._rack_of = rack_of
        #: topic -> (the input of its hash, the hash)
        self._hashes: dict[str, tuple[tuple[uuid.UUID, Sequence[tuple[int, ...]]], int]] = {}

    def changed_since(self, version: int, names: Iterable[str]) -> bool:
        """Return whether any of these topics was created, changed or deleted after ``version`` of the metadata."""
        return any(self.topics.changed_in(name) > version for name in names)

    def topic_id(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic; None if the topic does not exist."""
        topic = self.topics.by_name.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic; None if the topic does not exist."""
        topic = self.topics.by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_ids(self, names: Iterable[str]) -> Mapping[uuid.UUID, str]:
        """Return topic id -> name for those of these topics that exist, sorted by name."""
        return {topic_id: name for name in sorted(names) if (topic_id := self.topic_id(name)) is not None}

    def by_id(self, partitions: Mapping[str, Iterable[int]]) -> Partitions:
        """Return the partitions of the topics that exist, by the ids of the topics."""
        ids = ((self.topic_id(name), numbers) for name, numbers in partitions.items())
        return {topic_id: frozenset(numbers) for topic_id, numbers in ids if topic_id is not None}

    def partitions(self, topic_id: uuid.UUID) -> Sequence[Partition]:
        """Return the partitions of a topic; empty if the topic does not exist."""
        topic = self.topics.by_id.get(topic_id)
        return () if topic is None else topic.partitions

    def racks(self, topic_id: uuid.UUID) -> Sequence[frozenset[str]]:
        """Return for each partition the racks of its replicas; empty if no broker has a rack."""
        racks = [frozenset(self._racks(partition.replicas)) for partition in self.partitions(topic_id)]
        return racks if any(racks) else ()

    def group_hash(self, names: Iterable[str]) -> int:
        """Return the hash of a group's topics; 0 if it has no topics (``Utils.computeGroupHash``)."""
        hashes = [
            self._topic_hash(topic)
            for name in sorted(names, key=_java_order)
            if (topic := self.topics.by_name.get(name)) is not None
        ]
        return xxh3_64(struct.pack(f"<{len(hashes)}q", *hashes)) if hashes else 0

    def _topic_hash(self, topic: Topic) -> int:
        made_of = (topic.topic_id, [partition.replicas for partition in topic.partitions])
        kept = self._hashes.get(topic.name)
        if kept is not None and kept[0] == made_of:
            return kept[1]
        number = topic.topic_id.int
        parts = [_MAGIC, struct.pack("<QQ", number >> 64, number & _MASK), _characters(topic.name)]
        parts.append(struct.pack("<i", len(topic.name)))
        parts.append(struct.pack("<i", len(topic.partitions)))
        for index, partition in enumerate(topic.partitions):
            parts.append(struct.pack("<i", index))
            for rack in sorted(self._racks(partition.replicas), key=_java_order):
                length = len(_characters(rack)) // 2
                parts += [struct.pack("<i", length), _characters(rack), struct.pack("<i", length)]
        value = xxh3_64(b"".join(parts))
        self._hashes[topic.name] = (made_of, value)
        return value

    def _racks(self, replicas: Iterable[int]) -> list[str]:
        return [rack for broker in replicas if (rack := self._rack_of(broker)) is not None]


def _characters(text: str) -> bytes:
    """Encode the characters as in ``HashStream64.putString``. The caller writes their length afterwards, as Java does."""
    return text.encode("utf-16-le", "surrogatepass")


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
