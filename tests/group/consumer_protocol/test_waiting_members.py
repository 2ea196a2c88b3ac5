"""A member without partitions does not send needless requests."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.group.consumer_protocol.states import State
from tests.support.group.consumer_protocol import Broker, joined, modern_member, state_of
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually
from tests.support.white_box import librdkafka


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_slow_broker_is_not_asked_for_topics_with_each_poll(protocol: str) -> None:
    """Fifty members did that at the start of a busy broker, which answered none of them in time."""

    class Slow:
        """librdkafka's handle, with a broker that does not answer Metadata."""

        def __init__(self, handle: Any) -> None:
            self.handle = handle
            self.asked = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.handle, name)

        def list_topics(self, *arguments: Any, **keywords: Any) -> Any:
            self.asked += 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "group.protocol": protocol}
        with GroupConsumer(settings) as owner, GroupConsumer(settings) as other:
            owner.subscribe(["orders"])
            eventually(owner.assignment, step=lambda: owner.poll(0.05))
            slow = librdkafka(other).handle = Slow(librdkafka(other).handle)
            began = time.monotonic()
            other.subscribe(["orders"])
            for _ in range(10):
                other.poll(0.1)
                owner.poll(0)
            # One more request if the member is assigned the partition after all, as an eager rebalance may do.
            assert slow.asked <= 2 + (time.monotonic() - began) / 2


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_application_that_waits_is_woken_when_there_is_something_for_it_and_not_otherwise(partitions: int) -> None:
    @in_virtual_time
    async def story() -> None:
        broker = Broker({"t": partitions})
        first = await joined(broker)
        second = modern_member(broker)
        rung: list[float] = []
        second.coordinator.application.ring = lambda: rung.append(now_ms())
        second.coordinator.subscribe(["t"])
        await pause(20_000)
        assert state_of(second) is State.STABLE
        assert len(second.coordinator.assignment.target.partitions) == partitions - 1
        assert bool(rung) == (partitions == 2)
        await second.close()
        await first.close()

    story()
