"""Partitions, as the core names them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _TopicAndPartition(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_TopicAndPartition):
    """One partition of one topic, with an optional offset for calls that need one, such as ``seek``.

    Equality, hash and order are those of ``(topic, partition)``, as with ``confluent_kafka.TopicPartition``.
    """

    #: The offset, or None.
    offset: int | None = None

    def __new__(cls, topic: str, partition: int, offset: int | None = None) -> Self:
        """Create a partition; ``offset`` is a position in its log."""
        made = tuple.__new__(cls, (topic, partition))
        if offset is not None:
            made.offset = offset
        return made

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def flatten(by_topic: Mapping[str, Iterable[int]]) -> frozenset[TopicPartition]:
    """Return a set of partitions for topic -> partition numbers."""
    return frozenset(TopicPartition(topic, number) for topic, numbers in by_topic.items() for number in numbers)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return first element -> second elements, both in the order of ``pairs``."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, Sequence[int]]:
    """Return topic -> sorted partition numbers, with the topics in alphabetical order."""
    return grouped(sorted(partitions))


def listed(partitions: Iterable[TopicPartition], most: int = 10) -> str:
    """Return a text for messages: the first partitions in order, and the number of the other partitions."""
    rows = list(partitions)
    shown = ", ".join(map(str, heapq.nsmallest(most, rows)))
    return shown + (f" and {len(rows) - most} more" if len(rows) > most else "") or "none"
