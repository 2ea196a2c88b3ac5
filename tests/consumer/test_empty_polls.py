"""Polls without a wait: what they find, and what they cost when there is nothing to find."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent.types import own_because
from tests.support.consumer.embedded import consumer, produce
from tests.support.waiting import eventually

#: Without automatic commits and metadata, nothing wakes the engine while the group is stable.
NO_NEWS: dict[str, Any] = {"enable_auto_commit": False, "session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 600_000}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config={"group.max.session.timeout.ms": 1_800_000}) as running:
        yield running


@pytest.fixture(params=["own Fetch", "librdkafka"])
def member(request: pytest.FixtureRequest, kafka: EmbeddedKafka) -> Iterator[Any]:
    if request.param == "librdkafka" and own_because is not None:
        pytest.skip("needs confluent-kafka 2.x")
    with consumer(kafka, librdkafka_enable=request.param == "librdkafka", **NO_NEWS) as one:
        one.subscribe(["orders"])
        eventually(lambda: bool(one.assignment()), step=lambda: one.poll(0.05))
        yield one


@pytest.mark.parametrize("before", [0.05, 0])
@pytest.mark.parametrize("way", ["poll", "consume"])
def test_a_record_that_arrives_after_an_empty_poll_is_found_without_a_wait(
    member: Any, kafka: EmbeddedKafka, before: float, way: str
) -> None:
    def look(wait_s: float) -> list[Any]:
        return member.consume(1, wait_s) if way == "consume" else [one for one in [member.poll(wait_s)] if one]

    for _ in range(5):
        assert look(before) == []
    produce(kafka, "orders", {0: ["late"]})
    found: list[Any] = []
    eventually(lambda: bool(found), step=lambda: found.extend(look(0)))
    assert [one.value() for one in found] == [b"late"]


@pytest.mark.parametrize(
    "call", [lambda one: one.poll(0), lambda one: one.consume(5, 0.001)], ids=["poll(0)", "consume(5, 0.001)"]
)
def test_an_empty_poll_does_not_wait_for_the_loop(member: Any, call: Any) -> None:
    for _ in range(5):
        assert member.poll(0.05) is None
        assert not call(member)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        calls[frame.f_code.co_name] += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(100):
            call(member)
    finally:
        sys.setprofile(None)
    assert calls["poll"] + calls["consume"] >= 100
    assert calls["gather"] == calls["_gather"] == calls["on_loop"] == 0
    assert calls.total() < 100 * 40
