"""Subscriptions by pattern: resolved by the broker if possible, otherwise by the client."""

from __future__ import annotations

import re
from typing import Any

import pytest

from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.cluster import ApiVersionsRequest
from tests.support.group.consumer_protocol import Broker, HeartbeatRequest, modern_member
from tests.support.group.member import parts
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async

TOPICS = {"orders": 2, "orders.eu": 1, "audit": 1}
ORDERS = parts("orders", 0, 1) | parts("orders.eu", 0)


async def _subscribed(broker: Any, pattern: str, **settings: Any) -> Any:
    one = modern_member(broker, **settings)
    one.coordinator.subscribe_pattern(re.compile(pattern))
    one.start()
    return one


@pytest.mark.behaviour(187)
@in_virtual_time
async def test_the_broker_resolves_a_pattern_and_new_topics_come() -> None:
    broker = Broker(TOPICS)
    one = await _subscribed(broker, "orders.*")
    await eventually_async(lambda: one.held == ORDERS and one.stable)
    first = broker.heartbeats[0]
    assert (first.subscribed_topic_regex, first.subscribed_topic_names) == ("orders.*", ())
    assert all(request.subscribed_topic_regex is None for request in broker.heartbeats[1:])
    broker.create_topic("orders.us", 1)
    await eventually_async(lambda: one.held == ORDERS | parts("orders.us", 0))
    await one.close()


@pytest.mark.behaviour(188)
@in_virtual_time
async def test_patterns_that_the_broker_does_not_support_are_resolved_by_the_client() -> None:
    broker = Broker(TOPICS)
    one = await _subscribed(broker, "orders(?!.*eu).*")
    await eventually_async(lambda: one.held == parts("orders", 0, 1) and one.stable)
    assert all(request.subscribed_topic_regex is None for request in broker.heartbeats)
    broker.create_topic("orders.us", 1)
    await eventually_async(lambda: one.held == parts("orders", 0, 1) | parts("orders.us", 0))
    await one.close()


@pytest.mark.behaviour(189)
@in_virtual_time
async def test_an_expression_that_the_broker_refuses_is_resolved_here() -> None:
    broker = Broker(TOPICS)
    broker.answer(HeartbeatRequest, codes.INVALID_REGULAR_EXPRESSION)
    one = await _subscribed(broker, "orders.*")
    await eventually_async(lambda: one.held == ORDERS and one.stable)
    assert not one.errors
    assert all(request.subscribed_topic_regex is None for request in broker.heartbeats[1:])
    await one.close()


@in_virtual_time
async def test_from_a_pattern_to_names_and_back() -> None:
    broker = Broker(TOPICS)
    one = await _subscribed(broker, "orders.*")
    await eventually_async(lambda: one.held == ORDERS)
    one.coordinator.subscribe(["audit"])
    await eventually_async(lambda: one.held == parts("audit", 0) and one.stable)
    assert "" in [request.subscribed_topic_regex for request in broker.heartbeats]
    one.coordinator.subscribe_pattern(re.compile("orders.*"))
    await eventually_async(lambda: one.held == ORDERS and one.stable)
    await one.close()


@pytest.mark.behaviour(190)
@in_virtual_time
async def test_a_broker_of_version_0_gets_topic_names() -> None:
    broker = Broker(TOPICS)
    broker.newest = {key: served.max_version for key, served in SERVED.items()} | {api_for(HeartbeatRequest).key: 0}
    broker.always(ApiVersionsRequest, broker.usual)
    one = await _subscribed(broker, "orders.*")
    await eventually_async(lambda: one.held == ORDERS and one.stable)
    assert {seen.version for seen in broker.seen if isinstance(seen.message, HeartbeatRequest)} == {0}
    assert all(request.subscribed_topic_regex is None for request in broker.heartbeats)
    await pause(1)
    await one.close()


@in_virtual_time
async def test_a_pattern_without_a_match_waits_for_a_topic() -> None:
    broker = Broker({"audit": 1})
    one = await _subscribed(broker, "orders.*")
    await eventually_async(lambda: one.stable)
    assert not one.held
    broker.create_topic("orders", 2)
    await eventually_async(lambda: one.held == parts("orders", 0, 1))
    await one.close()
