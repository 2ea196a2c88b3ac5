"""Several tasks on one AsyncGroupConsumer, and coroutine functions as callbacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import Message, TopicPartition
from consumer_coord.errors import ConcurrentUseError
from tests.consumer.test_async_consumer import DEADLINE_S, PARTITIONS, consumer, produce, take
from tests.support.waiting import eventually_async
from tests.support.white_box import librdkafka


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS, "more": 1}) as running:
        yield running


async def _all_assigned(member: AsyncGroupConsumer) -> None:
    while len(await member.assignment()) < PARTITIONS:
        await member.poll(0.05)


def test_other_calls_do_not_wait_for_the_end_of_a_poll(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await _all_assigned(member)
            # Without a time limit, so that a lost wake-up is a wait for ever.
            waiting = [asyncio.create_task(member.poll()) for _ in range(2)]
            await asyncio.sleep(0)
            row = TopicPartition("orders", 0, 0)
            await member.seek(row)
            await member.pause([row])
            assert member.paused() == {row}
            await member.resume([row])
            await member.commit(offsets=[row], asynchronous=False)
            await member.commit(offsets=[row])
            assert (await member.committed([row]))[0].offset == 0
            assert (await member.get_watermark_offsets(row))[1] == 0  # type: ignore[index]  # not None without a limit
            await member.subscribe(["orders", "more"])
            assert not any(task.done() for task in waiting)
            await asyncio.to_thread(produce, kafka, 2)
            found = await asyncio.gather(*waiting)
            assert len({message.value() for message in found if message is not None}) == 2

    asyncio.run(main())


def test_a_poll_that_is_cancelled_while_another_task_has_the_turn_takes_nothing_from_it(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await _all_assigned(member)
            for start in range(0, 40, 2):
                polls = [asyncio.create_task(member.poll()) for _ in range(4)]
                await asyncio.sleep(0.005 * (start % 5))
                for task in polls[:2]:
                    task.cancel()
                await asyncio.to_thread(produce, kafka, 2, start)
                found = await asyncio.gather(*polls, return_exceptions=True)
                # A cancelled poll may already have received its message: then the other tasks wait for more.
                values = {one.value() for one in found if isinstance(one, Message)}
                assert values == {str(start).encode(), str(start + 1).encode()}

    asyncio.run(main())


def test_a_task_that_a_callback_started_is_a_task_like_others_when_the_callback_is_over(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produced = asyncio.Event()
        working: list[asyncio.Task[Message | None]] = []

        async def work(member: AsyncGroupConsumer) -> Message | None:
            await produced.wait()
            return await member.poll()

        async def on_assign(member: AsyncGroupConsumer, rows: list[TopicPartition]) -> None:
            working.append(asyncio.create_task(work(member)))

        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"], on_assign=on_assign)
            await _all_assigned(member)
            await asyncio.to_thread(produce, kafka, 1)
            produced.set()
            message = await working[0]
            assert message is not None
            assert message.value() == b"0"

    asyncio.run(main())


def test_a_callback_that_waits_for_another_task_of_its_consumer_does_not_wait_for_ever(kafka: EmbeddedKafka) -> None:
    """The task waits for the callback to end, and the callback waits for the task."""

    async def main() -> None:
        found: list[BaseException | None] = []
        begun = asyncio.Event()

        async def work(member: AsyncGroupConsumer) -> None:
            await begun.wait()
            await member.poll(0)

        async def on_assign(member: AsyncGroupConsumer, rows: list[TopicPartition]) -> None:
            begun.set()
            await asyncio.wait({task})
            found.append(task.exception())

        async with consumer(kafka, max_poll_interval_ms=1_000) as member, asyncio.timeout(DEADLINE_S):
            task = asyncio.create_task(work(member))
            await member.subscribe(["orders"], on_assign=on_assign)
            await eventually_async(lambda: found, step=lambda: member.poll(0.05))
        assert isinstance(found[0], ConcurrentUseError)
        assert "call the consumer in the callback itself" in str(found[0])

    asyncio.run(main())


def test_on_commit_is_awaited_and_may_use_the_consumer(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        told: list[tuple[Any, list[tuple[int, int]], int]] = []
        members: list[AsyncGroupConsumer] = []

        async def on_commit(error: Any, rows: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            held = await members[0].position(rows)
            told.append((error, [(row.partition, row.offset) for row in rows], held[0].offset))

        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "on_commit": on_commit,
        }
        await asyncio.to_thread(produce, kafka, PARTITIONS)
        async with AsyncGroupConsumer(config) as member, asyncio.timeout(DEADLINE_S):
            members.append(member)
            await member.subscribe(["orders"])
            await take(member, PARTITIONS)
            assert await member.commit() is None
            await eventually_async(lambda: told, step=lambda: member.poll(0.05))
            await member.commit(offsets=[TopicPartition("orders", 0, 0)])
        assert told[0] == (None, [(number, 1) for number in range(PARTITIONS)], 1)
        assert [row for _, row, _ in told[1:]] == [[(0, 0)]], "close waits for a commit, and reports its outcome"

    asyncio.run(main())


def test_without_on_commit_only_failed_commits_are_logged(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with consumer(kafka, enable_auto_commit="false") as member, asyncio.timeout(DEADLINE_S):
            await member.commit(offsets=[TopicPartition("orders", 0, 1)])
            await member.commit(offsets=[TopicPartition("orders", 1, 1, "x" * 5_000)])

    asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if "an asynchronous commit failed" in record.getMessage()]
    assert len(told) == 1
    assert "orders-1" in told[0]


def test_a_callback_of_close_may_commit(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        committed: list[Any] = []

        async def on_revoke(member: AsyncGroupConsumer, rows: list[TopicPartition]) -> None:
            committed.append(await member.commit(asynchronous=False))

        await asyncio.to_thread(produce, kafka, PARTITIONS)
        async with consumer(kafka, enable_auto_commit="false") as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"], on_revoke=on_revoke)
            await take(member, PARTITIONS)
        assert [[row.offset for row in rows] for rows in committed] == [[1] * PARTITIONS]

    asyncio.run(main())


def test_statistics_go_to_a_coroutine_function(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        told = asyncio.Event()

        async def stats_cb(statistics: str) -> None:
            await asyncio.sleep(0)
            told.set()

        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "statistics.interval.ms": 200,
            "stats_cb": stats_cb,
        }
        async with AsyncGroupConsumer(config) as member:
            await member.subscribe(["orders"])
            await eventually_async(told.is_set, step=lambda: member.poll(0.05))

    asyncio.run(main())


def test_an_executor_of_the_application_is_left_open(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
        with concurrent.futures.ThreadPoolExecutor(4) as executor:
            await asyncio.to_thread(produce, kafka, 60)
            async with AsyncGroupConsumer(config, executor=executor) as member, asyncio.timeout(DEADLINE_S):
                await member.subscribe(["orders"])
                assert sorted(await take(member, 60)) == list(range(60))
            assert executor.submit(lambda: 1).result() == 1
        with pytest.raises(ValueError, match="max_workers must be at least 1"):
            AsyncGroupConsumer(config, max_workers=0)

    asyncio.run(main())


def test_a_callback_of_a_cancelled_call_ends_before_the_next_callback_begins(kafka: EmbeddedKafka) -> None:
    """If both ran at the same time, the end of the first would make the second wait for the turn of its own caller."""

    async def main() -> None:
        steps: list[str] = []
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def throttle_cb(event: dict[str, str]) -> None:
            steps.append(f"{event['number']} begins")
            began.set()
            await goes_on.wait()
            await member.position([TopicPartition("orders", 0)])
            steps.append(f"{event['number']} ends")

        config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "throttle_cb": throttle_cb}
        async with AsyncGroupConsumer(config) as member, asyncio.timeout(DEADLINE_S):
            await member.assign([TopicPartition("orders", 0, 0)])
            reported = librdkafka(member).reported
            reported.append({"number": "first"})
            cancelled = asyncio.create_task(member.poll())
            await began.wait()
            cancelled.cancel()
            await asyncio.wait({cancelled})
            reported.append({"number": "second"})
            poll = asyncio.create_task(member.poll(0))
            for _ in range(100):
                await asyncio.sleep(0)
            assert steps == ["first begins"]
            goes_on.set()
            await poll
        assert steps == ["first begins", "first ends", "second begins", "second ends"]

    asyncio.run(main())


def test_a_callback_of_the_settings_may_end_a_manual_assignment(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async def on_commit(error: Any, rows: list[TopicPartition]) -> None:
            await member.unassign()

        config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "on_commit": on_commit}
        async with AsyncGroupConsumer(config) as member, asyncio.timeout(DEADLINE_S):
            await member.assign([TopicPartition("orders", 0, 0)])
            await member.commit(offsets=[TopicPartition("orders", 0, 0)])
            while await member.assignment():
                await member.poll(0.05)

    asyncio.run(main())
