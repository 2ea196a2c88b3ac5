"""The consumer-protocol members of one group in one process, which notify each other of changes in the group.

Each member must request its own target. However, one member receives the first response that shows a change: the response has
the group's new epoch, or confirms the member's revoked partitions. This member notifies the others, which then send a heartbeat
without waiting for their intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumer_coord.group.process_peers.heartbeat_times import spread, together


class ConsumerPeer(Protocol):
    """A member, as the other members see it."""

    @property
    def member_epoch(self) -> int: ...
    @property
    def expects_more(self) -> bool: ...

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Send early heartbeats after these delays, in milliseconds; do nothing outside the group."""


class ConsumerPeers:
    """The members of one group that share a cluster client and its loop."""

    def __init__(self) -> None:
        self._members: dict[ConsumerPeer, None] = {}
        self._epoch = -1
        self._added = 0

    def add(self, member: ConsumerPeer) -> float:
        """Add a member; return the fraction of an interval after which its first regular heartbeat is due.

        Because heartbeats are spread over the interval, some member of the process soon receives a new epoch.
        """
        self._members[member] = None
        number, self._added = self._added, self._added + 1
        return spread(number)

    def beat_at(self, due: float, interval_s: float) -> float:
        """Return when to send a heartbeat due at ``due``: slightly earlier, so that members share a wake-up of the loop."""
        return due if len(self._members) < 2 else together(due, interval_s)

    def remove(self, member: ConsumerPeer) -> None:
        """Remove a member."""
        self._members.pop(member, None)

    def received_epoch(self, epoch: int, *, joined: bool) -> None:
        """Record that a member is in ``epoch`` now; members in an earlier epoch send a heartbeat at once."""
        if joined:
            # The group may have been deleted and created again. In this case the epochs begin again with low numbers.
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
        """Make all other members that expect partitions send a heartbeat, because partitions may have become free.

        Call this when the coordinator has confirmed that ``member`` revoked partitions, or has assigned partitions to
        ``member``.
        """
        for peer in tuple(self._members):
            if peer is not member and peer.expects_more:
                peer.beat_early((0,))
