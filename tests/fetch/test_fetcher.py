"""The fetcher against the embedded broker, in virtual time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from consumer_coord.broker.config import RACK_AWARE_SELECTOR
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.errors import AuthenticationError, AuthorizationError, ClosedError, ConfigurationError
from consumer_coord.fetch import FetchConfig, FetchedRecords, Fetcher, FetchStart, StopReason
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.net.connection import LARGE_FRAME_BYTES
from consumer_coord.retry import Deadline
from consumer_coord.simulation.brokers import AgedApis
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import FetchRequest, FetchResponse, PartitionData
from tests.support.fetch.world import FETCH, Reader, RefusedFetches, World, play
from tests.support.waiting import eventually_async

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: Versions of Fetch: the first; the last without and the first with sessions; followers; truncation; ids; the newest.
VERSIONS = (4, 6, 7, 11, 12, 13, 18)


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function ``newest(version)`` that limits the brokers to this version of Fetch."""

    def limit(version: int) -> None:
        monkeypatch.setitem(SERVED, FETCH, attrs.evolve(SERVED[FETCH], max_version=version))

    return limit


def from_start(*partitions: TopicPartition, serial: int = 1) -> dict[TopicPartition, FetchStart]:
    """Return assignments of these partitions from their first record."""
    return {partition: FetchStart(serial, 0) for partition in partitions}


def edited_row(edit: Callable[[PartitionData], PartitionData]) -> Callable[[FetchResponse], FetchResponse]:
    """Return an edit of every row of a response."""

    def apply(response: FetchResponse) -> FetchResponse:
        topics = [attrs.evolve(topic, partitions=tuple(map(edit, topic.partitions))) for topic in response.responses]
        return attrs.evolve(response, responses=tuple(topics))

    return apply


# -- reading


@pytest.mark.parametrize("version", VERSIONS)
def test_every_record_comes_once_and_in_order(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        partitions = [TopicPartition("t", number) for number in range(7)]
        expected = {one: world.write(one, 3) + world.write(one, 2) for one in partitions}
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(*partitions))
        await reader.read_to(dict.fromkeys(partitions, 5))
        for one in partitions:
            expected[one] += world.write(one)
        await reader.read_to(dict.fromkeys(partitions, 6))
        assert reader.records == expected
        assert {request.version for request in world.fetches()} == {version}
        await reader.fetcher.close()

    play(test, topics={"t": 7})


def test_a_batch_may_begin_before_the_start() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0, 5)
        reader = Reader(Fetcher(world.client()))
        reader.assign({T0: FetchStart(1, 3)})
        await reader.read_to({T0: 5})
        assert reader.records[T0] == expected[3:]
        await reader.fetcher.close()

    play(test)


@pytest.mark.parametrize("version", [4, 11, 18])
def test_read_committed_leaves_out_what_was_aborted(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        plain = world.write(T0, 2)
        world.write(T0, 2, producer_id=7)
        committed = world.write(T0, 2, producer_id=8)
        world.write(T0, 1, producer_id=9)
        world.end_transaction(T0, 9, committed=False)
        world.end_transaction(T0, 7, committed=False)
        world.end_transaction(T0, 8, committed=True)
        again = world.write(T0, 1, producer_id=7)
        world.end_transaction(T0, 7, committed=True)
        end = world.partition(T0).log.end_offset
        open_one = world.write(T0, 1, producer_id=7)
        reader = Reader(Fetcher(world.client(), FetchConfig(read_committed=True)), read_committed=True)
        reader.assign(from_start(T0))
        await reader.read_to({T0: end})
        assert reader.records[T0] == plain + committed + again
        world.end_transaction(T0, 7, committed=True)
        await reader.read_to({T0: end + 2})
        assert reader.records[T0] == plain + committed + again + open_one
        await reader.fetcher.close()

    play(test)


@pytest.mark.parametrize("without", ["producer_id", "first_offset"])
def test_an_aborted_transaction_without_its_numbers_is_asked_for_again(without: str) -> None:
    async def test(world: World) -> None:
        plain = world.write(T0, 2)
        world.write(T0, 2, producer_id=7)
        world.end_transaction(T0, 7, committed=False)
        again = world.write(T0, 1)
        end = world.partition(T0).log.end_offset

        def edit(row: PartitionData) -> PartitionData:
            aborted = [attrs.evolve(one, **{without: -1}) for one in row.aborted_transactions or ()]
            return attrs.evolve(row, aborted_transactions=tuple(aborted))

        world.servers[0].edit = edited_row(edit)
        reader = Reader(Fetcher(world.client(), FetchConfig(read_committed=True)), read_committed=True)
        reader.assign(from_start(T0))
        assert not await reader.fetcher.wait(Deadline.after(5_000))
        assert len(world.servers[0].requests) < 30, "the requests respect the back-off"
        world.servers[0].edit = None
        await reader.read_to({T0: end})
        assert reader.records[T0] == plain + again
        await reader.fetcher.close()

    play(test)


def test_a_marker_before_the_start_ends_its_aborted_transaction() -> None:
    async def test(world: World) -> None:
        world.write(T0, 2, producer_id=7)
        world.end_transaction(T0, 7, committed=False)
        start = world.partition(T0).log.end_offset
        committed = world.write(T0, 1, producer_id=7)
        world.end_transaction(T0, 7, committed=True)
        end = world.partition(T0).log.end_offset
        rows: list[PartitionData] = []

        def the_first_one_again(row: PartitionData) -> PartitionData:
            rows.append(row)
            return attrs.evolve(row, records=rows[0].records, aborted_transactions=rows[0].aborted_transactions)

        world.servers[0].edit = edited_row(the_first_one_again)
        reader = Reader(Fetcher(world.client(), FetchConfig(read_committed=True)), read_committed=True)
        for serial, offset in ((1, 0), (2, start)):
            reader.assign({T0: FetchStart(serial, offset)})
            await reader.read_to({T0: end})
            assert reader.records[T0] == committed
            reader.records.clear()
        assert rows[0].aborted_transactions
        await reader.fetcher.close()

    play(test)


def test_the_next_fetch_leaves_before_the_last_one_is_decoded() -> None:
    async def test(world: World) -> None:
        for _ in range(4):
            world.write(T0, 1, value=b"v" * 400)
        fetcher = Fetcher(world.client(), FetchConfig(max_partition_fetch_bytes=1_000))
        fetcher.assign(from_start(T0))
        assert await fetcher.wait(Deadline.after(10_000))
        (first,) = fetcher.take(1)
        await asyncio.sleep(1)
        (second,) = fetcher.take(1)
        assert (first.offset, second.offset) == (0, 2)
        await fetcher.close()

    play(test)


def test_a_second_reading_carries_its_serial_and_nothing_of_the_first_one() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0, 2) + world.write(T0, 2)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        assert await reader.fetcher.wait(Deadline.after(10_000))
        reader.assign({T0: FetchStart(2, 2)})
        await reader.read_to({T0: 4})
        assert reader.records[T0] == expected[2:]
        assert reader.fetcher.assignment == {T0: 2}
        reader.fetcher.unassign([T0])
        world.write(T0)
        assert not await reader.fetcher.wait(Deadline.after(10_000))
        await reader.fetcher.close()

    play(test)


def test_a_new_partition_does_not_wait_for_a_fetch_of_idle_ones() -> None:
    async def test(world: World) -> None:
        world.write(T1)
        reader = Reader(Fetcher(world.client(), FetchConfig(fetch_wait_max_ms=60_000)))
        reader.assign(from_start(T0))
        await asyncio.sleep(10)
        begun = asyncio.get_running_loop().time()
        reader.assign(from_start(T1))
        await reader.read_to({T1: 1})
        assert asyncio.get_running_loop().time() - begun < 1
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_reading_that_begins_again_at_the_end_of_an_idle_log_waits_as_any_other() -> None:
    """The session has no change, so the broker's response does not name the partition, and its high watermark is unknown."""

    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        while not world.fetches():
            await asyncio.sleep(0.0001)
        # The pending response belongs to the first assignment.
        reader.assign(from_start(T0, serial=2))
        await asyncio.sleep(10)
        assert len(world.fetches()) < 30
        expected = world.write(T0)
        await reader.read_to({T0: 1})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_broker_has_one_connection_for_fetches_and_one_fetch_at_a_time() -> None:
    async def test(world: World) -> None:
        partitions = [TopicPartition("t", number) for number in range(12)]
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(*partitions))
        for _ in range(20):
            for one in partitions:
                world.write(one)
            await asyncio.sleep(0.3)
            reader.take()
        assert [server.most_at_once for server in world.servers] == [1, 1, 1]
        # One more connection for metadata, to any broker.
        fetching = [server for server in world.servers if server.requests]
        assert world.network.connections <= len(fetching) + 1
        await reader.fetcher.close()

    play(test, topics={"t": 12})


# -- sessions


def test_an_idle_session_names_no_partition() -> None:
    async def test(world: World) -> None:
        world.write(T0)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        await reader.read_to({T0: 1})
        await asyncio.sleep(3)
        idle: Any = world.fetches()[-1].message
        assert isinstance(idle, FetchRequest)
        assert idle.session_epoch > 1
        assert (idle.topics, idle.forgotten_topics_data) == ((), ())
        reader.fetcher.unassign([T1])
        await asyncio.sleep(3)
        changes = [request.message for request in world.fetches() if getattr(request.message, "forgotten_topics_data", ())]
        assert [row.partitions for message in changes for row in message.forgotten_topics_data] == [(1,)]  # type: ignore[attr-defined]
        await reader.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize("slots", [0, 1])
def test_reading_continues_without_a_session(slots: int) -> None:
    """Two clients compete for one place in the session cache."""

    async def test(world: World) -> None:
        readers = [Reader(Fetcher(world.client())) for _ in range(2)]
        for reader in readers:
            reader.assign(from_start(T0, T1))
        expected = []
        for round_ in range(5):
            expected += world.write(T0, 2)
            for reader in readers:
                await reader.read_to({T0: round_ * 2 + 2})
            await asyncio.sleep(130)
        for reader in readers:
            assert reader.records[T0] == expected
            await reader.fetcher.close()

    play(test, brokers=1, config={"max.incremental.fetch.session.cache.slots": slots})


@pytest.mark.parametrize(
    "code", [codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH, codes.UNKNOWN_SERVER_ERROR]
)
def test_a_broker_that_refuses_every_session_is_not_asked_without_pause(code: int) -> None:
    async def test(world: World) -> None:
        expected = world.write(T0)
        server = world.servers[0]
        server.edit = lambda response: FetchResponse(error_code=code)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await asyncio.sleep(30)
        assert 20 < len(server.requests) < 60
        server.edit = None
        await reader.read_to({T0: 1})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test, brokers=1)


def test_closing_ends_the_session_where_a_connection_is_open() -> None:
    async def test(world: World) -> None:
        world.write(T0)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 1})
        assert len(world.cluster.nodes[0].fetch_sessions) == 1
        await reader.fetcher.close()
        assert len(world.cluster.nodes[0].fetch_sessions) == 0
        await reader.fetcher.close()
        with pytest.raises(ClosedError):
            reader.fetcher.take(1)

    play(test, brokers=1)


# -- leaders


@pytest.mark.parametrize("version", VERSIONS)
def test_reading_follows_the_leader(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        expected = []
        for leader in (1, 2, 0, 1):
            expected += world.write(T0, 2)
            world.cluster.move_leader("t", 0, leader)
            expected += world.write(T0, 1)
            await reader.read_to({T0: len(expected)})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test)


def test_the_response_names_the_new_leader() -> None:
    """No metadata is available."""

    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        world.write(T0)
        reader.assign(from_start(T0))
        await reader.read_to({T0: 1})
        world.cluster.faults.add_hook(
            lambda broker, request: Fault(error_code=codes.KAFKA_STORAGE_ERROR) if request.api_key == 3 else None
        )
        world.cluster.move_leader("t", 0, 2)
        world.write(T0)
        await reader.read_to({T0: 2})
        assert world.servers[2].requests
        await reader.fetcher.close()

    play(test)


def test_a_broker_that_stops_and_comes_back() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        expected = {T0: world.write(T0), T1: world.write(T1)}
        await reader.read_to({T0: 1, T1: 1})
        for broker in range(3):
            world.cluster.stop(broker)
            world.network.disconnect(world.cluster.nodes[broker].host)
            for one in (T0, T1):
                expected[one] += world.write(one)
            await reader.read_to({T0: broker + 2, T1: broker + 2})
            world.cluster.start(broker)
        assert reader.records == expected
        await reader.fetcher.close()

    play(test)


def test_a_topic_without_a_leader_is_read_when_it_has_one() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0)
        for broker in (0, 1, 2):
            world.cluster.stop(broker)
        world.cluster.start(2)
        replicas = world.partition(T0)
        replicas.leader = -1
        world.cluster.topics.version += 1
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await asyncio.sleep(5)
        assert reader.take() == 0
        world.cluster.move_leader("t", 0, 2)
        await reader.read_to({T0: 1})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test)


def test_a_topic_that_comes_later_is_read() -> None:
    async def test(world: World) -> None:
        later = TopicPartition("later", 0)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(later))
        await asyncio.sleep(5)
        world.cluster.create_topic("later", 1)
        expected = world.write(later)
        await reader.read_to({later: 1})
        assert reader.records[later] == expected
        await reader.fetcher.close()

    play(test)


# -- the nearest replica


RACKS = {"brokers": 2, "racks": ["a", "b"], "config": {"replica.selector.class": RACK_AWARE_SELECTOR}}


def test_the_replica_in_the_clients_rack_is_asked_until_its_turn_is_over() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0)
        reader = Reader(Fetcher(world.client(metadata_max_age_ms=60_000), FetchConfig(client_rack="b")))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 1})
        leader, near = world.servers
        assert [len(server.requests) > 0 for server in (leader, near)] == [True, True]
        asked = len(leader.requests)
        await reader.fetcher.wait(Deadline.after(50_000))
        assert len(leader.requests) == asked, "the leader gets no request in between"
        await reader.fetcher.wait(Deadline.after(50_000))
        assert asked < len(leader.requests) < asked + 4
        expected += world.write(T0)
        await reader.read_to({T0: 2})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test, **RACKS)


def test_a_replica_that_is_gone_or_behind_sends_the_client_back_to_the_leader() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0)
        reader = Reader(Fetcher(world.client(), FetchConfig(client_rack="b")))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 1})
        world.servers[1].edit = edited_row(lambda row: attrs.evolve(row, error_code=codes.OFFSET_OUT_OF_RANGE, records=b""))
        expected += world.write(T0)
        await asyncio.sleep(10)
        world.servers[1].edit = None
        await reader.read_to({T0: 2})
        world.cluster.stop(1)
        world.network.disconnect(world.cluster.nodes[1].host)
        expected += world.write(T0)
        await reader.read_to({T0: 3})
        assert (reader.records[T0], reader.stopped) == (expected, [])
        await reader.fetcher.close()

    play(test, **RACKS)


def test_the_leader_is_asked_for_epochs_while_an_older_replica_is_read() -> None:
    """A follower refuses OffsetForLeaderEpoch; a broker below Fetch version 12 does not report a truncation."""

    async def test(world: World) -> None:
        near = world.servers[1]
        near.apis = AgedApis(near.apis, lambda: 11)
        expected = world.write(T0)
        reader = Reader(Fetcher(world.client(), FetchConfig(client_rack="b")))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 1})
        await asyncio.sleep(10)
        assert 10 < len(near.requests) <= len(world.fetches()) < 50
        expected += world.write(T0)
        await reader.read_to({T0: 2})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test, **RACKS)


def test_an_unknown_replica_is_looked_up_with_pauses() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0)
        leader = world.servers[0]
        leader.edit = edited_row(lambda row: attrs.evolve(row, preferred_read_replica=77, records=b""))
        reader = Reader(Fetcher(world.client(), FetchConfig(client_rack="z")))
        reader.assign(from_start(T0))
        await asyncio.sleep(10)
        assert 10 < len(leader.requests) < 150
        leader.edit = None
        await reader.read_to({T0: 1})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test, brokers=1)


# -- what ends a reading


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_that_was_cut_behind_the_position(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        expected = world.write(T0, 2) + world.write(T0, 2)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 4})
        world.cluster.move_leader("t", 0, 1, end_offset=2)
        world.write(T0, 5)
        await reader.until(lambda: bool(reader.stopped))
        (stopped,) = reader.stopped
        assert (stopped.partition, stopped.serial, stopped.reason) == (T0, 1, StopReason.TRUNCATED)
        assert (stopped.offset, stopped.end_offset, stopped.end_epoch) == (4, 2, 0)
        assert "truncation" in str(stopped.error)
        assert reader.records[T0] == expected
        reader.assign({T0: FetchStart(2, 2, 0)})
        await reader.read_to({T0: 7})
        assert [offset for offset, _ in reader.records[T0]] == [0, 1, 2, 3, 2, 3, 4, 5, 6]
        await reader.fetcher.close()

    play(test)


@pytest.mark.parametrize("version", [11, 18])
def test_a_start_whose_epoch_is_gone(newest: Callable[[int], None], version: int) -> None:
    """A committed offset may have such an epoch."""
    newest(version)

    async def test(world: World) -> None:
        world.write(T0, 2)
        world.write(T0, 2)
        world.cluster.move_leader("t", 0, 1, end_offset=2)
        world.write(T0, 5)
        reader = Reader(Fetcher(world.client()))
        reader.assign({T0: FetchStart(1, 4, 0)})
        await reader.until(lambda: bool(reader.stopped))
        assert (reader.stopped[0].reason, reader.stopped[0].end_offset) == (StopReason.TRUNCATED, 2)
        assert reader.records == {}
        await reader.fetcher.close()

    play(test)


@pytest.mark.parametrize("version", [11, 12, 18])
def test_a_start_whose_epoch_the_log_does_not_know_is_read(newest: Callable[[int], None], version: int) -> None:
    """Offsets that were copied from another cluster have that cluster's epochs, which proves no loss."""
    newest(version)

    async def test(world: World) -> None:
        expected = world.write(T0, 9)
        reader = Reader(Fetcher(world.client()))
        reader.assign({T0: FetchStart(1, 4, 5)})
        await reader.read_to({T0: 9})
        assert reader.records[T0] == expected[4:]
        reader.assign({T0: FetchStart(2, 40, 5)})
        await reader.until(lambda: bool(reader.stopped))
        assert reader.stopped[0].reason is StopReason.OUT_OF_RANGE
        await reader.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize("version", [4, 18])
def test_an_offset_outside_the_log(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        for _ in range(3):
            world.write(T0)
        world.partition(T0).log.delete_before(2)
        reader = Reader(Fetcher(world.client()))
        reader.assign({T0: FetchStart(1, 0), T1: FetchStart(1, 9)})
        await reader.until(lambda: len(reader.stopped) == 2)
        assert {one.partition: (one.reason, one.offset) for one in reader.stopped} == {
            T0: (StopReason.OUT_OF_RANGE, 0),
            T1: (StopReason.OUT_OF_RANGE, 9),
        }
        assert "OFFSET_OUT_OF_RANGE" in str(reader.stopped[0].error)
        sent = len(world.fetches())
        await asyncio.sleep(10)
        assert len(world.fetches()) == sent, "a partition that has stopped is not fetched"
        reader.assign({T0: FetchStart(2, 2)})
        await reader.read_to({T0: 3})
        await reader.fetcher.close()

    play(test)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_was_created_again(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        expected = world.write(T0, 3)
        old = world.cluster.topics.by_name["t"].topic_id
        reader = Reader(Fetcher(world.client(metadata_max_age_ms=1_000)))
        reader.assign({T0: FetchStart(1, 0, topic_id=old)})
        await reader.read_to({T0: 3})
        world.cluster.delete_topic("t")
        await asyncio.sleep(5)
        world.cluster.create_topic("t", 2)
        await reader.until(lambda: bool(reader.stopped))
        assert (reader.stopped[0].reason, reader.stopped[0].offset) == (StopReason.RECREATED, 3)
        assert reader.records[T0] == expected
        world.write(T0, 2)
        reader.assign(from_start(T0, serial=2))
        await reader.read_to({T0: 2})
        assert len(reader.stopped) == 1
        await reader.fetcher.close()

    play(test)


def test_the_records_before_the_end_of_a_reading_come_first() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0, 3)
        reader = Reader(Fetcher(world.client()))
        reader.assign({T0: FetchStart(1, 0, topic_id=world.cluster.topics.by_name["t"].topic_id)})
        assert await reader.fetcher.wait(Deadline.after(10_000))
        world.cluster.delete_topic("t")
        world.cluster.create_topic("t", 2)
        await asyncio.sleep(60)
        assert reader.take() == 2
        assert (reader.records[T0], reader.stopped[0].reason) == (expected, StopReason.RECREATED)
        await reader.fetcher.close()

    play(test)


def test_a_start_with_the_id_of_another_topic() -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        reader.assign({T0: FetchStart(1, 0, topic_id=uuid.UUID(int=5))})
        await reader.until(lambda: bool(reader.stopped))
        assert reader.stopped[0].reason is StopReason.RECREATED
        await reader.fetcher.close()

    play(test)


def test_a_topic_that_may_not_be_read() -> None:
    async def test(world: World) -> None:
        world.servers[0].edit = edited_row(
            lambda row: attrs.evolve(row, error_code=codes.TOPIC_AUTHORIZATION_FAILED, records=b"")
        )
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await reader.until(lambda: bool(reader.stopped))
        assert isinstance(reader.stopped[0].error, AuthorizationError)
        assert "READ on the topic" in str(reader.stopped[0].error)
        await reader.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda data: data[:16] + b"\3" + data[17:], "unknown record format 3"),
        (
            lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
            "is invalid: its header states",
        ),
        (lambda data: data[:40], "no complete record batch"),
        (lambda data: data + data, "has the wrong offsets 0 to 1"),
        (lambda data: b"\xff" + data[1:], "is invalid: its header states"),
    ],
)
def test_an_unreadable_batch_ends_the_reading_with_its_position(edit: Callable[[bytes], bytes], words: str) -> None:
    async def test(world: World) -> None:
        world.write(T0, 2)
        expected = world.write(T1)
        world.servers[0].edit = edited_row(
            lambda row: attrs.evolve(row, records=edit(row.records)) if row.partition_index == 0 and row.records else row
        )
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        await reader.until(lambda: bool(reader.stopped) and T1 in reader.records)
        (stopped,) = reader.stopped
        assert stopped.reason is StopReason.UNREADABLE
        assert words in str(stopped.error)
        assert str(stopped.error).startswith("t-0: ")
        assert reader.records == {T1: expected}
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_response_about_a_partition_that_was_not_asked_for_is_not_used() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0)
        world.servers[0].edit = edited_row(lambda row: attrs.evolve(row, partition_index=77))
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await asyncio.sleep(10)
        assert reader.take() == 0
        world.servers[0].edit = None
        await reader.read_to({T0: 1})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test, brokers=1)


def lacking(partition: TopicPartition) -> Callable[[FetchResponse], FetchResponse]:
    """Return an edit that omits a partition's row."""

    def apply(response: FetchResponse) -> FetchResponse:
        topics = [
            attrs.evolve(topic, partitions=[row for row in topic.partitions if row.partition_index != partition.partition])
            for topic in response.responses
        ]
        return attrs.evolve(response, responses=tuple(topics))

    return apply


def doubled(response: FetchResponse) -> FetchResponse:
    """Add a row for a partition that was not asked for."""
    topics = [
        attrs.evolve(topic, partitions=[*topic.partitions, attrs.evolve(topic.partitions[0], partition_index=77)])
        for topic in response.responses
    ]
    return attrs.evolve(response, responses=tuple(topics))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_that_is_missing_costs_its_own_partition_only(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        expected = {one: world.write(one) for one in (T0, T1)}
        server = world.servers[0]
        server.edit = lacking(T1)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        await reader.read_to({T0: 1})
        began = len(server.requests)
        await asyncio.sleep(20)
        assert len(server.requests) - began < 100, "each repeated request waits for the back-off, or for new records"
        assert T1 not in reader.records
        server.edit = None
        await reader.read_to({T0: 1, T1: 1})
        assert reader.records == expected
        await reader.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_too_many_costs_nothing(newest: Callable[[int], None], version: int) -> None:
    newest(version)

    async def test(world: World) -> None:
        expected = {one: world.write(one) for one in (T0, T1)}
        world.servers[0].edit = doubled
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        await reader.read_to({T0: 1, T1: 1})
        assert reader.records == expected
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_throttled_client_waits() -> None:
    async def test(world: World) -> None:
        world.write(T0)
        world.servers[0].edit = lambda response: attrs.evolve(response, throttle_time_ms=10_000)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 1})
        sent = len(world.servers[0].requests)
        await asyncio.sleep(9)
        assert len(world.servers[0].requests) == sent
        await asyncio.sleep(2)
        assert len(world.servers[0].requests) == sent + 1
        await reader.fetcher.close()

    play(test, brokers=1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", [True, False], ids=["first", "in-session"])
def test_a_throttled_response_without_rows_is_no_wrong_response(
    newest: Callable[[int], None], version: int, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-219: a broker that throttles answers a Fetch that names all partitions without rows and without a session."""
    newest(version)

    async def test(world: World) -> None:
        server, reader = world.servers[0], Reader(Fetcher(world.client()))
        expected: list[Any] = []
        requests: list[str] = []
        world.network.on_request = lambda client, frame: requests.append(client)

        def throttled(response: FetchResponse) -> FetchResponse:
            return attrs.evolve(response, throttle_time_ms=5_000, responses=(), session_id=response.session_id * (not first))

        if not first:
            expected += world.write(T0)
            reader.assign(from_start(T0, T1))
            await reader.read_to({T0: 1})
        server.edit = throttled
        if first:
            reader.assign(from_start(T0, T1))
        await asyncio.sleep(1)
        sent, server.edit = len(server.requests), None
        requests.clear()
        expected += world.write(T0)
        await asyncio.sleep(3)
        assert (len(server.requests), requests) == (sent, [])
        await asyncio.sleep(2.5)
        reader.take()
        assert reader.records[T0] == expected
        assert not [one for one in caplog.records if one.levelname == "WARNING"]
        await reader.fetcher.close()

    play(test, brokers=1)


# -- the buffer


def test_a_paused_partition_is_not_fetched_and_loses_nothing() -> None:
    async def test(world: World) -> None:
        expected = {one: world.write(one, 2) + world.write(one, 2) for one in (T0, T1)}
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0, T1))
        assert await reader.fetcher.wait(Deadline.after(10_000))
        reader.fetcher.pause([T0])
        await reader.read_to({T1: 4})
        expected[T1] += world.write(T1)
        await reader.read_to({T1: 5})
        assert reader.records == {T1: expected[T1]}
        reader.fetcher.resume([T0])
        await reader.read_to({T0: 4})
        assert reader.records == expected
        await reader.fetcher.close()

    play(test, brokers=1)


def test_a_pause_takes_back_the_end_of_a_reading_too() -> None:
    async def test(world: World) -> None:
        world.write(T0, 2)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        assert await reader.fetcher.wait(Deadline.after(10_000))
        world.cluster.move_leader("t", 0, 0, end_offset=0)
        await asyncio.sleep(10)
        reader.fetcher.pause([T0])
        assert reader.take() == 0
        reader.fetcher.resume([T0])
        expected = world.write(T0, 1)
        await reader.read_to({T0: 1})
        assert (reader.records[T0], reader.stopped) == (expected, [])
        await reader.fetcher.close()

    play(test, brokers=1)


def test_the_buffer_is_bounded_until_the_caller_advances() -> None:
    async def test(world: World) -> None:
        partitions = [TopicPartition("t", number) for number in range(8)]
        for one in partitions:
            for _ in range(50):
                world.write(one, 1, value=b"v" * 1_000)
        limit = 40_000
        config = FetchConfig(queued_max_bytes=limit, max_partition_fetch_bytes=8_000)
        fetcher = Fetcher(world.client(), config)
        fetcher.assign(from_start(*partitions))
        positions = dict.fromkeys(partitions, 0)
        waiting: list[Any] = []
        while any(offset < 50 for offset in positions.values()):
            await asyncio.sleep(1)
            waiting += fetcher.take(10_000)
            held = sum(len(one.records) for one in waiting)
            assert held <= limit
            done = waiting.pop(0)
            assert done.offset == positions[done.partition]
            positions[done.partition] = done.next_offset
            fetcher.advance(done.partition, 1, done.next_offset)
        await fetcher.close()

    play(test, brokers=2, topics={"t": 8})


@pytest.mark.parametrize("early", [False, True])
def test_what_a_caller_has_advanced_past_makes_room_without_a_further_call(early: bool) -> None:
    async def test(world: World) -> None:
        for _ in range(50):
            world.write(T0, 1, value=b"v" * 1_000)
        arrived: list[None] = []
        config = FetchConfig(queued_max_bytes=16_000, max_partition_fetch_bytes=4_000)
        fetcher = Fetcher(world.client(), config, on_ready=lambda: arrived.append(None))
        fetcher.assign(from_start(T0))
        await eventually_async(lambda: fetcher.ready)
        first, *rest = fetcher.take(1)
        assert isinstance(first, FetchedRecords)
        assert not rest
        if early:
            # Nobody waits for these bytes yet; the Fetch that does so notices them.
            fetcher.advance(T0, 1, first.next_offset)
        await asyncio.sleep(5)
        before = len(arrived)
        assert fetcher.log_ends()[T0].held_back, "half of the buffer is in use"
        taken = [one for one in fetcher.take(1 << 20) if isinstance(one, FetchedRecords)]
        await asyncio.sleep(5)
        assert len(arrived) == before, "taking alone frees nothing"
        fetcher.advance(T0, 1, taken[-1].next_offset)
        await eventually_async(lambda: len(arrived) > before)
        await fetcher.close()

    play(test)


@pytest.mark.parametrize(
    ("config", "largest"), [(FetchConfig(), 4 << 20), (FetchConfig(max_partition_fetch_bytes=2 << 20), 2 << 20)]
)
def test_of_a_partition_that_is_far_behind_more_bytes_are_asked_for(config: FetchConfig, largest: int) -> None:
    async def test(world: World) -> None:
        for _ in range(60):
            world.write(T0, 1, value=b"v" * 250_000)
        reader = Reader(Fetcher(world.client(), config))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 60})
        asked = [_asked_bytes(one.message) for one in world.fetches()]
        first, *_ = sizes = [one for one in asked if one]
        assert first == config.max_partition_fetch_bytes
        assert max(sizes) == largest
        world.write(T0, 1)
        await reader.read_to({T0: 61})
        await asyncio.sleep(1)
        *_, last = [size for one in world.fetches() if (size := _asked_bytes(one.message))]
        assert last == first, "it is at its end"
        await reader.fetcher.close()

    play(test, brokers=1)


def _asked_bytes(request: Any) -> int:
    """Return the limit of the only partition that a Fetch names; 0 if it names none."""
    return next((row.partition_max_bytes for topic in request.topics for row in topic.partitions), 0)


def test_batches_larger_than_asked_for_are_not_fetched_in_parts() -> None:
    async def test(world: World) -> None:
        for _ in range(20):
            world.write(T0, 1, value=b"v" * 1_500_000)
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 20})
        assert {_asked_bytes(one.message) for one in world.fetches()} <= {0, 1 << 20}
        await reader.fetcher.close()

    play(test, brokers=1)


def test_the_records_of_a_response_are_announced_once() -> None:
    async def test(world: World) -> None:
        partitions = [TopicPartition("t", number) for number in range(8)]
        for one in partitions:
            world.write(one, 3)
        arrived: list[None] = []
        fetcher = Fetcher(world.client(), on_ready=lambda: arrived.append(None))
        fetcher.assign(from_start(*partitions))
        taken: set[TopicPartition] = set()
        while len(taken) < 8:
            assert await fetcher.wait(Deadline.after(60_000))
            taken |= {one.partition for one in fetcher.take(1 << 20)}
        assert len(arrived) <= 2, "the first partition may have had a request of its own"
        await fetcher.close()

    play(test, brokers=1, topics={"t": 8})


def test_a_batch_larger_than_every_limit_is_fetched() -> None:
    async def test(world: World) -> None:
        expected = world.write(T0, 1, value=b"v" * 50_000) + world.write(T0, 1, value=b"v" * 50_000)
        limits = FetchConfig(queued_max_bytes=100, max_partition_fetch_bytes=100, fetch_max_bytes=100)
        reader = Reader(Fetcher(world.client(), limits))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 2})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test)


def test_a_long_response_is_decoded_without_a_thread() -> None:
    """The simulated world has no threads; see ``no_thread``."""

    async def test(world: World) -> None:
        expected = world.write(T0, 5, value=b"v" * 100_000)
        assert sum(len(value) for _, value in expected) > LARGE_FRAME_BYTES
        reader = Reader(Fetcher(world.client()))
        reader.assign(from_start(T0))
        await reader.read_to({T0: 5})
        assert reader.records[T0] == expected
        await reader.fetcher.close()

    play(test)


def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"max\.partition\.fetch\.bytes must be between 1 and 2147483647, not 0"):
        FetchConfig(max_partition_fetch_bytes=0)


# -- what no retry cures


def test_refused_credentials_are_raised_by_take_until_they_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = world.client()
        fetcher = Fetcher(client)
        world.write(T0)
        refusal = RefusedFetches.by(client, monkeypatch)
        fetcher.assign(from_start(T0))
        for _ in range(2):
            assert await fetcher.wait(Deadline.after(10_000))
            with pytest.raises(AuthenticationError, match="wrong password"):
                fetcher.take(1)
        assert await fetcher.wait(Deadline.after(10_000))
        refusal.right = True
        with pytest.raises(AuthenticationError, match="wrong password"):
            fetcher.take(1)
        assert await fetcher.wait(Deadline.after(10_000))
        assert [item.partition for item in fetcher.take(1)] == [T0]
        await fetcher.close()

    play(test)


async def refused_fetcher(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Fetcher, RefusedFetches]:
    """Return a fetcher whose broker has refused its first Fetch, and what counts the refusals."""
    client = world.client()
    fetcher = Fetcher(client)
    refusal = RefusedFetches.by(client, monkeypatch)
    fetcher.assign(from_start(T0))
    assert await fetcher.wait(Deadline.after(10_000))
    return fetcher, refusal


def test_an_error_that_was_not_raised_yet_is_forgotten_when_the_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        fetcher, refusal = await refused_fetcher(world, monkeypatch)
        await asyncio.sleep(10)
        assert 5 < refusal.refused < 50, "asked again, with back-off"
        refusal.right = True
        await asyncio.sleep(10)
        assert not fetcher.ready
        assert (fetcher.failure(), fetcher.take(1)) == (None, [])
        await fetcher.close()

    play(test)


def test_the_error_of_a_broker_is_forgotten_with_its_last_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        fetcher, refusal = await refused_fetcher(world, monkeypatch)
        assert isinstance(fetcher.failure(), AuthenticationError)
        fetcher.unassign([T0])
        assert (fetcher.failure(), fetcher.take(1)) == (None, [])
        asked = refusal.refused
        await asyncio.sleep(10)
        assert refusal.refused <= asked + 1, "nobody wants anything"
        await fetcher.close()

    play(test)


def test_a_bug_in_a_brokers_task_is_raised_by_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: BrokerFetches, *arguments: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(BrokerFetches, "_fetch", broken)

    async def test(world: World) -> None:
        fetcher = Fetcher(world.client())
        fetcher.assign(from_start(T0))
        assert await fetcher.wait(Deadline.after(10_000))
        with pytest.raises(Exception, match="please report this") as caught:
            fetcher.take(1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        await fetcher.close()

    play(test)
