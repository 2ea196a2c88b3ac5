"""The classic members of one group in one process, which notify each other of a rebalance.

If one member receives REBALANCE_IN_PROGRESS for its generation, all members of that generation must join, so all of them join
at once. While a rebalance is near, one member, the *scout*, sends a heartbeat every few milliseconds for all members of the
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumer_coord.environment import now
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.find_coordinator import CoordinatorLookup
from consumer_coord.group.process_peers.consumer_peers import ConsumerPeers
from consumer_coord.group.process_peers.gathering import Gathering, LeaderFirst
from consumer_coord.group.process_peers.heartbeat_times import Rhythm

#: Times of early heartbeats after the SyncGroup response of a cooperative rebalance, in milliseconds. The second round begins
#: when another member has revoked partitions, and a member that notices the round late delays the members that wait for these
#: partitions. See docs/benchmarks.md.
AFTER_SYNC_MS = (5, 15, 30, 60, 100, 150)
#: Times of early heartbeats after a JoinGroup of this process, in milliseconds. The coordinator receives the JoinGroup very
#: soon and then reports the rebalance.
AFTER_JOIN_MS = (1, 4, 10, 25, 60)


class Peer(Protocol):
    """A member, as the other members see it."""

    @property
    def generation(self) -> int: ...
    @property
    def member_id(self) -> str: ...
    @property
    def rebalancing(self) -> bool: ...
    @property
    def syncing(self) -> bool: ...
    @property
    def assignment(self) -> AssignmentState: ...

    def request_rejoin(self, reason: str) -> None: ...
    def beat_early(self, after_ms: Sequence[int]) -> None: ...
    def look_again(self) -> None: ...


class Peers:
    """The members of one group that share a cluster client; all methods run on the client's loop."""

    def __init__(self, lookup: CoordinatorLookup) -> None:
        self.lookup = lookup
        self._members: dict[Peer, None] = {}
        #: Members that received an assignment, so they may send early heartbeats for all members. A member that can no longer
        #: do so is removed when :meth:`joins` finds it.
        self._synced: dict[Peer, None] = {}
        #: Members that received an assignment after the last notification of a rebalance, and so have not been notified.
        self._not_notified: dict[Peer, None] = {}
        self._added = 0
        self._users = 0
        #: Members that have revoked partitions, and that rejoin only after other members have revoked theirs.
        self.lingering: set[Peer] = set()
        self.gathering: Gathering = Gathering()
        #: The members of the consumer protocol.
        self.of_consumer_protocol: ConsumerPeers = ConsumerPeers()
        self.leader_first: LeaderFirst = LeaderFirst(
            lambda member_id: any(peer.member_id == member_id for peer in self._members)
        )
        #: The last ended generation and its end time, and the generation whose second round a scout is waiting for.
        self._ended = -1
        self._ended_at = 0.0
        self._scouted = -1

    def add(self, member: Peer, most_intervals: int = 1) -> Rhythm:
        """Add a member; return the times of its heartbeats.

        All members receive their assignment at the same time. If all of them sent a heartbeat one interval later, the process
        could notice a rebalance only once per interval. So the heartbeats are spread over the interval. The first member waits
        for the whole interval, so that members of different processes notice a rebalance at the same time. ``most_intervals``:
        the maximum number of intervals between two heartbeats of this member.
        """
        self._members[member] = None
        self.gathering.made(member)
        number, self._added = self._added, self._added + 1
        return Rhythm(number, lambda: len(self._members), most_intervals)

    def remove(self, member: Peer) -> None:
        """Remove a member."""
        self._members.pop(member, None)
        self._synced.pop(member, None)
        self._not_notified.pop(member, None)
        self.lingering.discard(member)
        self.gathering.gone(member)

    def enter(self) -> None:
        """Count a member, of either protocol, that uses the look-up."""
        self._users += 1

    def leave(self) -> bool:
        """Remove a member that used the look-up. If no member remains, close the look-up and return True."""
        self._users -= 1
        if not self._users:
            self.lookup.close()
        return not self._users

    def expects_revocations(self, generation: int) -> bool:
        """Return whether an application must revoke partitions, or may have to after a pending SyncGroup response."""
        return any(
            member.assignment.to_revoke or (member.syncing and member.generation == generation) for member in self._members
        )

    def released(self) -> None:
        """Wake members that wait for an application's revocations."""
        for member in self._members:
            member.look_again()

    def joins(self, member: Peer, *, owns_less: bool) -> None:
        """Record that ``member`` sends JoinGroup, and find out whether the group rebalances.

        ``owns_less`` means that the member names fewer owned partitions than before. So its JoinGroup has changed metadata,
        which certainly starts a rebalance.
        """
        if owns_less:
            self.rebalance(member.generation)
            return
        if member.generation >= 0 and member.generation == self._ended:
            # The group rebalances, and every member of this process knows this already.
            return
        while self._synced:
            peer = next(reversed(self._synced))
            if peer is not member and peer.generation >= 0 and not peer.rebalancing:
                peer.beat_early(AFTER_JOIN_MS)
                return
            del self._synced[peer]

    def joined(self, generation: int, sent_at: float) -> None:
        """Record that ``generation`` has not ended, if the response to a JoinGroup sent after its recorded end still names it.

        In a group with members of the consumer protocol the generation is the member epoch (KIP-848), which many rebalances do
        not change.
        """
        if generation == self._ended and sent_at >= self._ended_at:
            self._ended = -1

    def stable(self, member: Peer) -> None:
        """Record that ``member`` has its assignment."""
        self._synced[member] = self._not_notified[member] = None
        for lingering in self.lingering:
            lingering.look_again()

    def synced(self, member: Peer) -> None:
        """Look for a second round after ``member`` received its assignment in a cooperative rebalance."""
        generation = member.generation
        if self._ended == generation:
            member.request_rejoin("the group is rebalancing")
        elif self._scouted != generation:
            self._scouted = generation
            member.beat_early(AFTER_SYNC_MS)

    def rebalance(self, generation: int) -> None:
        """Make the members of ``generation`` rejoin, because the group rebalances."""
        # A thousand members may receive the response that reports the rebalance. The first receiver notifies all members; later
        # receivers notify only the members that have received their assignment since the last notification.
        not_notified = self._not_notified
        if generation != self._ended:
            self._ended, self._ended_at = generation, now()
            not_notified = self._members
        waiting, self._not_notified = tuple(not_notified), {}
        for peer in waiting:
            if peer.generation == generation and not peer.rebalancing:
                peer.request_rejoin("the group is rebalancing")
