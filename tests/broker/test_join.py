"""JoinGroup and the join phase, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer_coord.broker.classic_group import GroupState
from consumer_coord.wire import error_codes
from tests.support.broker.bench import RANGE, REBALANCE_MS, SESSION_MS, Bench, on_bench, pause

DELAYED = {"group.initial.rebalance.delay.ms": 3_000}


def now_ms() -> int:
    """The virtual time."""
    return round(asyncio.get_running_loop().time() * 1000)


@pytest.mark.behaviour(113)
@on_bench()
async def test_a_group_goes_through_its_states(bench: Bench) -> None:
    join = bench.start_join()
    await pause()
    assert bench.state() is GroupState.COMPLETING_REBALANCE
    members = await bench.complete([await join])
    assert bench.state() is GroupState.STABLE
    second = bench.start_join()
    await pause()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.complete([await bench.join(members.leader), await second])
    assert bench.state() is GroupState.STABLE
    await bench.leave(*bench.group().members)
    assert bench.state() is GroupState.EMPTY
    group = bench.group()
    bench.resign()
    assert group.state is GroupState.DEAD


@pytest.mark.behaviour(114)
@on_bench(DELAYED)
async def test_the_first_rebalance_waits_for_its_delay(bench: Bench) -> None:
    await bench.start_join()
    assert now_ms() == 3_000


@pytest.mark.behaviour(114)
@on_bench(DELAYED)
async def test_the_initial_delay_is_extended_while_members_arrive(bench: Bench) -> None:
    joins = []
    for _ in range(3):
        joins.append(bench.start_join())
        await pause(2_000)
    await asyncio.gather(*joins)
    # Rounds end at 3 s and 6 s; the members of 2 s and 4 s each ask for one more, and in the third no member came.
    assert now_ms() == 9_000


@pytest.mark.behaviour(114)
@on_bench(DELAYED)
async def test_the_initial_delay_ends_with_the_rebalance_timeout_of_the_first_member(bench: Bench) -> None:
    joins = []
    for _ in range(12):
        joins.append(bench.start_join(rebalance_ms=10_000))
        await pause(1_000)
    finished = [join for join in joins if join.done()]
    assert len(finished) == 10, "the delay was extended up to ten seconds, and no further"
    for join in joins:
        join.cancel()


@pytest.mark.behaviour(115)
@on_bench()
async def test_a_new_member_must_join_again_with_the_id_it_is_given(bench: Bench) -> None:
    first = await bench.join()
    assert first.error_code == error_codes.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("client-")
    second = await bench.join(first.member_id)
    assert (second.error_code, second.member_id, second.leader) == (0, first.member_id, first.member_id)


@pytest.mark.behaviour(115)
@on_bench()
async def test_an_old_client_is_given_its_id_and_joined_at_once(bench: Bench) -> None:
    response = await bench.join(version=3)
    assert response.error_code == 0
    assert response.generation_id == 1


@pytest.mark.behaviour(115)
@on_bench()
async def test_the_group_waits_for_a_pending_member_and_goes_on_when_it_expires(bench: Bench) -> None:
    members = await bench.form(1)
    pending = await bench.join(session_ms=7_000)
    assert pending.error_code == error_codes.MEMBER_ID_REQUIRED
    begun = now_ms()
    rejoined = await bench.join(members.leader)
    assert now_ms() - begun == 7_000, "the leader waited until the pending member's session ended"
    assert rejoined.generation_id == 2
    assert (await bench.join(pending.member_id)).error_code == error_codes.UNKNOWN_MEMBER_ID


@pytest.mark.behaviour(115)
@on_bench()
async def test_a_pending_member_can_leave(bench: Bench) -> None:
    members = await bench.form(1)
    pending = await bench.join()
    rejoin = bench.start_join(members.leader)
    await pause(100)
    assert not rejoin.done()
    assert [one.error_code for one in (await bench.leave(pending.member_id)).members] == [0]
    assert (await rejoin).error_code == 0


@pytest.mark.behaviour(115)
@on_bench()
async def test_a_pending_member_cannot_be_a_static_one(bench: Bench) -> None:
    pending = await bench.join()
    refused = await bench.join(pending.member_id, instance_id="instance")
    assert refused.error_code == error_codes.UNKNOWN_SERVER_ERROR, "as in Kafka, whose coordinator fails there"


@pytest.mark.behaviour(116)
@on_bench()
async def test_a_dynamic_member_that_does_not_join_again_is_dropped(bench: Bench) -> None:
    slow: dict[str, Any] = {"session_ms": 25_000, "rebalance_ms": 20_000}
    members = await bench.form(3, **slow)
    rejoins = [bench.start_join(member_id, **slow) for member_id in members.ids[:2]]
    begun = now_ms()
    joined = [await join for join in rejoins]
    assert now_ms() - begun == 20_000, "the longest rebalance timeout of the members"
    assert {one.member_id for one in joined[0].members} == set(members.ids[:2])
    assert await bench.heartbeat(members.ids[2], 2) == error_codes.UNKNOWN_MEMBER_ID


@pytest.mark.behaviour(116)
@on_bench()
async def test_the_next_leader_is_one_that_joined(bench: Bench) -> None:
    slow: dict[str, Any] = {"session_ms": 25_000, "rebalance_ms": 20_000}
    members = await bench.form(2, **slow)
    new = bench.start_join(**slow)
    await pause()
    rejoined = await bench.join(members.followers[0], **slow)
    assert rejoined.leader == members.followers[0]
    assert (await new).leader == members.followers[0]


@pytest.mark.behaviour(117)
@on_bench()
async def test_when_only_static_members_are_left_and_none_joins_the_join_phase_is_extended(bench: Bench) -> None:
    joined = await bench.join(instance_id="a", session_ms=100_000, rebalance_ms=20_000)
    await bench.complete([joined])
    pending = await bench.join(session_ms=6_000)
    new = bench.start_join(pending.member_id, session_ms=60_000)
    await pause(1)
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.leave(pending.member_id)
    assert (await new).error_code == error_codes.UNKNOWN_MEMBER_ID
    await pause(45_000)
    assert bench.state() is GroupState.PREPARING_REBALANCE, "two join phases passed and the static member may still come"
    assert bench.group().generation_id == 1
    await pause(100_000)
    assert bench.state() is GroupState.EMPTY, "its session ended"


@pytest.mark.behaviour(119)
@on_bench()
async def test_a_follower_with_nothing_new_is_answered_without_a_rebalance(bench: Bench) -> None:
    members = await bench.form(2)
    (follower,) = members.followers
    response = await bench.join(follower)
    assert (response.error_code, response.generation_id, response.leader) == (0, 1, members.leader)
    assert response.members == ()
    assert bench.state() is GroupState.STABLE


@pytest.mark.behaviour(119)
@on_bench()
async def test_a_follower_with_another_subscription_causes_a_rebalance(bench: Bench) -> None:
    members = await bench.form(2)
    rejoin = bench.start_join(members.followers[0], protocols={"range": b"more topics"})
    await pause()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.join(members.leader)
    assert (await rejoin).generation_id == 2


@pytest.mark.behaviour(119)
@on_bench()
async def test_the_leader_causes_a_rebalance_whatever_it_says(bench: Bench) -> None:
    members = await bench.form(2)
    rejoin = bench.start_join(members.leader)
    await pause()
    assert bench.state() is GroupState.PREPARING_REBALANCE
    await bench.join(members.followers[0])
    assert (await rejoin).generation_id == 2


@pytest.mark.behaviour(119)
@on_bench()
async def test_a_lost_join_response_is_given_again_while_the_group_syncs(bench: Bench) -> None:
    first, second = [await join for join in [bench.start_join(), bench.start_join()]]
    leader = first.leader
    for member_id in (first.member_id, second.member_id):
        again = await bench.join(member_id)
        assert (again.error_code, again.generation_id) == (0, 1)
        assert len(again.members) == (2 if member_id == leader else 0)
    assert bench.state() is GroupState.COMPLETING_REBALANCE


@on_bench()
async def test_a_second_join_of_a_waiting_member_takes_the_place_of_the_first(bench: Bench) -> None:
    members = await bench.form(2)
    first = bench.start_join(members.leader)
    await pause()
    second = bench.start_join(members.leader)
    assert (await first).error_code == error_codes.REBALANCE_IN_PROGRESS, "the superseded request is answered"
    await bench.join(members.followers[0])
    assert (await second).generation_id == 2


@pytest.mark.behaviour(120)
@on_bench()
async def test_a_member_with_no_protocol_in_common_is_turned_away(bench: Bench) -> None:
    await bench.form(1)
    hows: tuple[dict[str, Any], ...] = (
        {"protocols": {"mine": b""}},
        {"protocols": {}},
        {"protocol_type": "connect"},
        {"protocol_type": ""},
    )
    for how in hows:
        assert (await bench.join(**how)).error_code == error_codes.INCONSISTENT_GROUP_PROTOCOL
    empty = await bench.join(group_id="other", protocols={})
    assert empty.error_code == error_codes.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.behaviour(120)
@on_bench()
async def test_the_generation_has_the_protocol_of_the_vote(bench: Bench) -> None:
    both = {"sticky": b"s", "range": b"r"}
    joins = [bench.start_join(protocols=both), bench.start_join(protocols=both), bench.start_join(protocols=RANGE)]
    joined = [await join for join in joins]
    assert {one.protocol_name for one in joined} == {"range"}
    (leader,) = (one for one in joined if one.member_id == one.leader)
    assert sorted(one.metadata for one in leader.members) == [b"r", b"r", b"topics"]


@pytest.mark.behaviour(124)
@on_bench({"group.max.size": 2})
async def test_a_full_group_turns_the_next_member_away(bench: Bench) -> None:
    await bench.form(2)
    assert (await bench.join()).error_code == error_codes.GROUP_MAX_SIZE_REACHED
    assert len(bench.group().members) == 2


@pytest.mark.behaviour(124)
@on_bench({"group.max.size": 2, **DELAYED})
async def test_while_members_join_those_count_that_wait(bench: Bench) -> None:
    ids = [(await bench.join()).member_id for _ in range(3)]
    joins = [bench.start_join(member_id) for member_id in ids]
    codes = [(await join).error_code for join in joins]
    assert codes == [0, 0, error_codes.GROUP_MAX_SIZE_REACHED]


@pytest.mark.behaviour(124)
@on_bench({"group.max.size": 2})
async def test_a_member_of_a_full_group_may_join_again(bench: Bench) -> None:
    members = await bench.form(2)
    joins = [bench.start_join(member_id) for member_id in members.ids]
    assert [(await join).error_code for join in joins] == [0, 0]


@pytest.mark.behaviour(125)
@on_bench()
async def test_generations_only_grow(bench: Bench) -> None:
    seen = []
    for _ in range(3):
        members = await bench.form(2)
        seen.append(members.generation_id)
        await bench.leave(*members.ids)
        seen.append(bench.group().generation_id)
    bench.restart()
    seen.append((await bench.form(1)).generation_id)
    assert seen == [1, 2, 3, 4, 5, 6, 7]


@on_bench()
async def test_what_no_member_may_ask_for(bench: Bench) -> None:
    assert (await bench.join(group_id="")).error_code == error_codes.INVALID_GROUP_ID
    assert (await bench.join(session_ms=5_999)).error_code == error_codes.INVALID_SESSION_TIMEOUT
    assert (await bench.join(session_ms=1_800_001)).error_code == error_codes.INVALID_SESSION_TIMEOUT
    assert (await bench.join("nobody")).error_code == error_codes.UNKNOWN_MEMBER_ID
    assert bench.coordinator.group("group") is None, "a refused member makes no group"


@on_bench()
async def test_a_new_member_whose_client_went_away_is_dropped_after_five_minutes(bench: Bench) -> None:
    members = await bench.form(1)
    join = bench.start_join(rebalance_ms=900_000)
    await pause()

    async def beat() -> None:
        while True:
            await bench.heartbeat(members.leader, 1)
            await pause(SESSION_MS // 2)

    heart = asyncio.ensure_future(beat())
    await pause(5 * 60 * 1000 + 1)
    assert (await join).error_code == error_codes.UNKNOWN_MEMBER_ID
    heart.cancel()


@on_bench()
async def test_in_version_0_the_session_timeout_is_the_rebalance_timeout_too(bench: Bench) -> None:
    joined = await bench.join(version=0, session_ms=8_000, rebalance_ms=-1)
    assert bench.group().members[joined.member_id].rebalance_timeout_ms == 8_000
    assert REBALANCE_MS != 8_000
