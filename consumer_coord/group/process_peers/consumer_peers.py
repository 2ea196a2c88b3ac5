"""The members of one group of the consumer protocol in one process, which share the news of their heartbeats.

Each member has to request its own target. But one member receives the group's new epoch first, and one is first to learn that
the coordinator knows of the partitions it revoked: then the others do not wait for their own interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumer_coord.group.process_peers.moments import spread, together


class ConsumerPeer(Protocol):
    """A member, as the others see it."""

    @property
    def member_epoch(self) -> int: ...
    @property
    def expects_more(self) -> bool: ...

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Send early heartbeats after these delays, in milliseconds; no effect outside the group."""


class ConsumerPeers:
    """The members that share a cluster client, and its loop."""

    def __init__(self) -> None:
        self._members: dict[ConsumerPeer, None] = {}
        self._epoch = -1
        self._added = 0

    def add(self, member: ConsumerPeer) -> float:
        """Add a member; return the part of an interval after which its first regular heartbeat is due.

        With heartbeats spread over the interval, some member of the process soon receives a new epoch.
        """
        self._members[member] = None
        number, self._added = self._added, self._added + 1
        return spread(number)

    def beat_at(self, due: float, interval_s: float) -> float:
        """Return when to send a heartbeat due at ``due``: a little earlier, with others, for one wake-up of the loop."""
        return due if len(self._members) < 2 else together(due, interval_s)

    def remove(self, member: ConsumerPeer) -> None:
        """Remove a member."""
        self._members.pop(member, None)

    def received_epoch(self, epoch: int, *, joined: bool) -> None:
        """Record that a member is in ``epoch`` now; members in an earlier epoch send a heartbeat at once."""
        if joined:
            # The group may have been created again, with low epochs.
            self._epoch = min(self._epoch, epoch)
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        for peer in tuple(self._members):
            if peer.member_epoch < epoch:
                peer.beat_early((0,))

    @property
    def expecting(self) -> int:
        """Number of members that expect more partitions."""
        return sum(peer.expects_more for peer in self._members)

    def freed(self, member: ConsumerPeer) -> None:
        """Let members that wait for partitions send a heartbeat, since ``member`` may have freed some.

        The coordinator knows what ``member`` revoked, or has assigned it partitions.
        """
        for peer in tuple(self._members):
            if peer is not member and peer.expects_more:
                peer.beat_early((0,))
