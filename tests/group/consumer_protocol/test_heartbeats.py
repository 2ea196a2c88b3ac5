"""A member joins, stays, reconciles and leaves (``ConsumerMembershipManagerTest`` of the Java client)."""

from __future__ import annotations

import asyncio
import itertools
import uuid

import pytest

from consumer_coord.errors import ConfigurationError, FencedError, RequestTimedOutError, RetriableError
from consumer_coord.group.consumer_protocol.states import State
from consumer_coord.group.consumer_protocol.waits_for_poll import PollMarks
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatAssignment, ConsumerGroupHeartbeatResponse
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.consumer_protocol import (
    INTERVAL_MS,
    Broker,
    HeartbeatRequest,
    joined,
    modern_member,
    shared,
    state_of,
)
from tests.support.group.fake import DROP, held_until
from tests.support.group.member import at, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


@pytest.mark.behaviour(136)
@in_virtual_time
async def test_the_first_member_gets_everything_and_says_everything_once() -> None:
    broker = Broker()
    one = await joined(broker, rebalance_timeout_ms=60_000)
    assert one.held == parts("t", 0, 1, 2, 3)
    assert one.callbacks == [("assigned", one.held)]
    assert state_of(one) is State.STABLE
    first, *others = broker.heartbeats
    assert (first.member_epoch, first.subscribed_topic_names, first.topic_partitions) == (0, ("t",), ())
    assert first.rebalance_timeout_ms == 60_000
    assert uuid.UUID(first.member_id).version == 4
    assert all(request.subscribed_topic_names is None and request.rebalance_timeout_ms == -1 for request in others)
    # The member reports its new partitions at once, and sends no partitions after that.
    [told] = [request for request in others if request.topic_partitions is not None]
    assert [sorted(row.partitions) for row in told.topic_partitions or ()] == [[0, 1, 2, 3]]
    assert one.coordinator.generation == broker.consumer_group.members[first.member_id].member_epoch > 0
    await one.close()


@pytest.mark.behaviour(137)
@in_virtual_time
async def test_heartbeats_are_sent_at_the_coordinators_interval() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(5_000)
    began = len(broker.heartbeats)
    await pause(10 * INTERVAL_MS)
    assert len(broker.heartbeats) - began == 10
    await one.close()


@pytest.mark.behaviour(146)
@in_virtual_time
async def test_a_new_member_gets_its_partitions_when_they_were_released() -> None:
    broker = Broker()
    first = await joined(broker)
    second = modern_member(broker)
    second.coordinator.subscribe(["t"])
    second.start()
    await shared(first, second)
    kinds = [kind for kind, _ in first.callbacks]
    assert kinds == ["assigned", "revoked"], "the partitions that it keeps are not interrupted"
    assert len(first.held) == len(second.held) == 2
    group = broker.consumer_group
    assert {member.member_epoch for member in group.members.values()} == {group.epoch}
    await first.close()
    await second.close()


@pytest.mark.behaviour(147)
@in_virtual_time
async def test_partitions_that_the_application_still_holds_are_not_reassigned() -> None:
    broker = Broker()
    first = await joined(broker)
    await first.stop()
    second = modern_member(broker)
    second.coordinator.subscribe(["t"])
    second.start()
    await eventually_async(lambda: first.coordinator.assignment.to_revoke)
    await pause(20_000)
    assert not second.held
    assert state_of(first) is State.RECONCILING
    began = now_ms()
    first.start()
    await shared(first, second)
    # The acknowledgement does not wait for the interval; the new member is notified in its next heartbeat.
    assert now_ms() - began < INTERVAL_MS + 100
    await first.close()
    await second.close()


@pytest.mark.behaviour(148)
@in_virtual_time
async def test_a_revocation_is_acknowledged_after_its_commits() -> None:
    broker = Broker()
    first = await joined(broker)
    answered = asyncio.Event()
    broker.answer(OffsetCommitRequest, held_until(answered))
    positions = {partition: at("t", partition.partition, 7)[partition] for partition in first.held}
    commit = asyncio.ensure_future(first.coordinator.commit(positions))
    await pause(10)
    second = modern_member(broker)
    second.coordinator.subscribe(["t"])
    second.start()
    await eventually_async(lambda: len(first.held) == 2)
    await pause(200)
    assert broker.consumer_group.members[second.coordinator.member_id].assigned == {}
    answered.set()
    assert set((await commit).values()) == {None}
    await shared(first, second)
    await first.close()
    await second.close()


@pytest.mark.behaviour(149)
@in_virtual_time
async def test_other_members_of_the_process_need_not_wait_for_their_interval() -> None:
    broker = Broker()
    first = await joined(broker)
    second = modern_member(broker, cluster=first.cluster)
    await pause(1_000)
    began = now_ms()
    second.coordinator.subscribe(["t"])
    second.start()
    await shared(first, second)
    assert now_ms() - began < 200
    third = modern_member(broker, cluster=first.cluster)
    began = now_ms()
    third.coordinator.subscribe(["t"])
    third.start()
    await shared(first, second, third)
    assert now_ms() - began < 200
    for one in (third, second, first):
        await one.stop()
        one.coordinator.release(one.held)
        await one.coordinator.close()
    await first.cluster.close()


@pytest.mark.behaviour(150)
@in_virtual_time
async def test_a_member_that_closes_leaves_at_once() -> None:
    broker = Broker()
    first, second = await joined(broker), await joined(broker)
    await shared(first, second)
    member_id = second.coordinator.member_id
    await second.close()
    assert broker.of(second)[-1].member_epoch == -1
    assert member_id not in broker.consumer_group.members
    await shared(first)
    await first.close()


@pytest.mark.behaviour(151)
@in_virtual_time
async def test_a_static_member_leaves_its_place_to_its_return() -> None:
    broker = Broker()
    first, second = await joined(broker), await joined(broker, group_instance_id="i")
    await shared(first, second)
    held = second.held
    await second.close()
    assert broker.of(second)[-1].member_epoch == -2
    await pause(INTERVAL_MS * 2)
    assert len(first.held) == 2
    again = await joined(broker, group_instance_id="i")
    assert again.held == held
    assert [kind for kind, _ in first.callbacks] == ["assigned", "revoked"]
    await first.close()
    await again.close()


@pytest.mark.behaviour(152)
@in_virtual_time
async def test_an_instance_id_that_is_not_released_is_waited_for() -> None:
    broker = Broker()
    first = await joined(broker, group_instance_id="i")
    second = modern_member(broker, group_instance_id="i")
    second.coordinator.subscribe(["t"])
    second.start()
    with pytest.raises(RequestTimedOutError, match="UNRELEASED_INSTANCE_ID"):
        await second.coordinator.join_group_if_needed(3_000)
    await first.close()
    await eventually_async(lambda: len(second.held) == 4)
    assert not second.errors
    await second.close()


@pytest.mark.behaviour(153)
@in_virtual_time
async def test_unsubscribing_leaves_and_subscribing_again_joins_with_the_same_id() -> None:
    broker = Broker({"t": 2, "u": 3})
    one = await joined(broker)
    member_id = one.coordinator.member_id
    one.coordinator.prepare_to_leave()
    await pause()
    one.coordinator.release(one.held)
    await one.coordinator.unsubscribe()
    assert state_of(one) is State.UNSUBSCRIBED
    assert not broker.consumer_group.members
    sent = len(broker.heartbeats)
    await pause(3 * INTERVAL_MS)
    assert len(broker.heartbeats) == sent
    await one.join(["u"])
    assert one.held == parts("u", 0, 1, 2)
    assert one.coordinator.member_id == member_id
    await one.close()


@pytest.mark.behaviour(154)
@in_virtual_time
async def test_a_changed_subscription_is_sent_at_once() -> None:
    broker = Broker({"t": 2, "u": 2})
    one = await joined(broker)
    began = now_ms()
    one.coordinator.subscribe(["u"])
    await eventually_async(lambda: one.held == parts("u", 0, 1))
    assert now_ms() - began < 500
    assert [kind for kind, _ in one.callbacks] == ["assigned", "revoked", "assigned"]
    await one.close()


@pytest.mark.behaviour(155)
@pytest.mark.parametrize("code", [codes.FENCED_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND])
def test_a_member_that_is_not_counted_loses_everything_and_joins_with_the_same_id(code: int) -> None:
    @in_virtual_time
    async def run() -> None:
        broker = Broker()
        one = await joined(broker)
        member_id = one.coordinator.member_id
        await pause(2_000)
        broker.answer(HeartbeatRequest, code)
        await eventually_async(lambda: [kind for kind, _ in one.callbacks] == ["assigned", "lost", "assigned"])
        assert one.coordinator.member_id == member_id
        rejoin = [request for request in broker.heartbeats if request.member_epoch == 0][-1]
        assert (rejoin.topic_partitions, rejoin.subscribed_topic_names) == ((), ("t",))
        assert not one.errors
        await one.close()

    run()


@pytest.mark.behaviour(156)
@in_virtual_time
async def test_a_broker_that_refuses_for_ever_meets_no_storm() -> None:
    broker = Broker()
    broker.always(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
    one = modern_member(broker)
    one.coordinator.subscribe(["t"])
    one.start()
    await pause(10_000)
    assert 10 <= len(broker.heartbeats) <= 60
    broker.always(HeartbeatRequest, None)
    await eventually_async(lambda: one.stable)
    await one.close()


@pytest.mark.behaviour(157)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (codes.UNSUPPORTED_ASSIGNOR, "group.remote.assignor"),
        (codes.GROUP_MAX_SIZE_REACHED, "group.consumer.max.size"),
        (codes.GROUP_AUTHORIZATION_FAILED, "READ on the group"),
        (codes.TOPIC_AUTHORIZATION_FAILED, "DESCRIBE"),
        (codes.UNSUPPORTED_VERSION, "group.version=1"),
        (codes.INVALID_REQUEST, "does not match"),
    ],
)
def test_an_error_that_is_not_retriable_is_raised_by_poll_and_retried_after_it(code: int, says: str) -> None:
    @in_virtual_time
    async def run() -> None:
        broker = Broker()
        broker.answer(HeartbeatRequest, code)
        one = modern_member(broker)
        one.coordinator.subscribe(["t"])
        await pause(5_000)
        assert state_of(one) is State.FATAL
        assert len(broker.heartbeats) == 1, "nothing is sent before the application knows of it"
        one.start()
        await eventually_async(lambda: one.stable)
        [error] = one.errors
        assert error.code == code
        assert says in str(error)
        await one.close()

    run()


@pytest.mark.behaviour(158)
@in_virtual_time
async def test_a_fenced_instance_id_is_final() -> None:
    broker = Broker()
    one = await joined(broker, group_instance_id="i")
    broker.answer(HeartbeatRequest, codes.FENCED_INSTANCE_ID)
    await eventually_async(lambda: len(one.errors) > 3)
    assert all(isinstance(error, FencedError) for error in one.errors)
    assert state_of(one) is State.FATAL
    sent = len(broker.heartbeats)
    await pause(3 * INTERVAL_MS)
    assert len(broker.heartbeats) == sent, "it must not affect the member that replaced it"
    await one.close()


@pytest.mark.behaviour(159)
@in_virtual_time
async def test_an_assignor_that_the_broker_does_not_have() -> None:
    broker = Broker()
    one = modern_member(broker, group_remote_assignor="mine")
    one.coordinator.subscribe(["t"])
    with pytest.raises(ConfigurationError, match="uniform, range"):
        await one.coordinator.join_group_if_needed(5_000)
    await one.close()


@pytest.mark.behaviour(160)
@in_virtual_time
async def test_the_broker_assigns_by_the_assignor_that_members_name() -> None:
    broker = Broker({"t": 3, "u": 3})
    first = await joined(broker, ("t", "u"), group_remote_assignor="range")
    second = await joined(broker, ("t", "u"), group_remote_assignor="range")
    await eventually_async(lambda: first.stable and second.stable and len(second.held) > 0)
    assert {len(one.held) for one in (first, second)} == {4, 2}, (
        "range assigns one partition more of each topic to the first member"
    )
    await first.close()
    await second.close()


@pytest.mark.behaviour(161)
@in_virtual_time
async def test_an_application_that_does_not_poll_leaves_and_comes_back() -> None:
    broker = Broker()
    one = await joined(broker, max_poll_interval_ms=8_000)
    await one.stop()
    await eventually_async(lambda: state_of(one) is State.STALE)
    assert broker.heartbeats[-1].member_epoch == -1
    assert not broker.consumer_group.members
    assert one.coordinator.lease.until < one.coordinator.lease.clock()
    sent = len(broker.heartbeats)
    await pause(30_000)
    assert len(broker.heartbeats) == sent
    one.start()
    await eventually_async(lambda: one.stable)
    assert [kind for kind, _ in one.callbacks] == ["assigned", "lost", "assigned"]
    await one.close()


@pytest.mark.parametrize("what", ["parked_at", "held_at", "leaving_at"])
def test_a_poll_ends_what_waits_for_it(what: str) -> None:
    """Otherwise the running poll would check again and again, and block the loop."""
    marks = PollMarks()
    setattr(marks, what, 7)
    assert not marks.polled(7), "the earlier poll does not count as a later one"
    assert marks.polled(8)
    assert not marks.waiting
    assert not marks.polled(9)


@in_virtual_time
async def test_an_error_of_the_coordinators_own_is_tried_again_ever_later() -> None:
    """A classic group in its first rebalance cannot be converted, and each attempt makes its members rejoin (Kafka 4.3)."""
    broker = Broker()
    broker.always(HeartbeatRequest, codes.UNKNOWN_SERVER_ERROR)
    one = modern_member(broker)
    one.coordinator.subscribe(["t"])
    one.start()
    await pause(120_000)
    times = broker.heartbeat_times
    apart = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert one.errors, "the application is notified when it lasts"
    assert all(isinstance(error, RetriableError) and "UNKNOWN_SERVER_ERROR" in str(error) for error in one.errors)
    assert apart[0] < 2_000
    assert all(15_000 < wait <= 31_000 for wait in apart[-2:])
    broker.always(HeartbeatRequest, None)
    await eventually_async(lambda: one.stable, within_s=31)
    await one.close()


@pytest.mark.behaviour(162)
@in_virtual_time
async def test_a_static_member_that_does_not_poll_leaves_with_minus_two() -> None:
    broker = Broker()
    one = await joined(broker, max_poll_interval_ms=8_000, group_instance_id="i")
    await one.stop()
    await eventually_async(lambda: state_of(one) is State.STALE)
    assert broker.heartbeats[-1].member_epoch == -2
    one.start()
    await eventually_async(lambda: one.stable)
    await one.close()


@pytest.mark.behaviour(163)
@in_virtual_time
async def test_a_topic_that_the_metadata_does_not_know_is_acquired_when_it_does() -> None:
    broker = Broker({"t": 2})
    one = await joined(broker, ("t", "late"))
    assert one.held == parts("t", 0, 1)
    broker.create_topic("late", 2)
    # The broker notices first: its response has a topic id that this client does not know.
    await eventually_async(lambda: one.held == parts("t", 0, 1) | parts("late", 0, 1))
    assert [kind for kind, _ in one.callbacks] == ["assigned", "assigned"]
    await one.close()


@pytest.mark.behaviour(167)
@in_virtual_time
async def test_an_answer_that_is_lost_is_asked_for_again_with_everything() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)

    async def handled_and_lost(request: HeartbeatRequest) -> object:
        await asyncio.sleep(0)
        return DROP

    broker.answer(HeartbeatRequest, handled_and_lost)
    await pause(2 * INTERVAL_MS)
    full = [request for request in broker.heartbeats[1:] if request.rebalance_timeout_ms != -1]
    assert full
    assert full[0].subscribed_topic_names == ("t",)
    assert [sorted(row.partitions) for row in full[0].topic_partitions or ()] == [[0, 1, 2, 3]]
    assert [kind for kind, _ in one.callbacks] == ["assigned"], "no partition is lost"
    await one.close()


@in_virtual_time
async def test_an_assignment_that_a_response_omitted_is_given_back() -> None:
    broker = Broker()
    one = await joined(broker)
    epoch = one.coordinator.generation
    emptied = ConsumerGroupHeartbeatResponse(
        member_epoch=epoch, heartbeat_interval_ms=INTERVAL_MS, assignment=ConsumerGroupHeartbeatAssignment()
    )
    broker.answer(HeartbeatRequest, emptied)
    await eventually_async(lambda: not one.held)
    await pause(11 * INTERVAL_MS)
    assert one.held == parts("t", 0, 1, 2, 3)
    full = [request for request in broker.heartbeats[1:] if request.rebalance_timeout_ms != -1]
    assert 1 <= len(full) <= len(broker.heartbeats) / 5, "the other heartbeats are brief"
    await one.close()


@pytest.mark.behaviour(168)
@pytest.mark.parametrize("code", [codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE, codes.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_moves_or_loads_costs_nothing(code: int) -> None:
    @in_virtual_time
    async def run() -> None:
        broker = Broker()
        one = await joined(broker)
        await pause(2_000)
        broker.answer(HeartbeatRequest, code, code)
        await pause(3 * INTERVAL_MS)
        assert one.stable
        assert [kind for kind, _ in one.callbacks] == ["assigned"]
        assert not one.errors
        await one.close()

    run()


@pytest.mark.behaviour(169)
@in_virtual_time
async def test_a_member_that_is_about_to_leave_acknowledges_nothing_and_may_change_its_mind() -> None:
    broker = Broker()
    one = await joined(broker)
    held = one.held
    await one.stop()
    one.coordinator.prepare_to_leave()
    await pause()
    assert state_of(one) is State.PREPARE_LEAVING
    one.coordinator.release(held)
    await pause(2 * INTERVAL_MS)
    assert all(request.topic_partitions != () for request in broker.heartbeats[1:])
    one.start()
    await eventually_async(lambda: one.held == held and one.stable)
    assert broker.heartbeats[-1].member_epoch > 0
    await one.close()


@pytest.mark.behaviour(169)
@in_virtual_time
async def test_a_member_that_is_about_to_leave_keeps_what_the_group_wants_back_while_a_commit_of_it_waits() -> None:
    broker = Broker()
    one = await joined(broker)
    held = one.held
    await one.stop()
    one.coordinator.prepare_to_leave()
    answered = asyncio.Event()
    broker.answer(OffsetCommitRequest, held_until(answered))
    commit = asyncio.ensure_future(one.coordinator.commit({partition: OffsetAndMetadata(7) for partition in held}))
    await pause(10)
    one.coordinator.release(held)
    other = modern_member(broker)
    other.coordinator.subscribe(["t"])
    other.start()
    await pause(3 * INTERVAL_MS)
    assert broker.consumer_group.members[other.coordinator.member_id].assigned == {}
    answered.set()
    assert set((await commit).values()) == {None}
    await one.coordinator.unsubscribe()
    await eventually_async(lambda: other.held == held)
    await one.close()
    await other.close()


@pytest.mark.behaviour(170)
@in_virtual_time
async def test_leave_group_stays_out_until_a_rebalance_is_enforced() -> None:
    broker = Broker()
    one = await joined(broker)
    await one.coordinator.leave_group()
    assert not broker.consumer_group.members
    await pause(3 * INTERVAL_MS)
    assert [kind for kind, _ in one.callbacks] == ["assigned", "lost"]
    one.coordinator.enforce_rebalance()
    await eventually_async(lambda: one.stable and bool(one.held))
    await one.close()


@pytest.mark.behaviour(171)
@in_virtual_time
async def test_an_enforced_rebalance_sends_all_fields() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    one.coordinator.enforce_rebalance("because")
    await pause(100)
    assert broker.heartbeats[-1].subscribed_topic_names == ("t",)
    assert broker.heartbeats[-1].member_epoch > 0
    await one.close()


@pytest.mark.behaviour(172)
@in_virtual_time
async def test_closing_while_the_coordinator_is_silent_ends_in_time() -> None:
    broker = Broker()
    one = await joined(broker)
    broker.down.add(0)
    broker.disconnect()
    began = now_ms()
    await one.close(1_000)
    assert now_ms() - began < 5_000


@pytest.mark.behaviour(173)
@in_virtual_time
async def test_a_deleted_topic_is_revoked() -> None:
    broker = Broker({"t": 2, "u": 2})
    one = await joined(broker, ("t", "u"))
    broker.cluster.delete_topic("u")
    await eventually_async(lambda: one.held == parts("t", 0, 1))
    await one.close()


@pytest.mark.behaviour(174)
@in_virtual_time
async def test_a_topic_that_grows() -> None:
    broker = Broker({"t": 2})
    one = await joined(broker)
    broker.cluster.grow_topic("t", 5)
    await eventually_async(lambda: len(one.held) == 5)
    await one.close()


@in_virtual_time
async def test_closing_while_an_earlier_goodbye_is_under_way_waits_for_it() -> None:
    broker = Broker()
    one = await joined(broker)
    await one.stop()
    one.coordinator.release(one.held)
    answered = asyncio.Event()
    broker.answer(HeartbeatRequest, held_until(answered))
    unsubscribing = asyncio.ensure_future(one.coordinator.unsubscribe())
    await eventually_async(lambda: state_of(one) is State.LEAVING)
    closing = asyncio.ensure_future(one.coordinator.close())
    await pause(10)
    assert not closing.done()
    answered.set()
    await asyncio.gather(unsubscribing, closing)
    assert [request.member_epoch for request in broker.heartbeats].count(-1) == 1
    await one.cluster.close()


@in_virtual_time
async def test_subscribing_while_it_leaves_joins_when_it_has_left() -> None:
    broker = Broker()
    one = await joined(broker)
    answered = asyncio.Event()
    await one.stop()
    one.coordinator.release(one.held)
    await pause(100)
    broker.answer(HeartbeatRequest, held_until(answered))
    leaving = asyncio.ensure_future(one.coordinator.leave_group())
    await eventually_async(lambda: state_of(one) is State.LEAVING)
    one.coordinator.subscribe(["t"])
    answered.set()
    await leaving
    one.start()
    await eventually_async(lambda: one.stable and bool(one.held))
    await one.close()
