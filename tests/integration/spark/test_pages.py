"""The Spark programs of the documentation run without changes, in the one session of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord.broker import EmbeddedKafka
from tests.support.docs.blocks import DOCS, ROOT, blocks_of, needs_spark, run_page
from tests.support.spark.queries import await_end
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def orders() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(40):
            producer.produce("orders", f"order {number}", partition=number % 4)
        assert producer.flush(90) == 0
        yield kafka


def rows_of(query: Any) -> int:
    """Return the number of records in the batches of a query that has ended."""
    assert query.exception() is None
    return sum(progress["numInputRows"] for progress in query.recentProgress)


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "start.md"], ids=lambda page: page.name)
def test_the_query_of_a_first_page_reads_the_orders(page: Path, spark: Any, orders: EmbeddedKafka, tmp_path: Path) -> None:
    instead = {'"checkpoint"': repr(str(tmp_path / "checkpoint"))}
    names = run_page(blocks_of(page), orders.bootstrap_servers, needs_spark, instead=instead)
    assert rows_of(names["query"]) == 40


def test_a_query_with_what_the_page_on_spark_sets(spark: Any, orders: EmbeddedKafka, tmp_path: Path) -> None:
    """Its blocks run one after the other; then a query runs with the assignor and the task splitter that they handed over."""
    # As in a notebook, whose classes are pickled by value.
    names = run_page(blocks_of(DOCS / "spark.md"), orders.bootstrap_servers, needs_spark, module="__main__")
    try:
        assert names["orders"].isStreaming
        reader = names["reader"].option("kafka.bootstrap.servers", orders.bootstrap_servers).option("group.id", "of-the-page")
        frame = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        await_end(query)
        assert rows_of(query) == 40
        # The planner leaves when its process ends, which Spark does not wait for; its session would last for 45 s.
        eventually(lambda: orders.group_state("of-the-page") in ("Empty", None), "the planner's leave")
    finally:
        for listener in [value for value in names.values() if isinstance(value, names["GroupListener"])]:
            spark.streams.removeListener(listener)
