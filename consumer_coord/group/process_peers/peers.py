"""The members of one group in one process: what one of them hears, the others need not ask for.

A member that hears REBALANCE_IN_PROGRESS for its generation has heard it for every member of that generation, so all of
them join at once, and one *scout* asks for all: one heartbeat of the process every few milliseconds while a rebalance is
near, and not one of each member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from consumer_coord.environment import now
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.find_coordinator import CoordinatorLookup
from consumer_coord.group.process_peers.gathering import Gathering, LeaderFirst
from consumer_coord.group.process_peers.mates import Mates
from consumer_coord.group.process_peers.moments import Rhythm

#: After a cooperative sync, in milliseconds: the second round begins when some other member has let go of its partitions,
#: and every member that hears of it late holds up those that wait for them.  See docs/benchmarks.md.
AFTER_SYNC_MS = (5, 15, 30, 60, 100, 150)
#: After a member of this process sent JoinGroup: the coordinator has it within a moment.
AFTER_JOIN_MS = (1, 4, 10, 25, 60)


class Peer(Protocol):
    """What a member is to the others."""

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
    """The members of one group that share a cluster client, on its loop."""

    def __init__(self, lookup: CoordinatorLookup) -> None:
        self.lookup = lookup
        self._members: dict[Peer, None] = {}
        #: Members in a generation that can beat early for all; others are dropped from it when they are met.
        self._synced: dict[Peer, None] = {}
        #: Members that got their assignment since all were told that the group rebalances.
        self._untold: dict[Peer, None] = {}
        self._added = 0
        self._users = 0
        #: Members that revoked partitions, and delay their rejoin for others that have to revoke some.
        self.lingering: set[Peer] = set()
        self.gathering = Gathering()
        #: Those of the consumer protocol.
        self.mates = Mates()
        self.leader_first = LeaderFirst(lambda member_id: any(peer.member_id == member_id for peer in self._members))
        #: The generation that is known to have ended, since when, and the one whose second round is being looked out for.
        self._ended = -1
        self._ended_at = 0.0
        self._scouted = -1

    def add(self, member: Peer, most_intervals: int = 1) -> Rhythm:
        """A member begins; returns when it beats.

        All members get their assignment at one moment.  If all of them beat one interval after it, and so on, the process
        would hear of a rebalance once an interval; spread out, many members hear of it many times as soon.  The first
        one waits longest: members of different processes hear of it together, because all must.

        ``most_intervals``: how many heartbeat intervals there may be between two beats of this member.
        """
        self._members[member] = None
        self.gathering.made(member)
        number, self._added = self._added, self._added + 1
        return Rhythm(number, lambda: len(self._members), most_intervals)

    def remove(self, member: Peer) -> None:
        """A member ends."""
        self._members.pop(member, None)
        self._synced.pop(member, None)
        self._untold.pop(member, None)
        self.lingering.discard(member)
        self.gathering.gone(member)

    def enter(self) -> None:
        """A member uses the look-up, whatever its protocol."""
        self._users += 1

    def leave(self) -> bool:
        """It ends; the last one's end closes the look-up, and is True."""
        self._users -= 1
        if not self._users:
            self.lookup.close()
        return not self._users

    def more_to_let_go(self, generation: int) -> bool:
        """True while an application has partitions to let go of, or a member has not heard yet whether it has."""
        return any(
            member.assignment.to_revoke or (member.syncing and member.generation == generation) for member in self._members
        )

    def released(self) -> None:
        """An application let go of partitions: a member that lingers for that need not any more."""
        for member in self._members:
            member.look_again()

    def joins(self, member: Peer, *, owns_less: bool) -> None:
        """``member`` sends JoinGroup: does the group rebalance?

        With ``owns_less`` it will: the coordinator never takes other metadata of a member without a rebalance.
        """
        if owns_less:
            self.rebalance(member.generation)
            return
        if member.generation >= 0 and member.generation == self._ended:
            # It does, and every member of this process knows.
            return
        while self._synced:
            peer = next(reversed(self._synced))
            if peer is not member and peer.generation >= 0 and not peer.rebalancing:
                peer.beat_early(AFTER_JOIN_MS)
                return
            del self._synced[peer]

    def joined(self, generation: int, sent_at: float) -> None:
        """A JoinGroup that was sent at ``sent_at`` was answered with ``generation``: it has not ended, or it came again.

        In a group that has members of the consumer protocol the generation is the member epoch (KIP-848), which stays the
        same in many a rebalance.
        """
        if generation == self._ended and sent_at >= self._ended_at:
            self._ended = -1

    def stable(self, member: Peer) -> None:
        """``member`` has its assignment."""
        self._synced[member] = self._untold[member] = None
        for lingering in self.lingering:
            lingering.look_again()

    def synced(self, member: Peer) -> None:
        """``member`` has its assignment in a cooperative rebalance: does a second round begin?"""
        generation = member.generation
        if self._ended == generation:
            member.request_rejoin("the group is rebalancing")
        elif self._scouted != generation:
            self._scouted = generation
            member.beat_early(AFTER_SYNC_MS)

    def rebalance(self, generation: int) -> None:
        """The coordinator told a member of ``generation`` that the group rebalances."""
        # Each of a thousand members hears it from the coordinator: the first one tells all, the others those that came later.
        untold = self._untold
        if generation != self._ended:
            self._ended, self._ended_at = generation, now()
            untold = self._members
        waiting, self._untold = tuple(untold), {}
        for peer in waiting:
            if peer.generation == generation and not peer.rebalancing:
                peer.request_rejoin("the group is rebalancing")
