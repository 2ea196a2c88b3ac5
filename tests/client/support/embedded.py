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

#: Generous, because the machine may be busy; nothing healthy takes so long.
DEADLINE_S = 60.0

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


class KeepingConsumer(GroupConsumer):
    """A consumer that keeps what comes while `poll_until` waits for something else, until `take` asks for it.

    ``poll`` and ``consume`` refuse to pass over what was kept: a test that forgets a message fails each time, not only when
    the message happens to come early.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.kept: list[Message] = []

    def poll(self, timeout: float | None = None) -> Message | None:
        """As `GroupConsumer.poll`."""
        self._nothing_kept()
        return super().poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As `GroupConsumer.consume`."""
        self._nothing_kept()
        return super().consume(num_messages, timeout)

    def _nothing_kept(self) -> None:
        assert not self.kept, f"{len(self.kept)} messages came while poll_until waited: take them first"

    def poll_and_keep(self) -> None:
        """One short poll."""
        message = super().poll(0.005)
        if message is not None:
            assert message.error() is None, message.error()
            self.kept.append(message)

    def take(self, count: int) -> list[Message]:
        """At most so many: what was kept, or else what comes within a moment."""
        if not self.kept:
            self.kept = super().consume(count, 0.01)
            for message in self.kept:
                assert message.error() is None, message.error()
        taken, self.kept = self.kept[:count], self.kept[count:]
        return taken


def consumer(kafka: EmbeddedKafka, strategy: str = "cooperative-sticky", **settings: Any) -> KeepingConsumer:
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
    return KeepingConsumer(config)


def produce(kafka: EmbeddedKafka, topic: str, values: Mapping[int, Iterable[Any]], **record: Any) -> None:
    """partition -> values, in order."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, each in values.items():
        for value in each:
            producer.produce(topic, str(value), partition=partition, **record)
    assert producer.flush(10) == 0


def poll_until(
    consumers: Sequence[KeepingConsumer] | KeepingConsumer, condition: Callable[[], object], within_s: float = DEADLINE_S
) -> None:
    """Let consumers poll in turn until something holds; the messages that come meanwhile are kept for `take`."""
    several = [consumers] if isinstance(consumers, KeepingConsumer) else list(consumers)
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        for each in several:
            each.poll_and_keep()


def take(consumers: Sequence[KeepingConsumer] | KeepingConsumer, count: int) -> list[Message]:
    """The next ``count`` messages of consumers that poll in turn, those kept by `poll_until` first."""
    several = [consumers] if isinstance(consumers, KeepingConsumer) else list(consumers)
    messages: list[Message] = []
    ends = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < ends, f"only {len(messages)} of {count} messages came"
        for each in several:
            messages += each.take(count - len(messages)) if len(messages) < count else []
    return messages


def held(one: GroupConsumer) -> list[int]:
    """The numbers of the partitions it holds."""
    return [row.partition for row in one.assignment()]


def row(partition: int, offset: int | None = None, topic: str = "orders") -> confluent_kafka.TopicPartition:
    """A TopicPartition of confluent-kafka's."""
    if offset is None:
        return confluent_kafka.TopicPartition(topic, partition)
    return confluent_kafka.TopicPartition(topic, partition, offset)
