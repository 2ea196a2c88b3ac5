"""GroupConsumers on an embedded Kafka, in real time but without a sleep: tests poll for every event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from consumer_coord import GroupConsumer, confluent
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import Message
from consumer_coord.settings import CLASSIC_ONLY
from tests.support.producer import Producer
from tests.support.waiting import eventually

GROUP = "billing"

#: Generous, because the machine may be busy; no successful test waits this long.
DEADLINE_S = 180.0

#: Short sessions let a failing test end soon; no test here waits for one.
BROKER: Mapping[str, object] = {"group.min.session.timeout.ms": 100}


class CallbackLog:
    """Callbacks that record their calls: ("assigned" | "revoked" | "lost", partition numbers)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def callbacks(self, *kinds: str) -> dict[str, Callable[[Any, Any], None]]:
        """Return the callbacks of these kinds, by default of all kinds, as arguments for subscribe."""
        named = {"on_assign": "assigned", "on_revoke": "revoked", "on_lost": "lost"}
        return {name: self._keep(kind) for name, kind in named.items() if not kinds or name in kinds}

    def _keep(self, kind: str) -> Callable[[Any, Any], None]:
        def keep(_: Any, rows: Any) -> None:
            self.events.append((kind, [row.partition for row in rows]))

        return keep

    @property
    def kinds(self) -> list[str]:
        """The kinds of the calls that had partitions."""
        return [kind for kind, numbers in self.events if numbers]


class KeepingConsumer(GroupConsumer):
    """A consumer that keeps the messages of `poll_and_keep` until `take` returns them.

    ``poll`` and ``consume`` refuse to skip kept messages: a test that forgets a message fails every time, not only when
    the message happens to come early.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.kept: list[Message] = []

    def poll(self, timeout: float | None = None) -> Message | None:
        """Poll as `GroupConsumer.poll`."""
        self._nothing_kept()
        return super().poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consume as `GroupConsumer.consume`."""
        self._nothing_kept()
        return super().consume(num_messages, timeout)

    def _nothing_kept(self) -> None:
        assert not self.kept, f"{len(self.kept)} messages of poll_and_keep are kept: take them first"

    def poll_and_keep(self) -> None:
        """Poll once for a short time, and keep the message."""
        message = super().poll(0.005)
        if message is not None:
            assert message.error() is None, message.error()
            self.kept.append(message)

    def take(self, count: int) -> list[Message]:
        """Return at most ``count`` messages: the kept ones, otherwise those that come within a moment."""
        if not self.kept:
            self.kept = super().consume(count, 0.01)
            for message in self.kept:
                assert message.error() is None, message.error()
        taken, self.kept = self.kept[:count], self.kept[count:]
        return taken


def consumer(kafka: EmbeddedKafka, strategy: str = "cooperative-sticky", **settings: Any) -> KeepingConsumer:
    """Return a consumer of the group that reads from the beginning; dots of settings are written as underscores.

    With ``group_protocol="consumer"``, the consumer has no settings of the classic protocol.
    """
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 10_000,
        **{key if callable(value) else key.replace("_", "."): value for key, value in settings.items()},
    }
    if config.get("group.protocol") == "consumer":
        config = {name: value for name, value in config.items() if name not in CLASSIC_ONLY}
    return KeepingConsumer(config)


def produce(kafka: EmbeddedKafka, topic: str, values: Mapping[int, Iterable[Any]], **record: Any) -> None:
    """Produce values in order: partition -> values."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, each in values.items():
        for value in each:
            producer.produce(topic, str(value), partition=partition, **record)
    assert producer.flush(60) == 0


def poll_each(*consumers: KeepingConsumer) -> Callable[[], None]:
    """Return a function that lets the consumers poll in turn, as the ``step`` of `eventually`; `take` returns the messages."""

    def step() -> None:
        for each in consumers:
            each.poll_and_keep()

    return step


def take(consumers: Sequence[KeepingConsumer] | KeepingConsumer, count: int) -> list[Message]:
    """Return the next ``count`` messages of consumers that poll in turn, those of `poll_and_keep` first."""
    several = [consumers] if isinstance(consumers, KeepingConsumer) else list(consumers)
    messages: list[Message] = []

    def step() -> None:
        for each in several:
            messages.extend(each.take(count - len(messages)) if len(messages) < count else [])

    eventually(lambda: len(messages) >= count, f"{count} messages", step=step, shows=lambda: len(messages))
    return messages


def held(one: GroupConsumer) -> list[int]:
    """Return the numbers of the partitions that a consumer holds."""
    return [row.partition for row in one.assignment()]


def row(partition: int, offset: int | None = None, topic: str = "orders") -> confluent.TopicPartition:
    """Return a TopicPartition of confluent-kafka."""
    if offset is None:
        return confluent.TopicPartition(topic, partition)
    return confluent.TopicPartition(topic, partition, offset)


def change_log(
    kafka: EmbeddedKafka, change: Callable[[PartitionLog], object], topic: str = "orders", partition: int = 0
) -> None:
    """Change a partition's log on the brokers' thread, for what no client can request: transactions, retention."""
    found = kafka._running.topics.partition(topic, partition)
    assert found is not None
    kafka._call(lambda: change(found.log))


def append_transaction(kafka: EmbeddedKafka, count: int, *, committed: bool) -> None:
    """Append records of a transaction, and the marker that ends it, to the first partition of the topic "orders"."""

    def append(log: PartitionLog) -> None:
        producer_id = log.end_offset
        log.append_records([(None, b"%d" % one) for one in range(count)], 1_000, 0, producer_id, 0)
        log.append_marker(1_000, 0, producer_id, 0, committed)

    change_log(kafka, append)
