"""Notifications about a rebalance between the members of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import attrs

from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.process_peers.consumer_peers import ConsumerPeers
from consumer_coord.group.process_peers.peers import Peers
from consumer_coord.simulation.loop import run


@attrs.define(eq=False)
class Member:
    """A member of generation 1 that records the calls it receives."""

    member_id: str
    generation: int = 1
    rebalancing: bool = False
    syncing: bool = False
    asked: int = 0
    assignment: AssignmentState = attrs.field(factory=AssignmentState)

    def request_rejoin(self, reason: str) -> None:
        """Record the request, but do not act on it, so that a second request can be seen."""
        self.asked += 1

    def beat_early(self, after_ms: Sequence[int]) -> None:
        """Do nothing: not used here."""

    def look_again(self) -> None:
        """Do nothing: not used here."""


def in_loop(test: Any) -> None:
    """Run a test on the virtual clock."""

    async def play() -> None:
        await asyncio.sleep(0)
        test()

    run(play())


def members_of(peers: Peers, count: int) -> list[Member]:
    """Return this number of members, all with their assignment."""
    members = [Member(f"member-{number}") for number in range(count)]
    for member in members:
        peers.add(member)
        peers.stable(member)
    return members


def test_notified_members_notify_all_others_and_those_that_joined_later() -> None:
    def test() -> None:
        peers = Peers(cast(Any, None))
        members = members_of(peers, 3)
        peers.rebalance(1)
        peers.rebalance(1)
        assert [member.asked for member in members] == [1, 1, 1]
        late = Member("late")
        peers.add(late)
        peers.stable(late)
        peers.rebalance(1)
        assert [member.asked for member in (*members, late)] == [1, 1, 1, 1]

    in_loop(test)


def test_members_of_another_generation_or_in_a_join_are_not_notified() -> None:
    def test() -> None:
        peers = Peers(cast(Any, None))
        members = members_of(peers, 3)
        members[0].generation, members[1].rebalancing = 2, True
        peers.rebalance(1)
        assert [member.asked for member in members] == [0, 0, 1]
        peers.rebalance(2)
        assert [member.asked for member in members] == [1, 0, 1]

    in_loop(test)


def test_a_generation_that_came_again_can_end_again() -> None:
    def test() -> None:
        peers = Peers(cast(Any, None))
        members = members_of(peers, 2)
        peers.rebalance(1)
        peers.joined(1, sent_at=1.0)
        peers.rebalance(1)
        assert [member.asked for member in members] == [2, 2]

    in_loop(test)


def test_a_member_that_ended_is_not_notified() -> None:
    def test() -> None:
        peers = Peers(cast(Any, None))
        (gone,) = members_of(peers, 1)
        peers.rebalance(1)
        peers.stable(gone)
        peers.remove(gone)
        peers.rebalance(1)
        assert gone.asked == 1

    in_loop(test)


@attrs.define(eq=False)
class ModernMember:
    """A member of the consumer protocol that counts how often a peer advised it to send a heartbeat."""

    member_epoch: int
    expects_more: bool = False
    told: int = 0

    def beat_early(self, after_ms: Sequence[float]) -> None:
        """Record that the member may send a heartbeat now."""
        self.told += 1


def test_members_of_an_earlier_epoch_are_notified_of_a_new_one_once() -> None:
    peers = ConsumerPeers()
    members = [ModernMember(epoch) for epoch in (3, 1, 2, 3, 4)]
    for member in members:
        peers.add(member)
    peers.received_epoch(3, joined=False)
    peers.received_epoch(3, joined=False)
    peers.received_epoch(2, joined=False)
    assert [member.told for member in members] == [0, 1, 1, 0, 0]


def test_members_are_notified_of_a_recreated_group_with_low_epochs() -> None:
    peers = ConsumerPeers()
    behind = ModernMember(1)
    peers.add(behind)
    peers.received_epoch(9, joined=True)
    peers.received_epoch(1, joined=True)
    peers.received_epoch(2, joined=False)
    assert behind.told == 2
