"""The lease: until when a member may deliver records, and what ends, suspends and resumes it (no Kafka client has it)."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from typing import Any

import pytest

from consumer_coord.group.lease import Lease
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from consumer_coord.wire.messages.offsets import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from tests.support.group.classic import classic
from tests.support.group.fake import GROUP, PASS, SILENCE, FakeBrokers, Pass
from tests.support.group.member import COOPERATIVE, TestMember, at, member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def left_ms(one: TestMember) -> float:
    """Return the milliseconds until the lease expires; negative after that."""
    return (one.coordinator.lease.until - one.coordinator.lease.clock()) * 1000


def suspended(one: TestMember) -> tuple[float, float]:
    """Return how often the lease was suspended, and for how many seconds in total."""
    figures = one.coordinator.metrics()
    return figures["lease-suspended-total"], figures["lease-suspended-seconds-total"]


@in_virtual_time
async def test_a_lease_is_a_session_from_the_sending_of_the_last_answered_heartbeat() -> None:
    brokers = FakeBrokers()

    async def late(_: HeartbeatRequest) -> Pass:
        await asyncio.sleep(2)
        return PASS

    async with member(brokers, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=3_000) as one:
        await one.join()
        await pause(5_000)
        beats = len(brokers.all(HeartbeatRequest))
        await eventually_async(lambda: len(brokers.all(HeartbeatRequest)) == beats + 1)
        await pause(10)
        assert left_ms(one) == pytest.approx(SESSION_MS, rel=0.01)
        brokers.answer(HeartbeatRequest, late)
        await eventually_async(lambda: len(brokers.all(HeartbeatRequest)) == beats + 2)
        assert left_ms(one) == pytest.approx(SESSION_MS - 3_000, rel=0.01), "a heartbeat counts when its response arrives"
        await pause(2_100)
        assert left_ms(one) == pytest.approx(SESSION_MS - 2_100, rel=0.01), "it counts from the time it was sent"
        assert left_ms(one) < SESSION_MS - 2_100, "clocks do not all run at the same speed"


@in_virtual_time
async def test_a_coordinator_that_is_away_for_longer_than_a_session_suspends_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS) as one:
        await one.join()
        await pause(100)
        held = one.held
        assert held
        brokers.always(HeartbeatRequest, SILENCE)
        await eventually_async(lambda: left_ms(one) <= 0, within_s=(SESSION_MS + 100) / 1000)
        await pause(1)
        assert suspended(one)[0] == 1
        await pause(30_000)
        assert suspended(one)[0] == 1
        assert suspended(one)[1] == pytest.approx(30, rel=0.02)
        assert one.held == held
        assert [what for what, _ in one.callbacks] == ["assigned"]
        assert not one.errors
        one.coordinator.application.seen = one.coordinator.application.news
        one.coordinator.application.bell.clear()
        brokers.always(HeartbeatRequest, None)
        await one.stop()
        await eventually_async(lambda: left_ms(one) > 0, within_s=30)
        assert one.coordinator.application.attention, "the application was not woken"
        assert one.coordinator.application.bell.is_set()
        lasted_s = suspended(one)[1]
        await pause(60_000)
        assert suspended(one) == (1, lasted_s)
        assert len(brokers.all(JoinGroupRequest)) == 2, "it cost a rebalance"
        assert one.held == held
        delivery = re.compile("lease expired: delivery paused|lease renewed: delivery resumed")
        assert [record.levelname for record in caplog.records if delivery.search(record.getMessage())] == ["WARNING", "INFO"]


@in_virtual_time
async def test_a_loading_coordinator_does_not_renew_an_expired_lease() -> None:
    """A loading coordinator accepts every Heartbeat, even from a removed member; it answers OffsetFetch only after loading."""
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS) as one:
        await one.join()
        await eventually_async(lambda: len(brokers.all(HeartbeatRequest)) > 1)
        assert not brokers.all(OffsetFetchRequest), "while the lease lasts a heartbeat costs no other request"
        brokers.always(HeartbeatRequest, SILENCE)
        await eventually_async(lambda: left_ms(one) <= 0, within_s=(SESSION_MS + 100) / 1000)
        loads = OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=GROUP, topics=[], error_code=codes.COORDINATOR_LOAD_IN_PROGRESS)]
        )
        brokers.always(OffsetFetchRequest, loads)
        brokers.always(HeartbeatRequest, None)
        await pause(20_000)
        assert brokers.all(OffsetFetchRequest)
        assert left_ms(one) <= 0
        brokers.always(OffsetFetchRequest, None)
        await eventually_async(lambda: left_ms(one) > 0, within_s=2)
        asked = len(brokers.all(OffsetFetchRequest))
        await pause(20_000)
        assert len(brokers.all(OffsetFetchRequest)) == asked


@in_virtual_time
async def test_an_answer_that_the_membership_is_gone_ends_the_lease() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        brokers.answer(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
        brokers.always(JoinGroupRequest, SILENCE)
        await eventually_async(lambda: one.coordinator.assignment.any_lost)
        assert one.coordinator.lease.until == -math.inf
        await pause(30_000)
        assert one.coordinator.lease.until == -math.inf
        assert suspended(one)[0] == 0, "a lost partition is not suspended"


@in_virtual_time
async def test_heartbeats_continue_during_a_join_and_renew_the_lease_for_a_rebalance_timeout() -> None:
    """The member holds its partitions (KIP-429), but does not know the fate of its JoinGroup."""
    brokers = FakeBrokers()
    everybody_joined = asyncio.Event()

    async with member(brokers, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS) as one:
        await one.join()
        await eventually_async(lambda: len(brokers.all(HeartbeatRequest)) >= 2)
        last_good = now_ms()
        brokers.always(HeartbeatRequest, codes.REBALANCE_IN_PROGRESS)

        async def join(request: JoinGroupRequest) -> Any:
            # Although JoinGroup is sent again, the group completes one generation.
            await everybody_joined.wait()
            brokers.generation = 2
            return brokers.joined(request)

        brokers.always(JoinGroupRequest, join)
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 3)
        before = len(brokers.all(HeartbeatRequest))
        await pause(last_good + REBALANCE_MS - 1_000 - now_ms())
        assert len(brokers.all(HeartbeatRequest)) - before >= 15
        assert 0 < left_ms(one) <= 1_000
        await eventually_async(lambda: left_ms(one) <= 0, within_s=1.1)
        await pause(1)
        assert suspended(one)[0] == 1
        assert one.held, "only the coordinator can end the membership"
        brokers.always(HeartbeatRequest, None)
        everybody_joined.set()
        await eventually_async(lambda: one.coordinator.generation >= 2, within_s=0.1)
        await eventually_async(lambda: one.stable and left_ms(one) > 0)
        assert [what for what, _ in one.callbacks] == ["assigned"]


@in_virtual_time
async def test_heartbeats_before_syncgroup_renew_only_the_session() -> None:
    """Kafka removes such a member after the rebalance timeout, although the member sent heartbeats all the time."""
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=20_000) as one:
        await one.join()
        await pause(100)
        brokers.always(SyncGroupRequest, SILENCE)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: classic(one.coordinator).session.syncing)
        joined = now_ms()
        await pause(15_000)
        assert classic(one.coordinator).session.syncing
        assert left_ms(one) == pytest.approx(joined + 20_000 - now_ms(), rel=0.02)
        beats = [moment for moment in brokers.times(HeartbeatRequest) if moment > joined]
        assert len(beats) >= 3


@in_virtual_time
async def test_a_slow_join_is_followed_by_a_heartbeat_at_once() -> None:
    """The group's initial delay may take more than half a session, and the lease runs from the sending of JoinGroup."""
    brokers = FakeBrokers()

    async def slowly(_: JoinGroupRequest) -> Pass:
        await asyncio.sleep(4)
        return PASS

    brokers.answer(JoinGroupRequest, PASS, slowly)
    async with member(brokers, session_timeout_ms=6_000, heartbeat_interval_ms=2_000) as one:
        await one.join()
        await pause(20)
        assert left_ms(one) == pytest.approx(6_000, rel=0.02)
        assert suspended(one) == (0, 0)


@in_virtual_time
async def test_without_leases_nothing_is_ever_suspended() -> None:
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS, group_lease_enable=False) as one:
        await one.join()
        brokers.always(HeartbeatRequest, SILENCE)
        await pause(60_000)
        assert one.coordinator.lease.until == math.inf
        assert suspended(one) == (0, 0)


@in_virtual_time
async def test_commits_go_out_while_the_lease_is_suspended_because_the_broker_fences_them() -> None:
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS) as one:
        await one.join()
        brokers.always(HeartbeatRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
        await eventually_async(lambda: suspended(one)[0] == 1)
        results = await one.coordinator.commit(at("t", 0, 7), timeout_ms=5_000)
        assert list(results.values()) == [None]
        assert left_ms(one) < 0, "a commit renews no session in a group of the consumer protocol"


@in_virtual_time
async def test_who_unsubscribes_needs_no_lease() -> None:
    brokers = FakeBrokers()
    async with member(brokers, COOPERATIVE) as one:
        await one.join()
        await one.stop()
        one.coordinator.release(one.held)
        await one.coordinator.unsubscribe()
        assert one.coordinator.lease.until == math.inf, "assign() needs no group"


class _Ends:
    """A lease with a clock that the test sets, and the lease's notifications."""

    def __init__(self, session_ms: float = 1_000, rebalance_ms: float = 5_000) -> None:
        self.now = 100.0
        self.suspended = 0
        self.resumed: list[float | None] = []
        self.lease = Lease(
            lambda: self.now,
            enabled=True,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            in_use=lambda: True,
            on_suspended=self._suspended,
            on_resumed=self.resumed.append,
        )

    def _suspended(self) -> None:
        self.suspended += 1

    def step(self, what: str, sent: float, **how: Any) -> None:
        """Send one request, and answer it ``0.1`` seconds later."""
        self.now = sent
        if what == "joined":
            self.lease.joins()
        self.now = sent + 0.1
        if what == "joined":
            self.lease.joined(**how)
        else:
            getattr(self.lease, what)(sent, **how)


@in_virtual_time
async def test_how_far_each_response_renews_the_lease() -> None:
    ends = _Ends()
    ends.step("joined", 100, new=True)
    ends.step("synced", 100.2)
    assert ends.lease.until == pytest.approx(101, abs=0.01)
    ends.step("heartbeat_answered", 101, rebalancing=False)
    assert ends.lease.until == pytest.approx(102, abs=0.01)
    ends.step("synced", 101.5)
    assert ends.lease.until == pytest.approx(102, abs=0.01), "a late SyncGroup renews no session (Kafka 4)"
    ends.step("joined", 101.7, new=False)
    assert ends.lease.until == pytest.approx(102, abs=0.01), "a join without a join phase renews nothing"
    for second in range(102, 108):
        ends.step("synced", second)
        ends.step("heartbeat_answered", second, rebalancing=True)
    assert ends.lease.until == pytest.approx(106, abs=0.02), (
        "the join phase, or the time to revoke in a group of the consumer protocol, began after the last heartbeat without an"
        " error at the earliest; a further SyncGroup of the same generation proves nothing"
    )


@in_virtual_time
async def test_a_join_that_was_sent_twice_counts_from_the_first_sending() -> None:
    """The phase may have ended with the first request, whose response was lost, and the session may have begun then."""
    ends = _Ends(session_ms=3_000)
    ends.step("joined", 100, new=True)
    ends.step("synced", 100.2)
    ends.now = 102
    ends.lease.joins()
    ends.now = 104
    ends.lease.joins()
    ends.now = 104.1
    ends.lease.joined(new=True)
    assert ends.lease.until == pytest.approx(105, abs=0.01)


@in_virtual_time
async def test_a_suspended_machine_lets_the_lease_pass_although_no_timer_ran() -> None:
    ends = _Ends()
    ends.step("joined", 100, new=True)
    ends.step("synced", 100.2)
    ends.now = 200.0
    assert ends.now > ends.lease.until
    ends.step("heartbeat_answered", 200, rebalancing=False)
    assert ends.now < ends.lease.until
    assert ends.resumed == [None], "the application has to check again"
