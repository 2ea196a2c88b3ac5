"""A partition that has records waits for no partition without any; in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from consumer_coord.fetch import FetchConfig, Fetcher, FetchStart
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from tests.support.fetch.world import Reader, World, play

T = [TopicPartition("t", number) for number in range(6)]
#: A Fetch that waits for new records longer than any test may wait for a record, and room for two records of 400 bytes.
TIGHT = FetchConfig(fetch_wait_max_ms=60_000, queued_max_bytes=1_000, max_partition_fetch_bytes=450)


def from_start(*partitions: TopicPartition, serial: int = 1) -> dict[TopicPartition, FetchStart]:
    return {one: FetchStart(serial, 0) for one in partitions}


def write(world: World, one: TopicPartition, count: int, size: int = 400) -> None:
    """Append ``count`` batches of one record."""
    for _ in range(count):
        world.write(one, 1, value=b"v" * size)


async def duration(reader: Reader, ends: dict[TopicPartition, int]) -> float:
    """Read to these ends, and return the time that it took, in seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await reader.read_to(ends)
    return loop.time() - began


@pytest.mark.parametrize("shared", [False, True])
def test_an_open_transaction_delays_no_other_partition(shared: bool) -> None:
    """A broker waits from the last stable offset on, although the log has more records."""

    async def test(world: World) -> None:
        config, client = attrs.evolve(TIGHT, read_committed=True), world.client()
        reader = Reader(Fetcher(client, config), read_committed=True)
        other = Reader(Fetcher(client, config), read_committed=True) if shared else reader
        write(world, T[0], 30)
        world.write(T[1], 1, producer_id=7)
        other.assign(from_start(T[1]))
        await asyncio.sleep(10)
        reader.assign(from_start(T[0]))
        assert await duration(reader, {T[0]: 30}) < 2
        world.end_transaction(T[1], 7, committed=True)
        assert await duration(other, {T[1]: 2}) < 2
        for one in {id(each): each for each in (reader, other)}.values():
            await one.fetcher.close()

    play(test, brokers=1)


def test_partitions_that_are_read_to_their_ends_delay_no_other_partition() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client(), TIGHT))
        for number, one in enumerate(T):
            write(world, one, 1 + 10 * number)
        reader.assign(from_start(*T))
        # Each of the 156 responses has one record. A Fetch of idle partitions alone would wait for 60 s, or for 0.1 s.
        assert await duration(reader, {one: 1 + 10 * number for number, one in enumerate(T)}) < 2
        # Metadata, the long Fetch, at most two brief ones, and the Fetches of partitions with records.
        assert world.network.connections <= 5
        await asyncio.sleep(130)
        for one in T:
            world.write(one)
        assert await duration(reader, {one: 2 + 10 * number for number, one in enumerate(T)}) < 2
        sent = len(world.fetches())
        await asyncio.sleep(600)
        assert len(world.fetches()) - sent <= 11, "one lane holds all idle partitions"
        await reader.fetcher.close()

    play(test, brokers=1, topics={"t": len(T)})


def test_records_are_read_ahead_by_bytes_and_by_number() -> None:
    async def test(world: World) -> None:
        write(world, T[0], 100)
        found: dict[str, int] = {}
        for name, config in {
            "number": FetchConfig(max_partition_fetch_bytes=1_000, queued_min_messages=20),
            "bytes": FetchConfig(max_partition_fetch_bytes=1_000, queued_max_bytes=20_000),
            "all": FetchConfig(max_partition_fetch_bytes=1_000),
        }.items():
            fetcher = Fetcher(world.client(), config)
            fetcher.assign(from_start(T[0]))
            await asyncio.sleep(10)
            found[name] = sum(one.next_offset - one.offset for one in fetcher.take(1 << 30) if not hasattr(one, "reason"))
            await fetcher.close()
        assert found["all"] == 100
        assert 20 <= found["number"] < 25
        # Half of the limit, because a response may have as much.
        assert 20 <= found["bytes"] * 470 / 1_000 <= 22 or found["bytes"] in range(20, 26)

    play(test, brokers=1)


def test_a_reader_that_does_not_take_makes_no_response_smaller() -> None:
    async def test(world: World) -> None:
        client = world.client()
        config = FetchConfig(queued_max_bytes=10_000, max_partition_fetch_bytes=10_000)
        slow, quick = Reader(Fetcher(client, config)), Reader(Fetcher(client, config))
        write(world, T[0], 50)
        slow.assign(from_start(T[0]))
        await asyncio.sleep(10)
        quick.assign(from_start(T[1]))
        for end in range(1, 20):
            world.write(T[1])
            assert await duration(quick, {T[1]: end}) < 2
        limits: set[Any] = {request.message.max_bytes for request in world.fetches()}  # type: ignore[attr-defined]
        assert limits == {5_000}
        assert await duration(slow, {T[0]: 50}) < 2
        await slow.fetcher.close()
        await quick.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize("wait", [False, True])
def test_a_fetcher_that_nobody_uses_sends_nothing(wait: bool) -> None:
    async def test(world: World) -> None:
        client = world.client()
        unused, used = Reader(Fetcher(client)), Reader(Fetcher(client))
        unused.assign(from_start(T[0]))
        used.assign(from_start(T[1]))
        await unused.fetcher.wait(Deadline.after(1_000))
        await used.fetcher.wait(Deadline.after(200_000))
        assert len(world.cluster.nodes[0].fetch_sessions) >= 1
        world.write(T[0])
        await used.fetcher.wait(Deadline.after(60_000))
        # A caller that does not wait on the loop asks whether there is something to do.
        assert unused.fetcher.ready
        if wait:
            assert await duration(unused, {T[0]: 1}) < 2
        else:
            assert unused.take() == 0
            await asyncio.sleep(2)
            assert unused.take() == 1
        await used.fetcher.close()
        await asyncio.sleep(60)
        sent = len(world.fetches())
        await asyncio.sleep(600)
        assert len(world.fetches()) == sent
        await unused.fetcher.close()

    play(test, brokers=1)


def test_a_partition_in_backoff_does_not_wait_for_the_end_of_an_idle_fetch() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client(), attrs.evolve(TIGHT, queued_max_bytes=1 << 20)))
        reader.assign(from_start(T[0]))
        await asyncio.sleep(10)
        world.write(T[1])
        world.partition(T[1]).leader = -1
        reader.assign(from_start(T[1]))
        await asyncio.sleep(0.05)
        world.partition(T[1]).leader = 0
        assert await duration(reader, {T[1]: 1}) < 5
        await reader.fetcher.close()

    play(test, brokers=1)
