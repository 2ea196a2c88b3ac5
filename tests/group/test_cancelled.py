"""Cancelled calls of unsubscribe, leave_group and close: the member stays usable, and the request is carried out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer_coord.errors import ClosedError
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.group.classic_protocol.test_interrupts import at_each_step
from tests.support.group.classic import classic
from tests.support.group.fake import SILENCE, FakeBrokers
from tests.support.group.member import COOPERATIVE, ScriptedAssignor, at, everything_to_first, member, new_member, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


async def _cancel(task: asyncio.Task[Any]) -> bool:
    """Cancel the task; return True if it had ended before."""
    if task.done():
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


@pytest.mark.behaviour(24)
@pytest.mark.parametrize("how", ["unsubscribe", "leave_group"])
def test_leaving_cancelled_at_each_step_is_done_all_the_same_and_the_member_can_come_back(how: str) -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        await one.join()
        await one.stop()
        one.coordinator.prepare_to_leave()
        one.coordinator.release(one.held)
        commit = one.coordinator.start_commit(at("t", 0, 1), timeout_ms=5_000)
        leaving = asyncio.ensure_future(getattr(one.coordinator, how)())
        await pause(after_ms)
        late = await _cancel(leaving)
        if how == "unsubscribe":
            one.coordinator.subscribe(["t"])
        else:
            one.coordinator.enforce_rebalance()
        one.start()
        await eventually_async(lambda: one.stable and one.held == parts("t", 0, 1, 2, 3))
        await pause(30_000)
        assert one.stable
        assert not one.errors
        if after_ms > 0:
            left = [identity.member_id for request in brokers.all(LeaveGroupRequest) for identity in request.members]
            assert left == ["member-1"]
        await asyncio.gather(commit, return_exceptions=True)
        await one.close(1_000)
        return late

    assert at_each_step(story) > 3


@pytest.mark.behaviour(24)
def test_close_cancelled_at_each_step_is_done_all_the_same() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        await one.join()
        await one.stop()
        one.coordinator.release(one.held)
        closing = asyncio.ensure_future(one.coordinator.close(5_000))
        await pause(after_ms)
        late = await _cancel(closing)
        await one.coordinator.close(5_000)
        assert len(brokers.all(LeaveGroupRequest)) == 1
        with pytest.raises(ClosedError):
            one.coordinator.subscribe(["t"])
        await one.cluster.close()
        return late

    assert at_each_step(story) > 1


@in_virtual_time
async def test_a_member_that_polls_again_does_not_leave_after_all() -> None:
    """The application was interrupted between its callbacks and unsubscribe."""
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        one.coordinator.prepare_to_leave()
        one.coordinator.release(one.held)
        one.coordinator.enforce_rebalance()
        await pause(1_000)
        assert len(brokers.all(JoinGroupRequest)) == 2, "a member that leaves does not join"
        one.start()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) > 2)
        await eventually_async(lambda: one.stable and one.held == parts("t", 0, 1, 2, 3))


@in_virtual_time
async def test_a_loss_while_the_leader_assigns_sends_no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeBrokers()
    async with member(brokers, [ScriptedAssignor(everything_to_first)], heartbeat_interval_ms=1_000) as one:
        await one.join()
        lost = asyncio.Event()

        async def slowly(_: Any) -> Any:
            await lost.wait()
            return ()

        with monkeypatch.context() as patch:
            patch.setattr(one.coordinator.protocol, "perform_assignment", slowly)
            one.coordinator.enforce_rebalance()
            await eventually_async(lambda: classic(one.coordinator).session.syncing)
            brokers.answer(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
            await eventually_async(lambda: one.coordinator.generation < 0)
        lost.set()
        await eventually_async(lambda: one.stable and one.held)
        assert all(sync.generation_id > 0 and sync.member_id for sync in brokers.all(SyncGroupRequest))


@in_virtual_time
async def test_a_transaction_does_not_wait_for_the_join_of_a_member_that_is_suspended() -> None:
    """``consumer_group_metadata()`` does not wait for the group, because the broker fences the generation."""
    brokers = FakeBrokers()
    async with member(brokers, COOPERATIVE, session_timeout_ms=10_000, rebalance_timeout_ms=300_000) as one:
        await one.join()
        await pause(1_000)
        brokers.always(JoinGroupRequest, SILENCE)
        brokers.always(HeartbeatRequest, SILENCE)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 3)
        started = now_ms()
        generation = await one.coordinator.hold_joins()
        assert now_ms() - started < 10_100
        assert generation.generation_id == 1
        brokers.always(JoinGroupRequest, None)
        brokers.always(HeartbeatRequest, None)
