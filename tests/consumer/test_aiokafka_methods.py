"""The methods of AsyncGroupConsumer that users of aiokafka know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, TopicPartition
from consumer_coord.topic_partition import TopicPartition as Named
from tests.consumer.test_async_consumer import DEADLINE_S, PARTITIONS, consumer, produce
from tests.support.waiting import eventually_async
from tests.support.white_box import coordinator_of, data_plane


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS, "other": 1}) as running:
        yield running


async def _all_of(member: AsyncGroupConsumer, count: int, *partitions: TopicPartition) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    while sum(map(len, found.values())) < count:
        for partition, messages in (await member.getmany(*partitions, timeout_ms=500, max_records=50)).items():
            assert {(one.topic(), one.partition()) for one in messages} == {(partition.topic, partition.partition)}
            found.setdefault(partition.partition, []).extend(one.offset() or 0 for one in messages)
    return found


def test_getmany_gives_messages_by_partition(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 60)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.start()
            await member.subscribe(["orders"])
            assert await _all_of(member, 60) == {partition: list(range(10)) for partition in range(PARTITIONS)}
            assert await member.getmany() == {}
            with pytest.raises(ValueError, match="at least 1"):
                await member.getmany(max_records=0)

    asyncio.run(main())


def test_getmany_and_getone_of_some_partitions_leave_the_others_for_later(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        # Enough records that those of the other partitions do not all fit into memory.
        await asyncio.to_thread(produce, kafka, 1_000 * PARTITIONS)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            wanted = [TopicPartition("orders", 4), TopicPartition("orders", 2)]
            first = await member.getone(Named("orders", 2))
            assert (first.partition(), first.offset()) == (2, 0)
            found = await _all_of(member, 1_999, *wanted)
            assert found == {4: list(range(1_000)), 2: list(range(1, 1_000))}
            assert await member.getmany(*wanted, timeout_ms=200) == {}
            assert member.paused() == frozenset()
            rest = await _all_of(member, 4_000)
            assert rest == {partition: list(range(1_000)) for partition in (0, 1, 3, 5)}

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 20])
def test_a_call_after_getone_of_a_partition_reads_the_others_again(count: int, kafka: EmbeddedKafka) -> None:
    """Also while messages of that partition are ready, so that nothing makes the call wait."""

    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 1_000 * PARTITIONS)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await member.getone(Named("orders", 2))
            assert (len(data_plane(member).ready) >= count, data_plane(member).assigned) == (True, {Named("orders", 2)})
            assert len(await member.consume(count, 1) if count > 1 else [await member.poll(1)]) == count
            assert data_plane(member).assigned == {Named("orders", number) for number in range(PARTITIONS)}

    asyncio.run(main())


def test_seeks_to_the_beginning_the_end_and_the_commits(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 60)
        row = TopicPartition("orders", 1)
        async with consumer(kafka, enable_auto_commit="false") as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await _all_of(member, 60)
            await member.commit(offsets=[TopicPartition("orders", 1, 7)], asynchronous=False)
            await member.seek_to_beginning(row)
            assert (await member.position([row]))[0].offset == 0
            assert (await member.getone()).offset() == 0
            assert await member.seek_to_committed() == {
                TopicPartition("orders", number): 7 if number == 1 else None for number in range(PARTITIONS)
            }
            assert (await member.getone()).offset() == 7
            await member.seek_to_end()
            assert (await member.position([row]))[0].offset == 10
            assert await member.getmany(timeout_ms=200) == {}
            with pytest.raises(KafkaException, match="not assigned"):
                await member.seek_to_end(Named("other", 0))

    asyncio.run(main())


def test_a_seek_to_the_commits_leaves_a_partition_alone_that_was_assigned_again_meanwhile(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at the commit of the owner in between, which the look-up did not see."""

    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 60)
        async with consumer(kafka, enable_auto_commit="false") as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await _all_of(member, 60)
            await member.commit(offsets=[TopicPartition("orders", 1, 2)], asynchronous=False)
            core = coordinator_of(member)
            committed = core.committed

            async def slow(partitions: frozenset[Named]) -> object:
                found = await committed(partitions)
                await member.commit(offsets=[TopicPartition("orders", 1, 7)], asynchronous=False)
                await member.unsubscribe()
                await member.subscribe(["orders"])
                await eventually_async(
                    lambda: len(core.assignment.held) == PARTITIONS, step=lambda: member.getmany(timeout_ms=1)
                )
                return found

            monkeypatch.setattr(core, "committed", slow)
            await member.seek_to_committed(TopicPartition("orders", 1))
            assert (await member.getone(Named("orders", 1))).offset() == 7

    asyncio.run(main())


def test_offsets_and_what_the_consumer_knows(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 60)
        ours, theirs = Named("orders", 0), TopicPartition("orders", 1)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            assert member.subscription() == frozenset()
            assert await member.beginning_offsets([ours, theirs]) == {ours: 0, theirs: 0}
            assert await member.end_offsets([ours, theirs]) == {ours: 10, theirs: 10}
            assert await member.highwater(ours) is None
            await member.subscribe(["^ord.*"])
            await _all_of(member, 60)
            assert member.subscription() == {"orders"}
            assert await member.highwater(ours) == 10
            await member.pause([theirs])
            assert member.paused() == {theirs}
            await member.unsubscribe()
            assert member.subscription() == frozenset()
            await member.stop()

    asyncio.run(main())
