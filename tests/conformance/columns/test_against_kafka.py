"""Logs of Apache Kafka, read through the kernel, hold the records that librdkafka's consumer delivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from consumer_coord.columns import Columns, CompletedFetch
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.wire.messages.log import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.support.broker.differential import RealBroker
from tests.support.broker.record_batches import read_headers
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kernel_name")]

#: The broker deletes records that are older than a week.
_NOW_MS = time.time_ns() // 1_000_000

#: offset, timestamp in milliseconds, timestamp type, key, value, headers.
Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def fetch(kafka: KafkaCluster, topic: str, offset: int, most: int, read_committed: bool) -> PartitionData:
    """Return what one Fetch of partition 0 answers."""

    async def main() -> PartitionData:
        host, _, port = kafka.bootstrap_servers.partition(":")
        broker = RealBroker(host, int(port))
        try:
            rows = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)]
            topics = [FetchTopic(topic=topic, partitions=rows)]
            request = FetchRequest(
                max_wait_ms=100, min_bytes=1, max_bytes=most, isolation_level=int(read_committed), topics=topics
            )
            response = await broker.call("fetch", request, 11)
            assert isinstance(response, FetchResponse)
            found = response.responses[0].partitions[0]
            assert found.error_code == 0
            return found
        finally:
            await broker.close()

    return asyncio.run(main())


def through_the_kernel(kafka: KafkaCluster, topic: str, *, read_committed: bool, most: int) -> tuple[list[Row], set[str]]:
    """Read partition 0 in Fetches of ``most`` bytes to its end; also return the codecs that were met."""

    def transactions_ended() -> bool:
        data = fetch(kafka, topic, 0, most, read_committed)
        return data.last_stable_offset == data.high_watermark

    if read_committed:
        # A commit returns before its marker is in the log.
        eventually(transactions_ended, "the markers of all transactions")
    into, offset, codecs, end = Columns(), 0, set[str](), 1
    while offset < end:
        data = fetch(kafka, topic, offset, most, read_committed)
        end = data.last_stable_offset if read_committed else data.high_watermark
        records = data.records or b""
        aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        fetched = CompletedFetch(
            records, topic=topic, partition=0, offset=offset, read_committed=read_committed, aborted=aborted
        )
        assert not fetched.needs_bytes  # Kafka returns the first batch whole (KIP-74)
        while not fetched.exhausted:
            into.append(fetched, max_records=100)
        assert fetched.next_offset > offset
        offset = fetched.next_offset
        if most > 1_000_000:  # whole batches
            codecs |= {header.codec for header in read_headers(records)}
    table = pa.table(into.finish())
    table.validate(full=True)
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        (
            row["offset"],
            stamp // 1000,
            row["timestampType"],
            row["key"],
            row["value"],
            [(one["key"], one["value"]) for one in row["headers"] or ()],
        )
        for row, stamp in zip(table.to_pylist(), stamps, strict=True)
    ], codecs


def through_librdkafka(kafka: KafkaCluster, topic: str, *, read_committed: bool) -> list[Row]:
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "none",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
    }
    consumer = Consumer(config)
    rows: list[Row] = []
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == -191, message.error()  # the end of the partition
                return rows
            kind, time_ms = message.timestamp()
            offset = message.offset()
            assert offset is not None
            rows.append((offset, time_ms, kind - 1, message.key(), message.value(), list(message.headers() or ())))
    finally:
        consumer.close()


def produce(producer: Producer, topic: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        key = None if number % 7 == 0 else b"key %d" % number
        value = None if number % 11 == 0 else b"value %d " % number * (number % 50)
        headers: list[tuple[str, bytes | None]] = [("größe", b"%d" % number), ("none", None), ("empty", b"")]
        producer.produce(topic, value, key, partition=0, headers=headers[: number % 4], timestamp=_NOW_MS - number)
        producer.poll(0)
    assert producer.flush(180) == 0


@pytest.mark.parametrize("most", [3_000, 5_000_000])
def test_every_codec_of_librdkafka_and_of_java(kafka: KafkaCluster, topic: NewTopicFactory, most: int) -> None:
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    by_librdkafka = topic(1)
    for codec in codecs:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 20})
        produce(producer, by_librdkafka, range(300))
    # The broker compresses again, in Java.
    by_java = [topic(1, config={"compression.type": codec}) for codec in codecs[1:]]
    for name in by_java:
        produce(Producer({"bootstrap.servers": kafka.bootstrap_servers}), name, range(300))
    for name, expected in (
        (by_librdkafka, set(codecs)),
        *((name, {codec}) for name, codec in zip(by_java, codecs[1:], strict=True)),
    ):
        rows, met = through_the_kernel(kafka, name, read_committed=False, most=most)
        assert rows == through_librdkafka(kafka, name, read_committed=False)
        assert len(rows) == (1500 if name == by_librdkafka else 300)
        assert most < 1_000_000 or met == expected


@pytest.mark.parametrize("read_committed", [True, False])
def test_transactions(kafka: KafkaCluster, topic: NewTopicFactory, read_committed: bool) -> None:
    name = topic(1)
    producers = [
        Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{name}-{number}"}) for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions(60)
    for step in range(12):
        working = [producer for number, producer in enumerate(producers) if (step + number) % 3]
        for producer in working:
            producer.begin_transaction()
        for part in range(3):  # their batches alternate
            for number, producer in enumerate(working):
                produce(producer, name, range(10 * part + number, 10 * part + number + 5))
        for number, producer in enumerate(working):
            (producer.commit_transaction if (step + number) % 4 < 2 else producer.abort_transaction)(60)
    rows, _ = through_the_kernel(kafka, name, read_committed=read_committed, most=5_000_000)
    assert rows == through_librdkafka(kafka, name, read_committed=read_committed)
    assert len(rows) == 12 * 2 * 3 * 5 // (2 if read_committed else 1)


def test_append_time(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    name = topic(1, config={"message.timestamp.type": "LogAppendTime"})
    produce(Producer({"bootstrap.servers": kafka.bootstrap_servers}), name, range(100))
    rows, _ = through_the_kernel(kafka, name, read_committed=False, most=5_000_000)
    assert rows == through_librdkafka(kafka, name, read_committed=False)
    assert {row[2] for row in rows} == {1}
