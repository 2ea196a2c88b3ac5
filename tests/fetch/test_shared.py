"""Several fetchers of one client share their Fetches; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import attrs
import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import AuthenticationError
from consumer_coord.fetch import FetchConfig, FetchedRecords, Fetcher, FetchStart
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from tests.support.consumer.embedded import produce
from tests.support.fetch.world import Reader, RefusedFetches, World, play

T = [TopicPartition("t", number) for number in range(10)]
#: A Fetch that waits for new records longer than any test may wait for a record.
PATIENT = FetchConfig(fetch_wait_max_ms=60_000)


def starts(partitions: Iterable[TopicPartition], serial: int = 1) -> dict[TopicPartition, FetchStart]:
    return {one: FetchStart(serial, 0) for one in partitions}


def readers_of(client: ClusterClient, number: int, config: FetchConfig | None = None) -> list[Reader]:
    """Return readers, each with one partition."""
    readers = [Reader(Fetcher(client, config)) for _ in range(number)]
    for reader, one in zip(readers, T, strict=False):
        reader.assign(starts([one]))
    return readers


async def in_time(reader: Reader, one: TopicPartition, end: int) -> None:
    """Read to an end offset, within much less time than a Fetch waits."""
    async with asyncio.timeout(2):
        await reader.read_to({one: end})


async def close(readers: Iterable[Reader]) -> None:
    for reader in readers:
        await reader.fetcher.close()


def test_idle_readers_share_one_connection_and_one_session_for_each_broker() -> None:
    async def test(world: World) -> None:
        readers = readers_of(world.client(), 10)
        waits = [asyncio.ensure_future(reader.fetcher.wait(Deadline.after(70_000))) for reader in readers]
        await asyncio.sleep(10)
        sent, connections = len(world.fetches()), world.network.connections
        await asyncio.sleep(60)
        assert len(world.fetches()) - sent <= 3 * 2 * 60 + 3
        assert world.network.connections == connections
        assert await asyncio.gather(*waits) == [False] * 10
        # An emptied second session remains in the broker's cache until another session needs its place.
        assert all(1 <= len(node.fetch_sessions) <= 2 for node in world.cluster.nodes)
        for reader, one in zip(readers, T, strict=True):
            expected = world.write(one, 3)
            await in_time(reader, one, 3)
            assert reader.records == {one: expected}
        await close(readers)

    play(test, topics={"t": 10})


def test_readers_of_the_same_partition_all_get_its_records() -> None:
    async def test(world: World) -> None:
        client = world.client()
        readers = [Reader(Fetcher(client)) for _ in range(3)]
        expected = []
        for reader in readers:
            reader.assign(starts(T[:2]))
        for end in (2, 4, 6):
            expected += world.write(T[0], 2)
            for reader in readers:
                await in_time(reader, T[0], end)
                assert reader.records[T[0]] == expected
        await close(readers[:2])
        expected += world.write(T[0])
        await in_time(readers[2], T[0], 7)
        assert readers[2].records[T[0]] == expected
        await close(readers)

    play(test, brokers=1)


def test_a_reader_that_closes_or_changes_does_not_disturb_the_others() -> None:
    async def test(world: World) -> None:
        client = world.client()
        first, second, third = readers_of(client, 3, PATIENT)
        for one in T[:3]:
            world.write(one)
        for reader, one in zip((first, second, third), T, strict=False):
            await in_time(reader, one, 1)
        await first.fetcher.close()
        # The partition moves to another reader, which has read other records of it before.
        second.assign(starts([T[0]]))
        await in_time(second, T[0], 1)
        third.fetcher.unassign([T[2]])
        world.write(T[1])
        await in_time(second, T[1], 2)
        third.assign(starts([T[2]], serial=2))
        await in_time(third, T[2], 1)
        await close([second, third])

    play(test, brokers=1, topics={"t": 3})


@pytest.mark.parametrize("change", ["assign", "seek", "resume", "rewind"])
def test_a_change_waits_for_no_idle_fetch_and_closes_no_connection(change: str) -> None:
    async def test(world: World) -> None:
        first, second = readers_of(world.client(), 2, PATIENT)
        world.write(T[0])
        await in_time(first, T[0], 1)
        connections = []
        for round_ in range(1, 6):
            # Every Fetch waits, and the next change begins after that.
            await asyncio.sleep(200)
            connections.append(world.network.connections)
            if change == "assign":
                second.assign(starts([T[1]], serial=round_ + 1))
                world.write(T[1])
                await in_time(second, T[1], round_)
            elif change == "seek":
                first.records.clear()
                first.assign(starts([T[0]], serial=round_ + 1))
                await in_time(first, T[0], 1)
            elif change == "rewind":
                # The records that were not taken are fetched again.
                world.write(T[0])
                await asyncio.sleep(200)
                first.fetcher.pause([T[0]])
                first.fetcher.resume([T[0]])
                await in_time(first, T[0], round_ + 1)
            else:
                first.fetcher.pause([T[0]])
                world.write(T[0])
                await asyncio.sleep(200)
                first.fetcher.resume([T[0]])
                await in_time(first, T[0], round_ + 1)
        assert connections[-1] - connections[1] <= 1
        # The second task has ended: there is one Fetch in a minute.
        await asyncio.sleep(200)
        sent = len(world.fetches())
        await asyncio.sleep(600)
        assert len(world.fetches()) - sent <= 11
        await close([first, second])

    play(test, brokers=1)


def test_many_changes_in_a_short_time_open_no_connections() -> None:
    async def test(world: World) -> None:
        readers = readers_of(world.client(), 3, PATIENT)
        for reader, one in zip(readers, T, strict=False):
            world.write(one)
            await in_time(reader, one, 1)
        await asyncio.sleep(200)
        # The first task's Fetch waits. The second task's Fetch waits, too, when the next partition is due.
        requests: list[str] = []
        world.network.on_request = lambda client, frame: requests.append(client)
        fetches = len(world.fetches())
        for round_ in range(40):
            reader, one = readers[round_ % 3], T[round_ % 3]
            reader.records.clear()
            reader.assign(starts([one], serial=round_ + 2))
            await in_time(reader, one, 1)
            await asyncio.sleep(0.05)
        fetches = len(world.fetches()) - fetches
        assert fetches <= 3 * 40
        # A new connection would send ApiVersions.
        assert len(requests) - fetches <= 2, "requests other than Fetch"
        await close(readers)

    play(test, brokers=1, topics={"t": 3})


def test_a_reader_without_room_does_not_delay_the_others_and_goes_on_at_once() -> None:
    async def test(world: World) -> None:
        config = attrs.evolve(PATIENT, queued_max_bytes=4_000, max_partition_fetch_bytes=1_000)
        full, other = readers_of(world.client(), 2, config)
        for _ in range(20):
            world.write(T[0], 1, value=b"v" * 400)
        await asyncio.sleep(10)
        for end in (1, 2, 3):
            world.write(T[1])
            await in_time(other, T[1], end)
        # Now a Fetch of the idle partition waits. The records of the other partition must not wait for its end.
        await asyncio.sleep(1)
        await in_time(full, T[0], 20)
        assert len(full.records[T[0]]) == 20
        await close([full, other])

    play(test, brokers=1)


def test_the_buffers_of_all_readers_are_bounded() -> None:
    async def test(world: World) -> None:
        config = FetchConfig(queued_max_bytes=4_000, max_partition_fetch_bytes=4_000)
        readers = readers_of(world.client(), 3, config)
        for reader, one in zip(readers, T, strict=False):
            reader.assign(starts([one, T[T.index(one) + 3]], serial=2))
        for _ in range(50):
            for one in T[:6]:
                world.write(one, 1, value=b"v" * 200)
        await asyncio.sleep(30)
        for reader in readers:
            size = 0
            while found := reader.fetcher.take(1):
                size += sum(len(one.records) for one in found if not hasattr(one, "reason"))
            assert 1_000 < size <= 4_000
        await close(readers)

    play(test, brokers=1, topics={"t": 6})


@pytest.mark.parametrize("number", [1, 2])
def test_a_slow_reader_keeps_no_records_of_other_readers_in_memory(number: int) -> None:
    """Records are slices of the response, or copies if the response has records for several readers."""

    async def main(address: str) -> None:
        host, _, port = address.rpartition(":")
        client = cluster_client(ClientConfig(bootstrap_servers=((host, int(port)),)))
        fetchers = [Fetcher(client) for _ in range(number)]
        for index, fetcher in enumerate(fetchers):
            fetcher.assign(starts(T[index::number][: 4 // number]))
        sizes: list[tuple[int, int]] = []
        for fetcher in fetchers:
            assert await fetcher.wait(Deadline.after(60_000))
            for one in fetcher.take(1 << 30):
                assert isinstance(one, FetchedRecords)
                view = memoryview(one.records)
                sizes.append((view.nbytes, memoryview(view.obj).nbytes))
            await fetcher.close()
        await client.close()
        assert len(sizes) == 4
        assert all((whole == size) == (number > 1) for size, whole in sizes), sizes

    with EmbeddedKafka(topics={"t": 4}) as kafka:
        produce(kafka, "t", {one: [b"v" * 100_000] for one in range(4)})
        asyncio.run(main(kafka.bootstrap_servers))


def test_only_readers_with_the_same_settings_share() -> None:
    async def test(world: World) -> None:
        client = world.client()
        readers = [Reader(Fetcher(client, FetchConfig(read_committed=flag))) for flag in (False, True, False)]
        for reader, one in zip(readers, T, strict=False):
            reader.assign(starts([one]))
        await asyncio.sleep(10)
        levels = {(request.message.isolation_level, request.message.session_id) for request in world.fetches()}  # type: ignore[attr-defined]
        assert {level for level, _ in levels} == {0, 1}
        assert len(client.shared) == 2
        await close(readers)
        assert client.shared == {}

    play(test, brokers=1, topics={"t": 3})


def test_an_error_that_ends_a_task_reaches_every_reader_and_reading_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = world.client()
        refusal = RefusedFetches.by(client, monkeypatch)
        readers = readers_of(client, 2)
        for reader in readers:
            assert await reader.fetcher.wait(Deadline.after(10_000))
            with pytest.raises(AuthenticationError):
                reader.take()
        refusal.right = True
        await asyncio.sleep(5)
        for reader, one in zip(readers, T, strict=False):
            expected = world.write(one)
            await in_time(reader, one, 1)
            assert reader.records[one] == expected
        await close(readers)

    play(test, brokers=1)
