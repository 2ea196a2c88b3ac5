"""``lag()`` of both consumers, and its figures in Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from consumer_coord import AsyncGroupConsumer, GroupConsumer, TopicPartition
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.lag.partition_lag import PartitionLag
from consumer_coord.monitoring.prometheus import LagCollector
from tests.support.waiting import eventually

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AGE_S = 50


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers that lead one partition each, with five records that are 50 s old."""
    with EmbeddedKafka({"t": 2}, brokers=2) as embedded:
        producer = Producer({"bootstrap.servers": embedded.bootstrap_servers})
        for number in range(10):
            producer.produce("t", b"v", partition=number % 2, timestamp=int((time.time() - AGE_S) * 1000))
        assert producer.flush(60) == 0
        yield embedded


def settings(kafka: EmbeddedKafka, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **more,
    }


def figures(lag: Mapping[TopicPartition, PartitionLag]) -> dict[TopicPartition, int | None]:
    return {partition: one.records for partition, one in lag.items()}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_tells_its_lag(kafka: EmbeddedKafka, protocol: str) -> None:
    with GroupConsumer(settings(kafka, **{"group.protocol": protocol})) as consumer:
        assert consumer.lag() == {}
        consumer.subscribe(["t"])
        taken = []

        def all_taken() -> bool:
            taken.extend(consumer.consume(10, timeout=0.1))
            return len(taken) == 10

        eventually(all_taken)
        lag = consumer.lag()
        assert figures(lag) == {T0: 5, T1: 5}, "nothing is committed yet"
        assert all(one.seconds is not None and AGE_S <= one.seconds < AGE_S + 300 for one in lag.values())
        assert {one.seconds for one in consumer.lag(seconds=False).values()} == {None}
        consumer.commit(offsets=[TopicPartition("t", 0, 5), TopicPartition("t", 1, 2)], asynchronous=False)
        lag = consumer.lag(timeout=30)
        assert figures(lag) == {T0: 0, T1: 3}
        assert lag[T0].seconds == 0

        registry = CollectorRegistry()
        registry.register(LagCollector(consumer, group="g", client_id="c"))
        labels = {"group": "g", "client_id": "c", "topic": "t"}
        assert registry.get_sample_value("kafka_consumer_lag_records", {**labels, "partition": "1"}) == 3
        age = registry.get_sample_value("kafka_consumer_lag_seconds", {**labels, "partition": "1"})
        assert age is not None
        assert age >= AGE_S
        unknown = {"group": "g", "client_id": "c"}
        assert registry.get_sample_value("kafka_consumer_lag_unknown_partitions", unknown) == 0

        kafka.add_fault("ListOffsets", Fault(error_code=6), times=10_000, broker_id=kafka.brokers[1])
        lag = consumer.lag()
        assert sorted(one.records is None for one in lag.values()) == [False, True]
        assert registry.get_sample_value("kafka_consumer_lag_unknown_partitions", unknown) == 1


def test_a_manual_assignment_has_a_lag(kafka: EmbeddedKafka) -> None:
    with GroupConsumer(settings(kafka)) as consumer:
        consumer.assign([TopicPartition("t", 1, 3)])
        consumer.commit(offsets=[TopicPartition("t", 1, 4)], asynchronous=False)
        assert figures(consumer.lag()) == {T1: 1}


def test_without_a_start_the_lag_is_unknown(kafka: EmbeddedKafka) -> None:
    with GroupConsumer(settings(kafka, **{"auto.offset.reset": "error"})) as consumer:
        consumer.subscribe(["t"])

        def owns() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        eventually(owns)
        lag = consumer.lag()
        assert figures(lag) == {T0: None, T1: None}
        assert "no commit for t-0" in str(lag[T0].unknown)


def test_an_async_consumer_tells_its_lag(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        consumer = AsyncGroupConsumer(settings(kafka))
        await consumer.subscribe(["t"])
        try:
            taken = 0
            while taken < 10:
                taken += len(await asyncio.wait_for(consumer.consume(10, timeout=1), 60))
            await consumer.commit(offsets=[TopicPartition("t", 0, 4)], asynchronous=False)
            lag = await consumer.lag()
            assert figures(lag) == {T0: 1, T1: 5}
            assert all(one.seconds is not None and one.seconds >= AGE_S for one in lag.values())
        finally:
            await consumer.close()

    asyncio.run(main())
