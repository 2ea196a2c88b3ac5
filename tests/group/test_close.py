"""Leaving and closing (behaviours 91 to 96)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from consumer_coord.errors import ClosedError, CoordinatorError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import MetadataRequest
from consumer_coord.wire.messages.group import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.fake import DROP, SILENCE, FakeBrokers, Reply, held_until
from tests.support.group.member import at, member, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


@pytest.mark.behaviour(91)
@pytest.mark.parametrize("code", [codes.UNKNOWN_MEMBER_ID, codes.GROUP_AUTHORIZATION_FAILED])
def test_the_answer_for_the_member_is_read(code: int, caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def story() -> None:
        brokers = FakeBrokers()
        brokers.answer(LeaveGroupRequest, lambda request: LeaveGroupResponse(members=(MemberResponse("member-1", None, code),)))
        one = new_member(brokers)
        await one.join()
        await one.close(1_000)

    with caplog.at_level(logging.WARNING):
        story()
    # A member that the group does not know has left it; any other error is logged.
    expected = [] if code == codes.UNKNOWN_MEMBER_ID else ["GROUP_AUTHORIZATION_FAILED"]
    assert [name for name in ("UNKNOWN_MEMBER_ID", "GROUP_AUTHORIZATION_FAILED") if name in caplog.text] == expected


@pytest.mark.behaviour(92)
@in_virtual_time
async def test_a_member_that_is_still_joining_leaves_too() -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, brokers.usual, SILENCE)
    one = new_member(brokers)
    one.coordinator.subscribe(["t"])
    await pause(1_000)
    assert one.coordinator.generation == -1
    started = now_ms()
    await one.close(5_000)
    assert now_ms() - started < 100
    assert [identity.member_id for identity in brokers.last(LeaveGroupRequest).members] == ["member-1"]
    assert brokers.last(LeaveGroupRequest).members[0].reason == "the consumer is being closed"


@pytest.mark.behaviour(93)
@in_virtual_time
async def test_close_without_waiting_still_says_goodbye() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    await one.stop()
    started = now_ms()
    await one.coordinator.close(0)
    assert now_ms() - started <= 2
    await pause(10)
    assert len(brokers.all(LeaveGroupRequest)) == 1
    await one.cluster.close()


@pytest.mark.behaviour(93)
@in_virtual_time
async def test_close_may_leave_the_member_in_the_group() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    await one.stop()
    await one.coordinator.close(leave_group=False)
    await one.coordinator.close()
    assert not brokers.all(LeaveGroupRequest)
    with pytest.raises(ClosedError):
        one.coordinator.subscribe(["t"])
    with pytest.raises(ClosedError):
        await one.coordinator.join_group_if_needed()
    await one.cluster.close()


@pytest.mark.behaviour(71)
@in_virtual_time
async def test_a_static_member_does_not_leave_when_it_closes() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers, group_instance_id="till-1")
    await one.join()
    await one.close(1_000)
    assert not brokers.all(LeaveGroupRequest)


@in_virtual_time
async def test_a_static_member_that_is_asked_to_leaves_by_its_instance_id() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers, group_instance_id="till-1")
    await one.join()
    await one.stop()
    await one.coordinator.close(1_000, leave_group=True)
    members = brokers.last(LeaveGroupRequest).members
    assert [(identity.member_id, identity.group_instance_id) for identity in members] == [("till-1-1", "till-1")]
    await one.cluster.close()


@pytest.mark.behaviour(94)
@in_virtual_time
async def test_close_with_the_coordinator_unknown_does_not_hang_about() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    brokers.down = {0}
    brokers.disconnect()
    await pause(50)
    started = now_ms()
    await one.close()  # its time limit is default.api.timeout.ms: 20 s
    assert now_ms() - started < 5_000


@pytest.mark.behaviour(94)
@in_virtual_time
async def test_close_finds_a_coordinator_that_has_moved_and_leaves_there() -> None:
    brokers = FakeBrokers(brokers=2)
    one = new_member(brokers)
    await one.join()
    brokers.coordinator = 1
    brokers.disconnect()
    # A member that has sent no request since then learns of it only now.
    brokers.answer(LeaveGroupRequest, codes.NOT_COORDINATOR)
    await one.close()
    left = [seen.node for seen in brokers.seen if isinstance(seen.message, LeaveGroupRequest)]
    assert left == [0, 1]


@pytest.mark.behaviour(95)
@pytest.mark.parametrize("reply", [SILENCE, codes.COORDINATOR_LOAD_IN_PROGRESS])
@in_virtual_time
async def test_a_commit_that_cannot_finish_does_not_hold_close_up_beyond_its_time_limit(reply: Reply) -> None:
    brokers = FakeBrokers()
    brokers.always(OffsetCommitRequest, reply)
    one = new_member(brokers)
    await one.join()
    await one.stop()
    commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
    await pause(10)
    started = now_ms()
    await one.coordinator.close(2_000)
    assert 1_990 <= now_ms() - started <= 2_050
    with pytest.raises(CoordinatorError, match=r"closed before|interrupted"):
        await commit
    await one.cluster.close()


@pytest.mark.behaviour(95)
@in_virtual_time
async def test_a_close_that_waits_for_a_commit_is_not_taken_for_an_application_that_does_not_poll() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers, max_poll_interval_ms=1_000)
    await one.join()
    await one.stop()
    brokers.always(OffsetCommitRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
    commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
    closing = asyncio.ensure_future(one.coordinator.close(10_000))
    await pause(3_000)
    brokers.always(OffsetCommitRequest, None)
    await closing
    assert [*(await commit).values()] == [None]
    await one.cluster.close()


@pytest.mark.behaviour(96)
@pytest.mark.parametrize(("reply", "sent"), [(SILENCE, 1), (DROP, 2)])
@in_virtual_time
async def test_a_leave_that_is_never_answered_does_not_hold_close_up_beyond_its_time_limit(reply: Reply, sent: int) -> None:
    brokers = FakeBrokers()
    brokers.always(LeaveGroupRequest, reply)
    one = new_member(brokers)
    await one.join()
    started = now_ms()
    await one.close(2_000)
    assert now_ms() - started <= 2_050
    assert len(brokers.all(LeaveGroupRequest)) == sent, "the lost connection may belong to another request"


@pytest.mark.behaviour(96)
@in_virtual_time
async def test_a_member_leaves_although_its_connection_ends_in_the_middle_of_it() -> None:
    brokers = FakeBrokers()
    brokers.answer(LeaveGroupRequest, DROP)
    one = new_member(brokers)
    await one.join()
    await one.close(2_000)
    assert [request.members[0].member_id for request in brokers.all(LeaveGroupRequest)] == ["member-1", "member-1"]


@pytest.mark.behaviour(45)
@in_virtual_time
async def test_partitions_held_at_close_are_lost() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    await one.stop()
    held = one.held
    await one.coordinator.close(1_000)
    assert one.coordinator.assignment.change().lost == held
    assert one.held == frozenset()
    await one.cluster.close()


@in_virtual_time
async def test_leaving_on_request_and_joining_again() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        await one.coordinator.leave_group("the till is being cleaned")
        assert brokers.last(LeaveGroupRequest).members[0].reason == "the till is being cleaned"
        await pause(30_000)
        assert one.callbacks[-1][0] == "lost"
        assert one.coordinator.generation == -1, "it joined again without a request"
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.stable and one.held)


@in_virtual_time
async def test_at_exit_a_member_leaves_over_an_open_connection_or_not_at_all() -> None:
    brokers = FakeBrokers()
    one, two = new_member(brokers), new_member(brokers)
    for each in (one, two):
        await each.join()
        await each.stop()
    await one.coordinator.close(1_000, at_exit=True)
    assert len(brokers.all(LeaveGroupRequest)) == 1
    brokers.disconnect()
    brokers.down = {0}
    await pause(5)
    started, opened = now_ms(), len(brokers.opened)
    await two.coordinator.close(1_000, at_exit=True)
    assert now_ms() == started
    assert len(brokers.opened) == opened
    for each in (one, two):
        await asyncio.wait_for(each.coordinator.close(0), 5)
        await each.cluster.close()


@in_virtual_time
async def test_a_member_that_subscribes_again_acquires_nothing_of_its_former_membership() -> None:
    brokers = FakeBrokers()
    left = asyncio.Event()
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        # The leave waits for a pending commit.
        brokers.answer(OffsetCommitRequest, held_until(left))
        commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=20_000)
        await eventually_async(lambda: brokers.all(OffsetCommitRequest))
        one.coordinator.release(one.held)
        leaving = asyncio.create_task(one.coordinator.unsubscribe())
        await pause(10)
        one.coordinator.subscribe(["t"])
        await one.poll()
        assert not one.held, "another member may own it by now"
        left.set()
        await asyncio.gather(commit, leaving)
        one.start()
        await eventually_async(lambda: one.stable and one.held)


@pytest.mark.behaviour(95)
@pytest.mark.parametrize(("away_ms", "limit_ms"), [(12_000, 6_000), (100, 14_000)], ids=["after the session", "in the session"])
@pytest.mark.parametrize("hang", [False, True], ids=["refused", "silent"])
@in_virtual_time
async def test_close_without_brokers_ends_before_a_container_is_killed(away_ms: float, limit_ms: float, hang: bool) -> None:
    """Its limit would be default.api.timeout.ms, 60 s; after the end of the session there is little to wait for."""
    brokers = FakeBrokers()
    one = new_member(brokers, default_api_timeout_ms=60_000)
    await one.join()
    await one.stop()
    if hang:
        for kind in (OffsetCommitRequest, HeartbeatRequest, FindCoordinatorRequest, LeaveGroupRequest, MetadataRequest):
            brokers.always(kind, SILENCE)
    else:
        brokers.down = {0}
        brokers.disconnect()
    await pause(away_ms)
    commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
    started = now_ms()
    await one.close()
    assert now_ms() - started < limit_ms + (5_000 if hang else 0)
    with pytest.raises(CoordinatorError, match="no broker has responded for"):
        await commit


@pytest.mark.behaviour(95)
@in_virtual_time
async def test_close_waits_for_a_broker_that_restarts_and_commits_there() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers, default_api_timeout_ms=60_000)
    await one.join()
    await one.stop()
    brokers.down = {0}
    brokers.disconnect()
    commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
    closing = asyncio.ensure_future(one.close())
    await pause(7_000)
    brokers.down = set()
    await closing
    assert await commit == {TopicPartition("t", 0): None}


@pytest.mark.behaviour(95)
@in_virtual_time
async def test_close_waits_for_a_coordinator_that_answers_that_it_loads() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers, default_api_timeout_ms=60_000)
    await one.join()
    await one.stop()
    brokers.always(OffsetCommitRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
    commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
    closing = asyncio.ensure_future(one.close())
    await pause(25_000)
    brokers.always(OffsetCommitRequest, None)
    await closing
    assert await commit == {TopicPartition("t", 0): None}


@in_virtual_time
async def test_a_look_up_ends_when_the_member_closes() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    looks = one.coordinator.look_up(asyncio.Event().wait)
    await one.close()
    assert looks.cancelled()
