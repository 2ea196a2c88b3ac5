"""Threads and asyncio, messages and columns: the same wait, and the same check before a delivery."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, DEADLINE_S, GROUP, produce, row
from tests.support.waiting import eventually_async
from tests.support.white_box import coordinator_of

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
