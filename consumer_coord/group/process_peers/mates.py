"""The members of one group of the consumer protocol in one process: what one of them hears, the others act on.

Each member has to ask for itself what it is to hold.  But one of them hears first that the group has a new epoch, and one
hears first that the group knows of partitions which it gave up: then the others need not wait for their own interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumer_coord.group.process_peers.moments import spread, together


class Mate(Protocol):
    """What a member is to the others."""

    @property
    def member_epoch(self) -> int: ...
    @property
    def expects_more(self) -> bool: ...

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Of no effect outside the group."""


class Mates:
    """They share a cluster client, and its loop."""

    def __init__(self) -> None:
        self._members: dict[Mate, None] = {}
        self._epoch = -1
        self._added = 0

    def add(self, member: Mate) -> float:
        """A member begins; returns the part of an interval after which its first regular heartbeat is due.

        Spread over the interval, the process hears of a new epoch many times as soon as one member does.
        """
        self._members[member] = None
        number, self._added = self._added, self._added + 1
        return spread(number)

    def beat_at(self, due: float, interval_s: float) -> float:
        """When a beat that is due at ``due`` is sent: a little earlier, with others, so that the loop wakes up once for all."""
        return due if len(self._members) < 2 else together(due, interval_s)

    def remove(self, member: Mate) -> None:
        """A member ends."""
        self._members.pop(member, None)

    def heard(self, epoch: int, *, joined: bool) -> None:
        """A member is in ``epoch`` now; those in an earlier one have something to hear."""
        if joined:
            # The group may have begun anew, with low epochs.
            self._epoch = min(self._epoch, epoch)
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        for mate in tuple(self._members):
            if mate.member_epoch < epoch:
                mate.beat_early((0,))

    @property
    def expecting(self) -> int:
        """How many members expect more."""
        return sum(mate.expects_more for mate in self._members)

    def freed(self, member: Mate) -> None:
        """The coordinator knows what ``member`` gave up, or has given it partitions: there may be some for those that wait."""
        for mate in tuple(self._members):
            if mate is not member and mate.expects_more:
                mate.beat_early((0,))
