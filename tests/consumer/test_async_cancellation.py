"""A cancelled call of AsyncGroupConsumer loses nothing: no record, callback, partition, or reaction to a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, TopicPartition
from tests.consumer.test_async_consumer import DEADLINE_S, PARTITIONS, consumer, produce
from tests.support.waiting import eventually_async
from tests.support.white_box import coordinator_of


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        yield running


@pytest.mark.behaviour(24)
def test_polls_that_are_cancelled_all_the_time_skip_nothing_and_strand_nothing(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 300)
        found: list[int] = []
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            limit_s = 0.0005
            while len(found) < 300:
                try:
                    message = await asyncio.wait_for(member.poll(), limit_s)
                except TimeoutError:
                    # The limit cancels each step once, and grows until every step fits in.
                    limit_s = min(0.1, limit_s * 1.1)
                    continue
                assert message is not None
                found.append(int(message.value() or b""))
            assert sorted(found) == list(range(300)), "a record was skipped, or came twice"
            assert len(await member.assignment()) == PARTITIONS
            assert len(await member.position(await member.assignment())) == PARTITIONS

    asyncio.run(main())


@pytest.mark.behaviour(24)
def test_a_callback_continues_when_its_poll_is_cancelled(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 60)
        calls: list[str] = []
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def on_assign(who: Any, rows: list[TopicPartition]) -> None:
            calls.append("began")
            entered.set()
            await go_on.wait()
            await who.incremental_assign([TopicPartition(row.topic, row.partition, 7) for row in rows])
            calls.append("ended")

        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"], on_assign=on_assign)
            polling = asyncio.create_task(member.poll())
            await entered.wait()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            again = asyncio.create_task(member.poll())
            await asyncio.sleep(0)
            go_on.set()
            first = await again
            assert first is not None
            assert first.offset() == 7
            assert calls == ["began", "ended"]

    asyncio.run(main())


def test_an_exception_of_a_callback_whose_poll_was_cancelled_comes_out_of_the_next_one(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def on_assign(*_: Any) -> None:
            entered.set()
            await go_on.wait()
            raise ZeroDivisionError("a bug of the application")

        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"], on_assign=on_assign)
            polling = asyncio.create_task(member.poll())
            await entered.wait()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            go_on.set()
            with pytest.raises(KafkaException, match="a bug of the application"):
                await member.poll(10)
            assert len(await member.assignment()) == PARTITIONS

    asyncio.run(main())


@pytest.mark.behaviour(24)
def test_an_unsubscribe_that_is_cancelled_lets_the_member_come_back(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            for delay in range(6):
                await member.subscribe(["orders"])
                while len(await member.assignment()) < PARTITIONS:
                    await member.poll(0.05)
                leaving = asyncio.create_task(member.unsubscribe())
                for _ in range(delay):
                    await asyncio.sleep(0)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
                await member.unsubscribe()
                assert await member.assignment() == []

    asyncio.run(main())


def test_only_stored_offsets_are_committed(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, PARTITIONS * 20)
        async with asyncio.timeout(DEADLINE_S):
            async with consumer(kafka, enable_auto_offset_store="false") as member:
                await member.subscribe(["orders"])
                messages: list[Any] = []
                while len(messages) < PARTITIONS * 20:
                    messages += await member.consume(100, 0.5)
                await member.store_offsets(next(one for one in messages if (one.partition(), one.offset()) == (2, 4)))
            async with consumer(kafka) as other:
                rows = await other.committed([TopicPartition("orders", number) for number in range(PARTITIONS)])
                assert [row.offset for row in rows] == [-1001, -1001, 5, -1001, -1001, -1001]

    asyncio.run(main())


def test_after_a_pause_there_is_still_something_to_commit(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        await asyncio.to_thread(produce, kafka, PARTITIONS * 50)
        async with consumer(kafka, enable_auto_commit="false") as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            handed: dict[int, int] = {}
            while len(handed) < PARTITIONS:
                for message in await member.consume(30, 0.5):
                    handed[message.partition() or 0] = (message.offset() or 0) + 1
            await member.pause(await member.assignment())
            rows = await member.commit(asynchronous=False)
            assert rows is not None
            assert {row.partition: row.offset for row in rows} == handed
            await member.resume(await member.assignment())
            while sum(handed.values()) < PARTITIONS * 50:
                for message in await member.consume(100, 0.5):
                    assert message.offset() == handed[message.partition() or 0]
                    handed[message.partition() or 0] += 1

    asyncio.run(main())


def test_an_end_of_partition_event_cannot_be_committed(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka, enable_partition_eof="true") as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            event = None
            while event is None:
                event = await member.poll(1)
            assert event.error() is not None
            with pytest.raises(ValueError, match="Cannot commit offsets"):
                await member.commit(event)

    asyncio.run(main())


async def _exhaust(member: AsyncGroupConsumer, partition: TopicPartition, count: int) -> None:
    """Receive all records of one partition; then the other partitions have enough waiting records to stop their fetches."""
    found = 0
    while found < count:
        for messages in (await member.getmany(partition, timeout_ms=500)).values():
            found += len(messages)


def test_a_cancelled_request_for_one_partition_leaves_the_others_running(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        each, one = 1_000, TopicPartition("orders", 4)
        await asyncio.to_thread(produce, kafka, each * PARTITIONS)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await _exhaust(member, one, each)
            for step in range(100):
                asking = asyncio.create_task(member.getone(one))
                for _ in range(step):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            found = 0
            while found < each * (PARTITIONS - 1):
                found += len(await member.consume(500, 0.5))

    asyncio.run(main())


def test_a_request_for_one_partition_does_not_undo_the_pause_of_another_task(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        each, one, other = 1_000, TopicPartition("orders", 4), TopicPartition("orders", 1)
        await asyncio.to_thread(produce, kafka, each * PARTITIONS)
        async with consumer(kafka) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            await _exhaust(member, one, each)
            asking = asyncio.create_task(member.getone(one))
            await asyncio.sleep(0)
            await member.pause([other])
            # When these calls return, the request has checked the partitions again.
            await asyncio.gather(member.position([one]), member.position([one]))
            await asyncio.to_thread(produce, kafka, PARTITIONS, each * PARTITIONS)
            assert (await asking).partition() == one.partition
            received: list[int | None] = []
            while len(received) < (each + 1) * (PARTITIONS - 2):
                received += [message.partition() for message in await member.consume(500, 0.5)]
            assert member.paused() == {other}
            assert other.partition not in received

    asyncio.run(main())


@pytest.mark.parametrize("call", ["poll", "unsubscribe"])
def test_a_partition_that_was_reported_revoked_starts_again_at_the_commit(kafka: EmbeddedKafka, call: str) -> None:
    """The call is cancelled while on_revoke runs, and the group assigns the partition to this member again."""

    async def main() -> None:
        await asyncio.to_thread(produce, kafka, 40 * PARTITIONS)
        entered, leave = asyncio.Event(), asyncio.Event()
        revoked: set[int] = set()

        async def on_revoke(who: Any, rows: list[TopicPartition]) -> None:
            revoked.update(row.partition for row in rows)
            entered.set()
            await leave.wait()

        settings: dict[str, Any] = {"heartbeat_interval_ms": 100, "enable_auto_commit": "false"}
        async with consumer(kafka, **settings) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"], on_revoke=on_revoke)
            found = 0
            while found < 40 * PARTITIONS:
                found += len(await member.consume(100, 0.5))
            rows = [TopicPartition("orders", number, 10) for number in range(PARTITIONS)]
            await member.commit(offsets=rows, asynchronous=False)
            other = consumer(kafka, **settings)
            if call == "poll":
                await other.subscribe(["orders"])
                joining = asyncio.create_task(other.poll(DEADLINE_S))
                ending = asyncio.create_task(member.poll(DEADLINE_S))
            else:
                ending = asyncio.create_task(member.unsubscribe())
            await entered.wait()
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            if call == "poll":
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
                await other.close()
                target = coordinator_of(member).assignment
                await eventually_async(lambda: len(target.target.partitions) == PARTITIONS, every_s=0.01)
            leave.set()
            if call == "unsubscribe":
                await member.subscribe(["orders"], on_revoke=on_revoke)
            again: dict[int, int] = {}
            while not again.keys() >= revoked:
                for message in await member.consume(100, 0.2):
                    again.setdefault(message.partition() or 0, message.offset() or 0)
            assert set(again.values()) == {10}

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["on_commit", "stats_cb"])
def test_an_exception_of_a_settings_callback_whose_poll_was_cancelled_comes_out_of_the_next(
    kafka: EmbeddedKafka, setting: str
) -> None:
    async def main() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def raises(*_: Any) -> None:
            if not entered.is_set():
                entered.set()
                await leave.wait()
                raise ZeroDivisionError("a bug of the application")

        settings: dict[str, Any] = {setting: raises, "statistics_interval_ms": 50}
        async with consumer(kafka, **settings) as member, asyncio.timeout(DEADLINE_S):
            await member.subscribe(["orders"])
            if setting == "on_commit":
                await member.commit(offsets=[TopicPartition("orders", 0, 0)])
            polling = asyncio.create_task(member.poll())
            await entered.wait()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            leave.set()
            with pytest.raises(KafkaException, match="a bug of the application"):
                await _poll_for_ever(member)

    asyncio.run(main())


async def _poll_for_ever(member: AsyncGroupConsumer) -> None:
    while True:
        await member.poll(0.1)
