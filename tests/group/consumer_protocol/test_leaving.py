"""Failures and refusals of a member of the consumer protocol that leaves, or is about to leave."""

from __future__ import annotations

import pytest

from consumer_coord.errors import FencedError
from consumer_coord.group.consumer_protocol.states import State
from consumer_coord.wire import error_codes as codes
from tests.support.group.consumer_protocol import INTERVAL_MS, Broker, HeartbeatRequest, joined, state_of
from tests.support.group.member import TestMember
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async


async def _failed_before_it_leaves(broker: Broker, code: int, **settings: str) -> TestMember:
    """Return a member that was about to leave and got this heartbeat response, twice if the member sent another heartbeat.

    Its application has not polled since.
    """
    one = await joined(broker, ("t",), **settings)
    await one.stop()
    one.coordinator.prepare_to_leave()
    await pause()
    broker.answer(HeartbeatRequest, code, code)
    await eventually_async(lambda: one.coordinator.generation < 0)
    return one


@in_virtual_time
async def test_a_member_that_fails_before_it_leaves_says_goodbye_once() -> None:
    broker = Broker()
    one = await _failed_before_it_leaves(broker, codes.GROUP_AUTHORIZATION_FAILED)
    await pause(3 * INTERVAL_MS)
    await one.close()
    assert [request.member_epoch for request in broker.heartbeats].count(-1) == 1
    assert broker.heartbeats[-1].member_epoch == -1


@in_virtual_time
async def test_a_member_that_is_replaced_before_it_leaves_stays_out_also_if_it_changes_its_mind() -> None:
    broker = Broker()
    one = await _failed_before_it_leaves(broker, codes.FENCED_INSTANCE_ID, group_instance_id="i")
    sent = len(broker.heartbeats)
    one.start()
    await pause(3 * INTERVAL_MS)
    assert one.errors
    assert all(isinstance(error, FencedError) for error in one.errors)
    assert len(broker.heartbeats) == sent, "it must not affect the member that replaced it"
    await one.close()


@in_virtual_time
async def test_a_member_that_failed_before_it_would_leave_joins_again_if_it_changes_its_mind() -> None:
    broker = Broker()
    one = await _failed_before_it_leaves(broker, codes.GROUP_AUTHORIZATION_FAILED)
    await pause(INTERVAL_MS)
    assert state_of(one) is State.FATAL
    one.start()
    await eventually_async(lambda: one.stable and len(one.held) == 4)
    assert [error.code for error in one.errors] == [codes.GROUP_AUTHORIZATION_FAILED]
    assert [request.member_epoch for request in broker.heartbeats].count(-1) == 1
    await one.close()


@in_virtual_time
async def test_a_member_that_subscribes_again_instead_of_leaving_has_a_whole_poll_interval_for_its_next_poll() -> None:
    broker = Broker()
    one = await joined(broker, max_poll_interval_ms=8_000)
    await one.stop()
    one.coordinator.prepare_to_leave()
    one.coordinator.release(one.held)
    await pause(10_000)
    one.coordinator.subscribe(["t"])
    await pause(7_000)
    assert state_of(one).in_group
    one.start()
    await eventually_async(lambda: one.stable and len(one.held) == 4)
    assert all(request.member_epoch >= 0 for request in broker.heartbeats)
    await one.close()


@pytest.mark.parametrize(
    ("static", "leave_group", "last"),
    [(False, None, -1), (False, True, -1), (False, False, 1), (True, None, -2), (True, True, -1), (True, False, -2)],
)
def test_the_last_heartbeat_says_whether_the_member_comes_back(static: bool, leave_group: bool | None, last: int) -> None:
    """As in Java (KIP-1092): only a dynamic member that stays says nothing."""

    @in_virtual_time
    async def story() -> None:
        broker = Broker()
        one = await joined(broker, ("t",), **({"group_instance_id": "i"} if static else {}))
        await one.stop()
        await one.coordinator.close(leave_group=leave_group)
        epoch = broker.heartbeats[-1].member_epoch
        assert epoch == last if last < 0 else epoch >= 0
        await one.cluster.close()

    story()
