"""Look-ups of a consumer that reads columns return what confluent-kafka returns, without librdkafka's threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaException
from confluent_kafka import TopicPartition as Row

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, consumer, produce
from tests.support.waiting import eventually
from tests.support.white_box import librdkafka

Ask = Callable[[Any], Any]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(config=BROKER, topics={"orders": 2, "other": 3}, brokers=2) as running:
        for number in range(10):
            produce(running, "orders", {0: [number]}, timestamp=1_000 + number)
        yield running


def shown(result: Any) -> Any:
    """Return a result in a form that can be compared."""
    if isinstance(result, list):
        return [(row.topic, row.partition, row.offset, row.error) for row in result]
    if hasattr(result, "topics"):
        brokers = {number: (one.id, one.host, one.port) for number, one in result.brokers.items()}
        topics = {
            name: (
                one.topic,
                one.error,
                {
                    number: (each.id, each.leader, sorted(each.replicas), sorted(each.isrs), each.error)
                    for number, each in one.partitions.items()
                },
            )
            for name, one in result.topics.items()
        }
        return result.cluster_id, brokers, topics
    return result


ASKED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "watermarks": ("get_watermark_offsets", (Row("orders", 0),), {"timeout": 10.0}),
    "watermarks of another topic": ("get_watermark_offsets", (Row("other", 2),), {"timeout": 10.0}),
    "times": ("offsets_for_times", ([Row("orders", 0, 1_004), Row("orders", 1, 1)], 10.0), {}),
    "after the last": ("offsets_for_times", ([Row("orders", 0, 5_000)], 10.0), {}),
    "all topics": ("list_topics", (), {"timeout": 10.0}),
    "one topic": ("list_topics", ("other",), {"timeout": 10.0}),
}


def settings(kafka: EmbeddedKafka) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}


def expected_of(kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return confluent-kafka's results."""
    theirs = confluent_kafka.Consumer(settings(kafka))
    try:
        return {name: shown(getattr(theirs, call)(*given, **named)) for name, (call, given, named) in ASKED.items()}
    finally:
        theirs.close()


def test_the_results_are_those_of_confluent_kafka(kafka: EmbeddedKafka) -> None:
    expected = expected_of(kafka)
    with consumer(kafka, "range") as one:
        one.subscribe(["orders"])
        seen: list[int] = []
        eventually(lambda: sum(seen) == 10, step=lambda: seen.append(len(one.consume_arrow(timeout=0.2))))
        found = {name: shown(getattr(one, call)(*given, **named)) for name, (call, given, named) in ASKED.items()}
        assert found == expected
        assert one.get_watermark_offsets(Row("orders", 0), cached=True) == (0, 10)
        assert one.get_watermark_offsets(Row("other", 0), cached=True) == (OFFSET_INVALID, OFFSET_INVALID)
        assert expected["after the last"] == [("orders", 0, OFFSET_END, None)]
        with pytest.raises(KafkaException):
            one.get_watermark_offsets(Row("missing", 0), timeout=0.5)
        assert not librdkafka(one).is_open


def test_the_results_of_an_asyncio_consumer_are_those_of_confluent_kafka(kafka: EmbeddedKafka) -> None:
    expected = expected_of(kafka)

    async def read() -> None:
        one = AsyncGroupConsumer(settings(kafka))
        await one.subscribe(["orders"])
        seen = 0
        async with asyncio.timeout(60):
            while seen < 10:
                seen += len(await one.consume_arrow(timeout=0.2))
        found = {name: shown(await getattr(one, call)(*given, **named)) for name, (call, given, named) in ASKED.items()}
        assert found == expected
        assert await one.get_watermark_offsets(Row("orders", 0), cached=True) == (0, 10)
        assert await one.highwater(Row("orders", 0)) == 10
        assert await one.highwater(Row("other", 0)) is None
        assert await one.cluster_id() == expected["all topics"][0]
        await one.close()

    asyncio.run(read())
