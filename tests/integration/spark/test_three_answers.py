"""What Spark sees of the planner's three answers: triggers and runs end only when there is certainly nothing new."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark.source import KafkaGroupSource
from tests.support.spark.producing import produce
from tests.support.spark.queries import Queries, Rows, await_end, until

pytestmark = pytest.mark.spark

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture
def queries(spark: Any, kafka: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Queries]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    found = Queries(spark, kafka.bootstrap_servers, group, tmp_path, admin)
    try:
        yield found
    finally:
        found.stop()


def write(kafka: EmbeddedKafka, count: int) -> None:
    produce(kafka.bootstrap_servers, "orders", [{"partition": number % 2, "value": b"v"} for number in range(count)])


@PROTOCOLS
def test_process_all_available_misses_no_record(queries: Queries, kafka: EmbeddedKafka, protocol: str) -> None:
    """``tests.support.spark.available`` plays more rounds, on either Kafka."""
    query, rows = queries.start("orders", {"kafka.group.protocol": protocol})
    random = Random(7)
    for number in range(1, 16):
        time.sleep(random.choice((0.0, 0.01, 0.1, 0.3)))
        write(kafka, 1)
        query.processAllAvailable()
        assert len(rows.seen) == number


@PROTOCOLS
@pytest.mark.parametrize("once", [True, False], ids=["once", "now"])
def test_a_run_waits_for_slow_brokers(queries: Queries, kafka: EmbeddedKafka, protocol: str, once: bool) -> None:
    write(kafka, 10)
    kafka.add_fault("ListOffsets", Fault(delay_ms=3_000), times=2)
    rows = Rows()
    writer = queries.frame("orders", {"kafka.group.protocol": protocol}).writeStream.foreachBatch(rows)
    trigger = {"once": True} if once else {"availableNow": True}
    query = writer.option("checkpointLocation", str(queries.directory / "c")).trigger(**trigger).start()
    queries.started.append(query)
    await_end(query)
    assert len(rows.seen) == 10


@PROTOCOLS
def test_a_query_whose_trigger_is_longer_than_the_poll_interval_goes_on(
    queries: Queries, kafka: EmbeddedKafka, protocol: str
) -> None:
    rows = Rows()
    options = {"kafka.group.protocol": protocol, "kafka.max.poll.interval.ms": "1500"}
    writer = queries.frame("orders", options).writeStream.foreachBatch(rows)
    write(kafka, 2)
    query = writer.option("checkpointLocation", str(queries.directory / "c")).trigger(processingTime="4 seconds").start()
    queries.started.append(query)
    for count in (2, 4, 6):
        until(lambda count=count: len(rows.seen) == count, "the records", [query])  # type: ignore[misc]  # it is a default
        write(kafka, 2)
    until(lambda: queries.committed("orders", 2)[0] >= 2, "the commits of finished batches", [query])


def test_access_that_is_withdrawn_while_the_query_is_idle_ends_it(queries: Queries, kafka: EmbeddedKafka) -> None:
    write(kafka, 2)
    query, rows = queries.start("orders")
    until(lambda: len(rows.seen) == 2, "the records", [query])
    kafka.add_fault("ListOffsets", Fault(error_code=29), times=1_000_000)
    with pytest.raises(StreamingQueryException, match=r"TOPIC_AUTHORIZATION_FAILED.*needs DESCRIBE on the topic"):
        await_end(query)


def test_a_sink_is_refused_with_the_format_that_writes(queries: Queries) -> None:
    writer = queries.frame("orders").writeStream.format(KafkaGroupSource.name())
    with pytest.raises(Exception, match=r"kafka_group reads only.*Spark's own format 'kafka'"):
        await_end(writer.option("checkpointLocation", str(queries.directory / "c")).start())
