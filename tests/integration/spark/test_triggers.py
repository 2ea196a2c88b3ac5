"""Triggers, limits and SQL tables, on the embedded Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import by_value
from consumer_coord.spark.packing import Packing, Range, Task
from tests.support.spark.producing import produce
from tests.support.spark.queries import Queries, Rows, await_end

pytestmark = pytest.mark.spark

RECORDS = 20
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as broker:
        records = [{"partition": number % 2, "value": b"v"} for number in range(RECORDS)]
        produce(broker.bootstrap_servers, "orders", records)
        yield broker


@pytest.fixture
def queries(spark: Any, kafka: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Queries]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    found = Queries(spark, kafka.bootstrap_servers, group, tmp_path, admin)
    try:
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "7"}, {"minOffsetsPerTrigger": "1000"}])
def test_once_reads_everything_whatever_the_limits_say(queries: Queries, limit: dict[str, str]) -> None:
    rows = Rows()
    writer = queries.frame("orders", limit).writeStream.foreachBatch(rows)
    query = writer.option("checkpointLocation", str(queries.directory / "c")).trigger(once=True).start()
    queries.started.append(query)
    await_end(query)
    assert len(rows.seen) == RECORDS
    assert {batch for batch, *_ in rows.seen} == {0}


def test_available_now_reads_less_than_the_minimum(queries: Queries) -> None:
    query, rows = queries.start("orders", {"minOffsetsPerTrigger": "1000"}, now=True)
    await_end(query)
    assert len(rows.seen) == RECORDS


@PROTOCOLS
def test_two_loads_of_one_group_in_one_available_now_query(queries: Queries, protocol: str) -> None:
    """Two sources, two members: one hands a partition over while Spark asks the other."""
    options = {"kafka.group.protocol": protocol}
    frame = queries.frame("orders", options).union(queries.frame("orders", options))
    query, rows = queries.write(frame, now=True)
    await_end(query)
    assert [rows.offsets(number) for number in (0, 1)] == [list(range(RECORDS // 2))] * 2
    assert queries.committed("orders", 2) == {0: RECORDS // 2, 1: RECORDS // 2}


def test_a_sql_table(queries: Queries, spark: Any) -> None:
    """Spark starts a query of a table without the table's options; they may be given again."""
    options = {
        "kafka.bootstrap.servers": queries.bootstrap_servers,
        "group.id": queries.group,
        "subscribe": "orders",
        "startingOffsets": "earliest",
    }
    listed = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TABLE orders_of_kafka USING kafka_group OPTIONS ({listed})")
    try:
        query, rows = queries.write(spark.readStream.options(**options).table("orders_of_kafka"), now=True)
        await_end(query)
    finally:
        spark.sql("DROP TABLE orders_of_kafka")
    assert len(rows.seen) == RECORDS


def test_json_that_leaves_a_partition_out_fails_the_first_start(queries: Queries) -> None:
    query, _ = queries.start("orders", {"startingOffsets": '{"orders":{"0":5}}'}, now=True)
    with pytest.raises(StreamingQueryException, match="startingOffsets leaves out orders-1"):
        await_end(query)


def test_a_damaged_checkpoint_says_what_to_do(queries: Queries) -> None:
    query, _ = queries.start("orders", checkpoint="c", now=True)
    await_end(query)
    for log in (queries.directory / "c" / "offsets").glob("[0-9]*"):
        head = log.read_text().splitlines()[:2]
        log.write_text("\n".join([*head, '{"cluster": ']))
    for checksum in (queries.directory / "c" / "offsets").glob(".*.crc"):
        checksum.unlink()
    again, _ = queries.start("orders", checkpoint="c", now=True)
    with pytest.raises(StreamingQueryException, match=f"group '{queries.group}' holds a damaged offset .*fresh checkpoint"):
        await_end(again)


def test_a_plan_hides_what_begins_with_secret(queries: Queries, capfd: pytest.CaptureFixture[str]) -> None:
    """Spark shows the values of all other options, as the second plan does."""
    limit = 1_234_567

    def one_each(ranges: Sequence[Range], packing: Packing) -> Sequence[Task]:
        assert limit
        return [(each,) for each in ranges]

    text = by_value(one_each)
    hidden = queries.frame("orders", {"secret.taskSplitter": text})
    query, rows = queries.write(hidden, now=True)
    await_end(query)
    assert len(rows.seen) == RECORDS
    for frame, shown in ((hidden, False), (queries.frame("orders", {"taskSplitter": text}), True)):
        frame.explain(True)
        query.explain(True)
        plans = capfd.readouterr().out + frame._jdf.queryExecution().toString()
        assert (text[:60] in plans) is shown
    assert text[:60] not in str([json.dumps(dict(one), default=str) for one in query.recentProgress])
