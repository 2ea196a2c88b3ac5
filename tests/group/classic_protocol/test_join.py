"""Joining a group: the reaction to each response (behaviours 9 to 23)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs
import pytest

from assignors import CooperativeStickyAssignor, RangeAssignor, RoundRobinAssignor
from assignors.base import Assignor
from consumer_coord.errors import (
    ConfigurationError,
    CoordinatorError,
    FencedError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    RequestTimedOutError,
)
from consumer_coord.group.classic_protocol.join_and_sync import MEMBER_ID_MS
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.embedded_protocol import decode_subscription
from consumer_coord.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.support.group.fake import DROP, SILENCE, FakeBrokers, asked_for, owned_in
from tests.support.group.member import COOPERATIVE, EAGER, member, new_member, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


@pytest.mark.behaviour(9)
@in_virtual_time
async def test_the_member_id_from_the_broker_is_used_in_the_next_join() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        assert one.coordinator.member_id == "member-1"
    assert [request.member_id for request in brokers.all(JoinGroupRequest)] == ["", "member-1"]
    first, second = brokers.times(JoinGroupRequest)
    assert second - first < 10, "the second join waited for something"


@pytest.mark.behaviour(10)
@pytest.mark.parametrize("request_class", [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest])
@in_virtual_time
async def test_unknown_member_id_clears_the_member_id(request_class: type) -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        if request_class is not HeartbeatRequest:
            one.coordinator.enforce_rebalance()
        brokers.answer(request_class, codes.UNKNOWN_MEMBER_ID)
        joins = len(brokers.all(JoinGroupRequest))
        await eventually_async(lambda: one.coordinator.member_id == "member-2")
        await eventually_async(lambda: one.stable)
        later = brokers.all(JoinGroupRequest)[joins:]
        fresh = next(request for request in later if request.member_id != "member-1")
        assert fresh.member_id == ""
        assert decode_subscription(fresh.protocols[0].metadata).generation_id == -1
        assert owned_in(fresh) == set(), "a lost partition was reported as owned"
        assert [what for what, _ in one.callbacks] == ["assigned", "lost", "assigned"]
        assert not one.errors


@pytest.mark.behaviour(11)
@pytest.mark.parametrize("request_class", [SyncGroupRequest, HeartbeatRequest])
@in_virtual_time
async def test_illegal_generation_clears_the_generation_and_keeps_the_id(request_class: type) -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        if request_class is SyncGroupRequest:
            one.coordinator.enforce_rebalance()
        brokers.answer(request_class, codes.ILLEGAL_GENERATION)
        joins = len(brokers.all(JoinGroupRequest))
        await eventually_async(lambda: [what for what, _ in one.callbacks] == ["assigned", "lost", "assigned"])
        last = brokers.last(JoinGroupRequest)
        assert len(brokers.all(JoinGroupRequest)) == joins + (2 if request_class is SyncGroupRequest else 1)
        assert last.member_id == "member-1"
        assert decode_subscription(last.protocols[0].metadata).generation_id == -1
        assert owned_in(last) == set()


@pytest.mark.behaviour(12)
@pytest.mark.parametrize("code", [codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION, codes.FENCED_INSTANCE_ID])
@in_virtual_time
async def test_a_heartbeats_answer_for_an_older_generation_is_ignored(code: int) -> None:
    brokers = FakeBrokers()

    async def late(_: HeartbeatRequest) -> int:
        await asyncio.sleep(2)
        return code

    async with member(brokers) as one:
        await one.join()
        brokers.answer(HeartbeatRequest, late)
        beats = len(brokers.all(HeartbeatRequest))
        await eventually_async(lambda: len(brokers.all(HeartbeatRequest)) > beats)
        one.coordinator.enforce_rebalance()
        await pause(100)
        assert one.coordinator.generation == 2
        await pause(5_000)
        assert one.coordinator.generation == 2
        assert one.coordinator.member_id == "member-1"
        assert [what for what, _ in one.callbacks] == ["assigned"]
        assert not one.errors


@pytest.mark.behaviour(12)
@in_virtual_time
async def test_a_joins_answer_for_a_membership_that_was_left_is_ignored() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        slow = asyncio.Event()

        async def late(request: JoinGroupRequest) -> JoinGroupResponse:
            await slow.wait()
            answer = brokers.usual(request)
            assert isinstance(answer, JoinGroupResponse)
            return answer

        brokers.answer(JoinGroupRequest, late)
        one.coordinator.enforce_rebalance()
        await pause(100)
        await one.coordinator.leave_group("the test leaves")
        slow.set()
        await pause(1_000)
        assert one.coordinator.generation == -1
        assert one.coordinator.member_id == ""
        assert one.held == frozenset()
        one.coordinator.enforce_rebalance("back again")
        await eventually_async(lambda: one.held)
        assert one.coordinator.member_id == "member-2"


@pytest.mark.behaviour(13)
@in_virtual_time
async def test_rebalance_in_progress_is_retried_with_the_same_id() -> None:
    brokers = FakeBrokers()
    brokers.answer(SyncGroupRequest, *[codes.REBALANCE_IN_PROGRESS] * 2)
    async with member(brokers) as one:
        await one.join()
        assert not one.errors
        brokers.answer(JoinGroupRequest, codes.REBALANCE_IN_PROGRESS)
        one.coordinator.enforce_rebalance()
        await pause(1_000)
        assert one.stable
        assert one.coordinator.generation == 4
        assert [what for what, _ in one.callbacks] == ["assigned"]
    ids = [request.member_id for request in brokers.all(JoinGroupRequest)]
    assert ids == ["", *["member-1"] * 5]
    # After this response of SyncGroup the member joins at once, because other members wait for it.
    second_join, third_join = brokers.times(JoinGroupRequest)[1:3]
    assert third_join - second_join < 20


@in_virtual_time
async def test_a_group_that_changed_its_protocol_between_join_and_sync_is_joined_again() -> None:
    """A group of the consumer protocol uses the first assignor of a member's list, and refuses SyncGroup for another."""
    brokers = FakeBrokers()
    brokers.answer(SyncGroupRequest, codes.INCONSISTENT_GROUP_PROTOCOL)
    async with member(brokers) as one:
        await one.join()
        assert one.stable
        assert len(brokers.all(JoinGroupRequest)) == 3  # for a member id, before the refused SyncGroup, and again
        assert len(brokers.all(SyncGroupRequest)) == 2


@pytest.mark.behaviour(14, 15, 16, 17)
@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        pytest.param(codes.GROUP_MAX_SIZE_REACHED, GroupMaxSizeReachedError, "group.max.size", id="max size"),
        pytest.param(
            codes.INCONSISTENT_GROUP_PROTOCOL,
            InconsistentGroupProtocolError,
            "cooperative-sticky.*partition.assignment.strategy",
            id="protocol",
        ),
        pytest.param(codes.INVALID_SESSION_TIMEOUT, ConfigurationError, "session.timeout.ms", id="session timeout"),
        pytest.param(codes.INVALID_GROUP_ID, ConfigurationError, "group.id", id="group id"),
    ],
)
@in_virtual_time
async def test_errors_of_joins_are_raised_with_the_remedy(code: int, kind: type[CoordinatorError], says: str) -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, code)
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(kind, match=says) as raised:
            await one.coordinator.join_group_if_needed(20_000)
        assert raised.value.code == code
        assert "orders" in str(raised.value)
        assert now_ms() < 1_000
        assert len(brokers.all(JoinGroupRequest)) == 1


@pytest.mark.behaviour(16)
@pytest.mark.parametrize("request_class", [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest])
@in_virtual_time
async def test_a_fenced_instance_stays_out_and_says_so_at_every_poll(request_class: type) -> None:
    brokers = FakeBrokers()
    async with member(brokers, group_instance_id="till-1") as one:
        await one.join()
        if request_class is not HeartbeatRequest:
            one.coordinator.enforce_rebalance()
        brokers.answer(request_class, codes.FENCED_INSTANCE_ID)
        await eventually_async(lambda: one.errors)
        requests = len(brokers.all(JoinGroupRequest))
        await pause(30_000)
        assert len(one.errors) > 10
        assert all(isinstance(error, FencedError) and "group.instance.id" in str(error) for error in one.errors)
        assert len(brokers.all(JoinGroupRequest)) == requests
        assert one.held == frozenset()
    # The member id belongs to another member now: this member must not end that membership.
    assert not brokers.all(LeaveGroupRequest)


@pytest.mark.behaviour(18)
@in_virtual_time
async def test_a_join_may_take_as_long_as_the_rebalance_timeout() -> None:
    brokers = FakeBrokers()

    async def slowly(request: JoinGroupRequest) -> object:
        await asyncio.sleep(60)
        return brokers.usual(request)

    brokers.answer(JoinGroupRequest, brokers.usual, slowly)
    async with member(brokers, rebalance_timeout_ms=60_000, request_timeout_ms=5_000, session_timeout_ms=90_000) as one:
        await one.join(within_ms=70_000)
        assert now_ms() > 60_000
        # The wait is only a few seconds longer.
        brokers.answer(JoinGroupRequest, SILENCE)
        brokers.always(HeartbeatRequest, codes.REBALANCE_IN_PROGRESS)
        one.coordinator.enforce_rebalance()
        joins, started = len(brokers.all(JoinGroupRequest)), now_ms()
        await pause(64_900)
        assert len(brokers.all(JoinGroupRequest)) == joins + 1
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) > joins + 1)
        assert 65_000 <= now_ms() - started < 66_000


@pytest.mark.behaviour(19)
@in_virtual_time
async def test_a_wait_shorter_than_the_join_continues_the_same_join() -> None:
    brokers = FakeBrokers()

    async def slowly(request: JoinGroupRequest) -> object:
        await asyncio.sleep(3)
        return brokers.usual(request)

    brokers.answer(JoinGroupRequest, brokers.usual, slowly)
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(RequestTimedOutError, match=r"orders.*preparing rebalance"):
                await one.coordinator.join_group_if_needed(1_000)
        target = await one.coordinator.join_group_if_needed(5_000)
        assert target.partitions == parts("t", 0, 1, 2, 3)
    assert len(brokers.all(JoinGroupRequest)) == 2


@pytest.mark.behaviour(20)
@pytest.mark.parametrize("request_class", [JoinGroupRequest, SyncGroupRequest])
@in_virtual_time
async def test_a_disconnect_keeps_the_member_id(request_class: type) -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        brokers.answer(request_class, DROP)
        one.coordinator.enforce_rebalance()
        await pause(1_000)
        assert one.stable
        assert one.coordinator.member_id == "member-1"
        assert [what for what, _ in one.callbacks] == ["assigned"], "a broken connection cost the partitions"
    assert owned_in(brokers.last(JoinGroupRequest)) == parts("t", 0, 1, 2, 3)


@pytest.mark.behaviour(21)
@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocol_name": "elsewhere"}, {"protocol_name": None}])
@in_virtual_time
async def test_a_join_for_another_protocol_is_refused(changes: dict[str, str | None]) -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, brokers.usual, lambda request: brokers.joined(request, generation_id=1, **changes))
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(InconsistentGroupProtocolError, match="cooperative-sticky"):
            await one.coordinator.join_group_if_needed(5_000)
    assert not brokers.all(SyncGroupRequest)


@pytest.mark.behaviour(21)
@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocol_name": "range"}])
@in_virtual_time
async def test_a_sync_for_another_protocol_is_refused(changes: dict[str, str]) -> None:
    brokers = FakeBrokers()
    brokers.answer(SyncGroupRequest, lambda request: attrs.evolve(brokers.usual(request), **changes))
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(InconsistentGroupProtocolError, match=next(iter(changes.values()))):
            await one.coordinator.join_group_if_needed(5_000)
        assert one.coordinator.assignment.target.partitions == frozenset()


@pytest.mark.behaviour(22)
@in_virtual_time
async def test_the_reason_for_a_rejoin_travels_and_is_cut() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        one.coordinator.enforce_rebalance("löng" * 100)
        await pause(1_000)
        assert brokers.last(JoinGroupRequest).reason == ("löng" * 100)[:255]
        one.coordinator.enforce_rebalance()
        await pause(1_000)
        assert brokers.last(JoinGroupRequest).reason == "rebalance enforced by user"
        await one.coordinator.leave_group("bye" * 100)
    identity = brokers.last(LeaveGroupRequest).members[0]
    assert identity.reason == ("bye" * 100)[:255]


@pytest.mark.parametrize("broker_assigns", [True, False])
@in_virtual_time
async def test_a_leave_waits_briefly_for_a_join_that_the_group_answers_at_once(broker_assigns: bool) -> None:
    """A group of the consumer protocol would add the member again if JoinGroup arrived after LeaveGroup."""
    brokers = FakeBrokers()
    if broker_assigns:
        brokers.always(JoinGroupRequest, lambda request: brokers.joined(request, leader=""))
    async with member(brokers) as one:
        await one.join()
        joins = len(brokers.all(JoinGroupRequest))
        brokers.always(JoinGroupRequest, SILENCE)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) > joins)
        began_ms = now_ms()
        await one.coordinator.leave_group("bye")
        assert (now_ms() - began_ms >= MEMBER_ID_MS) is broker_assigns
        assert brokers.last(LeaveGroupRequest).members[0].reason == "bye"


@pytest.mark.behaviour(23)
@in_virtual_time
async def test_protocols_go_out_in_the_order_of_preference() -> None:
    brokers = FakeBrokers()
    offered: Sequence[Assignor] = (RoundRobinAssignor(), CooperativeStickyAssignor(), RangeAssignor())
    async with member(brokers, offered) as one:
        await one.join()
        brokers.protocol = "range"
        one.coordinator.enforce_rebalance()
        await pause(100)
        assert one.stable
        assert one.coordinator.protocol.generation_state.protocol_name == "range"
    for request in brokers.all(JoinGroupRequest):
        assert [each.name for each in request.protocols] == ["roundrobin", "cooperative-sticky", "range"]
        assert request.protocol_type == "consumer"


@pytest.mark.parametrize("assignors", [COOPERATIVE, EAGER])
@in_virtual_time
async def test_a_join_says_who_we_are_and_what_we_own(assignors: Sequence[Assignor]) -> None:
    brokers = FakeBrokers({"t": 2, "u": 1})
    async with member(brokers, assignors, client_rack="east", group_instance_id="till-1") as one:
        await one.join(["u", "t", "u"])
        one.coordinator.enforce_rebalance()
        await pause(1_000)
    last = brokers.last(JoinGroupRequest)
    assert (last.session_timeout_ms, last.rebalance_timeout_ms) == (10_000, 60_000)
    assert last.group_instance_id == "till-1"
    assert asked_for(last) == ["t", "u"]
    subscription = decode_subscription(last.protocols[0].metadata)
    assert subscription.rack_id == "east"
    assert subscription.generation_id == 1
    assert owned_in(last) == (parts("t", 0, 1) | parts("u", 0) if assignors is COOPERATIVE else set())


@in_virtual_time
async def test_a_failure_is_raised_once_and_then_the_member_tries_again() -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, brokers.usual, codes.GROUP_MAX_SIZE_REACHED)
    one = new_member(brokers)
    one.coordinator.subscribe(["t"])
    await pause(5_000)
    assert len(brokers.all(JoinGroupRequest)) == 2, "it continued before the failure was reported"
    with pytest.raises(GroupMaxSizeReachedError):
        await one.poll()
    one.start()
    await eventually_async(lambda: one.stable and one.held)
    assert not one.errors
    await one.close()


@in_virtual_time
async def test_a_join_that_never_succeeds_is_reported_within_the_api_timeout_and_continues() -> None:
    brokers = FakeBrokers()
    brokers.always(JoinGroupRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
    async with member(brokers, default_api_timeout_ms=20_000) as one:
        one.coordinator.subscribe(["t"])
        one.start()
        await eventually_async(lambda: one.errors, within_s=25)
        assert "COORDINATOR_LOAD_IN_PROGRESS" in str(one.errors[0])
        assert 20_000 <= now_ms() < 23_000
        brokers.always(JoinGroupRequest, None)
        await eventually_async(lambda: one.stable and one.held)


@in_virtual_time
async def test_a_generation_that_comes_again_is_joined_once() -> None:
    """In a group with members of the consumer protocol the generation is the member epoch; many rebalances do not change it."""
    brokers = FakeBrokers()
    async with member(brokers, COOPERATIVE) as one:
        await one.join()
        await pause(5_000)
        brokers.answer(HeartbeatRequest, codes.REBALANCE_IN_PROGRESS)
        brokers.assignment = {"t": range(4)}
        brokers.always(JoinGroupRequest, lambda request: brokers.joined(request, leader=""))
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 3)
        await pause(10_000)
        assert len(brokers.all(JoinGroupRequest)) == 3
        assert one.coordinator.generation == 1
        assert one.stable
        brokers.always(JoinGroupRequest, None)
