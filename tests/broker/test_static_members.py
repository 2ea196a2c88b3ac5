"""Static members (KIP-345): they return, are replaced, and fence who was there before them."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.group import MemberIdentity
from tests.support.broker.bench import SESSION_MS, Bench, Members, on_bench, pause

BOTH = {"range": b"r", "sticky": b"s"}


async def static_group(bench: Bench, *instance_ids: str) -> Members:
    """A stable group of static members."""
    joins = []
    for instance_id in instance_ids:
        joins.append(asyncio.ensure_future(bench.join(instance_id=instance_id, protocols=BOTH)))
        await pause()
    await pause()
    joined = []
    for instance_id, join in zip(instance_ids, joins, strict=True):
        response = await join
        if response.generation_id != bench.group().generation_id:
            response = await bench.join(response.member_id, instance_id=instance_id, protocols=BOTH)
        joined.append(response)
    return await bench.complete(joined)


SLOW_START = {"group.initial.rebalance.delay.ms": 1_000}


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_a_static_member_that_returns_gets_its_assignment_without_a_rebalance(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    (follower,) = members.followers
    instance_id = "b"
    response = await bench.join(instance_id=instance_id, protocols=BOTH)
    assert (response.error_code, response.generation_id, response.leader) == (0, 1, members.leader)
    assert response.member_id != follower
    assert response.members == ()
    assert bench.state() is GroupState.STABLE
    assert (await bench.sync(response.member_id, 1, instance_id=instance_id)).assignment == b"1"


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_a_static_leader_that_returns_need_not_assign(bench: Bench) -> None:
    await static_group(bench, "a", "b")
    response = await bench.join(instance_id="a", protocols=BOTH)
    assert (response.error_code, response.leader, response.skip_assignment) == (0, response.member_id, True)
    assert len(response.members) == 2
    assert (await bench.sync(response.member_id, 1, instance_id="a")).assignment == b"0"


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_an_older_static_leader_is_named_the_former_leader_and_no_members(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    response = await bench.join(instance_id="a", protocols=BOTH, version=8)
    assert (response.leader, response.members, response.skip_assignment) == (members.leader, (), False)


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_another_subscription_of_a_returning_member_is_noted_without_a_rebalance(bench: Bench) -> None:
    await static_group(bench, "a", "b")
    response = await bench.join(instance_id="b", protocols={"range": b"more", "sticky": b"more"})
    assert response.generation_id == 1
    assert bench.state() is GroupState.STABLE
    assert bench.group().members[response.member_id].metadata("range") == b"more"


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_protocols_that_change_the_vote_cause_a_rebalance(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    assert bench.group().protocol_name == "range"
    join = asyncio.ensure_future(bench.join(instance_id="b", protocols={"sticky": b"s"}))
    await pause()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.join(members.leader, instance_id="a", protocols=BOTH)
    assert ((await join).generation_id, (await join).protocol_name) == (2, "sticky")


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_a_return_while_the_group_syncs_causes_a_rebalance(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    rejoins = [
        asyncio.ensure_future(bench.join(member_id, instance_id=instance_id, protocols=BOTH))
        for member_id, instance_id in zip(members.ids, ("a", "b"), strict=True)
    ]
    await asyncio.gather(*rejoins)
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    returned = asyncio.ensure_future(bench.join(instance_id="b", protocols=BOTH))
    await pause()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.join(members.ids[0], instance_id="a", protocols=BOTH)
    assert (await returned).generation_id == 3


@pytest.mark.behaviour(122)
@on_bench(SLOW_START)
async def test_the_old_holder_of_an_instance_id_is_fenced_everywhere(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    (old,) = members.followers
    new = (await bench.join(instance_id="b", protocols=BOTH)).member_id
    fenced = error_codes.FENCED_INSTANCE_ID
    assert await bench.heartbeat(old, 1, "b") == fenced
    assert (await bench.sync(old, 1, instance_id="b")).error_code == fenced
    assert (await bench.join(old, instance_id="b", protocols=BOTH)).error_code == fenced
    assert await bench.commit(5, generation_id=1, member_id=old, instance_id="b") == fenced
    identity = MemberIdentity(member_id=old, group_instance_id="b")
    assert [one.error_code for one in (await bench.leave(identity)).members] == [fenced]
    assert await bench.heartbeat(old, 1) == error_codes.UNKNOWN_MEMBER_ID, "without its instance id it is unknown"
    assert await bench.heartbeat(new, 1, "b") == 0


@pytest.mark.behaviour(122)
@on_bench(SLOW_START)
async def test_who_waits_as_the_old_holder_is_fenced_at_once(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    leader = asyncio.ensure_future(bench.join(members.leader, instance_id="a", protocols=BOTH))
    await pause()
    usurper = asyncio.ensure_future(bench.join(instance_id="a", protocols=BOTH))
    assert (await leader).error_code == error_codes.FENCED_INSTANCE_ID
    await bench.join(members.followers[0], instance_id="b", protocols=BOTH)
    assert (await usurper).leader == (await usurper).member_id, "and the new one leads in its place"
    waiting = asyncio.ensure_future(bench.sync(members.followers[0], 2, instance_id="b"))
    await pause()
    again = asyncio.ensure_future(bench.join(instance_id="b", protocols=BOTH))
    assert (await waiting).error_code == error_codes.FENCED_INSTANCE_ID
    again.cancel()


@pytest.mark.behaviour(121)
@on_bench(SLOW_START)
async def test_a_static_member_that_is_gone_for_a_session_is_removed(bench: Bench) -> None:
    members = await static_group(bench, "a", "b")
    for _ in range(3):
        await pause(SESSION_MS // 2)
        await bench.heartbeat(members.leader, 1, "a")
    assert tuple(bench.group().static_members) == ("a",)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.join(members.leader, instance_id="a", protocols=BOTH)


@pytest.mark.behaviour(122)
@on_bench()
async def test_a_member_id_with_an_instance_id_the_group_does_not_know(bench: Bench) -> None:
    members = await bench.form(1)
    assert await bench.heartbeat(members.leader, 1, "unknown") == error_codes.UNKNOWN_MEMBER_ID
