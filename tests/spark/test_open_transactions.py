"""A query with ``read_committed`` at a position in an open transaction.

A consumer with ``read_uncommitted``, Java's default, commits such positions before the query gets its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema

from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import kept_readers
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.columns import source_schema
from consumer_coord.spark.errors import DataLossError, ReadStalledError
from consumer_coord.spark.options import Options, parse_options
from consumer_coord.spark.packing import Range, ReadSpec
from consumer_coord.spark.query_membership import QueryMembership
from consumer_coord.spark.reader import read_ranges
from tests.support.spark.producing import produce
from tests.support.waiting import eventually

COUNT = 10


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as broker:
        produce(broker.bootstrap_servers, "orders", [{"value": b"v"} for _ in range(COUNT)])
        yield broker


@pytest.fixture(autouse=True)
def transaction(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An open transaction, which contains all records of the topic; ``undo`` commits it."""
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.log_start_offset))
        yield patch


def options_of(kafka: EmbeddedKafka, **more: str) -> Options:
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "subscribe": "orders", **more}
    return parse_options(given)


@pytest.fixture
def query(kafka: EmbeddedKafka) -> Iterator[QueryMembership]:
    """A query whose group has a commit at the end of the log."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, COUNT)], asynchronous=False)
    consumer.close()
    query = QueryMembership(options_of(kafka))
    yield query
    query.leave()


def next_end(query: QueryMembership, start: Offsets) -> tuple[Offsets, tuple[int, int]]:
    found: list[Offsets] = []

    def planned() -> bool:
        batch = query.next_batch(start)
        found.extend([] if batch is None else [batch])
        return bool(found)

    eventually(planned, "a batch", within_s=90)
    ((_, span),) = found[0].spans()
    return found[0], (span.start, span.end)


def test_a_commit_above_the_last_stable_offset_is_no_loss_of_data(
    kafka: EmbeddedKafka, query: QueryMembership, transaction: pytest.MonkeyPatch
) -> None:
    offsets, span = next_end(query, Offsets("billing"))
    assert span == (COUNT, COUNT)
    assert query.next_batch(offsets) is None, "the transaction is open"
    produce(kafka.bootstrap_servers, "orders", [{"value": b"v"}])
    transaction.undo()
    assert next_end(query, offsets)[1] == (COUNT, COUNT + 1)


def test_a_log_that_ends_below_the_commit_was_truncated(kafka: EmbeddedKafka, query: QueryMembership) -> None:
    offsets, _ = next_end(query, Offsets("billing"))
    kafka.move_leader("orders", 0, 0, end_offset=0)

    with pytest.raises(DataLossError, match="its log was truncated at offset 0, although"):
        next_end(query, offsets)


def test_a_task_that_waits_for_a_transaction_has_lost_no_records(kafka: EmbeddedKafka) -> None:
    """The batch was planned with ``read_uncommitted``, and runs again with ``read_committed``."""
    options = options_of(kafka, **{"kafkaConsumer.pollTimeoutMs": "500", "failOnDataLoss": "false"})
    spec = ReadSpec(options.data_plane(), options.fail_on_data_loss, options.poll_timeout_ms)
    try:
        with pytest.raises(ReadStalledError):
            list(read_ranges([Range("orders", 0, 0, COUNT)], spec, to_arrow_schema(source_schema(False), timezone="UTC")))
    finally:
        kept_readers.close_all()
