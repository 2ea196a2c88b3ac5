"""A member id from MEMBER_ID_REQUIRED (KIP-394) is used or given back: a pending id delays the group for a session timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from consumer_coord.wire.messages.group import JoinGroupRequest, LeaveGroupRequest
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import TestMember, new_member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async

#: Events that may happen before the response with the member id arrives.
EVENTS: dict[str, Callable[[TestMember], object]] = {
    "another subscription": lambda one: one.coordinator.subscribe(["t", "u"]),
    "a rebalance is asked for": lambda one: one.coordinator.enforce_rebalance(),
    "the metadata change": lambda one: one.cluster.refresh_soon(),
    "the coordinator is forgotten": lambda one: one.forget_coordinator(),
    "it unsubscribes, and subscribes again": lambda one: _again(one),
    "it unsubscribes": lambda one: asyncio.ensure_future(one.coordinator.unsubscribe()),
    "it closes": lambda one: asyncio.ensure_future(one.coordinator.close(5_000)),
}


def _again(one: TestMember) -> None:
    task = asyncio.ensure_future(one.coordinator.unsubscribe())
    task.add_done_callback(lambda _: one.coordinator.subscribe(["t"]))


@pytest.mark.parametrize("event", EVENTS)
@in_virtual_time
async def test_no_member_id_is_abandoned(event: str) -> None:
    brokers = FakeBrokers({"t": 4, "u": 2})
    given: list[str] = []

    async def slowly(request: JoinGroupRequest) -> Any:
        answer = brokers.usual(request)
        if not request.member_id:
            await asyncio.sleep(0.2)
            given.append(answer.member_id)
        return answer

    brokers.always(JoinGroupRequest, slowly)
    one = new_member(brokers)
    one.coordinator.subscribe(["t"])
    await eventually_async(lambda: brokers.all(JoinGroupRequest))
    await pause(50)
    EVENTS[event](one)
    await pause(20_000)
    used = {request.member_id for request in brokers.all(JoinGroupRequest)}
    left = {row.member_id for request in brokers.all(LeaveGroupRequest) for row in request.members}
    assert given
    assert set(given) <= used | left
    await one.close()
