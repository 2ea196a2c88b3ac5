"""Messages read by the package's own Fetch: what librdkafka also tells, errors of a partition, and waits."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow
import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaError, KafkaException
from consumer_coord.fetch import FetchedRecords, Fetcher
from tests.support.columns.batches import Rec, batch
from tests.support.columns.old_messages import OFFSETS, every_kind
from tests.support.consumer.embedded import BROKER, DEADLINE_S, change_log, consumer, produce, row, take
from tests.support.environments import needs_librdkafka
from tests.support.waiting import eventually

COUNT = 10


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 3}, config=BROKER) as running:
        produce(running, "orders", {0: range(COUNT), 1: range(COUNT)})
        yield running


def own(kafka: EmbeddedKafka, **settings: Any) -> Any:
    return consumer(kafka, librdkafka_enable=False, **settings)


def told(one: GroupConsumer, count: int) -> list[tuple[int, int, int | None]]:
    """Return (partition, offset, code of the error) of the next messages, in order of the partitions."""
    found: list[tuple[int, int, int | None]] = []

    def step() -> None:
        message = one.poll(0.05)
        if message is not None:
            error = message.error()
            found.append((message.partition() or 0, message.offset() or 0, None if error is None else error.code()))

    eventually(lambda: len(found) >= count, step=step, shows=lambda: found)
    return sorted(found, key=lambda each: each[0])


def ends_of_partitions(kafka: EmbeddedKafka, *, librdkafka: bool) -> list[Any]:
    """Return what a consumer is told of three partitions, of which one is empty and another one grows later."""
    with consumer(kafka, librdkafka_enable=librdkafka, enable_partition_eof=True, enable_auto_commit=False) as one:
        one.assign([row(0, 0), row(1, 7), row(2, 0)])
        first = told(one, COUNT + 3 + 3)
        produce(kafka, "orders", {1: ["late"]})
        return [first, told(one, 2)]


@needs_librdkafka
def test_the_ends_of_partitions_are_told_as_by_librdkafka(kafka: EmbeddedKafka) -> None:
    eof = KafkaError._PARTITION_EOF
    found = ends_of_partitions(kafka, librdkafka=False)
    assert found == [
        [
            *((0, at, None) for at in range(COUNT)),
            (0, COUNT, eof),
            *((1, at, None) for at in (7, 8, 9)),
            (1, COUNT, eof),
            (2, 0, eof),
        ],
        [(1, COUNT, None), (1, COUNT + 1, eof)],
    ]
    produce(kafka, "orders", {})
    with EmbeddedKafka(topics={"orders": 3}, config=BROKER) as other:
        produce(other, "orders", {0: range(COUNT), 1: range(COUNT)})
        assert ends_of_partitions(other, librdkafka=True) == found


def test_damaged_records_are_reported_once_and_read_when_they_are_whole_again(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with librdkafka, the error is a message, and the consumer goes on with the other partitions."""
    produce(kafka, "orders", {2: range(3)})
    produce(kafka, "orders", {2: range(3, 6)})
    deliver, broken, attempts = Fetcher.deliver, threading.Event(), []
    broken.set()

    def damaged(self: Fetcher, state: Any, records: FetchedRecords, size: int, count: int) -> None:
        if broken.is_set() and state.partition.partition == 2 and records.next_offset > 3:
            attempts.append(records.offset)
            data = bytearray(records.records)
            data[-1] ^= 0xFF
            records = attrs.evolve(records, records=bytes(data))
        deliver(self, state, records, size, count)

    monkeypatch.setattr(Fetcher, "deliver", damaged)
    with own(kafka, enable_auto_commit=False) as one:
        one.assign([row(0, 0), row(2, 0)])
        records: list[tuple[int, int]] = []
        errors: list[Any] = []

        def step() -> None:
            message = one.poll(0.05)
            if message is not None and message.error() is not None:
                errors.append(message)
            elif message is not None:
                records.append((message.partition() or 0, message.offset() or 0))

        eventually(lambda: len(attempts) >= 3 and len(records) == COUNT + 3, step=step, shows=lambda: (records, attempts))
        assert sorted(records) == [*((0, at) for at in range(COUNT)), (2, 0), (2, 1), (2, 2)]
        (error,) = errors
        assert (error.topic(), error.partition(), error.offset()) == ("orders", 2, 3)
        assert error.error().code() == KafkaError._BAD_MSG
        assert b"orders-2 cannot be read at offset 3" in error.value()
        assert one.position([row(2)])[0].offset == 3, "the damaged records are not passed"
        broken.clear()
        eventually(lambda: len(records) == COUNT + 6, step=step, shows=lambda: records)
        assert [at for number, at in records if number == 2] == list(range(6))
        assert len(errors) == 1


@pytest.mark.parametrize("start", [0, 7, 8, OFFSETS[-1]])
def test_records_of_old_formats_are_read(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    """Topics that are older than Kafka 0.11 still have them. A start may be inside a compressed message."""

    def read_old(self: PartitionLog, offset: int, *_: Any, **options: Any) -> bytes:
        return every_kind() if offset <= OFFSETS[-1] else b""

    with EmbeddedKafka(topics={"orders": 1}, config=BROKER) as kafka:
        change_log(kafka, lambda log: log.append(batch([Rec(at) for at in range(OFFSETS[-1] + 1)]), 0))
        monkeypatch.setattr(PartitionLog, "read", read_old)
        monkeypatch.setattr(PartitionLog, "available", lambda *_, **options: len(every_kind()))
        expected = [offset for offset in OFFSETS if offset >= start]
        with own(kafka, enable_auto_commit=False) as one:
            one.assign([row(0, start)])
            messages = take(one, len(expected))
            assert [each.offset() for each in messages] == expected
            assert messages[-1].value() == b"v" * 3
            (position,) = one.position([row(0)])
            assert position.offset == OFFSETS[-1] + 1
        with own(kafka, enable_auto_commit=False) as one:
            one.assign([row(0, start)])
            columns: list[Any] = []

            def step() -> None:
                columns.extend(pyarrow.record_batch(one.consume_arrow(timeout=0.1, columns=["offset"]))["offset"].to_pylist())

            eventually(lambda: columns == expected, step=step, shows=lambda: columns)


@pytest.mark.parametrize("way", ["poll", "consume"])
def test_wakeup_ends_a_wait_for_messages(kafka: EmbeddedKafka, way: str) -> None:
    with own(kafka) as one:
        one.subscribe(["orders"])
        take(one, 2 * COUNT)
        threading.Timer(0.05, one.wakeup).start()
        with pytest.raises(KafkaException, match="wakeup"):
            one.poll(DEADLINE_S) if way == "poll" else one.consume(5, DEADLINE_S)


def test_statistics_have_the_offsets_of_partitions(kafka: EmbeddedKafka) -> None:
    texts: list[str] = []
    with own(kafka, statistics_interval_ms=20, stats_cb=texts.append) as one:
        one.assign([row(0, 0)])
        take(one, COUNT)

        def of_partition() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(texts[-1])["topics"]["orders"]["partitions"]["0"] if texts else {}
            return found

        wanted = {
            "lo_offset": 0,
            "hi_offset": COUNT,
            "ls_offset": COUNT,
            "next_offset": COUNT,
            "app_offset": COUNT,
            "fetchq_cnt": 0,
        }
        eventually(
            lambda: {name: of_partition().get(name) for name in wanted} == wanted, step=one.poll_and_keep, shows=of_partition
        )


def test_asyncio_reads_without_a_thread_for_librdkafka(kafka: EmbeddedKafka) -> None:
    async def main() -> list[int]:
        before = set(threading.enumerate())
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        async with AsyncGroupConsumer({**settings, "librdkafka.enable": False}) as one:
            await one.subscribe(["orders"])
            found = [await one.poll(DEADLINE_S) for _ in range(3)]
            found += await one.consume(2 * COUNT - 3, DEADLINE_S)
            assert await one.poll(0) is None
            assert not {each.name for each in set(threading.enumerate()) - before if "fetch" in each.name}
            return sorted(int(message.value() or b"") for message in found if message is not None)

    assert asyncio.run(main()) == sorted([*range(COUNT), *range(COUNT)])
