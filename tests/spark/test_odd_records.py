"""Records that other clients may write: what the source's columns hold of them.  Whatever fetches them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql.pandas.types import to_arrow_schema

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import consumers
from consumer_coord.spark.columns import source_schema
from consumer_coord.spark.errors import UnreadableHeaderError
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.packing import Range, ReadSpec
from consumer_coord.spark.reader import read_ranges
from tests.spark.conftest import produce

LONG_MAX = 2**63 - 1


class RawKey(str):
    """A header key of bytes that are not UTF-8."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"caf\xe9"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as broker:
        yield broker
    consumers.close_all()


def write(kafka: EmbeddedKafka, **record: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    try:
        producer.send("orders", value=b"v", **record).get(30)
    finally:
        producer.close()


def read(kafka: EmbeddedKafka, *, headers: bool) -> Any:
    """The first record, as Spark gets it."""
    parsed = parse_options({"kafka.bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers", "subscribe": "orders"})
    spec = ReadSpec(parsed.data_plane(), True, 20_000)
    (batch,) = read_ranges([Range("orders", 0, 0, 1)], spec, to_arrow_schema(source_schema(headers), timezone="UTC"))
    return batch


def test_a_header_key_that_is_not_utf8_is_named_with_its_record(kafka: EmbeddedKafka) -> None:
    write(kafka, headers=[(RawKey("any"), b"1")])
    with pytest.raises(UnreadableHeaderError, match=r"topic 'orders', partition 0, offset 0: .*not UTF-8.*includeHeaders"):
        read(kafka, headers=True)
    assert read(kafka, headers=False).column("value").to_pylist() == [b"v"], "without headers it is read"


def test_null_header_values(kafka: EmbeddedKafka) -> None:
    produce(kafka.bootstrap_servers, "orders", [{"value": b"v", "headers": [("a", b"1"), ("b", None), ("a", b"")]}])
    assert read(kafka, headers=True).column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}]
    ]


def test_a_timestamp_beyond_sparks_range_is_the_last_one_that_spark_has(kafka: EmbeddedKafka) -> None:
    write(kafka, timestamp_ms=LONG_MAX)
    microseconds = read(kafka, headers=False).column("timestamp").cast("int64").to_pylist()
    assert microseconds == [LONG_MAX // 1000 * 1000]
