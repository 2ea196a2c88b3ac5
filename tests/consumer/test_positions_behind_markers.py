"""Progress is a position, not a message: it passes transaction markers and aborted records, which no message shows.

The log of the tests: records 0 to 2, the marker 3 of their transaction, the aborted records 4 to 8, and their marker 9.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.topic_partition import TopicPartition
from tests.consumer.test_async_consumer import consumer as async_consumer
from tests.consumer.test_async_consumer import take as take_async
from tests.support.consumer.embedded import (
    BROKER,
    DEADLINE_S,
    KeepingConsumer,
    append_transaction,
    change_log,
    consumer,
    produce,
    row,
    take,
)
from tests.support.waiting import eventually, eventually_async
from tests.support.white_box import data_plane, next_offset

END = 10
PARTITION = TopicPartition("orders", 0)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}, config=BROKER) as running:
        append_transaction(running, 3, committed=True)
        append_transaction(running, 5, committed=False)
        yield running


def committed(kafka: EmbeddedKafka) -> int:
    with consumer(kafka) as other:
        return int(other.committed([row(0)], DEADLINE_S)[0].offset)


def position(one: KeepingConsumer) -> int:
    return int(one.position([row(0)])[0].offset)


def read_to_the_end(one: KeepingConsumer, count: int = 3) -> None:
    """Read the records, and poll until the consumer has passed the last marker; the consumer is not asked for its position."""
    if count:
        take(one, count)
    eventually(lambda: has_passed(one), step=one.poll_and_keep)


def has_passed(one: KeepingConsumer | AsyncGroupConsumer) -> bool:
    return next_offset(one, PARTITION) == END


@pytest.mark.parametrize("read", ["poll", "consume"])
def test_position_and_commit_pass_the_last_marker(kafka: EmbeddedKafka, read: str) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        seen: list[Any] = []

        def step() -> None:
            seen.extend(one.consume(10, 0.05) if read == "consume" else filter(None, [one.poll(0.05)]))

        eventually(lambda: position(one) == END, step=step)
        assert [message.offset() for message in seen] == [0, 1, 2]
        found = (one.commit(asynchronous=False) or [])[0]
        assert found.offset == END
    assert committed(kafka) == END


@pytest.mark.parametrize("begin", [0, 4])
def test_a_commit_without_arguments_asks_for_the_position(kafka: EmbeddedKafka, begin: int) -> None:
    """From offset 4 on, there is no record to deliver."""
    with consumer(kafka, enable_auto_commit=False) as one:
        one.assign([row(0, begin)])
        read_to_the_end(one, 3 if begin == 0 else 0)
        found = (one.commit(asynchronous=False) or [])[0]
        assert found.offset == END
        append_transaction(kafka, 2, committed=True)
        assert [message.offset() for message in take(one, 2)] == [END, END + 1]


def _close(one: KeepingConsumer) -> None:
    one.close()


def _unsubscribe(one: KeepingConsumer) -> None:
    one.unsubscribe()
    one.close()


def _pause(one: KeepingConsumer) -> None:
    """The data plane stops fetching the partition, and no longer has its position."""
    one.pause([row(0)])
    one.close()


@pytest.mark.parametrize("ending", [_close, _unsubscribe, _pause])
@pytest.mark.parametrize("begin", ["subscribe", "assign", "behind the records"])
def test_the_last_automatic_commit_passes_the_last_marker(
    kafka: EmbeddedKafka, begin: str, ending: Callable[[KeepingConsumer], None]
) -> None:
    one = consumer(kafka, auto_commit_interval_ms=3_600_000)
    if begin == "subscribe":
        one.subscribe(["orders"])
    else:
        one.assign([row(0, 0 if begin == "assign" else 4)])
    read_to_the_end(one, 0 if begin == "behind the records" else 3)
    if ending is _unsubscribe and begin != "subscribe":
        one.unassign()
    ending(one)
    assert committed(kafka) == END


def test_automatic_commits_pass_the_last_marker(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, auto_commit_interval_ms=50) as one:
        one.subscribe(["orders"])
        take(one, 3)
        eventually(lambda: one.committed([row(0)], DEADLINE_S)[0].offset == END, step=one.poll_and_keep)


def test_a_waiting_record_is_not_passed(kafka: EmbeddedKafka) -> None:
    """Records that were only read ahead lie before the marker that the data plane has passed."""
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        (first,) = take(one, 1)
        assert len(data_plane(one).read_ahead(2)) == 2
        assert position(one) == first.offset() + 1
        one.pause([row(0)])
        one.resume([row(0)])
        assert [message.offset() for message in take(one, 2)] == [1, 2]


def test_a_stored_offset_is_what_the_application_stored(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_offset_store=False) as one:
        one.subscribe(["orders"])
        last = take(one, 3)[-1]
        read_to_the_end(one, 0)
        one.store_offsets(last)
        assert position(one) == END
    assert committed(kafka) == last.offset() + 1


def test_a_restart_after_retention_reads_the_new_records(kafka: EmbeddedKafka) -> None:
    """A commit before the marker would be out of range, and ``latest`` would skip what was produced meanwhile."""
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        read_to_the_end(one)
    change_log(kafka, lambda log: log.delete_before(END))
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka, auto_offset_reset="latest") as two:
        two.subscribe(["orders"])
        assert [message.offset() for message in take(two, 3)] == [10, 11, 12]


def test_the_statistics_show_no_lag(kafka: EmbeddedKafka) -> None:
    lags: list[int] = []

    def stats_cb(text: str) -> None:
        of_topic = json.loads(text)["topics"].get("orders", {"partitions": {}})
        lags.extend(found["consumer_lag_stored"] for number, found in of_topic["partitions"].items() if number == "0")

    with consumer(kafka, statistics_interval_ms=50, stats_cb=stats_cb) as one:
        one.subscribe(["orders"])
        take(one, 3)
        eventually(lambda: lags[-1:] == [0], step=one.poll_and_keep)


READS: dict[str, Callable[[AsyncGroupConsumer], Any]] = {
    "poll": lambda one: one.poll(0.05),
    "consume": lambda one: one.consume(10, 0.05),
    "getone": lambda one: one.getone(timeout_ms=50),
    "getmany": lambda one: one.getmany(timeout_ms=50),
    "getmany of a partition": lambda one: one.getmany(row(0), timeout_ms=50),
}


@pytest.mark.parametrize("read", READS)
def test_asyncio_passes_the_last_marker(kafka: EmbeddedKafka, read: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), async_consumer(kafka, auto_commit_interval_ms=50) as one:
            await one.subscribe(["orders"])

            async def found() -> bool:
                return bool((await one.position([row(0)]))[0].offset == END)

            async def automatic() -> bool:
                return bool((await one.committed([row(0)], DEADLINE_S))[0].offset == END)

            await eventually_async(found, step=lambda: READS[read](one))
            given = (await one.commit(asynchronous=False) or [])[0]
            assert given.offset == END
            await eventually_async(automatic, step=lambda: READS[read](one))

    asyncio.run(main())


def test_the_last_automatic_commit_of_asyncio_passes_the_last_marker(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), async_consumer(kafka, auto_commit_interval_ms=3_600_000) as one:
            await one.subscribe(["orders"])
            assert await take_async(one, 3) == [0, 1, 2]
            await eventually_async(lambda: has_passed(one), step=lambda: one.poll(0.05))

    asyncio.run(main())
    assert committed(kafka) == END
