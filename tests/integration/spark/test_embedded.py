"""Queries on the embedded Kafka, whose brokers and coordinators can be moved about at will."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from consumer_coord.broker.server import EmbeddedKafka
from tests.support.spark.producing import produce
from tests.support.spark.queries import Queries, owned, until

pytestmark = pytest.mark.spark

TOPIC = "orders"
PARTITIONS = 4


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={TOPIC: PARTITIONS}, brokers=2) as kafka:
        yield kafka


@pytest.fixture
def queries(spark: Any, embedded: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Queries]:
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap_servers, "log_level": 0})
    found = Queries(spark, embedded.bootstrap_servers, group, tmp_path, admin)
    try:
        yield found
    finally:
        found.stop()


def write(embedded: EmbeddedKafka, count: int) -> None:
    produce(
        embedded.bootstrap_servers,
        TOPIC,
        [{"partition": partition, "value": b"v"} for partition in range(PARTITIONS) for _ in range(count)],
    )


def test_the_coordinator_moves_and_a_broker_restarts_in_mid_query(embedded: EmbeddedKafka, queries: Queries) -> None:
    write(embedded, 10)
    query, rows = queries.start(TOPIC)
    until(lambda: len(rows.seen) == 40, "the first records", [query])
    coordinator = embedded.coordinator_id(queries.group)
    assert coordinator is not None
    other = next(broker for broker in embedded.brokers if broker != coordinator)
    embedded.move_coordinator(queries.group, other)
    write(embedded, 10)
    until(lambda: len(rows.seen) == 80, "records after the coordinator moved", [query])
    until(lambda: queries.committed(TOPIC, PARTITIONS) == dict.fromkeys(range(PARTITIONS), 20), "their commits", [query])
    embedded.stop_broker(coordinator)
    embedded.start_broker(coordinator)
    write(embedded, 10)
    until(lambda: len(rows.seen) == 120, "records after a broker's restart", [query])
    assert [rows.offsets(partition) for partition in range(PARTITIONS)] == [list(range(30))] * PARTITIONS
    until(lambda: queries.committed(TOPIC, PARTITIONS) == dict.fromkeys(range(PARTITIONS), 30), "their commits", [query])


def test_a_topic_grows_in_mid_query(embedded: EmbeddedKafka, queries: Queries) -> None:
    query, rows = queries.start(TOPIC, {"startingOffsets": "latest", "kafka.metadata.max.age.ms": "500"})
    until(lambda: owned(query) == list(range(PARTITIONS)), "its share", [query])
    embedded.add_partitions(TOPIC, PARTITIONS + 1)
    produce(embedded.bootstrap_servers, TOPIC, [{"partition": PARTITIONS, "value": b"v"} for _ in range(5)])
    until(lambda: rows.offsets(PARTITIONS) == list(range(5)), "the new partition's first records", [query])


def test_a_query_of_the_consumer_protocol(embedded: EmbeddedKafka, queries: Queries) -> None:
    write(embedded, 10)
    query, rows = queries.start(TOPIC, {"kafka.group.protocol": "consumer"})
    until(lambda: len(rows.seen) == 40, "the first records", [query])
    write(embedded, 10)
    until(lambda: len(rows.seen) == 80, "the second ones", [query])
    assert [rows.offsets(partition) for partition in range(PARTITIONS)] == [list(range(20))] * PARTITIONS
    until(lambda: queries.committed(TOPIC, PARTITIONS) == dict.fromkeys(range(PARTITIONS), 20), "their commits", [query])
