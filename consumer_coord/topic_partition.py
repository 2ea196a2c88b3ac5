"""Partitions as the core names them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def flatten(by_topic: Mapping[str, Iterable[int]]) -> frozenset[TopicPartition]:
    """topic -> partition numbers, as a set of partitions."""
    return frozenset(TopicPartition(topic, number) for topic, numbers in by_topic.items() for number in numbers)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, Sequence[int]]:
    """Partitions as topic -> sorted partition numbers, topics in order."""
    grouped: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        grouped.setdefault(partition.topic, []).append(partition.partition)
    return dict(grouped)


def listed(partitions: Iterable[TopicPartition], most: int = 10) -> str:
    """For messages: the first few, sorted, and how many more there are."""
    rows = list(partitions)
    shown = ", ".join(map(str, heapq.nsmallest(most, rows)))
    return shown + (f" and {len(rows) - most} more" if len(rows) > most else "") or "none"
