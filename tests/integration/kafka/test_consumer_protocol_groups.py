"""Our members, which use the classic protocol, in a group that has members of the consumer protocol (KIP-848)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from assignors import CooperativeStickyAssignor
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka


def _poll(member: BlockingCoordinator) -> None:
    member.record_poll()
    change = member.pending_change()
    member.release(change.lost)
    member.release(change.revoked)
    member.accept(change)


@pytest.fixture
def native(kafka: KafkaCluster, group: str) -> Iterator[Consumer]:
    """librdkafka with the consumer protocol."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": "consumer"})
    yield consumer
    consumer.close()


def test_a_member_joins_as_often_as_something_changes(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, native: Consumer
) -> None:
    """The generation is the member epoch there, and comes again: one that ended did not end for ever."""
    name = topic(partitions=6)
    native.subscribe([name])
    eventually(lambda: len(native.assignment()) == 6, step=lambda: native.poll(0.05))
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "heartbeat.interval.ms": 200}
    with BlockingCoordinator(settings, assignors=[CooperativeStickyAssignor]) as one:
        one.subscribe([name])
        held: tuple[int, int] = (0, 0)
        settled_at = time.monotonic()
        ends = settled_at + 30
        while time.monotonic() < ends and not (held == (3, 3) and time.monotonic() - settled_at > 3):
            native.poll(0.02)
            _poll(one)
            now_held = (len(one.owned_partitions), len(native.assignment()))
            if now_held != held:
                held, settled_at = now_held, time.monotonic()
        assert held == (3, 3)
        assert one.metrics()["join-total"] <= 10
        one.release(one.owned_partitions)
