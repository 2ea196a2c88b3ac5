"""Partitions that an application reads in addition to those its group assigned (``incremental_assign`` while subscribed)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import OFFSET_INVALID
from tests.support.consumer.embedded import BROKER, CallbackLog, consumer, held, poll_each, produce, row, take
from tests.support.waiting import eventually


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2, "side": 2}, config=BROKER) as running:
        produce(running, "orders", {0: range(2), 1: range(2)})
        produce(running, "side", {0: range(3), 1: range(3)})
        yield running


def _side(consumer: Any) -> list[int]:
    return [one.partition for one in consumer.assignment() if one.topic == "side"]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_side_topic_outlives_rebalances(kafka: EmbeddedKafka, strategy: str) -> None:
    calls = CallbackLog()
    with (
        consumer(kafka, partition_assignment_strategy=strategy) as one,
        consumer(kafka, partition_assignment_strategy=strategy) as two,
    ):
        one.subscribe(["orders"], **calls.callbacks())
        assert len(take(one, 4)) == 4
        one.incremental_assign([row(0, 1, "side")])
        assert [(message.topic(), message.offset()) for message in take(one, 2)] == [("side", 1), ("side", 2)]
        two.subscribe(["orders"])
        eventually(lambda: len(held(two)) == 1 and len(one.assignment()) == 2, step=poll_each(one, two))
        assert _side(one) == [0]
        produce(kafka, "side", {0: ["more"]})
        assert [(message.topic(), message.offset()) for message in take(one, 1)] == [("side", 3)]
        one.pause([row(0, topic="side")])
        assert [each.topic for each in one.paused()] == ["side"]
        one.incremental_unassign([row(0, topic="side")])
        assert _side(one) == []
        one.incremental_assign([row(1, topic="side")])
        assert [message.offset() for message in take(one, 3)] == [0, 1, 2], "auto.offset.reset applies to it, too"
        one.unsubscribe()
        assert one.poll(0.01) is None
        assert one.assignment() == []
        assert all(numbers in ([0, 1], [0], [1], []) for _, numbers in calls.events)
        assert one.committed([row(1, topic="side")])[0].offset == 3, "automatic commits cover it, too"
        eventually(lambda: held(two) == [0, 1], step=two.poll_and_keep)


def test_a_side_topic_may_be_added_while_the_group_assigns(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"], on_assign=lambda member, _: member.incremental_assign([row(0, 2, "side")]))
        found = sorted((message.topic() or "", message.partition(), message.offset()) for message in take(one, 5))
        assert found == [("orders", 0, 0), ("orders", 0, 1), ("orders", 1, 0), ("orders", 1, 1), ("side", 0, 2)]
        one.unassign()
        assert one.assignment() == []


def test_given_offsets_of_a_partition_that_is_not_held_are_committed(kafka: EmbeddedKafka) -> None:
    """Java's client does the same, and docs/confluent-kafka.md says so."""
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        assert len(take(one, 4)) == 4
        one.commit(offsets=[row(1, 2, "side")], asynchronous=False)
        assert one.committed([row(1, topic="side")])[0].offset == 2


def test_an_asyncio_consumer_reads_a_side_topic(kafka: EmbeddedKafka) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}

    async def main() -> None:
        async with AsyncGroupConsumer(config) as one, asyncio.timeout(60):
            await one.subscribe(["orders"])
            for _ in range(4):
                await one.getone()
            await one.incremental_assign([row(0, 1, "side")])
            assert [(await one.getone()).offset() for _ in range(2)] == [1, 2]
            assert [(each.topic, each.partition) for each in await one.assignment()] == [
                ("orders", 0),
                ("orders", 1),
                ("side", 0),
            ]
            await one.incremental_unassign([row(0)])
            assert [(each.topic, each.partition) for each in await one.assignment()] == [("orders", 1), ("side", 0)]
            await one.incremental_assign([row(0)])
            await one.incremental_unassign([row(0, topic="side")])
            assert [each.topic for each in await one.assignment()] == ["orders", "orders"]
            await one.incremental_assign([row(1, topic="side")])
            await one.unsubscribe()
            assert await one.assignment() == []

    asyncio.run(main())


def test_the_position_is_unknown_before_the_first_message(kafka: EmbeddedKafka) -> None:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "latest"}

    async def main() -> None:
        async with AsyncGroupConsumer(config) as one, asyncio.timeout(60):
            await one.subscribe(["orders"])
            while len(await one.assignment()) < 2:
                await one.poll(0.05)
            assert [each.offset for each in await one.position([row(0), row(1)])] == [OFFSET_INVALID] * 2
            await one.seek(row(0, 2))
            assert [each.offset for each in await one.position([row(0), row(1)])] == [2, OFFSET_INVALID]

    asyncio.run(main())
