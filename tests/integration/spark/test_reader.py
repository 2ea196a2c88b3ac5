"""The executor's side against a real broker: every record of a range, whatever lies at its end, from kept consumers."""

from __future__ import annotations

import datetime
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from consumer_coord.columns import kernel
from consumer_coord.errors import ConfigurationError, DisconnectedError
from consumer_coord.fetch import Fetcher
from consumer_coord.leaders import list_offsets
from consumer_coord.spark import kept_readers, range_reader
from consumer_coord.spark.columns import check_schema, source_schema
from consumer_coord.spark.errors import DataLossError, ReadStalledError
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.packing import Range, ReadSpec
from consumer_coord.spark.reader import read_ranges
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.spark.producing import produce

pytestmark = pytest.mark.kafka

Read = Callable[..., list[dict[str, Any]]]
SpecFactory = Callable[..., ReadSpec]


@pytest.fixture(params=["checked by topic id", "checked by metadata", "decoded in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of reading: also as from brokers whose Fetch has no topic ids, and without the compiled kernel."""
    if request.param == "checked by metadata":
        monkeypatch.setattr(Fetcher, "fetches_by_id", False)
    name = "python" if request.param == "decoded in Python" else None
    monkeypatch.setattr(kernel, "kernel", kernel.load(name)[1])


@pytest.fixture
def spec(kafka: KafkaCluster, way: None) -> Iterator[SpecFactory]:
    def made(**options: str) -> ReadSpec:
        parsed = parse_options(
            {
                "kafka.bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "readers",
                "subscribe": "any",
                "kafkaConsumer.pollTimeoutMs": "20000",
                **options,
            }
        )
        return ReadSpec(parsed.data_plane(), parsed.fail_on_data_loss, parsed.poll_timeout_ms)

    yield made
    kept_readers.close_all()


@pytest.fixture
def read(spec: SpecFactory) -> Read:
    def run(
        ranges: Sequence[Range], schema: StructType | None = None, *, headers: bool = False, **options: str
    ) -> list[dict[str, Any]]:
        arrow: pa.Schema = to_arrow_schema(schema or source_schema(headers), timezone="UTC")
        batches = list(read_ranges(ranges, spec(**options), arrow))
        assert all(batch.schema.equals(arrow) for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    return run


def offsets(rows: Sequence[dict[str, Any]], partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows if row["partition"] == partition]


def test_the_columns_are_those_of_sparks_source(kafka: KafkaCluster, topic: NewTopicFactory, read: Read) -> None:
    name = topic()
    produce(
        kafka.bootstrap_servers,
        name,
        [
            {"key": b"k", "value": b"v", "timestamp": 1_700_000_000_123, "headers": [("a", b"1"), ("b", None)]},
            {"key": None, "value": None, "timestamp": 1_700_000_000_124},
        ],
    )
    first, second = read([Range(name, 0, 0, 2)], headers=True, includeHeaders="true")
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=datetime.UTC)
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": name,
        "partition": 0,
        "offset": 0,
        "timestamp": at,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)


def test_append_time_is_told(topic: NewTopicFactory, fill: Callable[..., None], read: Read) -> None:
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    fill(name, 0, 1)
    assert [row["timestampType"] for row in read([Range(name, 0, 0, 1)])] == [1]


def test_columns_left_out_are_not_built(topic: NewTopicFactory, fill: Callable[..., None], read: Read) -> None:
    name = topic()
    fill(name, 0, 3)
    schema = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
    assert read([Range(name, 0, 1, 3)], schema) == [{"offset": 1, "value": b"v1"}, {"offset": 2, "value": b"v2"}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([StructField("value", StringType())], "value has type binary, not string"),
        ([StructField("payload", BinaryType())], "no column 'payload'"),
        ([StructField("headers", BinaryType())], "includeHeaders=true"),
        ([StructField("partition", IntegerType(), False)], "must be nullable"),
        ([], "names no column"),
    ],
)
def test_a_schema_that_cannot_be_served_is_refused(fields: list[StructField], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_schema(StructType(fields), include_headers=False)


def test_batch_after_batch_from_one_consumer(topic: NewTopicFactory, fill: Callable[..., None], read: Read) -> None:
    """Records that were fetched beyond a range's end are used for the next range; none is skipped or repeated."""
    name = topic(partitions=2)
    fill(name, 0, 100)
    fill(name, 1, 100)
    for start in range(0, 100, 10):
        rows = read([Range(name, 0, start, start + 10), Range(name, 1, start, start + 10)])
        assert offsets(rows, 0) == offsets(rows, 1) == list(range(start, start + 10))
    assert len(kept_readers._readers) == 1


def test_a_range_may_be_read_again_or_skipped(topic: NewTopicFactory, fill: Callable[..., None], read: Read) -> None:
    name = topic()
    fill(name, 0, 5_000)
    for start, end in ((0, 10), (0, 10), (5, 20), (40, 50), (3_000, 3_005), (3_005, 3_010), (45, 50), (4_999, 5_000)):
        assert offsets(read([Range(name, 0, start, end)])) == list(range(start, end))


def test_partitions_of_other_batches_are_not_mixed_in(topic: NewTopicFactory, fill: Callable[..., None], read: Read) -> None:
    first, second = topic(partitions=3), topic()
    for number in range(3):
        fill(first, number, 50)
    fill(second, 0, 50)
    assert {(row["topic"], row["partition"]) for row in read([Range(first, 0, 0, 20), Range(first, 1, 0, 20)])} == {
        (first, 0),
        (first, 1),
    }
    rows = read([Range(first, 2, 0, 20), Range(second, 0, 0, 50)])
    assert {(row["topic"], row["partition"]) for row in rows} == {(first, 2), (second, 0)}
    rows = read([Range(first, 0, 20, 50), Range(first, 1, 20, 50), Range(first, 2, 20, 50)])
    assert offsets(rows, 0) == offsets(rows, 1) == offsets(rows, 2) == list(range(20, 50))


def test_one_task_may_read_a_partition_in_two_places(topic: NewTopicFactory, fill: Callable[..., None], read: Read) -> None:
    name = topic()
    fill(name, 0, 100)
    assert offsets(read([Range(name, 0, 0, 10), Range(name, 0, 50, 60), Range(name, 0, 60, 70)])) == [
        *range(10),
        *range(50, 70),
    ]


def transactions(kafka: KafkaCluster, topic: str, *outcomes: bool) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"writer-of-{topic}"})
    producer.init_transactions(30)
    for number, commit in enumerate(outcomes):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, value=f"{number}-{index}", partition=0)
        producer.flush(90)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def test_values_larger_than_a_fetch(kafka: KafkaCluster, topic: NewTopicFactory, read: Read) -> None:
    """A fetch asks for two megabytes of a partition; a broker answers with a whole batch all the same."""
    large = 5 << 20
    name = topic(config={"max.message.bytes": str(2 * large)})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": 2 * large})
    for number in range(4):
        producer.produce(name, bytes([number]) * large, partition=0)
    assert producer.flush(180) == 0
    rows = read([Range(name, 0, 0, 3)])
    assert [(row["offset"], row["value"][:1], len(row["value"])) for row in rows] == [
        (number, bytes([number]), large) for number in range(3)
    ]
    assert offsets(read([Range(name, 0, 3, 4)])) == [3]


def test_control_records_at_the_end_do_not_hang(kafka: KafkaCluster, topic: NewTopicFactory, read: Read) -> None:
    name = topic()
    transactions(kafka, name, True)
    assert offsets(read([Range(name, 0, 0, 4)])) == [0, 1, 2], "offset 3 is the commit marker"
    assert offsets(read([Range(name, 0, 3, 4)])) == []


def test_aborted_records_at_the_end_do_not_hang(kafka: KafkaCluster, topic: NewTopicFactory, read: Read) -> None:
    name = topic()
    transactions(kafka, name, True, False)
    assert offsets(read([Range(name, 0, 0, 8)])) == [0, 1, 2]
    assert offsets(read([Range(name, 0, 4, 8)])) == []
    uncommitted = read([Range(name, 0, 0, 8)], **{"kafka.isolation.level": "read_uncommitted"})
    assert offsets(uncommitted) == [0, 1, 2, 4, 5, 6]


def test_ranges_end_inside_transactions(kafka: KafkaCluster, topic: NewTopicFactory, read: Read) -> None:
    name = topic()
    transactions(kafka, name, True, False, True)
    for start in range(12):
        for end in range(start + 1, 13):
            wanted = [offset for offset in (0, 1, 2, 8, 9, 10) if start <= offset < end]
            assert offsets(read([Range(name, 0, start, end)])) == wanted, (start, end)


def test_deleted_records_fail_or_warn(
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    fill: Callable[..., None],
    read: Read,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic()
    fill(name, 0, 100)
    admin: AdminClient = kafka.admin
    admin.delete_records([TopicPartition(name, 0, 40)])[TopicPartition(name, 0)].result(90)
    with pytest.raises(DataLossError, match=rf"topic '{name}', partition 0, offsets 10 to 60: .* 40 to 100"):
        read([Range(name, 0, 10, 60)])
    assert offsets(read([Range(name, 0, 10, 60)], failOnDataLoss="false")) == list(range(40, 60))
    assert f"topic '{name}', partition 0, offsets 10 to 60" in caplog.text
    assert read([Range(name, 0, 10, 30)], failOnDataLoss="false") == []
    assert offsets(read([Range(name, 0, 40, 60)])) == list(range(40, 60))


def test_a_connection_that_ends_after_records_were_deleted_fails_no_task(
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    fill: Callable[..., None],
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = 3
    look_up = list_offsets.list_offsets

    async def cut_off(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise DisconnectedError("the connection ended")
        return await look_up(*arguments, **options)

    monkeypatch.setattr(list_offsets, "list_offsets", cut_off)
    name = topic()
    fill(name, 0, 100)
    admin: AdminClient = kafka.admin
    admin.delete_records([TopicPartition(name, 0, 40)])[TopicPartition(name, 0)].result(90)
    assert offsets(read([Range(name, 0, 10, 60)], failOnDataLoss="false")) == list(range(40, 60))
    assert failures == 0
    failures = 1_000_000
    with pytest.raises(ReadStalledError, match=rf"topic '{name}', partition 0, offsets 10 to 30"):
        read([Range(name, 0, 10, 30)], failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": "500"})
    assert failures > 900_000


def topic_id(kafka: KafkaCluster, name: str) -> uuid.UUID:
    told = kafka.admin.describe_topics(TopicCollection([name]))[name].result(90).topic_id
    return uuid.UUID(bytes=b64decode(f"{told}=="))


@pytest.mark.parametrize("records", [1_000, 60, 10, 0])
def test_a_topic_made_again_is_not_read_from_the_old_ones_offsets(
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    fill: Callable[..., None],
    read: Read,
    caplog: pytest.LogCaptureFixture,
    records: int,
) -> None:
    """Neither from what was fetched ahead of the old one, nor from the new one at the old one's offsets."""
    name = topic()
    fill(name, 0, 400)
    old = topic_id(kafka, name)
    assert offsets(read([Range(name, 0, 0, 40, old)])) == list(range(40))
    kafka.delete_topic(name)
    kafka.create_topic(name, 1)
    fill(name, 0, records, first=5_000)
    new = topic_id(kafka, name)
    assert old != new
    with pytest.raises(DataLossError, match=f"topic '{name}'.* {old}.* deleted and created again with id {new}"):
        read([Range(name, 0, 40, 80, old)])
    assert read([Range(name, 0, 40, 80, old)], failOnDataLoss="false") == []
    assert "deleted and created again" in caplog.text
    rows = read([Range(name, 0, 0, min(40, records), new)])
    assert [row["value"] for row in rows] == [f"v{number}".encode() for number in range(5_000, 5_000 + min(40, records))]


def test_a_topic_made_again_in_mid_task_is_noticed(
    kafka: KafkaCluster,
    topic: NewTopicFactory,
    fill: Callable[..., None],
    spec: SpecFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records delivered before belong to the old topic, and no record follows them."""
    name, other = topic(), topic()
    fill(name, 0, 100)
    fill(other, 0, 100)
    old, known = topic_id(kafka, name), topic_id(kafka, other)
    wanted = [Range(name, 0, 0, 200, old), Range(other, 0, 0, 100, known)]
    schema: pa.Schema = to_arrow_schema(source_schema(False), timezone="UTC")
    monkeypatch.setattr(range_reader, "BATCH_RECORDS", 50)
    reading = read_ranges(wanted, spec(failOnDataLoss="false"), schema)
    rows = next(reading).to_pylist()
    kafka.delete_topic(name)
    kafka.create_topic(name, 1)
    fill(name, 0, 1_000, first=5_000)
    rows += [row for batch in reading for row in batch.to_pylist()]
    assert [row["offset"] for row in rows if row["topic"] == other] == list(range(100))
    assert all(row["value"] == f"v{row['offset']}".encode() for row in rows)


def test_a_log_that_ends_before_the_planned_range_is_data_loss(
    topic: NewTopicFactory, fill: Callable[..., None], read: Read
) -> None:
    """The log was truncated after the batch was planned. A leader that only lags behind has the time of a poll to catch up."""
    name = topic()
    fill(name, 0, 5)
    soon = {"kafkaConsumer.pollTimeoutMs": "500"}
    with pytest.raises(DataLossError, match=rf"topic '{name}', partition 0, offsets 0 to 9: out of range.* offset 5"):
        read([Range(name, 0, 0, 9)], **soon)
    assert offsets(read([Range(name, 0, 0, 9)], failOnDataLoss="false", **soon)) == list(range(5))
    fill(name, 0, 4, first=5)
    assert offsets(read([Range(name, 0, 0, 9)])) == list(range(9))


def test_a_batch_larger_than_everything_kept(topic: NewTopicFactory, kafka: KafkaCluster, read: Read) -> None:
    name = topic(partitions=2)
    for number in range(2):
        produce(kafka.bootstrap_servers, name, [{"partition": number, "value": b"x" * 50} for _ in range(30_000)])
    rows = read([Range(name, 0, 0, 30_000), Range(name, 1, 0, 15_000)])
    assert sorted(offsets(rows, 0)) == list(range(30_000))
    assert sorted(offsets(rows, 1)) == list(range(15_000))
    assert offsets(read([Range(name, 1, 15_000, 30_000)]), 1) == list(range(15_000, 30_000))
