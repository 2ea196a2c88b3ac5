"""Consumers of ours on an embedded Kafka, in real time but without a sleep: everything is polled for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Message, Producer

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka

GROUP = "billing"

#: Short sessions let a test end soon when something is wrong; nothing here waits for one.
BROKER: Mapping[str, object] = {"group.min.session.timeout.ms": 100}


class Told:
    """Callbacks that keep what they were told: ("assigned" | "revoked" | "lost", partition numbers)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def callbacks(self, *kinds: str) -> dict[str, Callable[[Any, Any], None]]:
        """Arguments for subscribe."""
        named = {"on_assign": "assigned", "on_revoke": "revoked", "on_lost": "lost"}
        return {name: self._keep(kind) for name, kind in named.items() if not kinds or name in kinds}

    def _keep(self, kind: str) -> Callable[[Any, Any], None]:
        def keep(_: Any, rows: Any) -> None:
            self.events.append((kind, [row.partition for row in rows]))

        return keep

    @property
    def kinds(self) -> list[str]:
        """Those that had partitions."""
        return [kind for kind, numbers in self.events if numbers]


def consumer(kafka: EmbeddedKafka, strategy: str = "cooperative-sticky", **settings: Any) -> GroupConsumer:
    """A consumer of the group, reading from the beginning; dots of settings are written as underscores."""
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 10_000,
        **{key if callable(value) else key.replace("_", "."): value for key, value in settings.items()},
    }
    return GroupConsumer(config)


def produce(kafka: EmbeddedKafka, topic: str, values: Mapping[int, Iterable[Any]], **record: Any) -> None:
    """partition -> values, in order."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, each in values.items():
        for value in each:
            producer.produce(topic, str(value), partition=partition, **record)
    assert producer.flush(10) == 0


def poll_until(
    consumers: Sequence[GroupConsumer] | GroupConsumer, condition: Callable[[], object], within_s: float = 20
) -> list[Message]:
    """Let consumers poll in turn until something holds; the messages that came."""
    several = [consumers] if isinstance(consumers, GroupConsumer) else list(consumers)
    messages = []
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        for each in several:
            message = each.poll(0.005)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
    return messages


def take(consumers: Sequence[GroupConsumer] | GroupConsumer, count: int) -> list[Message]:
    """So many messages, and not one more within a moment."""
    several = [consumers] if isinstance(consumers, GroupConsumer) else list(consumers)
    messages: list[Message] = []
    ends = time.monotonic() + 20
    while len(messages) < count:
        assert time.monotonic() < ends, f"only {len(messages)} of {count} messages came"
        for each in several:
            messages += each.consume(count, 0.01)
    for message in messages:
        assert message.error() is None, message.error()
    return messages


def held(one: GroupConsumer) -> list[int]:
    """The numbers of the partitions it holds."""
    return [row.partition for row in one.assignment()]


def row(partition: int, offset: int | None = None, topic: str = "orders") -> confluent_kafka.TopicPartition:
    """A TopicPartition of confluent-kafka's."""
    if offset is None:
        return confluent_kafka.TopicPartition(topic, partition)
    return confluent_kafka.TopicPartition(topic, partition, offset)
