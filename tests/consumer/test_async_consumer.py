"""AsyncGroupConsumer on an embedded Kafka: iteration, batches, callbacks, cancellation, close."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from assignors import CooperativeStickyAssignor, RangeAssignor
from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException, TopicPartition
from consumer_coord.errors import CallbackError
from tests.support.environments import needs_librdkafka
from tests.support.producer import Producer
from tests.support.waiting import eventually_async
from tests.support.white_box import librdkafka

PARTITIONS = 6
#: Generous, because the machine may be busy; no successful call takes this long.
DEADLINE_S = 180.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        yield running


def produce(kafka: EmbeddedKafka, count: int, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(start, start + count):
        producer.produce("orders", str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


#: Used instead of an assignor: the consumer protocol (KIP-848), in which the broker assigns.
MODERN = "consumer protocol"


def consumer(kafka: EmbeddedKafka, assignors: Any = CooperativeStickyAssignor, **config: Any) -> AsyncGroupConsumer:
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        **{key if callable(value) else key.replace("_", "."): value for key, value in config.items()},
    }
    if assignors is MODERN:
        return AsyncGroupConsumer({**settings, "group.protocol": "consumer"})
    return AsyncGroupConsumer(settings, assignors=[assignors])


async def take(member: AsyncGroupConsumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += [int(message.value()) for message in await member.consume(count - len(found), 0.5)]
    return found


def test_iteration_gives_every_message_in_the_order_of_its_partition(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 600)
        seen: dict[int, list[int]] = {}
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            async for message in member:
                seen.setdefault(message.partition(), []).append(message.offset())
                if sum(map(len, seen.values())) == 600:
                    break
        assert seen == {partition: list(range(100)) for partition in range(PARTITIONS)}

    asyncio.run(main())


@pytest.mark.behaviour(36, 38, 42, 43)
@pytest.mark.parametrize("assignor", [CooperativeStickyAssignor, MODERN])
def test_callbacks_may_be_coroutines_and_their_exception_leaves_the_call_after_the_state_is_right(
    assignor: Any, kafka: EmbeddedKafka
) -> None:
    async def main() -> None:
        calls: list[tuple[str, int]] = []

        async def on_assign(member: AsyncGroupConsumer, rows: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            calls.append(("assign", len(rows)))
            raise ValueError("not today")

        produce(kafka, 60)
        async with consumer(kafka, assignor) as member:
            await member.subscribe(["orders"], on_assign, on_revoke=lambda _, rows: calls.append(("revoke", len(rows))))
            with pytest.raises(CallbackError, match="on_assign raised ValueError: not today") as raised:
                await take(member, 1)
            assert isinstance(raised.value, KafkaException)
            assert isinstance(raised.value.__cause__, ValueError)
            assert len(await member.assignment()) == PARTITIONS
            assert sorted(await take(member, 60)) == list(range(60))
        assert calls == [("assign", PARTITIONS), ("revoke", PARTITIONS)]

    asyncio.run(main())


@pytest.mark.parametrize("assignor", [RangeAssignor, CooperativeStickyAssignor, MODERN])
def test_two_members_on_one_loop_share_and_hand_over_without_loss(kafka: EmbeddedKafka, assignor: Any) -> None:
    async def main() -> None:
        produce(kafka, 300)
        seen: Counter[int] = Counter()

        async def work(member: AsyncGroupConsumer, stop: asyncio.Event) -> None:
            while not stop.is_set():
                seen.update(int(message.value()) for message in await member.consume(50, 0.1))

        stop = asyncio.Event()
        async with consumer(kafka, assignor) as first, consumer(kafka, assignor) as second:
            await first.subscribe(["orders"])
            working = asyncio.create_task(work(first, stop))
            await eventually_async(first.assignment, every_s=0.01)
            await second.subscribe(["orders"])
            also = asyncio.create_task(work(second, stop))

            async def is_shared() -> bool:
                return len(await first.assignment()) == 3 == len(await second.assignment())

            await eventually_async(is_shared, every_s=0.01)
            await asyncio.to_thread(produce, kafka, 300, 300)
            await eventually_async(lambda: len(seen) >= 600, "every record", every_s=0.01, shows=lambda: len(seen))
            stop.set()
            await asyncio.gather(working, also)
        assert set(seen) == set(range(600))
        assert seen.total() == 600, "a clean hand-over processes nothing twice"

    asyncio.run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_a_subscription_replaces_a_manual_assignment(kafka: EmbeddedKafka, ended: bool) -> None:
    async def main() -> None:
        produce(kafka, 2 * PARTITIONS)
        async with consumer(kafka, enable_auto_commit="false") as member, asyncio.timeout(DEADLINE_S):
            await member.assign([TopicPartition("orders", number, 0) for number in (0, 1, 2)])
            assert sorted(await take(member, 6)) == [0, 1, 2, 6, 7, 8]
            await member.incremental_unassign([TopicPartition("orders", 1)])
            assert [row.partition for row in await member.assignment()] == [0, 2]
            if ended:
                await member.unassign()
                assert await member.assignment() == []
            await member.subscribe(["orders"])
            assert sorted(await take(member, 2 * PARTITIONS)) == list(range(2 * PARTITIONS))

    asyncio.run(main())


def test_a_cancelled_call_loses_no_message(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            await eventually_async(member.assignment, step=lambda: member.poll(0.05))
            got: list[int] = []
            for start in range(0, 300, 10):
                waiting = asyncio.create_task(member.consume(100, 5))
                await asyncio.sleep(0.001)
                await asyncio.to_thread(produce, kafka, 10, start)
                if not waiting.done():
                    waiting.cancel()
                done = (await asyncio.gather(waiting, return_exceptions=True))[0]
                if isinstance(done, list):
                    got += [int(message.value()) for message in done]
            got += await take(member, 300 - len(got))
            assert sorted(got) == list(range(300))

    asyncio.run(main())


@pytest.mark.parametrize("assignor", [CooperativeStickyAssignor, MODERN])
def test_automatic_commits_cover_what_is_finished_and_nothing_that_waits(assignor: Any, kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 60)
        member = consumer(kafka, assignor, auto_commit_interval_ms=10)
        await member.subscribe(["orders"])
        finished = 0
        async for _ in member:
            finished += 1
            if finished == 20:
                break
        await asyncio.sleep(0.05)
        assert await member.poll(5) is not None  # 20 records are finished now, one is in process
        rows = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]

        async def is_committed() -> bool:
            offsets: list[int] = [row.offset for row in await member.committed(rows)]
            return sum(max(0, offset) for offset in offsets) == 20

        await eventually_async(is_committed, every_s=0.01)
        await member.close()
        async with consumer(kafka, assignor) as after:
            await after.subscribe(["orders"])
            assert len(await take(after, 39)) == 39, "close finishes the message in process"
            assert await after.poll(0.3) is None

    asyncio.run(main())


def test_pause_holds_back_what_was_fetched_ahead_and_resume_brings_it(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 600)
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            got = [await member.poll(10)]
            first = got[0]
            assert first is not None
            paused = [TopicPartition("orders", first.partition())]
            await member.pause(paused)
            others = await take(member, 500)
            assert sorted(others) == [number for number in range(600) if number % PARTITIONS != first.partition()]
            assert await member.consume(100, 0.2) == [], "a message that was fetched before the pause was delivered"
            await member.resume(paused)
            again = await take(member, 99)
            assert sorted(again) == list(range(first.partition() + PARTITIONS, 600, PARTITIONS))

    asyncio.run(main())


@needs_librdkafka
def test_only_what_does_not_block_is_called_on_the_loop(kafka: EmbeddedKafka) -> None:
    class Watched:
        def __init__(self, handle: Any) -> None:
            self.handle = handle
            self.calls: dict[str, set[int]] = {}
            self.under_way = 0
            self.most = 0

        def __getattr__(self, name: str) -> Any:
            method = getattr(self.handle, name)

            def call(*arguments: Any, **keywords: Any) -> Any:
                waits = name == "consume" and arguments[1] != 0
                self.calls.setdefault(f"{name} and wait" if waits else name, set()).add(threading.get_ident())
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                try:
                    return method(*arguments, **keywords)
                finally:
                    self.under_way -= 1

            return call

    async def main() -> None:
        async with consumer(kafka) as member:
            watched = Watched(librdkafka(member).handle)
            librdkafka(member).handle = watched
            await member.subscribe(["orders"])
            await asyncio.to_thread(produce, kafka, 100)
            await take(member, 100)
            held = await member.assignment()
            await member.pause(held)
            await member.resume(held)
            await member.commit()
            await member.list_topics()
            assert await member.poll(0.2) is None
        assert {"poll", "incremental_assign", "list_topics", "close"} <= watched.calls.keys()
        (thread,) = set().union(*watched.calls.values())
        assert thread != threading.get_ident(), "another thread makes all calls"
        assert watched.most == 1, "the handle is never in two calls at once"

    asyncio.run(main())


def test_tasks_that_wait_at_once_share_the_messages(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            waiting = [asyncio.create_task(member.poll(10)) for _ in range(4)]
            await asyncio.to_thread(produce, kafka, 4)
            found = [message.value() for message in await asyncio.gather(*waiting) if message is not None]
            assert len(set(found)) == 4

    asyncio.run(main())


@pytest.mark.parametrize("assignor", [CooperativeStickyAssignor, MODERN])
def test_a_cancelled_close_still_leaves_the_group_and_ends_its_thread(assignor: Any, kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        before = {thread.name for thread in threading.enumerate()}
        member = consumer(kafka, assignor)
        await member.subscribe(["orders"])
        await eventually_async(member.assignment, step=lambda: member.poll(0.05))
        closing = asyncio.create_task(member.close())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await eventually_async(
            lambda: before >= {thread.name for thread in threading.enumerate() if "fetch" in thread.name}, every_s=0.01
        )
        async with consumer(kafka, assignor) as other:
            await other.subscribe(["orders"])

            async def has_all() -> bool:
                return len(await other.assignment()) == PARTITIONS

            await eventually_async(has_all, step=lambda: other.poll(0.05))

    asyncio.run(main())


@pytest.mark.parametrize("assignor", [CooperativeStickyAssignor, MODERN])
def test_after_an_unsubscribe_partitions_are_read_that_were_assigned_by_hand_and_then_the_group_s_again(
    assignor: Any, kafka: EmbeddedKafka
) -> None:
    """Without a membership, no lease ends the delivery; the next membership has one again."""

    async def main() -> None:
        produce(kafka, 60)
        async with consumer(kafka, assignor) as member:
            await member.subscribe(["orders"])
            await take(member, 60)
            await member.unsubscribe()
            await member.assign([TopicPartition("orders", 1, 4)])
            assert len(await take(member, 6)) == 6
            await member.unassign()
            await member.subscribe(["orders"])
            produce(kafka, 6)
            assert len(await take(member, 6)) >= 6

    asyncio.run(main())


def test_in_the_consumer_protocol_a_coroutine_as_on_revoke_ends_before_the_acknowledgement(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        produce(kafka, 60)
        #: How many partitions are revoked, and how many the new member has at the end of the callback.
        told: list[tuple[int, int]] = []

        async def on_revoke(member: AsyncGroupConsumer, rows: list[TopicPartition]) -> None:
            if told:
                return  # the second call is that of close
            await asyncio.sleep(0.05)
            await member.commit(offsets=[TopicPartition(row.topic, row.partition, 10) for row in rows], asynchronous=False)
            told.append((len(rows), len(await second.assignment())))

        async with consumer(kafka, MODERN) as first, consumer(kafka, MODERN) as second:
            await first.subscribe(["orders"], on_revoke=on_revoke)
            await take(first, 60)
            await second.subscribe(["orders"])
            async with asyncio.timeout(DEADLINE_S):
                while len(await second.assignment()) < 3:
                    await asyncio.gather(first.poll(0.05), second.poll(0.05))
            assert told == [(3, 0)]
            moved = await second.assignment()
            assert [row.offset for row in await second.committed(moved)] == [10] * 3

    asyncio.run(main())


def test_a_static_member_of_the_consumer_protocol_keeps_its_place_over_a_restart(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        static = consumer(kafka, MODERN, group_instance_id="one")
        async with consumer(kafka, MODERN) as other:
            await static.subscribe(["orders"])
            await other.subscribe(["orders"])
            async with asyncio.timeout(DEADLINE_S):
                while len(await static.assignment()) != 3 or len(await other.assignment()) != 3:
                    await asyncio.gather(static.poll(0.05), other.poll(0.05))
            held = await static.assignment()
            await static.close()
            async with consumer(kafka, MODERN, group_instance_id="one") as again:
                await again.subscribe(["orders"])
                async with asyncio.timeout(DEADLINE_S):
                    while len(await again.assignment()) != 3:
                        await asyncio.gather(again.poll(0.05), other.poll(0.05))
                assert await again.assignment() == held
                assert len(await other.assignment()) == 3

    asyncio.run(main())


def test_a_negative_timeout_is_no_limit(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), consumer(kafka) as member:
            rows = [TopicPartition("orders", 0, 1)]
            (committed,) = await member.commit(offsets=rows, asynchronous=False, timeout=-1) or []
            assert committed.error is None
            assert [row.offset for row in await member.committed(rows, timeout=-1)] == [1]

    asyncio.run(main())
