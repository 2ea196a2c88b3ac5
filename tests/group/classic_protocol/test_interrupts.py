"""An interrupt at each step leaves a state from which the next poll recovers (behaviour 24).

Every step of the scripted network takes a millisecond, so interrupting at each half millisecond hits every wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from consumer_coord.errors import ClosedError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire.messages.group import JoinGroupRequest, LeaveGroupRequest
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import TestMember, at, new_member, parts
from tests.support.group.virtual import now_ms, pause
from tests.support.waiting import eventually_async

_STEP_MS = 0.5


def at_each_step(story: Callable[[float], Coroutine[Any, Any, bool]]) -> int:
    """Run a story with an interrupt after 0, 0.5, 1, … ms, until the story reports that the interrupt came too late."""
    for step in range(200):

        async def whole(after_ms: float = step * _STEP_MS) -> bool:
            late = await story(after_ms)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual.VirtualTimeLoop)
            assert not loop.errors, (after_ms, loop.errors)
            assert not [name for name in loop.leaks().tasks if "fake broker" not in name], (after_ms, loop.leaks())
            return late

        if virtual.run(whole(), seed=1, max_time_s=600):
            return step
    raise AssertionError("the story never ends")


async def _cancelled(task: asyncio.Task[Any]) -> bool:
    """Cancel a task; return True if it had ended before."""
    if task.done():
        await task
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


async def _recovers(one: TestMember, brokers: FakeBrokers) -> None:
    one.start()
    await eventually_async(lambda: one.stable and one.held == parts("t", 0, 1, 2, 3))
    assert not one.errors
    await pause(10_000)
    assert one.stable
    generation = brokers.generation
    assert one.coordinator.generation == generation
    result = await one.coordinator.commit(at("t", 1, 7))
    assert list(result.values()) == [None]
    await one.close(1_000)


@pytest.mark.behaviour(24)
def test_waiting_for_the_group_cancelled_at_each_step() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        one.coordinator.subscribe(["t"])
        waiting = asyncio.ensure_future(one.coordinator.join_group_if_needed())
        await pause(after_ms)
        late = await _cancelled(waiting)
        await _recovers(one, brokers)
        assert len(brokers.all(JoinGroupRequest)) == 2, "the interrupt cost a join"
        return late

    assert at_each_step(story) > 10


@pytest.mark.slow
@pytest.mark.behaviour(24, 92)
def test_leaving_at_each_step_of_the_first_join_and_coming_back() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        one.coordinator.subscribe(["t"])
        await pause(after_ms)
        late = one.stable
        await one.coordinator.unsubscribe()
        assert one.coordinator.member_id == ""
        promised = bool(brokers.all(JoinGroupRequest))
        left = [identity.member_id for request in brokers.all(LeaveGroupRequest) for identity in request.members]
        assert left == (["member-1"] if promised else []), f"{after_ms}: the group waits for a member that was promised a place"
        one.coordinator.subscribe(["t"])
        await _recovers(one, brokers)
        return late or bool(one.held) or after_ms > 40

    assert at_each_step(story) > 10


@pytest.mark.behaviour(24)
def test_leaving_at_each_step_of_a_later_rebalance() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        await one.join()
        started = now_ms()
        one.coordinator.enforce_rebalance()
        await pause(after_ms)
        late = one.stable and now_ms() > started + 1
        await one.coordinator.leave_group("the test leaves")
        await pause(100)
        assert one.held == frozenset()
        assert one.callbacks[-1][0] == "lost"
        one.coordinator.enforce_rebalance("back")
        await one.stop()
        await _recovers(one, brokers)
        return late

    assert at_each_step(story) >= 5


@pytest.mark.behaviour(24)
def test_the_connection_breaks_at_each_step_of_a_join() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        one.coordinator.subscribe(["t"])
        await pause(after_ms)
        late = one.stable or bool(one.coordinator.assignment.target.partitions)
        brokers.disconnect()
        await _recovers(one, brokers)
        return late

    assert at_each_step(story) > 10


@pytest.mark.behaviour(24)
def test_a_commit_cancelled_at_each_step() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        await one.join()
        await one.stop()
        commit = asyncio.ensure_future(one.coordinator.commit(at("t", 0, 5)))
        await pause(after_ms)
        late = await _cancelled(commit)
        await _recovers(one, brokers)
        return late

    assert at_each_step(story) >= 4


@pytest.mark.behaviour(24, 76)
def test_closing_at_each_step_of_a_join_leaves_nothing_behind() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        one.coordinator.subscribe(["t"])
        await pause(after_ms)
        late = bool(one.coordinator.assignment.target.partitions)
        await one.close(1_000)
        promised = bool(brokers.all(JoinGroupRequest))
        left = [identity.member_id for request in brokers.all(LeaveGroupRequest) for identity in request.members]
        assert left == (["member-1"] if promised else []), f"{after_ms}: the group waits for a member that was promised a place"
        with pytest.raises(ClosedError):
            one.coordinator.subscribe(["t"])
        return late

    assert at_each_step(story) > 10


@pytest.mark.behaviour(24)
def test_a_close_cancelled_at_each_step_can_be_closed_again() -> None:
    async def story(after_ms: float) -> bool:
        brokers = FakeBrokers()
        one = new_member(brokers)
        await one.join()
        await one.stop()
        one.coordinator.release(one.held)
        closing = asyncio.ensure_future(one.coordinator.close(1_000))
        await pause(after_ms)
        late = await _cancelled(closing)
        await one.coordinator.close(1_000)
        await one.cluster.close()
        await pause(10)
        assert len(brokers.all(LeaveGroupRequest)) == 1
        return late

    assert at_each_step(story) >= 3
