"""Records that other clients may write: what the source's columns hold of them, with both kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from pyspark.sql.pandas.types import to_arrow_schema

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import kept_readers
from consumer_coord.spark.columns import source_schema
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.packing import Range, ReadSpec
from consumer_coord.spark.reader import read_ranges
from tests.support.columns.kernels import kernel_name
from tests.support.spark.producing import produce

__all__ = ["kernel_name"]

pytestmark = pytest.mark.usefixtures("kernel_name")

LONG_MAX = 2**63 - 1


class RawKey(str):
    """A header key of bytes that are not UTF-8."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"caf\xe9"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as broker:
        yield broker
    kept_readers.close_all()


def write(kafka: EmbeddedKafka, codec: str | None = None, **record: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec)
    try:
        producer.send("orders", value=b"v", **record).get(30)
    finally:
        producer.close()


def read(kafka: EmbeddedKafka, *, headers: bool, first: int = 0) -> Any:
    """A record, as Spark gets it."""
    parsed = parse_options({"kafka.bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers", "subscribe": "orders"})
    spec = ReadSpec(parsed.data_plane(), True, 20_000)
    (batch,) = read_ranges(
        [Range("orders", 0, first, first + 1)], spec, to_arrow_schema(source_schema(headers), timezone="UTC")
    )
    return batch


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
def test_a_header_key_that_is_not_utf8_is_read_as_java_reads_it(kafka: EmbeddedKafka, codec: str | None) -> None:
    write(kafka, codec, headers=[("plain", b"0"), (RawKey("any"), b"1"), ("last", b"")])
    assert read(kafka, headers=True).column("headers").to_pylist() == [
        [{"key": "plain", "value": b"0"}, {"key": "caf\ufffd", "value": b"1"}, {"key": "last", "value": b""}]
    ]
    assert read(kafka, headers=False).column("value").to_pylist() == [b"v"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_headers_in_each_codec(kafka: EmbeddedKafka, codec: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 50})
    for number in range(50):
        producer.produce("orders", b"v" * 100, headers=[("number", str(number).encode()), ("none", None)])
    assert producer.flush(90) == 0
    assert read(kafka, headers=True, first=37).column("headers").to_pylist() == [
        [{"key": "number", "value": b"37"}, {"key": "none", "value": None}]
    ]


def test_a_header_key_keeps_its_nul(kafka: EmbeddedKafka) -> None:
    write(kafka, headers=[("a\0b", b"1")])
    assert read(kafka, headers=True).column("headers").to_pylist() == [[{"key": "a\0b", "value": b"1"}]]


def test_null_header_values(kafka: EmbeddedKafka) -> None:
    produce(kafka.bootstrap_servers, "orders", [{"value": b"v", "headers": [("a", b"1"), ("b", None), ("a", b"")]}])
    assert read(kafka, headers=True).column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}]
    ]


def test_a_timestamp_beyond_sparks_range_is_the_last_one_that_spark_has(kafka: EmbeddedKafka) -> None:
    write(kafka, timestamp_ms=LONG_MAX)
    microseconds = read(kafka, headers=False).column("timestamp").cast("int64").to_pylist()
    assert microseconds == [LONG_MAX // 1000 * 1000]
