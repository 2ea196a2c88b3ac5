"""Totals of the members' events: the owner of each partition, and how often each order was processed."""

from __future__ import annotations

from collections import Counter

import attrs


@attrs.define
class Ledger:
    """Ownership and processing of one topic's partitions. Times are in seconds."""

    partitions: int
    owner: dict[int, str] = attrs.field(factory=dict)
    #: Number of times that a partition moved from one member to another.
    moves: int = 0
    #: Sum over all partitions of the time without an owner after the first owner, in partition-seconds.
    unowned_s: float = 0.0
    processed: Counter[str] = attrs.field(factory=Counter)
    duplicates: int = 0
    gaps: int = 0
    _free_since: dict[int, tuple[float, str]] = attrs.field(factory=dict)
    _reached: dict[int, int] = attrs.field(factory=dict)

    def assigned(self, member: str, partitions: list[int], at: float) -> None:
        """Record that ``member`` received partitions."""
        for partition in partitions:
            freed_at, former = self._free_since.pop(partition, (at, member))
            self.unowned_s += max(0.0, at - freed_at)
            self.moves += former != member
            self.owner[partition] = member

    def freed(self, member: str, partitions: list[int], at: float) -> None:
        """Record that ``member`` revoked or lost partitions, or died."""
        for partition in partitions:
            if self.owner.get(partition) == member:
                del self.owner[partition]
                self._free_since[partition] = (at, member)

    def owned_by(self, member: str) -> list[int]:
        """Return the numbers of a member's partitions, in order."""
        return sorted(partition for partition, owner in self.owner.items() if owner == member)

    def done(self, ranges: dict[str, list[int]], customers: dict[str, int]) -> None:
        """Record a processed batch: partition -> [first offset, offset after the last], and customer -> number of orders."""
        for text, (first, behind) in ranges.items():
            partition = int(text)
            reached = self._reached.get(partition, 0)
            self.gaps += max(0, first - reached)
            self.duplicates += max(0, min(reached, behind) - first)
            self._reached[partition] = max(reached, behind)
        self.processed.update(customers)

    @property
    def distinct(self) -> int:
        """Number of orders that were processed at least once."""
        return sum(self._reached.values()) - self.gaps
