"""Automatic commits of AsyncGroupConsumer cover finished records only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from tests.consumer.test_async_consumer import DEADLINE_S, consumer
from tests.support.producer import Producer

COUNT = 20
Work = Callable[[AsyncGroupConsumer, asyncio.Event], Coroutine[Any, Any, None]]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(COUNT):
            producer.produce("orders", str(number))
        assert producer.flush(60) == 0
        yield running


async def _committed(kafka: EmbeddedKafka) -> int:
    async with consumer(kafka) as other:
        (found,) = await other.committed([TopicPartition("orders", 0)], DEADLINE_S)
        return max(0, int(found.offset))


async def _cancel(member: AsyncGroupConsumer, work: Work) -> None:
    """Subscribe, and cancel the task that runs ``work`` when ``work`` has set its event."""
    working = asyncio.Event()
    await member.subscribe(["orders"])
    task = asyncio.create_task(work(member, working))
    await working.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _stop_at(member: AsyncGroupConsumer, offset: int, working: asyncio.Event) -> None:
    """Process records one at a time; processing the record at ``offset`` never ends."""
    async for message in member:
        if message.offset() == offset:
            working.set()
            await asyncio.Event().wait()


def test_a_record_whose_processing_raised_is_not_committed(kafka: EmbeddedKafka) -> None:
    async def process() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            async for message in member:
                if message.offset() == 3:
                    raise ZeroDivisionError

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ZeroDivisionError):
                await process()
            assert await _committed(kafka) == 3

    asyncio.run(main())


@pytest.mark.parametrize("closes", ["another task", "the same task"])
def test_a_record_whose_processing_was_cancelled_is_not_committed(kafka: EmbeddedKafka, closes: str) -> None:
    """A web service does this: the task is cancelled, and then the consumer is closed."""

    async def process(member: AsyncGroupConsumer, working: asyncio.Event) -> None:
        try:
            await _stop_at(member, 3, working)
        except asyncio.CancelledError:
            if closes == "another task":
                raise
        await member.close()

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            member = consumer(kafka)
            await _cancel(member, process)
            await member.close()
            assert await _committed(kafka) == 3

    asyncio.run(main())


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_that_ended_by_an_exception_has_not_finished_its_record(kafka: EmbeddedKafka, fails: bool) -> None:
    """Other tasks that continue to read do not finish the record either; they do finish the record of a task that returned."""

    async def work(member: AsyncGroupConsumer) -> None:
        assert (await member.getone()).offset() == 0
        if fails:
            raise ZeroDivisionError

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with consumer(kafka) as member:
                await member.subscribe(["orders"])
                await asyncio.gather(asyncio.create_task(work(member)), return_exceptions=True)
                assert [(await member.getone()).offset() for _ in range(1, COUNT)] == list(range(1, COUNT))
            assert await _committed(kafka) == (0 if fails else COUNT)

    asyncio.run(main())


@pytest.mark.parametrize("call", ["getone", "poll", "consume"])
def test_a_record_of_a_failed_task_is_finished_by_the_task_that_reads_it_again(kafka: EmbeddedKafka, call: str) -> None:
    async def read(member: AsyncGroupConsumer) -> int:
        if call == "consume":
            (message,) = await member.consume(1)
        else:
            message = await getattr(member, call)()
        return int(message.offset())

    async def fail(member: AsyncGroupConsumer, count: int) -> None:
        assert len(await member.consume(count, DEADLINE_S)) == count
        raise ZeroDivisionError

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with consumer(kafka) as member:
                await member.subscribe(["orders"])
                for count in (3, 2):
                    await asyncio.gather(asyncio.create_task(fail(member, count)), return_exceptions=True)
                    await member.seek(TopicPartition("orders", 0, 0))
                assert [await read(member) for _ in range(COUNT)] == list(range(COUNT))
            assert await _committed(kafka) == COUNT

    asyncio.run(main())


def test_the_request_of_one_task_does_not_finish_the_record_of_another(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            async with consumer(kafka, auto_commit_interval_ms=10) as member:
                await member.subscribe(["orders"])
                working, end = asyncio.Event(), asyncio.Event()

                async def work_slowly() -> None:
                    message = await member.getone()
                    assert message.offset() == 0
                    working.set()
                    await end.wait()

                slow = asyncio.create_task(work_slowly())
                await working.wait()
                assert [(await member.getone()).offset() for _ in range(1, COUNT)] == list(range(1, COUNT))
                assert await member.poll(0.2) is None
                (found,) = await member.committed([TopicPartition("orders", 0)])
                assert max(0, found.offset) == 0
                end.set()
                await slow
            assert await _committed(kafka) == COUNT

    asyncio.run(main())


def test_the_end_of_a_manual_assignment_waits_for_its_commit(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        row = TopicPartition("orders", 0)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.assign([TopicPartition("orders", 0, 0)])
            assert len(await member.consume(5, DEADLINE_S)) == 5
            await member.unassign()
            assert (await member.committed([row]))[0].offset == 5

    asyncio.run(main())


def test_automatic_commits_stay_at_a_commit_of_a_task_that_was_cancelled(kafka: EmbeddedKafka) -> None:
    """The task holds a batch, and has committed a part of the batch; another task unsubscribes and closes the consumer."""

    async def work(member: AsyncGroupConsumer, working: asyncio.Event) -> None:
        batch = await member.consume(10, DEADLINE_S)
        await member.commit(message=batch[6], asynchronous=False)
        working.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            member = consumer(kafka)
            await _cancel(member, work)
            await member.unsubscribe()
            assert await _committed(kafka) == 7
            await member.close()
            assert await _committed(kafka) == 7

    asyncio.run(main())
