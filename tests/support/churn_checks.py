"""Checks of a group under churn, from the reports of its members and the commits in the broker's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs


@attrs.frozen
class Batch:
    """A batch that a member processed; ``ranges``: partition -> (first offset, last offset, count)."""

    member: str
    at_ns: int
    generation: int
    ranges: Mapping[int, tuple[int, int, int]]
    #: Partition -> error of the commit of this batch; empty also while the commit is pending, and after a kill.
    refused: Mapping[int, str] = attrs.field(factory=dict)
    took_ms: float = 0.0


@attrs.frozen
class Moved:
    """A callback: ``what`` is assigned, revoked, or lost."""

    member: str
    at_ns: int
    what: str
    partitions: frozenset[int]


def processed(batches: Iterable[Batch], partition: int) -> list[tuple[int, int]]:
    """Return the processed offsets of a partition as disjoint ranges [first, end) in order."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(
        (batch.ranges[partition][0], batch.ranges[partition][1] + 1) for batch in batches if partition in batch.ranges
    ):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def lost_records(batches: Sequence[Batch], ends: Mapping[int, int]) -> int:
    """Return how many records were not processed."""
    total = 0
    for partition, end in ends.items():
        total += end - sum(min(stop, end) - first for first, stop in processed(batches, partition))
    return total


def repeated_records(batches: Sequence[Batch], ends: Mapping[int, int]) -> int:
    """Return how many records were processed again."""
    handed = sum(count for batch in batches for _, _, count in batch.ranges.values())
    return handed - sum(stop - first for partition in ends for first, stop in processed(batches, partition))


def double_owners(batches: Iterable[Batch]) -> list[str]:
    """Return the partitions that two members read in one generation.

    A batch whose commit was refused does not count: a coordinator that fails between JoinGroup and SyncGroup has announced a
    generation that its successor does not know, and the number is given again. Until then the members of a cooperative
    rebalance read on.
    """
    owners: dict[tuple[int, int], set[str]] = {}
    for batch in batches:
        for partition in batch.ranges.keys() - batch.refused.keys():
            owners.setdefault((partition, batch.generation), set()).add(batch.member)
    return [
        f"partition {partition} in generation {generation}: {', '.join(sorted(members))}"
        for (partition, generation), members in sorted(owners.items())
        if len(members) > 1
    ]


def refused_though_held(batches: Sequence[Batch], moved: Sequence[Moved]) -> list[str]:
    """Return the commits that were refused for partitions that the member still held.

    A member that has lost a partition receives ``lost`` as the next callback for it. A member whose next callback is another
    one, or that receives none, held the partition when it committed.
    """
    found = []
    for batch in batches:
        for partition, why in batch.refused.items():
            later = [one for one in moved if one.member == batch.member and one.at_ns > batch.at_ns]
            about = [one.what for one in sorted(later, key=lambda one: one.at_ns) if partition in one.partitions]
            if not about or about[0] != "lost":
                told = ", ".join(about) or "nothing"
                found.append(f"{batch.member}, partition {partition}, generation {batch.generation}, then {told}: {why}")
    return found


def backward_commits(commits: Iterable[tuple[int, int]]) -> list[str]:
    """Return the commits below an earlier one; ``commits`` are (partition, offset) in the order of the broker's log."""
    highest: dict[int, int] = {}
    found = []
    for partition, offset in commits:
        before = highest.get(partition, -1)
        if offset < before:
            found.append(f"partition {partition}: {offset} after {before}")
        highest[partition] = max(before, offset)
    return found
