"""`consume_arrow` on a real Kafka: the records that librdkafka reads, with transactions, compaction, headers and codecs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from consumer_coord import GroupConsumer
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.conformance.columns.test_against_kafka import produce, through_librdkafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Rows = list[tuple[Any, ...]]


def through_consumer(kafka: KafkaCluster, topic: str, **settings: Any) -> tuple[Rows, Mapping[Any, int]]:
    """Every record up to the present end, as ``through_librdkafka`` returns them, and the positions then."""
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": f"reads {topic}",
        "auto.offset.reset": "earliest",
        **settings,
    }
    rows: Rows = []
    positions: dict[Any, int] = {}
    with GroupConsumer(config) as one:
        one.subscribe([topic])
        for batch in one.arrow_batches(max_records=97):
            read = pa.record_batch(batch)
            for each in read.to_pylist():
                stamp = round(each["timestamp"].timestamp() * 1000)
                headers = [(header["key"], header["value"]) for header in each["headers"] or ()]
                rows.append((each["offset"], stamp, each["timestampType"], each["key"], each["value"], headers))
            positions.update(batch.positions)
            one.commit(batch, asynchronous=False)
    return rows, positions


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions_and_codecs(kafka: KafkaCluster, topic: NewTopicFactory, level: str, protocol: str) -> None:
    name = topic(1)
    for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{name}-{codec}", "compression.type": codec}
        )
        producer.init_transactions(60)
        for step in range(4):
            producer.begin_transaction()
            produce(producer, name, range(step, step + 40))
            (producer.commit_transaction if step % 2 else producer.abort_transaction)(60)
    rows, _ = through_consumer(kafka, name, **{"isolation.level": level, "group.protocol": protocol})
    assert rows == through_librdkafka(kafka, name, read_committed=level == "read_committed")
    assert len(rows) == 5 * 4 * 40 // (2 if level == "read_committed" else 1)


def test_an_aborted_end_is_passed_over(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    """A read ends by position, even if the last records are invisible; the next read begins after them."""
    name = topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(60)
    produce(Producer({"bootstrap.servers": kafka.bootstrap_servers}), name, range(10))
    producer.begin_transaction()
    produce(producer, name, range(30))
    producer.abort_transaction(60)
    rows, _ = through_consumer(kafka, name)
    assert [row[0] for row in rows] == list(range(10))
    assert through_consumer(kafka, name)[0] == []
