"""The members of one group of the consumer protocol in one process, which share the news of their heartbeats.

Each member must request its own target. However, one member receives the news first: the group's new epoch, or the broker's
confirmation that the member has revoked partitions. This member notifies the others, which do not wait for their intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumer_coord.group.process_peers.moments import spread, together


class ConsumerPeer(Protocol):
    """A member, as the other members see it."""

    @property
    def member_epoch(self) -> int: ...
    @property
    def expects_more(self) -> bool: ...

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Send early heartbeats after these delays, in milliseconds; no effect outside the group."""


class ConsumerPeers:
    """The members of one group that share a cluster client and its loop."""

    def __init__(self) -> None:
        self._members: dict[ConsumerPeer, None] = {}
        self._epoch = -1
        self._added = 0

    def add(self, member: ConsumerPeer) -> float:
        """Add a member; return the part of an interval after which its first regular heartbeat is due.

        Because heartbeats are spread over the interval, some member of the process soon receives a new epoch.
        """
        self._members[member] = None
        number, self._added = self._added, self._added + 1
        return spread(number)

    def beat_at(self, due: float, interval_s: float) -> float:
        """Return when to send a heartbeat due at ``due``: slightly earlier, with others, for one wake-up of the loop."""
        return due if len(self._members) < 2 else together(due, interval_s)

    def remove(self, member: ConsumerPeer) -> None:
        """Remove a member."""
        self._members.pop(member, None)

    def received_epoch(self, epoch: int, *, joined: bool) -> None:
        """Record that a member is in ``epoch`` now; members in an earlier epoch send a heartbeat at once."""
        if joined:
            # The group may have been deleted and created again, with low epochs.
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
        """Make members that wait for partitions send a heartbeat, because ``member`` may have released some.

        The coordinator knows that ``member`` revoked partitions, or has assigned partitions to it.
        """
        for peer in tuple(self._members):
            if peer is not member and peer.expects_more:
                peer.beat_early((0,))
