"""SyncGroup, Heartbeat and LeaveGroup, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import MemberIdentity
from tests.support.broker.bench import SESSION_MS, Bench, on_bench, pause


@pytest.mark.behaviour(113)
@on_bench()
async def test_sync_in_every_state(bench: Bench) -> None:
    assert (await bench.sync("nobody", 1)).error_code == error_codes.UNKNOWN_MEMBER_ID, "no group"
    members = await bench.form(2)
    stable = await bench.sync(members.ids[1], 1)
    assert (stable.error_code, stable.assignment, stable.protocol_name) == (0, b"1", "range")
    join = bench.start_join(members.leader)
    await pause()
    assert (await bench.sync(members.ids[1], 1)).error_code == error_codes.REBALANCE_IN_PROGRESS
    await bench.join(members.followers[0])
    await join
    waiting = asyncio.ensure_future(bench.sync(members.followers[0], 2))
    await pause(1_000)
    assert not waiting.done(), "the follower waits for the leader"
    await bench.sync(members.leader, 2, {members.followers[0]: b"yours"})
    assert (await waiting).assignment == b"yours"
    await bench.leave(*members.ids)
    assert (await bench.sync(members.leader, 3)).error_code == error_codes.UNKNOWN_MEMBER_ID, "empty"


@pytest.mark.behaviour(113)
@on_bench()
async def test_a_member_that_the_leader_forgot_is_assigned_nothing(bench: Bench) -> None:
    joined = [await join for join in [bench.start_join(), bench.start_join()]]
    leader = joined[0].leader
    (follower,) = (one.member_id for one in joined if one.member_id != leader)
    waiting = asyncio.ensure_future(bench.sync(follower, 1))
    response = await bench.sync(leader, 1, {leader: b"all", "stranger": b"nothing"})
    assert response.assignment == b"all"
    assert ((await waiting).error_code, (await waiting).assignment) == (0, b"")
    assert "stranger" not in bench.group().members


@on_bench()
async def test_who_may_not_sync(bench: Bench) -> None:
    members = await bench.form(1)
    leader = members.leader
    assert (await bench.sync("nobody", 1)).error_code == error_codes.UNKNOWN_MEMBER_ID
    assert (await bench.sync(leader, 0)).error_code == error_codes.ILLEGAL_GENERATION
    assert (await bench.sync(leader, 2)).error_code == error_codes.ILLEGAL_GENERATION
    inconsistent = error_codes.INCONSISTENT_GROUP_PROTOCOL
    assert (await bench.sync(leader, 1, protocol_type="connect")).error_code == inconsistent
    assert (await bench.sync(leader, 1, protocol_name="sticky")).error_code == inconsistent
    assert (await bench.sync(leader, 1, protocol_type=None)).error_code == 0, "older clients do not say"
    assert (await bench.sync(leader, 1, group_id="")).error_code == error_codes.INVALID_GROUP_ID


@on_bench()
async def test_a_new_member_interrupts_those_who_wait_for_their_assignment(bench: Bench) -> None:
    joined = [await join for join in [bench.start_join(), bench.start_join()]]
    (follower,) = (one.member_id for one in joined if one.member_id != one.leader)
    waiting = asyncio.ensure_future(bench.sync(follower, 1))
    await pause()
    third = bench.start_join()
    assert (await waiting).error_code == error_codes.REBALANCE_IN_PROGRESS
    assert bench.state() is GroupState.PREPARING_REBALANCE
    third.cancel()


@on_bench()
async def test_a_second_sync_of_a_waiting_member_takes_the_place_of_the_first(bench: Bench) -> None:
    joined = [await join for join in [bench.start_join(), bench.start_join()]]
    leader = joined[0].leader
    (follower,) = (one.member_id for one in joined if one.member_id != leader)
    first = asyncio.ensure_future(bench.sync(follower, 1))
    await pause()
    second = asyncio.ensure_future(bench.sync(follower, 1))
    assert (await first).error_code == error_codes.REBALANCE_IN_PROGRESS, "the superseded request is answered"
    await bench.sync(leader, 1, {follower: b"x"})
    assert (await second).assignment == b"x"


@pytest.mark.behaviour(118)
@on_bench()
async def test_who_does_not_sync_in_time_is_removed(bench: Bench) -> None:
    joins = [bench.start_join(session_ms=60_000, rebalance_ms=20_000) for _ in range(3)]
    joined = [await join for join in joins]
    leader = joined[0].leader
    silent = next(one.member_id for one in joined if one.member_id != leader)
    others = [one.member_id for one in joined if one.member_id not in (leader, silent)]
    syncs = [asyncio.ensure_future(bench.sync(member_id, 1)) for member_id in others]
    await bench.sync(leader, 1, {})
    assert [(await sync).error_code for sync in syncs] == [0]
    await pause(19_999)
    assert bench.state() is GroupState.STABLE
    await pause(2)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert silent not in bench.group().members


@pytest.mark.behaviour(118)
@on_bench()
async def test_a_leader_that_does_not_sync_is_removed_and_who_waits_is_told(bench: Bench) -> None:
    joins = [bench.start_join(session_ms=60_000, rebalance_ms=20_000) for _ in range(2)]
    joined = [await join for join in joins]
    leader = joined[0].leader
    (follower,) = (one.member_id for one in joined if one.member_id != leader)
    response = await bench.sync(follower, 1)
    assert response.error_code == error_codes.REBALANCE_IN_PROGRESS
    rejoined = await bench.join(follower)
    assert (rejoined.leader, rejoined.generation_id) == (follower, 2)


@on_bench()
async def test_a_member_without_heartbeats_is_removed_after_its_session(bench: Bench) -> None:
    members = await bench.form(2)
    (follower,) = members.followers
    for _ in range(3):
        await pause(SESSION_MS - 1)
        assert await bench.heartbeat(members.leader, 1) == 0
        if follower in bench.group().members:
            assert await bench.heartbeat(follower, 1) == 0
    await pause(SESSION_MS - 1)
    assert await bench.heartbeat(members.leader, 1) == 0
    await pause(2)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    assert tuple(bench.group().members) == (members.leader,)
    assert await bench.heartbeat(members.leader, 1) == error_codes.REBALANCE_IN_PROGRESS
    assert await bench.heartbeat(follower, 1) == error_codes.UNKNOWN_MEMBER_ID


@on_bench()
async def test_a_member_that_waits_for_its_answer_needs_no_heartbeats(bench: Bench) -> None:
    members = await bench.form(2, rebalance_ms=60_000)
    waiting = bench.start_join(members.leader, rebalance_ms=60_000)
    for _ in range(5):
        await pause(SESSION_MS - 1)
        assert await bench.heartbeat(members.followers[0], 1) == error_codes.REBALANCE_IN_PROGRESS
    assert members.leader in bench.group().members
    joined = [await bench.join(members.followers[0]), await waiting]
    assert {one.generation_id for one in joined} == {2}


@on_bench()
async def test_heartbeats_are_fine_while_the_group_syncs_and_carry_the_generation(bench: Bench) -> None:
    joined = await bench.start_join()
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    assert await bench.heartbeat(joined.member_id, 1) == 0
    assert await bench.heartbeat(joined.member_id, 2) == error_codes.ILLEGAL_GENERATION
    assert await bench.heartbeat("nobody", 1) == error_codes.UNKNOWN_MEMBER_ID
    assert await bench.heartbeat(joined.member_id, 1, group_id="other") == error_codes.UNKNOWN_MEMBER_ID
    assert await bench.heartbeat(joined.member_id, 1, group_id="") == error_codes.INVALID_GROUP_ID


@on_bench()
async def test_leaving_is_answered_member_by_member(bench: Bench) -> None:
    static = await bench.join(instance_id="a")
    await bench.complete([static])
    dynamic = bench.start_join()
    await pause()
    again = await bench.join(static.member_id, instance_id="a")
    members = await bench.complete([again, await dynamic])
    response = await bench.leave(
        MemberIdentity(member_id="", group_instance_id="a"),
        MemberIdentity(member_id="", group_instance_id="unknown"),
        MemberIdentity(member_id=members.ids[1], group_instance_id=None),
        MemberIdentity(member_id="nobody", group_instance_id=None),
        MemberIdentity(member_id="", group_instance_id=None),
    )
    assert response.error_code == 0
    unknown = error_codes.UNKNOWN_MEMBER_ID
    assert [one.error_code for one in response.members] == [0, unknown, 0, unknown, unknown]
    assert bench.state() is GroupState.EMPTY


@on_bench()
async def test_leaving_a_group_that_is_not_there(bench: Bench) -> None:
    response = await bench.leave("nobody")
    assert response.error_code == 0
    assert [one.error_code for one in response.members] == [error_codes.UNKNOWN_MEMBER_ID]
    assert (await bench.leave("nobody", group_id="")).error_code == error_codes.INVALID_GROUP_ID


@on_bench()
async def test_a_member_that_leaves_while_it_joins_is_told_so(bench: Bench) -> None:
    members = await bench.form(2)
    waiting = bench.start_join(members.leader)
    await pause()
    await bench.leave(members.leader)
    assert (await waiting).error_code == error_codes.UNKNOWN_MEMBER_ID
    assert (await bench.join(members.followers[0])).leader == members.followers[0]
