"""Both consumers and the embedded Kafka on uvloop's event loop, whose transports and sockets are not asyncio's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from tests.support.producer import Producer

if sys.platform == "win32" or sys.implementation.name != "cpython":
    pytest.skip("there is no uvloop here", allow_module_level=True)

import uvloop

PARTITIONS = 2
#: Generous, because the machine may be busy; no successful call takes this long.
DEADLINE_S = 180.0


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedKafka]:
    """Start a cluster with 100 records; all new loops are uvloop's, as after ``uvloop.install()``."""
    monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(100):
            producer.produce("orders", str(number), partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        yield running


def settings(kafka: EmbeddedKafka, protocol: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "billing",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }


def committed(kafka: EmbeddedKafka) -> list[int]:
    with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}) as reader:
        rows = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]
        return [row.offset for row in reader.committed(rows, timeout=DEADLINE_S)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_members_share_read_and_commit(kafka: EmbeddedKafka, protocol: str) -> None:
    async def read(found: set[int]) -> None:
        async with AsyncGroupConsumer(settings(kafka, protocol)) as member:
            await member.subscribe(["orders"])
            while len(found) < 100:
                found |= {int(message.value()) for message in await member.consume(10, 0.1)}

    async def main() -> None:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        found: set[int] = set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(read(found), read(found))
        assert found == set(range(100))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert committed(kafka) == [50, 50]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_loop_behind_the_blocking_consumer(kafka: EmbeddedKafka, protocol: str) -> None:
    with GroupConsumer(settings(kafka, protocol)) as member:
        member.subscribe(["orders"])
        found = [int(message.value()) for message in member.consume(100, DEADLINE_S)]
    assert sorted(found) == list(range(100))
    assert committed(kafka) == [50, 50]
