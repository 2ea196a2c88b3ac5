"""The owners of partitions over time, from the members' callbacks: how long a rebalance takes, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs

#: The name of the fleet, and the member's number in the fleet.
Owner: TypeAlias = tuple[str, int]


@attrs.frozen(order=True)
class Told:
    """A callback: at ``at_ns``, ``owner`` received (``gained`` is True) or lost ``partitions``."""

    at_ns: int
    gained: bool
    owner: Owner = attrs.field(order=False)
    partitions: tuple[int, ...] = attrs.field(order=False)


class Ownership:
    """The present owners of the partitions of one topic."""

    def __init__(self) -> None:
        self._owners: dict[int, set[Owner]] = {}
        #: The last moment at which a partition changed owners.
        self.changed_ns = 0

    def take_in(self, told: Iterable[Told]) -> None:
        """Apply more callbacks."""
        for one in told:
            for partition in one.partitions:
                owners = self._owners.setdefault(partition, set())
                if one.gained:
                    owners.add(one.owner)
                else:
                    owners.discard(one.owner)
                self.changed_ns = max(self.changed_ns, one.at_ns)

    def shared_by(self, members: int, partitions: int) -> bool:
        """Return whether each partition has one owner, and each of ``members`` has a partition (if these suffice)."""
        owners = [owner for owners in self._owners.values() for owner in owners]
        return (
            len(owners) == partitions
            and sum(map(bool, self._owners.values())) == partitions
            and len(set(owners)) == min(members, partitions)
        )


def unowned_s(told: Sequence[Told], since_ns: int) -> float:
    """Return partition-seconds without an owner from ``since_ns`` on, of partitions that had an owner before and after this."""
    owners: dict[int, set[Owner]] = {}
    free_since: dict[int, int] = {}
    total_ns = 0
    for one in sorted(told):
        for partition in one.partitions:
            holders = owners.setdefault(partition, set())
            if one.gained:
                began = free_since.pop(partition, None)
                if began is not None and one.at_ns > since_ns:
                    total_ns += one.at_ns - max(began, since_ns)
                holders.add(one.owner)
            else:
                holders.discard(one.owner)
                if not holders:
                    free_since[partition] = one.at_ns
    return total_ns / 1e9
