"""`consume_arrow` of AsyncGroupConsumer, on an embedded Kafka."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from assignors import CooperativeStickyAssignor
from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.columns import ArrowColumns
from consumer_coord.confluent import TopicPartition
from tests.consumer.test_async_consumer import DEADLINE_S, MODERN, PARTITIONS, consumer, produce
from tests.support.waiting import eventually_async

COUNT = 600


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        produce(running, COUNT)
        yield running


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(limited())


def values(batch: ArrowColumns) -> list[int]:
    return [int(value) for value in pa.record_batch(batch)["value"].to_pylist()]


async def take(member: AsyncGroupConsumer, most: int) -> list[int]:
    return values(await member.consume_arrow(most, timeout=0.05))


@pytest.mark.parametrize("assignor", [CooperativeStickyAssignor, MODERN])
def test_a_hand_over_loses_and_doubles_nothing(kafka: EmbeddedKafka, assignor: Any) -> None:
    async def main() -> None:
        async with consumer(kafka, assignor) as one, consumer(kafka, assignor) as two:
            await one.subscribe(["orders"])
            found: list[int] = []
            while len(found) < 50:
                found += await take(one, 7)
            await two.subscribe(["orders"])
            while len(found) < COUNT or not await two.assignment():
                found += await take(one, 7)
                found += await take(two, 7)
            assert Counter(found) == Counter(range(COUNT))

    run(main())


def test_a_cancelled_call_loses_nothing(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            found: list[int] = []
            steps = 0
            while len(found) < COUNT:
                call = asyncio.ensure_future(member.consume_arrow(20, timeout=DEADLINE_S))
                for _ in range(steps % 12):
                    await asyncio.sleep(0)
                steps += 1
                if steps % 3 and not call.done():
                    call.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await call
                else:
                    found += values(await call)
            assert Counter(found) == Counter(range(COUNT))

    run(main())


def test_a_batch_is_committed_and_unfinished_ones_are_not(kafka: EmbeddedKafka) -> None:
    rows = [TopicPartition("orders", number) for number in range(PARTITIONS)]

    async def main() -> None:
        async with consumer(kafka, **{"enable.auto.commit": False}) as member:
            await member.subscribe(["orders"])
            batch = await member.consume_arrow(70)
            committed = await member.commit(batch, asynchronous=False)
            assert {(row.partition, row.offset) for row in committed or ()} == {
                (at.partition, offset) for at, offset in batch.positions.items()
            }
            found = await member.committed(rows)
            assert sum(max(0, row.offset) for row in found) == 70

        async def fail() -> None:
            async with consumer(kafka) as member:
                await member.subscribe(["orders"])
                await member.consume_arrow(30)
                await member.consume_arrow(40)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with consumer(kafka) as member:
            assert sum(max(0, row.offset) for row in await member.committed(rows)) == 100

    run(main())


def test_reading_until_now_ends(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            found = [value async for batch in member.arrow_batches(max_records=77) for value in values(batch)]
            assert sorted(found) == list(range(COUNT))

    run(main())


def test_a_cancelled_step_of_a_bounded_read_loses_nothing_and_does_not_end_the_read(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            batches = member.arrow_batches(max_records=20)
            found: list[int] = []
            for steps in itertools.count():
                call = asyncio.ensure_future(anext(batches))
                for _ in range(steps % 12):
                    await asyncio.sleep(0)
                if steps % 3 and not call.done():
                    call.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await call
                    continue
                try:
                    found += values(await call)
                except StopAsyncIteration:
                    break
            assert sorted(found) == list(range(COUNT))

    run(main())


def test_messages_and_columns_share_the_positions(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        found: list[int] = []

        async def columns() -> None:
            found.extend(values(await member.consume_arrow(3, timeout=0.05)))

        async def messages() -> None:
            received = [await member.poll(0.05), *await member.consume(4, 0.05), await member.getone(timeout_ms=50)]
            found.extend(int(one.value()) for one in received if one is not None)

        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            turns = itertools.cycle([messages, columns])
            await eventually_async(lambda: len(found) == COUNT, step=lambda: next(turns)())
        assert sorted(found) == list(range(COUNT))

    run(main())


def test_other_tasks_run_while_records_are_decoded(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            reading = asyncio.ensure_future(anext(aiter(member.arrow_batches())))
            turns = 0
            while not reading.done():
                turns += 1
                await asyncio.sleep(0)
            assert len(await reading)
            assert turns > 2

    run(main())
