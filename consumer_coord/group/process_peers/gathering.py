"""Joint joins: members of one process send JoinGroup together, and followers send SyncGroup after their leader.

The coordinator responds to JoinGroup when every known member has joined. Fifty members of a process start one after the other.
Without a wait, each new member would end the previous generation, and all members would join again. So a member waits briefly
before its JoinGroup for other members that are about to join. The coordinator responds to SyncGroup when the leader has sent
the assignment. Forty-nine earlier requests of followers would only delay the leader's request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumer_coord.environment import now
from consumer_coord.wake_ups import WakeUp

#: Maximum time that a member waits for other joining members, and that a follower waits for its leader, in milliseconds.
GATHER_MS = 150
LEADER_MS = 50
#: How long after the last subscription joins wait for members that were created but have not subscribed yet, in milliseconds.
GAP_MS = 5


class Gathering:
    """A gate before JoinGroup. *Newcomers* are members without a generation; other members rejoin after the newcomers."""

    def __init__(self) -> None:
        #: Members that were created and have not subscribed yet, and newcomers that have not reached the gate yet.
        self._made: set[object] = set()
        self._arriving: set[object] = set()
        self._newcomers = WakeUp()
        self._others = WakeUp()
        self._last_arrival = float("-inf")
        #: The gate is closed until this time at the latest; None while it is open.
        self._opens_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def made(self, member: object) -> None:
        """Record that ``member`` exists and may subscribe."""
        self._made.add(member)

    def arrives(self, newcomer: object) -> None:
        """Record that ``newcomer`` is about to join."""
        self._made.discard(newcomer)
        self._arriving.add(newcomer)
        self._last_arrival = now()

    def gone(self, newcomer: object) -> None:
        """Stop waiting for a newcomer that joined, failed to join, or ended."""
        self._made.discard(newcomer)
        if newcomer in self._arriving:
            self._arriving.discard(newcomer)
            self._look()

    async def pass_gate(self, member: object) -> None:
        """Wait until ``member`` should send its JoinGroup, but for at most ``GATHER_MS``."""
        newcomer = member in self._arriving
        self._arriving.discard(member)
        if self._opens_at is None:
            if not self._arriving and not (newcomer and self._made):
                return
            self._opens_at = now() + GATHER_MS / 1000
        asyncio.get_running_loop().call_soon(self._look)
        await (self._newcomers if newcomer else self._others).wait()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._opens_at is None:
            return
        due = self._opens_at
        if not self._arriving:
            due = min(due, self._last_arrival + GAP_MS / 1000) if self._made else now()
        if due > now():
            self._timer = asyncio.get_running_loop().call_at(due, self._look)
            return
        self._opens_at = None
        # Members that the coordinator already knows must join last, because their JoinGroup may complete the rebalance.
        self._newcomers.fire()
        self._others.fire()


class LeaderFirst:
    """Makes followers of a generation send SyncGroup after their leader, if the leader is in this process."""

    def __init__(self, is_local: Callable[[str], bool]) -> None:
        self._is_local = is_local
        self._followers = WakeUp()
        self._generation = -1
        self._spoken = True
        self._timer: asyncio.TimerHandle | None = None

    def leader_syncs(self, generation: int) -> None:
        """Record that the leader sends its SyncGroup."""
        self._generation = generation
        self._speaks(generation)

    async def follow(self, generation: int, leader: str) -> None:
        """Wait until a follower should send its SyncGroup, but for at most ``LEADER_MS``."""
        if generation != self._generation:
            self._speaks(self._generation)
            self._generation = generation
            self._spoken = not self._is_local(leader)
            if not self._spoken:
                self._timer = asyncio.get_running_loop().call_later(LEADER_MS / 1000, self._speaks, generation)
        if not self._spoken:
            await self._followers.wait()

    def _speaks(self, generation: int) -> None:
        if generation == self._generation:
            self._spoken = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._followers.fire()
