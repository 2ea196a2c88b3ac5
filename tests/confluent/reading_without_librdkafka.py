"""Tests that `test_environments` runs in a process without librdkafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from consumer_coord import AsyncGroupConsumer, DeserializingConsumer, GroupConsumer, confluent
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.cli import main
from consumer_coord.errors import ConfigurationError
from tests.support.consumer.embedded import produce

COUNT = 10
INSTALL = r"reading messages needs librdkafka.*No module named 'confluent_kafka.*pip install 'confluent-kafka>=2.8,<3'"


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


CALLS: dict[str, Callable[[GroupConsumer], object]] = {
    "poll": lambda consumer: consumer.poll(1),
    "consume": lambda consumer: consumer.consume(1, 1),
    "iteration": next,
    "list_topics": lambda consumer: consumer.list_topics(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_needs_librdkafka_says_what_to_install(kafka: EmbeddedKafka, name: str) -> None:
    with GroupConsumer(settings(kafka)) as consumer:
        consumer.subscribe(["orders"])
        for _ in range(2):
            with pytest.raises(ImportError, match=INSTALL):
                CALLS[name](consumer)
        assert values(consumer.consume_arrow(timeout=60)) == list(range(COUNT))


ASYNC_CALLS: dict[str, Callable[[AsyncGroupConsumer], Any]] = {
    "poll": lambda consumer: consumer.poll(1),
    "consume": lambda consumer: consumer.consume(1, 1),
    "iteration": lambda consumer: anext(consumer),
    "getmany": lambda consumer: consumer.getmany(timeout_ms=1_000),
    "list_topics": lambda consumer: consumer.list_topics(),
}


@pytest.mark.parametrize("name", ASYNC_CALLS)
def test_a_call_that_needs_librdkafka_says_what_to_install_with_asyncio(kafka: EmbeddedKafka, name: str) -> None:
    async def work() -> None:
        async with AsyncGroupConsumer(settings(kafka)) as consumer:
            await consumer.subscribe(["orders"])
            for _ in range(2):
                with pytest.raises(ImportError, match=INSTALL):
                    await ASYNC_CALLS[name](consumer)
            assert values(await consumer.consume_arrow(timeout=60)) == list(range(COUNT))

    asyncio.run(work())


def test_a_deserializing_consumer_says_what_to_install(kafka: EmbeddedKafka) -> None:
    with DeserializingConsumer(settings(kafka, **{"value.deserializer": lambda value, context: value})) as consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(ImportError, match=INSTALL):
            consumer.poll(1)


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
