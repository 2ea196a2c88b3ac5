"""What the fetcher knows about the ends of logs, and how old that is, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs
import pytest

from consumer_coord.broker.kafka_apis import ClientConnection
from consumer_coord.fetch import FetchConfig, Fetcher, FetchStart, LogEnd
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import FetchResponse, PartitionData
from tests.support.fetch.world import Reader, Server, World, play

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = {T0: FetchStart(1, 0), T1: FetchStart(2, 0)}


class Silent:
    """A broker that stops answering while :attr:`on`."""

    def __init__(self, server: Server) -> None:
        self._apis = server.apis
        self.on = False
        server.apis = self

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self._apis.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Handle a frame as soon as the broker answers again."""
        while self.on:
            await asyncio.sleep(0.1)
        return await self._apis.handle(frame, client)


def age(end: LogEnd) -> float:
    """Return how old the last response is, in seconds."""
    return asyncio.get_running_loop().time() - end.answered_at


def edited(edit: Callable[[PartitionData], PartitionData]) -> Callable[[FetchResponse], FetchResponse]:
    """Return an edit of the rows of a response."""

    def apply(response: FetchResponse) -> FetchResponse:
        topics = [attrs.evolve(topic, partitions=tuple(map(edit, topic.partitions))) for topic in response.responses]
        return attrs.evolve(response, responses=tuple(topics))

    return apply


def test_nothing_is_known_before_the_first_response() -> None:
    async def test(world: World) -> None:
        fetcher = Fetcher(world.client())
        assert fetcher.log_ends() == {}
        fetcher.assign(BOTH)
        ends = fetcher.log_ends()
        assert [(end.end, end.high_watermark, end.fetched) for end in ends.values()] == [(None, None, 0)] * 2
        await fetcher.close()

    play(test, brokers=1)


def test_an_idle_partition_is_answered_about_although_its_rows_are_omitted() -> None:
    """A response of a fetch session omits partitions without news (KIP-227)."""

    async def test(world: World) -> None:
        world.write(T0, 3)
        reader = Reader(Fetcher(world.client()))
        reader.assign(BOTH)
        await reader.read_to({T0: 3})
        await asyncio.sleep(20)
        for partition, expected in ((T0, 3), (T1, 0)):
            end = reader.fetcher.log_ends()[partition]
            assert (end.fetched, end.end, end.high_watermark, end.broker) == (expected, expected, expected, 0)
            assert (end.obstacle, end.held_back) == ("", False)
            assert age(end) <= end.wait_s + 0.1
        await reader.fetcher.close()

    play(test, brokers=1)


def test_the_silence_of_a_broker_ages_its_partitions_only() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign(BOTH)
        await reader.read_to({T0: 0})
        await asyncio.sleep(5)
        leader = world.partition(T0).leader
        assert leader != world.partition(T1).leader
        silent = Silent(world.servers[leader])
        silent.on = True
        await asyncio.sleep(14)
        reader.take()
        ends = reader.fetcher.log_ends()
        assert age(ends[T0]) > 13.0
        assert ends[T0].broker == leader
        assert age(ends[T1]) < 1.0
        silent.on = False
        await asyncio.sleep(2)
        assert age(reader.fetcher.log_ends()[T0]) < 1.0
        await reader.fetcher.close()

    play(test, brokers=2)


def test_an_open_transaction_is_between_the_end_and_the_high_watermark() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client(), FetchConfig(read_committed=True)), read_committed=True)
        world.write(T0, 2)
        world.write(T0, 3, producer_id=7)
        reader.assign(BOTH)
        await reader.read_to({T0: 2})
        await asyncio.sleep(5)
        end = reader.fetcher.log_ends()[T0]
        assert (end.fetched, end.end, end.high_watermark) == (2, 2, 5)
        world.end_transaction(T0, 7, committed=True)
        await reader.read_to({T0: 6})
        end = reader.fetcher.log_ends()[T0]
        assert (end.fetched, end.end, end.high_watermark) == (6, 6, 6)
        await reader.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize("code", [codes.KAFKA_STORAGE_ERROR, codes.TOPIC_AUTHORIZATION_FAILED])
def test_a_row_with_an_error_is_no_answer_and_is_named(code: int) -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign(BOTH)
        await asyncio.sleep(5)
        world.servers[0].edit = edited(lambda row: attrs.evolve(row, error_code=code, records=b""))
        world.write(T0)
        await asyncio.sleep(10)
        reader.take()
        end = reader.fetcher.log_ends()[T0]
        assert age(end) > 9.0
        assert codes.error_name(code) in end.obstacle
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_response_that_lacks_a_partition_is_no_answer_about_it() -> None:
    """Only a request that names all partitions must have a row for each of them."""

    async def test(world: World) -> None:
        world.servers[0].edit = lambda response: attrs.evolve(
            response,
            session_id=0,
            responses=tuple(
                attrs.evolve(topic, partitions=tuple(row for row in topic.partitions if row.partition_index != 0))
                for topic in response.responses
            ),
        )
        reader = Reader(Fetcher(world.client()))
        reader.assign(BOTH)
        await asyncio.sleep(10)
        reader.take()
        ends = reader.fetcher.log_ends()
        assert (ends[T0].end, ends[T1].end) == (None, 0)
        assert age(ends[T0]) > 9.0
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_throttled_client_knows_until_when_and_has_no_answer() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign(BOTH)
        await asyncio.sleep(5)
        world.servers[0].edit = lambda response: attrs.evolve(response, throttle_time_ms=10_000, responses=())
        await asyncio.sleep(2)
        end = reader.fetcher.log_ends()[T0]
        assert 7.0 < end.throttled_until - asyncio.get_running_loop().time() <= 10.0
        assert age(end) > 1.0
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_fetch_that_waits_for_the_application_is_held_back() -> None:
    async def test(world: World) -> None:
        fetcher = Fetcher(world.client(), FetchConfig(queued_min_messages=2))
        world.write(T0, 5)
        fetcher.assign(BOTH)
        await asyncio.sleep(5)
        ends = fetcher.log_ends()
        assert (ends[T0].fetched, ends[T0].held_back, ends[T1].held_back) == (5, True, False)
        taken = fetcher.take(1 << 20)
        assert len(taken) == 1
        assert not fetcher.log_ends()[T0].held_back
        await asyncio.sleep(60)
        assert all(end.held_back for end in fetcher.log_ends().values()), "nobody uses the fetcher"
        await fetcher.close()

    play(test, brokers=1)


def test_a_partition_without_a_leader_has_no_broker() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign({TopicPartition("missing", 0): FetchStart(1, 0)})
        await asyncio.sleep(5)
        (end,) = reader.fetcher.log_ends().values()
        assert (end.broker, end.end) == (None, None)
        await reader.fetcher.close()

    play(test, brokers=1)
