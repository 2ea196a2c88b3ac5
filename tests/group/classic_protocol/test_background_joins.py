"""A rebalance does not wait for slow work: joins in the background and their consequences (behaviours 35 to 40, 50, 59)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from consumer_coord.errors import RequestTimedOutError
from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.classic_protocol.membership import MemberState
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.classic import classic
from tests.support.group.fake import PASS, SILENCE, FakeBrokers, Pass, Reply, asked_for, owned_in
from tests.support.group.member import EAGER, at, member, new_cluster, new_member, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


def _following(brokers: FakeBrokers, *numbers: int) -> None:
    brokers.leader = "zoe"
    brokers.assignment = {"t": numbers}


@pytest.mark.behaviour(36, 39)
@in_virtual_time
async def test_a_cooperative_rebalance_needs_the_application_only_for_what_moves() -> None:
    brokers = FakeBrokers()
    _following(brokers, 0, 1, 2)
    async with member(brokers) as one:
        await one.join()
        await one.stop()  # the application is busy
        _following(brokers, 0, 1)
        one.coordinator.enforce_rebalance()
        await eventually_async(
            lambda: one.coordinator.generation == 2 and one.coordinator.protocol.state is MemberState.STABLE, within_s=0.1
        )
        assert one.held == parts("t", 0, 1, 2)
        await pause(5_000)
        assert one.coordinator.generation == 2, "it joined again before it revoked a partition"
        assert owned_in(brokers.last(JoinGroupRequest)) == parts("t", 0, 1, 2)
        one.start()
        await eventually_async(lambda: one.coordinator.generation == 3, within_s=0.1)
        assert one.callbacks[1:] == [("revoked", parts("t", 2))], "a partition that stays was interrupted"
        assert owned_in(brokers.last(JoinGroupRequest)) == parts("t", 0, 1)
        assert brokers.last(JoinGroupRequest).reason == "partitions were revoked"


@pytest.mark.behaviour(35)
@in_virtual_time
async def test_an_eager_member_gives_everything_up_before_it_joins() -> None:
    brokers = FakeBrokers()
    async with member(brokers, EAGER) as one:
        await one.join()
        joins = len(brokers.all(JoinGroupRequest))

        async def slowly(partitions: frozenset[TopicPartition]) -> None:
            await asyncio.sleep(2)
            assert len(brokers.all(JoinGroupRequest)) == joins

        one.on_revoke = slowly
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) > joins)
        assert one.callbacks[1:] == [("revoked", parts("t", 0, 1, 2, 3))]
        assert owned_in(brokers.last(JoinGroupRequest)) == set()
        await eventually_async(lambda: one.stable and one.held)
        assert one.callbacks[2:] == [("assigned", parts("t", 0, 1, 2, 3))]


@pytest.mark.behaviour(35)
@in_virtual_time
async def test_an_eager_member_keeps_its_session_while_its_application_takes_its_time() -> None:
    brokers = FakeBrokers()
    async with member(brokers, EAGER) as one:
        await one.join()
        await one.stop()
        one.coordinator.enforce_rebalance()
        started = now_ms()
        await pause(15_000)
        assert len([moment for moment in brokers.times(HeartbeatRequest) if moment > started]) >= 4


@pytest.mark.behaviour(37)
@in_virtual_time
async def test_partitions_of_topics_no_longer_subscribed_go_before_the_join() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    async with member(brokers) as one:
        await one.join(["t", "u"])
        joins = len(brokers.all(JoinGroupRequest))
        await one.stop()
        one.coordinator.subscribe(["u"])
        await pause(1_000)
        assert len(brokers.all(JoinGroupRequest)) == joins
        one.start()
        await eventually_async(lambda: one.stable)
        assert one.callbacks[1:] == [("revoked", parts("t", 0, 1))]
        request = brokers.all(JoinGroupRequest)[joins]
        assert asked_for(request) == ["u"]
        assert owned_in(request) == parts("u", 0, 1)


@pytest.mark.behaviour(59)
@in_virtual_time
async def test_a_subscription_change_while_the_join_waits_leads_to_one_more_rejoin() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    go = asyncio.Event()

    async def waits(_: JoinGroupRequest) -> Pass:
        await go.wait()
        return PASS

    async with member(brokers) as one:
        brokers.answer(JoinGroupRequest, PASS, waits)
        one.coordinator.subscribe(["t"])
        one.start()
        await pause(500)
        one.coordinator.subscribe(["t", "u"])
        go.set()
        await eventually_async(lambda: one.stable and len(one.held) == 4)
        assert [asked_for(request) for request in brokers.all(JoinGroupRequest)] == [["t"], ["t"], ["t", "u"]]


@in_virtual_time
async def test_a_partition_taken_away_and_given_back_between_two_polls_is_no_change() -> None:
    brokers = FakeBrokers()
    _following(brokers, 0, 1)
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        before = one.coordinator.assignment.ownerships(one.held)
        for numbers in ((0,), (0, 2), (0, 1)):
            _following(brokers, *numbers)
            generation = one.coordinator.generation
            one.coordinator.enforce_rebalance()
            await eventually_async(lambda generation=generation: one.coordinator.generation > generation)  # type: ignore[misc]
            await pause(100)
        await one.poll()
        assert [what for what, _ in one.callbacks] == ["assigned"]
        assert one.coordinator.assignment.ownerships(one.held) == before, "the ownership was not interrupted"


@in_virtual_time
async def test_a_partition_lost_and_won_again_between_two_polls_is_lost_and_assigned() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        before = one.coordinator.assignment.ownerships(parts("t", 0, 1, 2, 3))
        brokers.answer(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
        await eventually_async(
            lambda: one.coordinator.member_id == "member-2" and one.coordinator.protocol.state is MemberState.STABLE
        )
        change = one.coordinator.assignment.change()
        assert change.lost == change.added == parts("t", 0, 1, 2, 3)
        await one.poll()
        assert [what for what, _ in one.callbacks] == ["assigned", "lost", "assigned"]
        after = one.coordinator.assignment.ownerships(one.held)
        assert all(after[partition] != before[partition] for partition in after)


@in_virtual_time
async def test_partitions_that_were_never_acquired_are_offered_to_the_group_again() -> None:
    """A partition that is in the target, but that the application never saw, must not stay without an owner."""
    brokers = FakeBrokers()
    _following(brokers, 0, 1)
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        await eventually_async(lambda: one.coordinator.protocol.state is MemberState.STABLE)
        _following(brokers, 0)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.coordinator.generation == 3)
        assert owned_in(brokers.all(JoinGroupRequest)[-2]) == parts("t", 0, 1)
        assert owned_in(brokers.last(JoinGroupRequest)) == parts("t", 0)
        assert one.callbacks == []


@pytest.mark.behaviour(40)
@in_virtual_time
async def test_a_holding_that_is_lost_during_its_revocation_ends_quietly() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()

        async def loses(partitions: frozenset[TopicPartition]) -> None:
            classic(one.coordinator).status.lose("the test says so")

        _following(brokers, 0)
        one.on_revoke = loses
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.callbacks[-1] == ("assigned", parts("t", 0)) and len(one.callbacks) > 1)
        assert [what for what, _ in one.callbacks] == ["assigned", "revoked", "lost", "assigned"]
        assert one.callbacks[2] == ("lost", parts("t", 0))


@in_virtual_time
async def test_a_transaction_holds_the_next_join_until_the_next_poll() -> None:
    brokers = FakeBrokers()
    async with member(brokers, rebalance_timeout_ms=60_000) as one:
        await one.join()
        await one.stop()
        joins = len(brokers.all(JoinGroupRequest))
        state = await one.coordinator.hold_joins()
        assert state == one.coordinator.protocol.generation_state
        one.coordinator.enforce_rebalance()
        await pause(20_000)
        assert len(brokers.all(JoinGroupRequest)) == joins
        await one.poll()
        await pause(10)
        assert len(brokers.all(JoinGroupRequest)) == joins + 1
        # The limit is half the rebalance timeout: a longer transaction no longer delays the group.
        await pause(100)
        await one.coordinator.hold_joins()
        started = now_ms()
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == joins + 2)
        assert now_ms() - started == pytest.approx(30_000, abs=10)


@in_virtual_time
async def test_after_a_held_join_the_application_polls_as_cheaply_as_before() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        await one.coordinator.hold_joins()
        for _ in range(3):
            await one.poll()
        assert not one.coordinator.application.attention, "every poll takes the slow path from now on"


@pytest.mark.behaviour(72)
@in_virtual_time
async def test_commit_heartbeat_and_leave_do_not_wait_behind_a_join() -> None:
    """A broker serves the requests of a connection one at a time, so the join has a separate connection."""
    brokers = FakeBrokers()
    cluster = new_cluster(brokers)
    one, other = new_member(brokers, cluster=cluster), new_member(brokers, cluster=cluster, group_id="payments")
    await one.join()
    await other.join()
    await pause(1_000)
    brokers.always(JoinGroupRequest, SILENCE)
    joins = len(brokers.all(JoinGroupRequest))
    one.coordinator.enforce_rebalance()
    other.coordinator.enforce_rebalance()
    await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == joins + 2)
    waiting = {seen.connection for seen in brokers.seen if isinstance(seen.message, JoinGroupRequest)}
    started = now_ms()
    await one.coordinator.commit(at("t", 0, 5))
    assert now_ms() - started < 100
    await classic(one.coordinator).session.send_heartbeat()
    assert now_ms() - started < 200
    await one.coordinator.leave_group("the test leaves")
    assert now_ms() - started < 300
    used = {
        seen.connection
        for seen in brokers.seen
        if isinstance(seen.message, (OffsetCommitRequest, HeartbeatRequest, LeaveGroupRequest))
    }
    assert not used & waiting
    assert len(used) == 1, "the members of a process share one connection for these"
    for each in (one, other):
        await each.stop()
        each.coordinator.release(each.held)
        await each.coordinator.close(100)
    await cluster.close()


@in_virtual_time
async def test_connections_for_joins_are_given_back() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        opened = len(brokers.opened)
        for _ in range(5):
            one.coordinator.enforce_rebalance()
            await pause(200)
        assert one.coordinator.generation == 6
        assert len(brokers.opened) == opened


@in_virtual_time
async def test_releases_are_coalesced_within_the_linger() -> None:
    """Two members of a process that release partitions one after the other cause one round, not two."""
    rounds = {}
    for linger in (0, 500):
        brokers = FakeBrokers()
        _following(brokers, 0, 1, 2, 3)
        cluster = new_cluster(brokers)
        one, two = (new_member(brokers, cluster=cluster, release_linger_ms=linger) for _ in range(2))
        for each in (one, two):
            await each.join()
            await each.stop()
        _following(brokers, 0)
        for each in (one, two):
            brokers.generation = each.coordinator.generation
            each.coordinator.enforce_rebalance()
            await eventually_async(lambda each=each: each.coordinator.assignment.to_revoke)  # type: ignore[misc]
        joins = len(brokers.all(JoinGroupRequest))
        await one.poll()
        await pause(200)
        rounds[linger] = len(brokers.all(JoinGroupRequest)) - joins
        await two.poll()
        await pause(200)
        assert len(brokers.all(JoinGroupRequest)) >= joins + 2
        for each in (one, two):
            await each.coordinator.close(100)
        await cluster.close()
    assert rounds == {0: 1, 500: 0}


@in_virtual_time
async def test_an_obstacle_to_a_join_is_reported() -> None:
    brokers = FakeBrokers()
    brokers.always(SyncGroupRequest, SILENCE)
    async with member(brokers) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(RequestTimedOutError, match="completing rebalance"):
            await one.coordinator.join_group_if_needed(1_000)


# -- the pure state ---------------------------------------------------------------------------------------------------


@pytest.mark.behaviour(50)
def test_each_target_has_a_different_number() -> None:
    state = AssignmentState()
    numbers = []
    for generation in range(1, 4):
        state.publish(generation, parts("t", 0))
        numbers.append(state.target.number)
    state.lose()
    numbers.append(state.target.number)
    assert numbers == sorted(set(numbers))
    stale = state.change()
    state.publish(9, parts("t", 1))
    assert state.accept(stale) == frozenset(), "a change of a former target was applied"


def test_every_completed_rebalance_is_reported_once() -> None:
    state = AssignmentState()
    state.publish(1, parts("t", 0) | parts("u", 0))
    change = state.change()
    assert change.first
    state.accept(change)
    assert not state.change()
    state.publish(2, parts("t", 0) | parts("u", 0))
    change = state.change()
    assert change.first
    assert change == attrs.evolve(change, lost=frozenset(), revoked=frozenset(), added=frozenset())
    state.accept(change)
    state.narrow(frozenset({"u"}))
    change = state.change()
    assert change.revoked == parts("t", 0)
    assert not change.first


def test_an_offset_is_committable_until_the_group_is_notified_of_the_revocation() -> None:
    state = AssignmentState()
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    state.publish(1, {zero, one})
    state.accept(state.change())
    first = state.ownerships([zero, one])
    assert state.ended(first) == frozenset()
    state.release([zero])
    assert state.ended(first) == frozenset(), "released, and the group does not know yet"
    state.drop_revoked()
    assert state.ended(first) == {zero}
    state.lose()
    assert state.ended(first) == {zero, one}
    assert state.ended({one: None}) == {one}, "lost, and the application has not looked"
    state.release([one])
    assert state.ended({one: None}) == frozenset()
    state.publish(2, {zero, one})
    state.accept(state.change())
    assert state.ended(first) == {zero, one}, "a partition assigned again has a new ownership"
    assert state.ended(state.ownerships([zero, one])) == frozenset()


@in_virtual_time
async def test_a_member_lost_during_a_coordinator_lookup_joins_again() -> None:
    """Found by seed 955431474: the join continued with a member that was out of the group, and crashed."""
    brokers = FakeBrokers()

    def late(after_ms: float, reply: Reply) -> Callable[[Any], Any]:
        async def answer(_: Any) -> Reply:
            await pause(after_ms)
            return reply

        return answer

    async with member(brokers) as one:
        await one.join()
        await pause(1_000)
        # A heartbeat is in flight and will be refused; at this moment its coordinator is forgotten and a join is needed.
        brokers.answer(HeartbeatRequest, late(50, codes.UNKNOWN_MEMBER_ID))
        beating = asyncio.ensure_future(classic(one.coordinator).session.send_heartbeat())
        await pause(5)
        brokers.answer(FindCoordinatorRequest, late(200, PASS))
        await one.coordinator.ensure_coordinator_ready()
        one.forget_coordinator()
        one.coordinator.enforce_rebalance()
        await beating
        assert one.coordinator.protocol.state is MemberState.UNJOINED, "the member is out before the coordinator is found"
        await eventually_async(lambda: one.stable)
        assert brokers.last(JoinGroupRequest).member_id != "", "the second JoinGroup of a new member"
