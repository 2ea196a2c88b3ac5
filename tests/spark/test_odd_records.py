"""Records that other clients may write: what the source's columns hold of them.  Whatever fetches them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from pyspark.sql.pandas.types import to_arrow_schema

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import MalformedMessageError
from consumer_coord.spark import consumers
from consumer_coord.spark.columns import source_schema
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.packing import Range, ReadSpec
from consumer_coord.spark.raw_headers import fetch_headers, unpacked
from consumer_coord.spark.reader import read_ranges
from consumer_coord.topic_partition import TopicPartition
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


def write(kafka: EmbeddedKafka, codec: str | None = None, **record: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec)
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


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
def test_a_header_key_that_is_not_utf8_is_read_as_java_reads_it(kafka: EmbeddedKafka, codec: str | None) -> None:
    write(kafka, codec, headers=[("plain", b"0"), (RawKey("any"), b"1"), ("last", b"")])
    assert read(kafka, headers=True).column("headers").to_pylist() == [
        [{"key": "plain", "value": b"0"}, {"key": "caf\ufffd", "value": b"1"}, {"key": "last", "value": b""}]
    ]
    assert read(kafka, headers=False).column("value").to_pylist() == [b"v"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_headers_of_one_record_among_many_in_each_codec(kafka: EmbeddedKafka, codec: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 50})
    for number in range(50):
        producer.produce("orders", b"v" * 100, headers=[("number", str(number).encode()), ("none", None)])
    assert producer.flush(30) == 0
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers"}
    found = fetch_headers(settings, TopicPartition("orders", 0), 37, 20_000)
    assert found == [("number", b"37"), ("none", None)]


def test_snappy_as_java_cuts_it() -> None:
    """Chunks with their sizes, after a head of 16 bytes."""
    parts = [b"a" * 1_000, b"b" * 500]
    chunks = [bytes(pa.compress(part, "snappy", asbytes=True)) for part in parts]
    framed = b"\x82SNAPPY\x00" + bytes(8) + b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in chunks)
    assert unpacked(framed, 2) == b"".join(parts)


def test_damaged_batches_are_one_error() -> None:
    for body, codec in ((b"no such thing", 1), (b"\x10no", 2), (b"no", 3), (b"no", 4), (b"any", 7)):
        with pytest.raises(MalformedMessageError):
            unpacked(body, codec)


def test_null_header_values(kafka: EmbeddedKafka) -> None:
    produce(kafka.bootstrap_servers, "orders", [{"value": b"v", "headers": [("a", b"1"), ("b", None), ("a", b"")]}])
    assert read(kafka, headers=True).column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}]
    ]


def test_a_timestamp_beyond_sparks_range_is_the_last_one_that_spark_has(kafka: EmbeddedKafka) -> None:
    write(kafka, timestamp_ms=LONG_MAX)
    microseconds = read(kafka, headers=False).column("timestamp").cast("int64").to_pylist()
    assert microseconds == [LONG_MAX // 1000 * 1000]
