"""An idle AsyncGroupConsumer: the handle's thread repeats the wait, and the loop runs only when there is work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from tests.consumer.test_async_consumer import DEADLINE_S, PARTITIONS, consumer, produce
from tests.support.waiting import eventually_async


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        yield running


def test_calls_of_other_tasks_and_messages_end_an_idle_wait(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await eventually_async(member.assignment, step=lambda: member.poll(0.05))
            idle = asyncio.create_task(member.poll())
            for _ in range(3):
                await member.pause(await member.assignment())
                await member.resume(await member.assignment())
                assert not idle.done()
            await asyncio.to_thread(produce, kafka, 1)
            message = await idle
            assert message is not None
            assert message.error() is None

    asyncio.run(main())
