"""What a member does while the group has nothing for it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_slow_broker_is_not_asked_for_topics_with_each_poll(protocol: str) -> None:
    """Fifty members did that at the start of a busy broker: it answered none of them in time."""

    class Slow:
        """librdkafka's handle, at a broker that does not answer Metadata."""

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
            ends = time.monotonic() + 60
            while not owner.assignment():
                assert time.monotonic() < ends
                owner.poll(0.05)
            slow = other._librdkafka.handle = Slow(other._librdkafka.handle)
            began = time.monotonic()
            other.subscribe(["orders"])
            for _ in range(10):
                other.poll(0.1)
                owner.poll(0)
            # One more when it is assigned the partition after all, as an eager rebalance may do.
            assert slow.asked <= 2 + (time.monotonic() - began) / 2
