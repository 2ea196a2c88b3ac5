"""The data planes of the contract's tests: librdkafka on the embedded Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as Row
from confluent_kafka.admin import AdminClient

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.consumer.data_plane import DataPlane
from consumer_coord.consumer.librdkafka.plane import Librdkafka, OnCaller, Threaded
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.threads.background import Runtime
from consumer_coord.topic_partition import TopicPartition

PARTITIONS = 3


class Logs(Protocol):
    """The cluster behind a data plane."""

    topic: str

    def produce(self, partition: int, count: int) -> None:
        """Append ``count`` records."""

    def trim(self, partition: int, before: int) -> None:
        """Delete the records before an offset."""

    def create_topic(self) -> str:
        """Create a topic that the plane does not know yet, and return its name."""

    def delete_topic(self) -> None:
        """Delete the topic."""

    def recreate_topic(self) -> None:
        """Create the topic again, without records."""

    def plane(self, **settings: Any) -> DataPlane:
        """Return a data plane; dots of librdkafka's settings are written as underscores."""


Story = Callable[[Logs], Awaitable[None]]
Play = Callable[[Story], None]


class RealLogs:
    """An embedded Kafka, read by librdkafka."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, make: Callable[[Librdkafka], DataPlane]) -> None:
        self.topic = topic
        self._kafka = kafka
        self._make = make
        kafka.create_topic(topic, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def produce(self, partition: int, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self.topic, b"x", partition=partition)
        assert self._producer.flush(60) == 0

    def trim(self, partition: int, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap_servers})
        for done in admin.delete_records([Row(self.topic, partition, before)]).values():
            done.result(60)

    def create_topic(self) -> str:
        name = f"{self.topic}-later"
        self._kafka.create_topic(name, 1)
        for _ in range(5):
            self._producer.produce(name, b"x", partition=0)
        assert self._producer.flush(60) == 0
        return name

    def delete_topic(self) -> None:
        self._kafka.delete_topic(self.topic)

    def recreate_topic(self) -> None:
        self._kafka.create_topic(self.topic, PARTITIONS)

    def plane(self, **settings: Any) -> DataPlane:
        config = {
            "bootstrap.servers": self._kafka.bootstrap_servers,
            "group.id": "contract",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        return self._make(Librdkafka(config))


def play_threaded(kafka: EmbeddedKafka, topic: str) -> Play:
    """Return a function that plays a story on the embedded Kafka, with the handle on a separate thread."""

    def on_embedded(story: Story) -> None:
        async def main() -> None:
            await story(RealLogs(kafka, topic, Threaded))

        asyncio.run(main())

    return on_embedded


def play_on_caller(kafka: EmbeddedKafka, topic: str) -> Play:
    """Return a function that plays a story on the embedded Kafka: on the background loop; handle calls run on this thread."""

    def on_embedded(story: Story) -> None:
        async def main() -> None:
            await story(RealLogs(kafka, topic, OnCaller))

        BlockingCall(Runtime.shared().loop).run(main)

    return on_embedded


def at(logs: Logs, *numbers: int, offset: int = 0) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return positions in the topic, by partition number."""
    return {TopicPartition(logs.topic, number): OffsetAndMetadata(offset) for number in numbers}


async def take(plane: DataPlane, count: int, most: int = 1_000) -> list[Any]:
    """Return the next ``count`` messages."""
    found: list[Any] = []
    ends = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < ends, f"only {found} came"
        await plane.fetch(min(most, count - len(found)), 0.5, found.extend)
    return found


async def nothing_comes(plane: DataPlane, for_s: float = 0.6) -> None:
    """Check that neither records nor events arrive."""
    found: list[Any] = []
    for _ in range(3):
        await plane.fetch(10, for_s / 3, found.extend)
    assert not found


def offsets(messages: list[Any]) -> list[int]:
    """Return the offsets of records; an error fails the test."""
    assert not any(message.error() for message in messages), [message.error() for message in messages]
    return [message.offset() for message in messages]


def code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    """Return librdkafka's error code."""
    number: int = raised.value.args[0].code()
    return number
