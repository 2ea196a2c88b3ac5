"""A tracker decides what is committed, and when a partition is released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, TopicPartition
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.record_tracker import Tracking
from consumer_coord.topic_partition import TopicPartition as Partition
from tests.consumer.test_async_consumer import consumer
from tests.support.consumer.embedded import append_transaction
from tests.support.producer import Producer
from tests.support.waiting import eventually_async

P0 = Partition("orders", 0)


class Tracker:
    """Commits ``unfinished``, or the position if there is none."""

    def __init__(self) -> None:
        self.unfinished: dict[Partition, OffsetAndMetadata] = {}
        self.positions: dict[Partition, int] = {}
        self.holds = False
        self.asked: list[Partition] = []
        self.rejected: list[tuple[Partition, int]] = []

    def finished(self, partition: Partition, reading: int, position: OffsetAndMetadata) -> OffsetAndMetadata | None:
        self.positions[partition] = position.offset
        return self.unfinished.get(partition, position)

    def may_release(self, partition: Partition, reading: int) -> bool:
        self.asked.append(partition)
        return not self.holds

    def metadata_rejected(self, partition: Partition, length: int) -> None:
        self.rejected.append((partition, length))


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config={"offset.metadata.max.bytes": 50}) as running:
        yield running


def produce(kafka: EmbeddedKafka, count: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        producer.produce("orders", str(number), partition=number % partitions)
    assert producer.flush(60) == 0


async def committed(member: AsyncGroupConsumer, number: int = 0) -> tuple[int, str]:
    (found,) = await member.committed([TopicPartition("orders", number)])
    return found.offset, found.metadata or ""


async def read(tracking: Tracking, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [message.offset() for message in await tracking.take(count, 0.1)]
    return found


def test_commits_contain_what_the_tracker_says(kafka: EmbeddedKafka) -> None:
    """Also without automatic commits, and with the position behind the last marker if everything is finished."""

    async def main() -> None:
        append_transaction(kafka, 3, committed=True)
        tracker = Tracker()
        async with consumer(kafka, enable_auto_commit=False, auto_commit_interval_ms=10) as member:
            await member.subscribe(["orders"])
            tracking = await member.track_records(tracker)
            tracker.unfinished[P0] = OffsetAndMetadata(1, metadata="2 is finished")
            assert await read(tracking, 3) == [0, 1, 2]
            (reading,) = [one for partition, one in tracking.readings().items() if partition == P0]
            assert (reading.start.offset, reading.releasing) == (0, False)
            await commits(member, tracking, (1, "2 is finished"))
            tracker.unfinished.clear()
            await commits(member, tracking, (4, ""))
            await tracking.stop({})

    asyncio.run(main())


def test_a_partition_is_kept_until_the_tracker_lets_go_of_it_and_others_are_read_meanwhile(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 4, 2)
        tracker, log = Tracker(), list[str]()
        async with consumer(kafka, auto_commit_interval_ms=60_000) as member, consumer(kafka) as joiner:
            await member.subscribe(["orders"], on_revoke=lambda _, gone: log.append("revoked") if gone else None)
            tracking = await member.track_records(tracker)
            assert len(await read(tracking, 4)) == 4
            tracker.holds = True
            await joiner.subscribe(["orders"])
            joining = asyncio.create_task(joiner.consume(1, 180))
            await eventually_async(lambda: tracker.asked, step=lambda: tracking.take(1, 0.01))
            (leaving,) = set(tracker.asked)
            stays = Partition("orders", 1 - leaving.partition)
            assert tracking.readings()[leaving].releasing
            produce_to(kafka, stays.partition)
            assert await read(tracking, 1) == [2]
            tracker.unfinished[leaving] = OffsetAndMetadata(1)
            assert not log, "it is still owned"
            tracker.holds = False
            tracking.look_again()
            await eventually_async(joining.done, step=lambda: tracking.take(1, 0.01))
            (message,) = joining.result()
            # What is unfinished goes to the next owner: the commit was made before the release.
            assert (message.partition(), message.offset()) == (leaving.partition, 1)
            assert log == ["revoked"]
            await tracking.stop({})

    asyncio.run(main())


def test_a_close_waits_for_the_tracker_no_longer_than_its_time(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 1)
        tracker = Tracker()
        tracker.holds = True
        async with consumer(kafka) as other:
            member = consumer(kafka)
            await member.subscribe(["orders"])
            tracking = await member.track_records(tracker)
            await read(tracking, 1)
            await member.close(0.5)
            assert P0 in tracker.asked
            assert await committed(other) == (1, "")

    asyncio.run(main())


def test_metadata_that_a_broker_rejects_is_left_out_at_once(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 3)
        tracker = Tracker()
        tracker.unfinished[P0] = OffsetAndMetadata(1, metadata="x" * 51)
        async with consumer(kafka, auto_commit_interval_ms=10) as member:
            await member.subscribe(["orders"])
            tracking = await member.track_records(tracker)
            await read(tracking, 3)
            await commits(member, tracking, (1, ""))
            assert set(tracker.rejected) == {(P0, 51)}
            await tracking.stop({})

    asyncio.run(main())


def test_nothing_else_reads_while_records_are_tracked(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 3)
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            tracking = await member.track_records(Tracker())
            await read(tracking, 3)
            produce(kafka, 1)
            for reads in (lambda: member.poll(1), lambda: member.consume(1, 1), lambda: member.getmany(timeout_ms=10)):
                with pytest.raises(KafkaException, match="tracked"):
                    await reads()
            with pytest.raises(KafkaException, match="tracked already"):
                await member.track_records(Tracker())
            # The records that are not finished are read again.
            await tracking.stop({P0: (tracking.readings()[P0].number, OffsetAndMetadata(1))})
            messages = await member.consume(3, 10)
            assert [message.offset() for message in messages] == [1, 2, 3]

    asyncio.run(main())


def test_a_reading_that_has_ended_is_not_continued(kafka: EmbeddedKafka) -> None:
    """A partition that was lost and assigned again begins at the group's commit, which may be a later one."""

    async def main() -> None:
        produce(kafka, 4)
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            tracking = await member.track_records(Tracker())
            await read(tracking, 3)
            number = tracking.readings()[P0].number
            await member.seek(TopicPartition("orders", 0, 3))
            await tracking.stop({P0: (number, OffsetAndMetadata(1))})
            messages = await member.consume(1, 10)
            assert [message.offset() for message in messages] == [3]

    asyncio.run(main())


def test_automatic_commits_end_with_the_tracking(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 3)
        async with consumer(kafka, enable_auto_commit=False, auto_commit_interval_ms=10) as member:
            await member.subscribe(["orders"])
            tracking = await member.track_records(Tracker())
            await read(tracking, 3)
            assert await tracking.commit(60)
            await tracking.stop({})
            produce(kafka, 1)
            assert len(await member.consume(1, 60)) == 1
            await member.consume(1, 0.1)
            assert await committed(member) == (3, "")

    asyncio.run(main())


async def commits(member: AsyncGroupConsumer, tracking: Tracking, expected: tuple[int, str]) -> None:
    """Poll until the group's commit of the first partition is ``expected``."""

    async def has_come() -> bool:
        return await committed(member) == expected

    await eventually_async(has_come, str(expected), step=lambda: tracking.take(1, 0.01))


def produce_to(kafka: EmbeddedKafka, partition: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", "more", partition=partition)
    assert producer.flush(60) == 0
