"""Threads and asyncio, messages and columns: the same wait, and the same check before a delivery."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import ClosedError, WakeupError
from consumer_coord.simulation.calls import Cut
from tests.support.consumer.embedded import BROKER, DEADLINE_S, GROUP, produce, row
from tests.support.waiting import eventually_async
from tests.support.white_box import coordinator_of, set_lease_clock

PARTITIONS = 2
COUNT = 20
ALL = [(partition, offset) for partition in range(PARTITIONS) for offset in range(COUNT)]
Pair = tuple[int, int]


class Member:
    """A consumer of either kind; one thread of its own makes the calls of a blocking one."""

    def __init__(self, one: Any, thread: ThreadPoolExecutor) -> None:
        self.one = one
        self._thread = thread

    async def call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a method of the consumer."""
        if isinstance(self.one, GroupConsumer):
            call = functools.partial(method, *arguments, **named)
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        return await method(*arguments, **named)

    async def message(self, timeout: float = DEADLINE_S) -> list[Pair]:
        """Return (partition, offset) of the next message; an empty list after the time limit."""
        found = await self.call(self.one.poll, timeout)
        return [] if found is None else [(found.partition(), found.offset())]

    async def columns(self, timeout: float = DEADLINE_S) -> list[Pair]:
        """Return (partition, offset) of the next records, read as columns."""
        return pairs(await self.call(self.one.consume_arrow, timeout=timeout))

    async def waits(self) -> None:
        """Return when a read waits."""
        application = coordinator_of(self.one).application
        waits = application.waits
        await eventually_async(lambda: application.waits > waits + 1, "a wait")

    async def beside(self, method: Callable[[], Any]) -> None:
        """Call a method on another thread, or in another task, than the one that reads."""
        result = await asyncio.to_thread(method) if isinstance(self.one, GroupConsumer) else method()
        if asyncio.iscoroutine(result):
            await result


def pairs(batch: Any) -> list[Pair]:
    read = pa.record_batch(batch)
    return list(zip(read["partition"].to_pylist(), read["offset"].to_pylist(), strict=True))


@asynccontextmanager
async def member(kafka: EmbeddedKafka, kind: str, **settings: Any) -> AsyncIterator[Member]:
    config: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP, "auto.offset.reset": "earliest"}
    config |= {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 100, **settings}
    with ThreadPoolExecutor(1) as thread:
        made = Member(GroupConsumer(config) if kind == "threads" else AsyncGroupConsumer(config), thread)
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield made
        finally:
            await made.call(made.one.close)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=BROKER) as running:
        produce(running, "orders", {number: range(COUNT) for number in range(PARTITIONS)})
        yield running


Read = Callable[..., Coroutine[Any, Any, list[Pair]]]

KINDS = pytest.mark.parametrize("kind", ["threads", "asyncio"])
SHAPES = pytest.mark.parametrize("shape", [Member.message, Member.columns], ids=["messages", "columns"])


@KINDS
def test_columns_have_the_records_that_a_poll_decoded_ahead(kafka: EmbeddedKafka, kind: str) -> None:
    async def main() -> None:
        async with member(kafka, kind) as one:
            await one.call(one.one.assign, [row(0, 0)])
            assert await one.message() == [(0, 0)]
            assert await one.columns() == [(0, offset) for offset in range(1, COUNT)]
            produce(kafka, "orders", {0: range(3)})
            assert await one.message() == [(0, COUNT)]

    asyncio.run(main())


@KINDS
def test_a_bounded_read_ends_after_a_poll_that_decoded_ahead(kafka: EmbeddedKafka, kind: str) -> None:
    async def main() -> None:
        async with member(kafka, kind) as one:
            await one.call(one.one.assign, [row(0, 0)])
            assert await one.message() == [(0, 0)]
            batches = one.one.arrow_batches(max_records=7)
            if kind == "threads":
                found = [pair for batch in await one.call(list, batches) for pair in pairs(batch)]
            else:
                found = [pair async for batch in batches for pair in pairs(batch)]
            assert found == [(0, offset) for offset in range(1, COUNT)]

    asyncio.run(main())


@KINDS
def test_a_pause_keeps_messages_that_columns_have_after_it(kafka: EmbeddedKafka, kind: str) -> None:
    async def main() -> None:
        async with member(kafka, kind) as one:
            await one.call(one.one.assign, [row(0, 0)])
            assert await one.message() == [(0, 0)]
            await one.call(one.one.pause, [row(0)])
            assert await one.columns(0.05) == []
            await one.call(one.one.resume, [row(0)])
            assert await one.columns() == [(0, offset) for offset in range(1, COUNT)]

    asyncio.run(main())


async def read_all(one: Member, shape: Read) -> None:
    """Read every record."""
    found: list[Pair] = []
    while len(found) < len(ALL):
        found += await shape(one)
    assert sorted(found) == ALL


@KINDS
@SHAPES
@pytest.mark.parametrize(("call", "error"), [("wakeup", WakeupError), ("close", ClosedError)])
def test_a_call_beside_a_wait_ends_it(kafka: EmbeddedKafka, kind: str, shape: Read, call: str, error: type[Exception]) -> None:
    async def main() -> None:
        async with member(kafka, kind) as one:
            await one.call(one.one.subscribe, ["orders"])
            await read_all(one, shape)
            reading = asyncio.create_task(shape(one))
            await one.waits()
            await one.beside(getattr(one.one, call))
            with pytest.raises(error):
                await reading

    asyncio.run(main())


@KINDS
@SHAPES
def test_news_of_the_group_are_handled_in_a_wait(kafka: EmbeddedKafka, kind: str, shape: Read) -> None:
    async def main() -> None:
        revoked: list[int] = []
        async with member(kafka, kind, **{"enable.auto.commit": False}) as one, member(kafka, kind) as two:
            await one.call(
                one.one.subscribe,
                ["orders"],
                on_revoke=lambda _, rows: revoked.extend(each.partition for each in rows),
            )
            await read_all(one, shape)
            await one.call(one.one.commit, asynchronous=False)
            reading = asyncio.create_task(shape(one))
            await one.waits()
            await two.call(two.one.subscribe, ["orders"])
            assert await two.call(two.one.poll, 0.01) is None
            await eventually_async(lambda: revoked, "a revocation inside the wait")
            assert not reading.done()
            (left,) = {0, 1} - set(revoked)
            await asyncio.to_thread(produce, kafka, "orders", {left: [0]})
            assert await reading == [(left, COUNT)]

    asyncio.run(main())


@KINDS
@SHAPES
def test_a_member_without_a_lease_delivers_nothing_until_it_has_one(kafka: EmbeddedKafka, kind: str, shape: Read) -> None:
    async def main() -> None:
        async with member(kafka, kind, **{"enable.auto.commit": False}) as one:
            await one.call(one.one.subscribe, ["orders"])
            await read_all(one, shape)
            lease = coordinator_of(one.one).lease
            clock = lease.clock
            reading = asyncio.create_task(shape(one, 0.5))
            await one.waits()
            set_lease_clock(one.one, lambda: math.inf)
            await asyncio.to_thread(produce, kafka, "orders", {1: [0]})
            assert await reading == []
            assert await shape(one, 0.0) == []
            set_lease_clock(one.one, clock)
            assert await shape(one) == [(1, COUNT)]

    asyncio.run(main())


@SHAPES
def test_a_cancellation_at_any_await_loses_and_repeats_nothing(kafka: EmbeddedKafka, shape: Read) -> None:
    """The read is cancelled at its first await, then at its second one, and so on, with and without records at hand."""

    async def main() -> None:
        async with member(kafka, "asyncio", **{"enable.auto.commit": False}) as one:
            await one.call(one.one.subscribe, ["orders"])
            await read_all(one, shape)
            expected, step, whole, cancelled = COUNT, 0, 0, 0
            while whole < 3:
                reading = asyncio.create_task(Cut("read", step, 0.0).stepped(shape(one)))
                if step % 2:
                    await asyncio.sleep(0)
                await asyncio.to_thread(produce, kafka, "orders", {1: [0]})
                try:
                    found = await reading
                    whole += 1
                except asyncio.CancelledError:
                    cancelled += 1
                    found = await shape(one)
                assert found == [(1, expected)], f"after a cancellation at await {step}"
                expected += 1
                step += 1
            assert cancelled >= 2

    asyncio.run(main())
