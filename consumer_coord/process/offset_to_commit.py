"""Which offset of a partition may be committed: the lowest unfinished one, and in the metadata what is finished above it.

A holding is one uninterrupted reading of a partition; ``work.py`` decides which of its records start.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from consumer_coord.finished_offsets_text import Ranges, capacity, encode
from consumer_coord.offsets import OffsetAndMetadata, before
from consumer_coord.topic_partition import TopicPartition

#: Records that come within this time are counted as one arrival, in seconds.
_SAME_S: Final = 1.0


class Holding:
    """The records of one partition, from the beginning of a reading to its end."""

    __slots__ = (
        "again",
        "arrivals",
        "asleep",
        "committed",
        "draining",
        "due",
        "ended",
        "finished",
        "full",
        "number",
        "partition",
        "pending",
        "position",
        "size",
        "unfinished",
    )

    def __init__(self, partition: TopicPartition, number: int, position: int, *, again: bool) -> None:
        self.partition: TopicPartition = partition
        #: Whether its records are retries, because it belongs to a retry topic.
        self.again: bool = again
        #: Its records (``work.Record``) that are not due yet, and its number in the heap until the first of them is.
        self.asleep: deque[Any] = deque()
        self.due: int = 0
        #: The group's commit, while it is not known which offsets its metadata names.
        self.committed: OffsetAndMetadata | None = None
        #: The serial number of the reading.
        self.number: int = number
        #: The offset after the last delivered record.
        self.position: int = position
        #: For :meth:`age_s`, one entry a second: (offset after the records of that second, when the first of them arrived).
        self.arrivals: deque[tuple[int, float]] = deque()
        #: Offset -> record, in the order of offsets.
        self.unfinished: dict[int, Any] = {}
        #: Offsets that a former owner has finished, at or after :attr:`position`.
        self.finished: deque[tuple[int, int]] = deque()
        #: Records that were delivered before the finished offsets were known; None once they are known.
        self.pending: list[Any] | None = None
        #: Bytes of the unfinished records.
        self.size: int = 0
        #: Whether the bounds are exceeded, so that the partition must not be read.
        self.full: bool = False
        #: Whether no record may start, because the group revokes the partition.
        self.draining: bool = False
        self.ended: bool = False

    def start(self) -> int:
        """Return the lowest unfinished offset, or the offset after everything that is known to be finished."""
        position, finished = self.position, self.finished
        return next(iter(self.unfinished), finished[0][1] if finished and finished[0][0] <= position else position)

    def age_s(self, now: float) -> float:
        """Return how long ago the lowest unfinished record came, in seconds; 0 if there is none."""
        first = next(iter(self.unfinished), None)
        return 0.0 if first is None else now - next((at for end, at in tuple(self.arrivals) if end > first), now)

    def note_arrival(self, end: int, now: float) -> None:
        """Note that the records before ``end`` came now."""
        arrivals, start = self.arrivals, self.start()
        while arrivals and arrivals[0][0] <= start:
            arrivals.popleft()
        if arrivals and now - arrivals[-1][1] < _SAME_S:
            arrivals[-1] = end, arrivals[-1][1]
        else:
            arrivals.append((end, now))

    def ranges(self) -> Ranges:
        """Return what is finished above the lowest unfinished offset. Offsets without a record count as finished."""
        found: list[tuple[int, int]] = []
        at = self.start()
        for offset in self.unfinished:
            if offset > at:
                found.append((at, offset))
            at = offset + 1
        if self.position > at:
            found.append((at, self.position))
        for first, end in self.finished:
            if end <= at:
                continue
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], end
            else:
                found.append((first, end))
        return found

    def move(self, position: int) -> None:
        """Move the position, and forget what was finished before it."""
        self.position = max(self.position, position)
        finished = self.finished
        while finished and finished[0][1] <= self.position:
            finished.popleft()
        if finished and finished[0][0] < self.position:
            finished[0] = self.position, finished[0][1]

    def was_finished(self, offset: int) -> bool:
        """Return whether a former owner has finished the record at ``offset``; ask in the order of offsets."""
        finished = self.finished
        while finished and finished[0][1] <= offset:
            finished.popleft()
        return bool(finished) and finished[0][0] <= offset

    def to_commit(self, metadata_bytes: int) -> OffsetAndMetadata | None:
        """Return the position to commit, with what is finished above it; None if everything delivered is finished."""
        if self.committed is not None:
            return self.committed
        first = next(iter(self.unfinished.values()), None)
        if first is None and not self.finished:
            return None
        start = self.start()
        epoch = -1 if first is None else before(first.message).leader_epoch
        return OffsetAndMetadata(start, epoch, encode(start, self.ranges(), metadata_bytes))

    def metadata_is_full(self, metadata_bytes: int, part: float) -> bool:
        """Return whether the finished offsets might, in the worst case, soon not fit into a ``part`` of a commit's metadata.

        Either form has a bound: a bit for each offset since the lowest unfinished one, or two varints for each unfinished
        record. Handlers that finish can only shorten both.
        """
        room, span = capacity(metadata_bytes) * part, self.position - self.start()
        if room <= 0 or span <= 8 * room:
            return False
        varint = max(1, (span.bit_length() + 6) // 7)
        return (len(self.unfinished) + len(self.finished)) * 2 * varint > room
