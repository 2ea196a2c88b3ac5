"""Tests that `test_environments` runs in a process without librdkafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from consumer_coord import AsyncGroupConsumer, DeserializingConsumer, GroupConsumer, confluent
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.cli import main
from consumer_coord.errors import ConfigurationError
from tests.support.consumer.embedded import produce

COUNT = 10


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        produce(running, "orders", {0: range(COUNT)})
        yield running


def settings(kafka: EmbeddedKafka, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest", **more}


def values(batch: Any) -> list[int]:
    return [int(value) for value in pa.record_batch(batch)["value"].to_pylist()]


def test_columns_are_read_and_committed(kafka: EmbeddedKafka) -> None:
    with GroupConsumer(settings(kafka)) as consumer:
        assert isinstance(consumer, confluent.types.Consumer)
        consumer.subscribe(["orders"])
        batch = consumer.consume_arrow(timeout=60)
        assert values(batch) == list(range(COUNT))
        (row,) = consumer.commit(batch, asynchronous=False)
        assert isinstance(row, confluent.TopicPartition)
        assert (row.topic, row.partition, row.offset, row.error) == ("orders", 0, COUNT, None)
        assert [one.offset for one in consumer.committed([confluent.TopicPartition("orders", 0)])] == [COUNT]


def test_columns_are_read_and_committed_with_asyncio(kafka: EmbeddedKafka) -> None:
    async def work() -> None:
        async with AsyncGroupConsumer(settings(kafka)) as consumer:
            await consumer.subscribe(["orders"])
            batch = await consumer.consume_arrow(timeout=60)
            assert values(batch) == list(range(COUNT))
            committed = await consumer.commit(batch, asynchronous=False)
            assert [one.offset for one in committed or ()] == [COUNT]

    asyncio.run(work())


def test_messages_are_read_and_committed(kafka: EmbeddedKafka) -> None:
    with GroupConsumer(settings(kafka)) as consumer:
        consumer.subscribe(["orders"])
        first = consumer.poll(60)
        assert first is not None
        assert isinstance(first, confluent.Message)
        found = [first, *consumer.consume(COUNT - 2, 60), next(consumer)]
        assert [int(message.value() or b"") for message in found] == list(range(COUNT))
        consumer.commit(found[-1], asynchronous=False)
        assert [one.offset for one in consumer.committed([confluent.TopicPartition("orders", 0)])] == [COUNT]
        assert "orders" in consumer.list_topics(timeout=60).topics
        assert consumer.get_watermark_offsets(confluent.TopicPartition("orders", 0), 60) == (0, COUNT)


def test_messages_are_read_with_asyncio(kafka: EmbeddedKafka) -> None:
    async def work() -> None:
        async with AsyncGroupConsumer(settings(kafka)) as consumer:
            await consumer.subscribe(["orders"])
            first = await consumer.poll(60)
            assert first is not None
            found = [first, *await consumer.consume(COUNT - 2, 60), await anext(consumer)]
            assert [int(message.value() or b"") for message in found] == list(range(COUNT))
            assert "orders" in (await consumer.list_topics(timeout=60)).topics

    asyncio.run(work())


def test_a_deserializing_consumer_reads(kafka: EmbeddedKafka) -> None:
    def number(value: bytes, context: object) -> int:
        return int(value)

    with DeserializingConsumer(settings(kafka, **{"value.deserializer": number})) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == 0


def test_a_manual_assignment_has_metadata_for_transactions(kafka: EmbeddedKafka) -> None:
    with GroupConsumer(settings(kafka)) as consumer:
        consumer.assign([confluent.TopicPartition("orders", 0, 0)])
        assert consumer.consumer_group_metadata().endswith(b"billing\0\0\x01")


@pytest.mark.parametrize("kind", [GroupConsumer, AsyncGroupConsumer])
def test_an_unknown_setting_is_an_error(kind: Any) -> None:
    unknown = {"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "fetch.wait.max.mss": 1}
    with pytest.raises(
        ConfigurationError, match=r'property: "fetch\.wait\.max\.mss"; did you mean .fetch\.wait\.max\.ms'
    ) as told:
        kind(unknown)
    assert isinstance(told.value, confluent.KafkaException)
    assert told.value.args[0].code() == confluent.KafkaError._INVALID_ARG


def test_the_commands_work(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    with GroupConsumer(settings(kafka)) as consumer:
        consumer.subscribe(["orders"])
        consumer.commit(consumer.consume_arrow(timeout=60), asynchronous=False)
    assert main(["lag", "billing", "--bootstrap-server", kafka.bootstrap_servers]) == 0
    assert "orders" in capsys.readouterr().out


def test_an_unknown_option_of_spark_is_an_error() -> None:
    source: Any = pytest.importorskip("consumer_coord.spark.source")
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", "kafka.group.id": "billing"}
    source.KafkaGroupSource(options)
    with pytest.raises(ConfigurationError, match=r"fetch\.wait\.max\.mss.*did you mean"):
        source.KafkaGroupSource({**options, "kafka.fetch.wait.max.mss": "1"})
