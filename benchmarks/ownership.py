"""Who owned which partition when, from what the members' callbacks told: how long a rebalance took, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs

#: Who: the fleet's name and the member's number in it.
Owner: TypeAlias = tuple[str, int]


@attrs.frozen(order=True)
class Told:
    """One callback: ``partitions`` came to ``owner`` (``gained``) or went from it, at ``at_ns``."""

    at_ns: int
    gained: bool
    owner: Owner = attrs.field(order=False)
    partitions: tuple[int, ...] = attrs.field(order=False)


class Ownership:
    """The owners of the partitions of one topic as of now."""

    def __init__(self) -> None:
        self._owners: dict[int, set[Owner]] = {}
        #: The last moment at which a partition changed hands.
        self.changed_ns = 0

    def take_in(self, told: Iterable[Told]) -> None:
        """Go on with what was told since."""
        for one in told:
            for partition in one.partitions:
                owners = self._owners.setdefault(partition, set())
                if one.gained:
                    owners.add(one.owner)
                else:
                    owners.discard(one.owner)
                self.changed_ns = max(self.changed_ns, one.at_ns)

    def shared_by(self, members: int, partitions: int) -> bool:
        """True when each partition has one owner, and each of ``members`` (as far as there are partitions) has some."""
        owners = [owner for owners in self._owners.values() for owner in owners]
        return (
            len(owners) == partitions
            and sum(map(bool, self._owners.values())) == partitions
            and len(set(owners)) == min(members, partitions)
        )


def unowned_s(told: Sequence[Told], since_ns: int) -> float:
    """Partition-seconds without an owner from ``since_ns`` on, in partitions that had one and got one again."""
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
