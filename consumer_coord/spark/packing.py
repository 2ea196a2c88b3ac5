"""Divide ranges of offsets into Spark tasks. Equal ranges and limits always give equal tasks, so a batch can be replayed.

Small ranges share a task, because each task costs tens of milliseconds. Large ranges are split, so that one partition does not
delay the others.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.topic_partition import TopicPartition

#: Number of records that justify a separate task, if there is a core for it.
TASK_WORTH = 50_000
#: Minimum number of records in each part of a range that is split to make tasks equally large.
SPLIT_WORTH = 100_000


#: The id of a topic whose id is unknown.
NO_TOPIC_ID = uuid.UUID(int=0)


@attrs.frozen(order=True)
class Range:
    """Offsets ``start`` (included) to ``end`` (not included) of one partition of the topic with ``topic_id`` (KIP-516).

    A task splitter may ignore the id.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: uuid.UUID = NO_TOPIC_ID

    @property
    def size(self) -> int:
        """Return the number of offsets, which is at least the number of records."""
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the partition of the range."""
        return TopicPartition(self.topic, self.partition)


Task: TypeAlias = tuple[Range, ...]


@attrs.frozen
class ReadSpec:
    """The data that every task of a query needs; Spark sends it to the executors once per query."""

    config: Mapping[str, Any] = attrs.field(repr=False)
    fail_on_data_loss: bool
    poll_timeout_ms: int


@attrs.frozen
class Packing:
    """The limits of a batch: the number of cores, and the options ``minPartitions`` and ``maxRecordsPerPartition``."""

    parallelism: int
    min_partitions: int | None = None
    max_records_per_partition: int | None = None


#: The type of a user's packing function.
TaskSplitter: TypeAlias = Callable[[Sequence[Range], Packing], Sequence[Task]]


def pack(ranges: Sequence[Range], packing: Packing) -> Sequence[Task]:
    """Divide ranges by the built-in rule into nearly equal tasks: at most one per core, unless ``packing`` requires more."""
    total = sum(each.size for each in ranges)
    if not total:
        return ()
    count = max(packing.min_partitions or 1, min(packing.parallelism, -(-total // TASK_WORTH)))
    most = packing.max_records_per_partition or total
    fair = -(-total // count)
    # With minPartitions, a range may be split into parts of any size, as in Spark's own source.
    piece = min(most, max(1, total // count) if packing.min_partitions else max(fair, SPLIT_WORTH))
    pieces = [part for each in ranges for part in split(each, piece)]
    pieces.sort(key=lambda part: (-part.size, part))
    bins: list[list[Range]] = []
    open_bins: list[tuple[int, int]] = []
    for part in pieces:
        if len(bins) < count or open_bins[0][0] + part.size > most:
            heapq.heappush(open_bins, (part.size, len(bins)))
            bins.append([part])
        else:
            size, index = open_bins[0]
            heapq.heapreplace(open_bins, (size + part.size, index))
            bins[index].append(part)
    return tuple(tuple(sorted(each)) for each in bins)


def split(whole: Range, most: int) -> Sequence[Range]:
    """Return equal parts of at most ``most`` offsets each, or nothing for an empty range."""
    count = -(-whole.size // most)
    cuts = [whole.start + whole.size * index // count for index in range(count)] + [whole.end] if count else []
    return [attrs.evolve(whole, start=start, end=end) for start, end in itertools.pairwise(cuts)]


def pack_with(task_splitter: TaskSplitter | None, ranges: Sequence[Range], packing: Packing) -> Sequence[Task]:
    """Call the user's packing function; return the tasks after a check that every offset is in exactly one task."""
    if task_splitter is None:
        return pack(ranges, packing)
    ids = {each.topic: each.topic_id for each in ranges}
    tasks = tuple(
        tuple(sorted(attrs.evolve(part, topic_id=ids.get(part.topic, NO_TOPIC_ID)) for part in task))
        for task in task_splitter(tuple(ranges), packing)
    )
    if _joined([part for task in tasks for part in task]) != _joined(ranges):
        raise ConfigurationError(
            f"taskSplitter={getattr(task_splitter, '__qualname__', task_splitter)!r} returned tasks that do not contain every"
            f" offset exactly once: given {list(ranges)}, returned {list(tasks)}"
        )
    return tuple(task for task in tasks if task)


def _joined(ranges: Sequence[Range]) -> list[Range]:
    joined: list[Range] = []
    for each in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and last.topic_partition == each.topic_partition and last.end == each.start:
            joined[-1] = attrs.evolve(last, end=each.end)
        elif each.size:
            joined.append(each)
    return joined
