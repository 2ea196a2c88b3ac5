"""Members of one process join together, their leader sends JoinGroup first, and one coordinator look-up serves all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from assignors import CooperativeStickyAssignor
from assignors.base import RebalanceProtocol
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorNotAvailableError
from consumer_coord.group.process_peers.gathering import GAP_MS, GATHER_MS, LEADER_MS, Gathering, LeaderFirst
from consumer_coord.wire.messages.group import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from tests.support.group.fake import PASS, SILENCE, FakeBrokers, RealCoordinator, Reply
from tests.support.group.member import ScriptedAssignor, TestMember, everything_to_first, new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


@contextlib.asynccontextmanager
async def _fleet(brokers: FakeBrokers, size: int) -> AsyncIterator[list[TestMember]]:
    """Return members of one process that are not subscribed yet."""
    cluster = new_cluster(brokers)
    members = [new_member(brokers, [CooperativeStickyAssignor()], cluster=cluster) for _ in range(size)]
    try:
        yield members
    finally:
        for one in members:
            await one.stop()
            one.coordinator.release(one.held)
            await one.coordinator.close(1_000)
        await cluster.close()


async def _settled(members: list[TestMember], partitions: int) -> None:
    await eventually_async(lambda: all(one.stable for one in members) and sum(len(one.held) for one in members) == partitions)


async def _start(members: list[TestMember], partitions: int) -> None:
    """Start all members at once, and wait until the group is stable."""
    for one in members:
        one.coordinator.subscribe(["t"])
        one.start()
    await _settled(members, partitions)


@pytest.mark.parametrize("gap_ms", [0, 1])
@in_virtual_time
async def test_members_that_start_together_join_as_one(gap_ms: float) -> None:
    brokers = RealCoordinator({"t": 60})
    async with _fleet(brokers, 20) as members:
        for one in members:
            one.coordinator.subscribe(["t"])
            one.start()
            await pause(gap_ms)
        await _settled(members, 60)
        # Without an initial delay in the broker, the first JoinGroup would make a separate generation.
        assert brokers.group.generation_id <= 2
        assert len(brokers.all(JoinGroupRequest)) <= 20 * 3
        assert len(brokers.all(FindCoordinatorRequest)) == 1


@in_virtual_time
async def test_an_additional_member_waits_briefly_for_others() -> None:
    brokers = RealCoordinator({"t": 6})
    async with _fleet(brokers, 3) as members:
        waited_ms = []
        for one in members:
            began_ms = now_ms()
            await one.join()
            sent_ms = [at_ms for at_ms in brokers.times(JoinGroupRequest) if at_ms >= began_ms]
            waited_ms.append(sent_ms[1] - sent_ms[0])
    # MEMBER_ID_REQUIRED is a round trip of 2 ms. The first member looked up the coordinator for longer than the gap. The second
    # one waits for the third; the third waits for no member.
    assert waited_ms == pytest.approx([2, GAP_MS, 2], abs=0.5)


@in_virtual_time
async def test_a_newcomer_that_gets_stuck_is_not_waited_for() -> None:
    brokers = RealCoordinator({"t": 6})
    async with _fleet(brokers, 2) as members:
        stuck, other = members
        brokers.answer(JoinGroupRequest, SILENCE)
        stuck.coordinator.subscribe(["t"])
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 1)
        await other.join()
        sent_ms = brokers.times(JoinGroupRequest)
        assert sent_ms[2] - sent_ms[1] == pytest.approx(GATHER_MS, abs=5)


@in_virtual_time
async def test_the_gate_lets_newcomers_go_first() -> None:
    gate, passed = Gathering(), list[str]()

    async def go(name: str) -> None:
        await gate.pass_gate(name)
        passed.append(name)

    gate.made("late")
    gate.arrives("a")
    gate.arrives("b")
    tasks = [asyncio.ensure_future(go(name)) for name in ("old", "a")]
    await pause(20)
    assert passed == [], "b is on its way"
    tasks.append(asyncio.ensure_future(go("b")))
    await pause(1)
    assert passed == ["a", "b", "old"]
    # The gate is open again.
    await asyncio.gather(*tasks, go("old"))
    assert passed[-1] == "old"


@in_virtual_time
async def test_a_newcomer_that_fails_or_ends_opens_the_gate() -> None:
    gate = Gathering()
    gate.arrives("a")
    waiting = asyncio.ensure_future(gate.pass_gate("old"))
    await pause(10)
    assert not waiting.done()
    gate.gone("a")
    await pause(0)
    assert waiting.done()


@in_virtual_time
async def test_followers_let_their_leader_speak_first() -> None:
    turn, spoke = LeaderFirst(lambda member_id: member_id == "here"), list[str]()

    async def follow(generation: int, leader: str, name: str) -> None:
        await turn.follow(generation, leader)
        spoke.append(name)

    tasks = [asyncio.ensure_future(follow(3, "here", name)) for name in ("a", "b")]
    await pause(10)
    assert spoke == []
    spoke.append("leader")
    turn.leader_syncs(3)
    await pause(0)
    assert spoke == ["leader", "a", "b"]
    # No member here knows a leader elsewhere, and a slow leader is not waited for.
    await follow(4, "elsewhere", "c")
    began = now()
    await follow(5, "here", "d")
    assert (now() - began) * 1000 == pytest.approx(LEADER_MS)
    # A member that waits for a generation that ended continues at once.
    tasks.append(asyncio.ensure_future(follow(6, "here", "e")))
    await pause(1)
    await follow(7, "elsewhere", "f")
    await asyncio.gather(*tasks)
    assert spoke[-2:] == ["f", "e"]


@in_virtual_time
async def test_the_leaders_sync_group_comes_before_those_of_its_followers() -> None:
    brokers = RealCoordinator({"t": 60})
    async with _fleet(brokers, 10) as members:
        await _start(members, 60)
        last = brokers.group.generation_id
        syncs = [request for request in brokers.all(SyncGroupRequest) if request.generation_id == last]
        assert [bool(request.assignments) for request in syncs] == [True] + [False] * 9


@in_virtual_time
async def test_a_look_up_outlives_the_member_that_asked_for_it() -> None:
    brokers = FakeBrokers()
    found = asyncio.Event()

    async def when_found(request: FindCoordinatorRequest) -> Reply:
        await found.wait()
        return PASS

    brokers.always(FindCoordinatorRequest, when_found)
    async with _fleet(brokers, 2) as members:
        first, second = members
        looks = [asyncio.ensure_future(one.coordinator.ensure_coordinator_ready(3_000)) for one in members]
        await pause(50)
        looks[0].cancel()
        await first.coordinator.close(100)
        found.set()
        assert (await looks[1]).id == 0
        assert len(brokers.all(FindCoordinatorRequest)) == 1
        assert second.coordinator.metrics()["coordinator-lookup-total"] == 1
        assert first.coordinator.metrics()["coordinator-lookup-total"] == 0


@in_virtual_time
async def test_each_member_waits_for_a_look_up_as_long_as_it_says() -> None:
    brokers = FakeBrokers()
    brokers.always(FindCoordinatorRequest, SILENCE)
    async with _fleet(brokers, 2) as members:
        patient = asyncio.ensure_future(members[0].coordinator.ensure_coordinator_ready(20_000))
        with pytest.raises(CoordinatorNotAvailableError):
            await members[1].coordinator.ensure_coordinator_ready(500)
        assert now_ms() == pytest.approx(500, abs=10)
        brokers.always(FindCoordinatorRequest, None)
        assert (await patient).id == 0


@in_virtual_time
async def test_a_member_that_released_partitions_waits_for_a_peer_without_a_request() -> None:
    """All moving partitions need a second round; the members join it without waiting for a heartbeat."""
    brokers = RealCoordinator({"t": 8})
    async with _fleet(brokers, 3) as members:
        first, second, third = members
        await first.join()
        await second.join()
        await _settled([first, second], 8)
        generation = brokers.group.generation_id
        late = asyncio.Event()

        async def slowly(request: SyncGroupRequest) -> Reply:
            if request.member_id == second.coordinator.member_id and request.generation_id == generation + 1:
                await late.wait()
            return PASS

        brokers.always(SyncGroupRequest, slowly)
        third.coordinator.subscribe(["t"])
        third.start()
        await eventually_async(lambda: len(first.held) == 3)
        await pause(100)
        assert brokers.group.generation_id == generation + 1, "the second one may have partitions to release, too"
        late.set()
        await eventually_async(lambda: len(second.held) == 3)
        released_ms = now_ms()
        await _settled(members, 8)
        assert brokers.group.generation_id == generation + 2
        joins_ms = [at_ms for at_ms in brokers.times(JoinGroupRequest) if at_ms >= released_ms - 1]
        beats_ms = [at_ms for at_ms in brokers.times(HeartbeatRequest) if released_ms - 1 <= at_ms <= joins_ms[-1]]
        assert len(joins_ms) == 3
        assert joins_ms[-1] - joins_ms[0] < 1
        assert beats_ms == []


@in_virtual_time
async def test_an_assignor_of_the_users_always_runs_where_it_may_hang() -> None:
    brokers = FakeBrokers()
    in_thread: list[object] = []

    async def in_a_thread(function):  # type: ignore[no-untyped-def]  # as generic as RunBlocking
        in_thread.append(function)
        return function()

    class Mine(CooperativeStickyAssignor):
        name = "mine"

    for assignor, hops in ((CooperativeStickyAssignor(), 0), (Mine(), 1), (ScriptedAssignor(everything_to_first), 1)):
        assert RebalanceProtocol.COOPERATIVE in assignor.protocols
        in_thread.clear()
        one = new_member(brokers, [assignor], cluster=new_cluster(brokers, run_blocking=in_a_thread))
        await one.join()
        assert len(in_thread) == hops
        await one.close(1_000)


@in_virtual_time
async def test_heartbeats_of_a_process_go_out_at_few_moments_and_never_late() -> None:
    brokers = RealCoordinator({"t": 60})
    async with _fleet(brokers, 40) as members:
        await _start(members, 60)
        await pause(3_000)
        began_ms = now_ms()
        await pause(9_000)
        beats = [seen for seen in brokers.seen if isinstance(seen.message, HeartbeatRequest) and seen.at_ms >= began_ms]
        # The broker accepts the members one after the other; these times are 250 ms apart.
        assert sum(later.at_ms - earlier.at_ms > 50 for earlier, later in pairwise(beats)) <= 3 * 12
        for one in members:
            own = [seen.at_ms for seen in beats if seen.message.member_id == one.coordinator.member_id]
            assert [later - earlier for earlier, later in pairwise(own)] == pytest.approx([3_000] * (len(own) - 1), abs=1)
            assert len(own) >= 3
