"""A batch of the checkpoint that runs again: what of it can still be read.  Without Spark and without a data plane."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import query as queries
from consumer_coord.spark.checkpoint import Offsets, Span, TopicSpans
from consumer_coord.spark.errors import CheckpointError, DataLossError
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.query_membership import QueryMembership
from consumer_coord.spark.source import KafkaGroupSource
from tests.support.spark.producing import produce
from tests.support.waiting import eventually

KEPT = 50


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as broker:
        produce(broker.bootstrap_servers, "orders", [{"value": b"v"} for _ in range(KEPT)])
        yield broker


@pytest.fixture
def settings(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(queries, "CUT_LOOK_EVERY_S", 0.01)
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "subscribe": "orders"}


def batch(kafka: EmbeddedKafka, end: int, partition: int = 0) -> Offsets:
    """A batch that was planned up to ``end``, of the topic as it is."""
    query = QueryMembership(
        parse_options({"kafka.bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "subscribe": "orders"})
    )
    try:
        metadata = query.open().refresh_metadata(30_000)
    finally:
        query.leave()
    spans = TopicSpans(metadata.topics["orders"].id, {partition: Span(20, end, 1)})
    return Offsets("billing", metadata.cluster_id, {"orders": spans})


def test_a_batch_beyond_a_log_that_was_cut_back_is_data_loss(kafka: EmbeddedKafka, settings: dict[str, str]) -> None:
    query = QueryMembership(parse_options(settings))
    try:
        with pytest.raises(
            DataLossError, match=r"'orders', partition 0, offsets 20 to 80: out of range.* truncated at offset 50"
        ):
            query.check_replay(batch(kafka, 80))
        whole = batch(kafka, KEPT)
        assert query.check_replay(whole) == whole
    finally:
        query.leave()


def test_without_fail_on_data_loss_what_is_left_is_read_and_the_query_goes_on(
    kafka: EmbeddedKafka, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    query = QueryMembership(parse_options({**settings, "failOnDataLoss": "false"}))
    planned = batch(kafka, 80)
    try:
        left = query.check_replay(planned)
        assert [(span.start, span.end) for _, span in left.spans()] == [(20, KEPT)]
        assert "out of range" in caplog.text
        # Spark has finished the batch under the end that it was planned with, and records were written after the cut.
        produce(kafka.bootstrap_servers, "orders", [{"value": b"v"} for _ in range(5)])
        read: list[tuple[int, int]] = []
        offsets = planned

        def go_on() -> bool:
            nonlocal offsets
            batch = query.next_batch(offsets)
            if batch is not None:
                offsets = batch
                read.extend((span.start, span.end) for _, span in batch.spans() if span.start < span.end)
            return bool(read)

        eventually(go_on, "records that were written after the cut")
        assert read == [(KEPT, KEPT + 5)]
    finally:
        query.leave()


def test_a_batch_of_a_partition_that_the_topic_does_not_have_is_a_damaged_checkpoint(
    kafka: EmbeddedKafka, settings: dict[str, str]
) -> None:
    query = QueryMembership(parse_options(settings))
    try:
        with pytest.raises(CheckpointError, match=r"group 'billing' holds a damaged offset .*orders-7.*fresh checkpoint"):
            query.check_replay(batch(kafka, 30, partition=7))
    finally:
        query.leave()


def test_the_same_offsets_in_other_words_hold_no_new_records(settings: dict[str, str]) -> None:
    """Spark compares texts: white space that a hand has left in a file of offsets/ looks like a new batch."""
    source = KafkaGroupSource(settings)
    reader = source.streamReader(source.schema())
    offset = Offsets("billing", "c", {"orders": TopicSpans(uuid.UUID(int=7), {0: Span(3, 9, 1)})}).to_json()
    assert reader.partitions(dict(reversed(offset.items())), offset) == []


@pytest.mark.parametrize("text", ['{"v": 1', "[" * 100_000, "1" * 5_000], ids=["cut off", "nested", "long"])
def test_an_offset_that_is_no_json_names_the_checkpoint_and_the_remedy(settings: dict[str, str], text: str) -> None:
    """As PySpark's planner does it: it parses, and stops the reader whatever happens."""
    source = KafkaGroupSource(settings)
    reader = source.streamReader(source.schema())

    def plan() -> None:
        try:
            reader.latestOffset(json.loads(text), ReadAllAvailable())
        finally:
            reader.stop()

    with pytest.raises(
        CheckpointError, match=r"group 'billing' holds a damaged offset .*offsets/: invalid JSON.*fresh checkpoint"
    ):
        plan()
