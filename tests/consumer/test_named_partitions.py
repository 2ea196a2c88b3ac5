"""Partitions of this package's own class, and the methods of both consumers that name partitions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from assignors import RangeAssignor
from consumer_coord import AsyncGroupConsumer, DeserializingConsumer, GroupConsumer, TopicPartition, confluent
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import OFFSET_INVALID, KafkaException
from tests.support.consumer.embedded import BROKER, consumer, held, produce, row, take
from tests.support.waiting import eventually

DEADLINE_S = 180


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        produce(running, "orders", {0: range(5), 1: range(3)})
        yield running


def _offsets(rows: Any) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for one in rows]


def test_a_partition_with_an_offset_is_the_same_partition() -> None:
    partition = TopicPartition("orders", 1, 7)
    assert (partition.topic, partition.partition, partition.offset) == ("orders", 1, 7)
    assert partition == TopicPartition("orders", 1) == ("orders", 1)
    assert len({partition, TopicPartition("orders", 1, 8)}) == 1
    assert TopicPartition("orders", 1).offset is None


def test_the_blocking_consumer_takes_partitions_of_this_package(kafka: EmbeddedKafka) -> None:
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with consumer(kafka, enable_auto_commit=False) as member:
        member.subscribe(["orders"])
        assert len(take(member, 8)) == 8
        assert _offsets(member.position([zero, one])) == [(0, 5), (1, 3)]
        assert member.get_watermark_offsets(zero) == (0, 5)
        assert _offsets(member.offsets_for_times([TopicPartition("orders", 0, 0)])) == [(0, 0)]
        member.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        assert _offsets(member.committed([zero, one])) == [(0, 4), (1, OFFSET_INVALID)]
        member.seek(TopicPartition("orders", 0, 3))
        assert [message.offset() for message in take(member, 2)] == [3, 4]
        member.pause([zero])
        assert member.paused() == {confluent.TopicPartition("orders", 0)}
        member.resume([zero])
        assert member.paused() == frozenset()
        member.unsubscribe()
        member.assign([TopicPartition("orders", 1, 2)])
        member.incremental_assign([zero])
        member.incremental_unassign([zero])
        assert _offsets(member.assignment()) == [(1, 2)]
        for wrong in ("orders", ("orders", 0), 7, None):
            with pytest.raises(TypeError, match="expected TopicPartition of confluent_kafka or consumer_coord, not"):
                member.pause([wrong])


def test_stored_offsets_may_be_partitions_of_this_package(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False, enable_auto_offset_store=False) as member:
        member.subscribe(["orders"])
        take(member, 8)
        member.store_offsets(offsets=[TopicPartition("orders", 1, 2)])
        member.commit(asynchronous=False)
        assert _offsets(member.committed([TopicPartition("orders", 1)])) == [(1, 2)]


def test_the_asyncio_consumer_takes_partitions_of_this_package(kafka: EmbeddedKafka) -> None:
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "aio", "auto.offset.reset": "earliest"}

    async def main() -> None:
        async with AsyncGroupConsumer({**config, "enable.auto.commit": False}) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            for _ in range(8):
                await member.getone()
            assert _offsets(await member.position([zero, one])) == [(0, 5), (1, 3)]
            assert await member.get_watermark_offsets(zero) == (0, 5)
            assert _offsets(await member.offsets_for_times([TopicPartition("orders", 0, 0)])) == [(0, 0)]
            await member.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
            assert _offsets(await member.committed([zero, one])) == [(0, 4), (1, OFFSET_INVALID)]
            await member.seek(TopicPartition("orders", 0, 4))
            assert (await member.getone()).offset() == 4
            await member.pause([zero])
            assert member.paused() == {confluent.TopicPartition("orders", 0)}
            await member.resume([zero])
            await member.unsubscribe()
            await member.assign([TopicPartition("orders", 1, 2)])
            assert (await member.getone()).offset() == 2

    asyncio.run(main())


def test_the_blocking_consumer_seeks_and_lists_offsets_as_the_asyncio_one(kafka: EmbeddedKafka) -> None:
    zero, one = TopicPartition("orders", 0), row(1)
    with consumer(kafka) as member:
        assert member.subscription() == frozenset()
        assert member.beginning_offsets([zero, one]) == {zero: 0, one: 0}
        assert member.end_offsets([zero, one]) == {zero: 5, one: 3}
        with pytest.raises(KafkaException, match="not assigned"):
            member.seek_to_end(zero)
        member.subscribe(["orders"])
        assert member.subscription() == {"orders"}
        take(member, 8)
        member.seek_to_beginning(one)
        assert [message.offset() for message in take(member, 3)] == [0, 1, 2]
        member.seek_to_beginning()
        assert len(take(member, 8)) == 8
        member.seek_to_beginning()
        member.seek_to_end()
        assert _offsets(member.position([zero, one])) == [(0, 5), (1, 3)]
        produce(kafka, "orders", {0: ["new"]})
        assert [(message.partition(), message.offset()) for message in take(member, 1)] == [(0, 5)]
        member.subscribe(["^ord"])
        eventually(lambda: held(member) == [0, 1], step=member.poll_and_keep)
        assert member.subscription() == {"orders"}
        member.unsubscribe()
        assert member.subscription() == frozenset()


def test_getone_ends_after_its_time(kafka: EmbeddedKafka) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "aio", "auto.offset.reset": "earliest"}

    async def main() -> None:
        async with AsyncGroupConsumer(config) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            for _ in range(8):
                assert await member.getone(timeout_ms=DEADLINE_S * 1000) is not None
            assert await member.getone(timeout_ms=50) is None
            assert await member.getone(TopicPartition("orders", 1), timeout_ms=0) is None

    asyncio.run(main())


def test_the_blocking_consumer_has_what_the_asyncio_one_has() -> None:
    names = {"paused", "subscription", "seek_to_beginning", "seek_to_end", "beginning_offsets", "end_offsets"}
    assert names <= set(dir(GroupConsumer)) & set(dir(AsyncGroupConsumer))


@pytest.mark.parametrize("kind", [GroupConsumer, DeserializingConsumer])
def test_the_signature_shows_the_arguments(kind: Any) -> None:
    assert "assignors" in inspect.signature(GroupConsumer).parameters
    signature = inspect.signature(GroupConsumer)
    assert list(signature.parameters) == ["config", "assignors", "keywords"]
    signature.bind({"group.id": "g"}, assignors=[RangeAssignor()])
    assert "self" not in inspect.signature(kind).parameters


def test_the_signature_of_a_subclass_is_its_own() -> None:
    class Mine(GroupConsumer):
        def __init__(self, group: str, /, topic: str) -> None:
            super().__init__({"group.id": group})

    assert list(inspect.signature(Mine).parameters) == ["group", "topic"]
