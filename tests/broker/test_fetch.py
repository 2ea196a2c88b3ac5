"""Fetch as the embedded broker serves it: sessions, topic ids, epochs, leaders, transactions, replicas; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import attrs
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import RACK_AWARE_SELECTOR, BrokerConfig
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.errors import ConfigurationError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.log import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.support.broker.record_batches import read_headers
from tests.support.consumer.embedded import change_log

NEWEST = 18
BY_NAME = 12
UNKNOWN_ID = uuid.UUID(int=7)


@attrs.define
class Client:
    """Sends Fetch requests to one broker of a cluster."""

    cluster: BrokerCluster
    broker: int = 0
    version: int = NEWEST

    async def fetch(
        self,
        offsets: Mapping[int, int],
        *,
        session: tuple[int, int] = (0, -1),
        forgotten: Sequence[int] = (),
        topic: str = "orders",
        topic_id: uuid.UUID | None = None,
        wait_ms: int = 0,
        committed: bool = False,
        rack: str = "",
        max_bytes: int = 1_000_000,
        epochs: tuple[int, int] = (-1, -1),
    ) -> FetchResponse:
        """Fetch partitions from offsets; ``session`` is (id, epoch), ``epochs`` (current leader's, last fetched)."""
        known = topic_id or (self.cluster.topics.by_name[topic].topic_id if self.version > BY_NAME else UNKNOWN_ID)
        rows = [
            FetchPartition(
                partition=partition,
                fetch_offset=offset,
                current_leader_epoch=epochs[0],
                last_fetched_epoch=epochs[1],
                partition_max_bytes=max_bytes,
            )
            for partition, offset in offsets.items()
        ]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            isolation_level=int(committed),
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic(topic=topic, topic_id=known, partitions=rows)] if rows else [],
            forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=known, partitions=forgotten)] if forgotten else [],
            rack_id=rack,
        )
        apis = KafkaApis(self.cluster.nodes[self.broker])
        answer = await apis.handle(encode_request(request, self.version, 1, "client"), ClientConnection())
        assert answer is not None
        return decode_response(FetchResponse, self.version, answer)[1]


def rows_of(response: FetchResponse) -> dict[int, PartitionData]:
    """The rows of a response that is about one topic."""
    assert response.error_code == 0
    return {row.partition_index: row for topic in response.responses for row in topic.partitions}


def play(
    test: Callable[[BrokerCluster], Awaitable[None]],
    *,
    brokers: int = 1,
    partitions: int = 2,
    racks: Sequence[str | None] = (),
    config: Mapping[str, object] | None = None,
) -> None:
    """Run a test with a cluster in virtual time."""

    async def main() -> None:
        settings = BrokerConfig.from_mapping({"offsets.topic.num.partitions": 1, **(config or {})})
        cluster = BrokerCluster(
            settings, {"orders": partitions}, brokers, random=Random(1), wall_clock_ms=lambda: 1_000, racks=racks
        )
        cluster.start_all()
        await test(cluster)
        cluster.close()

    virtual.run(main(), strict=True)


def log_of(cluster: BrokerCluster, partition: int = 0, topic: str = "orders") -> PartitionLog:
    """The log of a partition."""
    found = cluster.topics.partition(topic, partition)
    assert found is not None
    return found.log


def write(cluster: BrokerCluster, count: int = 1, *, partition: int = 0, producer_id: int = -1) -> None:
    """Append a batch of ``count`` records in the present leader epoch; with a producer id it is transactional."""
    found = cluster.topics.partition("orders", partition)
    assert found is not None
    found.log.append_records([(None, b"v")] * count, 1_000, found.leader_epoch, producer_id, 0)


def end_transaction(cluster: BrokerCluster, producer_id: int, committed: bool) -> None:
    """Write the control record."""
    log_of(cluster).append_marker(1_000, 0, producer_id, 0, committed)


# -- sessions


def test_a_session_answers_only_what_is_new() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        write(cluster)
        full = await client.fetch({0: 0, 1: 0}, session=(0, 0))
        assert full.session_id > 0
        assert {number: bool(row.records) for number, row in rows_of(full).items()} == {0: True, 1: False}
        again = await client.fetch({0: 1}, session=(full.session_id, 1))
        assert rows_of(again) == {}
        write(cluster, partition=1)
        third = await client.fetch({}, session=(full.session_id, 2))
        assert list(rows_of(third)) == [1]
        assert third.session_id == full.session_id

    play(test)


@pytest.mark.parametrize("version", [7, BY_NAME, NEWEST])
def test_sessions_have_epochs_and_end(version: int) -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster, version=version)
        session = (await client.fetch({0: 0}, session=(0, 0))).session_id
        assert (await client.fetch({}, session=(session, 2))).error_code == codes.INVALID_FETCH_SESSION_EPOCH
        assert (await client.fetch({}, session=(session + 1, 1))).error_code == codes.FETCH_SESSION_ID_NOT_FOUND
        assert (await client.fetch({}, session=(session, 1))).error_code == 0
        emptied = await client.fetch({}, session=(session, 2), forgotten=[0])
        assert (emptied.error_code, emptied.session_id) == (0, 0)
        assert (await client.fetch({}, session=(session, 3))).error_code == codes.FETCH_SESSION_ID_NOT_FOUND
        other = (await client.fetch({0: 0}, session=(0, 0))).session_id
        await client.fetch({}, session=(other, -1))
        assert len(cluster.nodes[0].fetch_sessions) == 0

    play(test)


def test_a_forgotten_partition_is_not_read() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        session = (await client.fetch({0: 0, 1: 0}, session=(0, 0))).session_id
        write(cluster)
        write(cluster, partition=1)
        assert list(rows_of(await client.fetch({}, session=(session, 1), forgotten=[0]))) == [1]

    play(test)


def test_a_session_of_names_is_none_of_ids() -> None:
    async def test(cluster: BrokerCluster) -> None:
        session = (await Client(cluster, version=BY_NAME).fetch({0: 0}, session=(0, 0))).session_id
        answer = await Client(cluster).fetch({}, session=(session, 1))
        assert answer.error_code == codes.FETCH_SESSION_TOPIC_ID_ERROR

    play(test)


def test_without_room_there_is_no_session_until_one_is_stale() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        first = (await client.fetch({0: 0}, session=(0, 0))).session_id
        assert (await client.fetch({0: 0}, session=(0, 0))).session_id == 0
        await asyncio.sleep(121)
        assert (await client.fetch({0: 0}, session=(0, 0))).session_id not in (0, first)
        assert (await client.fetch({}, session=(first, 1))).error_code == codes.FETCH_SESSION_ID_NOT_FOUND

    play(test, config={"max.incremental.fetch.session.cache.slots": 1})


def test_a_broker_that_restarts_knows_no_sessions() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        session = (await client.fetch({0: 0}, session=(0, 0))).session_id
        cluster.stop(0)
        cluster.start(0)
        assert (await client.fetch({}, session=(session, 1))).error_code == codes.FETCH_SESSION_ID_NOT_FOUND

    play(test)


def test_an_error_is_reported_again_and_its_end_too() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        session = (await client.fetch({0: 5}, session=(0, 0))).session_id
        assert rows_of(await client.fetch({}, session=(session, 1)))[0].error_code == codes.OFFSET_OUT_OF_RANGE
        assert rows_of(await client.fetch({0: 0}, session=(session, 2)))[0].error_code == 0
        assert rows_of(await client.fetch({}, session=(session, 3))) == {}

    play(test)


def test_a_waiting_fetch_of_a_session_ends_with_the_first_record() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        session = (await client.fetch({0: 0, 1: 0}, session=(0, 0))).session_id
        waiting = asyncio.ensure_future(client.fetch({}, session=(session, 1), wait_ms=500))
        await asyncio.sleep(0.1)
        write(cluster, partition=1)
        await asyncio.sleep(0)
        assert list(rows_of(await waiting)) == [1]
        assert asyncio.get_running_loop().time() == pytest.approx(0.1)
        assert rows_of(await client.fetch({1: 1}, session=(session, 2), wait_ms=500)) == {}
        assert asyncio.get_running_loop().time() == pytest.approx(0.6)

    play(test)


# -- topic ids


def test_topics_are_distinguished_by_their_ids() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        assert rows_of(await client.fetch({0: 0}, topic_id=UNKNOWN_ID))[0].error_code == codes.UNKNOWN_TOPIC_ID
        old = cluster.topics.by_name["orders"].topic_id
        session = (await client.fetch({0: 0}, session=(0, 0))).session_id
        cluster.delete_topic("orders")
        gone = await client.fetch({}, session=(session, 1), topic_id=old)
        assert rows_of(gone)[0].error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
        cluster.create_topic("orders", 2)
        other = await client.fetch({}, session=(session, 2), topic_id=old)
        assert rows_of(other)[0].error_code == codes.INCONSISTENT_TOPIC_ID
        assert other.responses[0].topic_id == old
        assert rows_of(await client.fetch({0: 0}, topic_id=old))[0].error_code == codes.UNKNOWN_TOPIC_ID
        assert rows_of(await Client(cluster, version=BY_NAME).fetch({0: 0}))[0].error_code == 0

    play(test)


def test_a_request_that_waits_is_answered_as_at_the_deletion_of_its_topic() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        old = cluster.topics.by_name["orders"].topic_id
        waiting = asyncio.ensure_future(client.fetch({0: 0}, topic_id=old, wait_ms=1_000))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        cluster.delete_topic("orders")
        cluster.create_topic("orders", 2)
        assert rows_of(await waiting)[0].error_code == codes.UNKNOWN_TOPIC_OR_PARTITION

    play(test)


# -- leaders and epochs


def test_a_former_leader_names_the_new_one() -> None:
    async def test(cluster: BrokerCluster) -> None:
        cluster.move_leader("orders", 0, 1)
        leader = cluster.topics.partition("orders", 0)
        assert leader is not None
        for version, epochs, code in (
            (NEWEST, (0, -1), codes.FENCED_LEADER_EPOCH),
            (NEWEST, (9, -1), codes.UNKNOWN_LEADER_EPOCH),
            (9, (-1, -1), codes.NOT_LEADER_OR_FOLLOWER),
            (NEWEST, (-1, -1), codes.NONE),  # followers answer, too (KIP-392)
        ):
            answer = await Client(cluster, version=version).fetch({0: 0}, epochs=epochs)
            row = rows_of(answer)[0]
            assert row.error_code == code
            named = version == NEWEST and code == codes.FENCED_LEADER_EPOCH
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (
                (1, leader.leader_epoch) if named else (-1, -1)
            )
            assert [one.port for one in answer.node_endpoints] == ([cluster.nodes[1].port] if named else [])

    play(test, brokers=2)


def test_a_position_that_was_cut_off_diverges() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        for _ in range(5):
            write(cluster, 2)
        cluster.move_leader("orders", 0, 0, end_offset=4)
        write(cluster, 2)
        ahead = rows_of(await client.fetch({0: 10}, epochs=(1, 0)))[0]
        assert (ahead.error_code, ahead.records, ahead.aborted_transactions) == (0, b"", None)
        assert (ahead.diverging_epoch.epoch, ahead.diverging_epoch.end_offset) == (0, 4)
        within = rows_of(await client.fetch({0: 4}, epochs=(1, 0)))[0]
        assert within.diverging_epoch.epoch == -1
        assert within.records is not None
        assert [header.base_offset for header in read_headers(within.records)] == [4]
        unaware = rows_of(await client.fetch({0: 10}, epochs=(1, -1)))[0]
        assert unaware.error_code == codes.OFFSET_OUT_OF_RANGE
        cluster.move_leader("orders", 0, 0, end_offset=0)
        nothing_left = rows_of(await client.fetch({0: 6}, epochs=(2, 1)))[0]
        assert (nothing_left.diverging_epoch.epoch, nothing_left.diverging_epoch.end_offset) == (1, 0)

    play(test)


def test_a_log_is_cut_between_batches_only() -> None:
    async def test(cluster: BrokerCluster) -> None:
        write(cluster, 2)
        with pytest.raises(ValueError, match="within the batch that starts at 0"):
            cluster.move_leader("orders", 0, 0, end_offset=1)

    play(test)


# -- transactions


def test_read_committed_stops_at_the_first_open_transaction() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        write(cluster, 2)
        write(cluster, 2, producer_id=7)
        write(cluster, 2)
        committed = rows_of(await client.fetch({0: 0}, committed=True))[0]
        assert committed.records is not None
        assert [header.base_offset for header in read_headers(committed.records)] == [0]
        assert (committed.last_stable_offset, committed.high_watermark) == (2, 6)
        assert committed.aborted_transactions == ()
        uncommitted = rows_of(await client.fetch({0: 0}))[0]
        assert uncommitted.records is not None
        assert [header.base_offset for header in read_headers(uncommitted.records)] == [0, 2, 4]
        assert uncommitted.aborted_transactions is None
        partition = cluster.topics.partition("orders", 0)
        assert partition is not None
        partition.log.delete_before(3)
        trimmed = rows_of(await client.fetch({0: 3}, committed=True))[0]
        assert (trimmed.error_code, trimmed.last_stable_offset) == (0, 3), "as in Kafka, not before the log start offset"
        assert not trimmed.records, "offset 3 is in a batch of the open transaction"
        end_transaction(cluster, 7, committed=True)
        after = rows_of(await client.fetch({0: 3}, committed=True))[0]
        assert (after.last_stable_offset, after.aborted_transactions) == (7, ())

    play(test)


def test_aborted_transactions_come_in_the_order_of_their_ends() -> None:
    async def test(cluster: BrokerCluster) -> None:
        client = Client(cluster)
        write(cluster, 1, producer_id=7)
        write(cluster, 1, producer_id=8)
        end_transaction(cluster, 8, committed=False)
        end_transaction(cluster, 7, committed=False)
        write(cluster, 1, producer_id=7)
        end_transaction(cluster, 7, committed=True)

        def aborted(row: PartitionData) -> list[tuple[int, int]]:
            return [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]

        assert aborted(rows_of(await client.fetch({0: 0}, committed=True))[0]) == [(8, 1), (7, 0)]
        assert aborted(rows_of(await client.fetch({0: 3}, committed=True))[0]) == [(7, 0)]
        assert aborted(rows_of(await client.fetch({0: 4}, committed=True))[0]) == []

    play(test)


def test_a_fetch_that_waits_for_committed_records_wakes_with_the_marker() -> None:
    async def test(cluster: BrokerCluster) -> None:
        waiting = asyncio.ensure_future(Client(cluster).fetch({0: 0}, committed=True, wait_ms=500))
        await asyncio.sleep(0.1)
        write(cluster, 1, producer_id=7)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        end_transaction(cluster, 7, committed=True)
        row = rows_of(await waiting)[0]
        assert asyncio.get_running_loop().time() == pytest.approx(0.2)
        assert row.records

    play(test)


def test_list_offsets_ends_at_the_last_stable_offset_for_read_committed() -> None:
    async def test(cluster: BrokerCluster) -> None:
        write(cluster, 2)
        write(cluster, 2, producer_id=7)
        for isolation_level, timestamp, offset in ((0, -1, 4), (1, -1, 2), (1, -2, 0), (1, 2_000, -1)):
            wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=(ListOffsetsTopic(name="orders", partitions=(wanted,)),),
            )
            answer = await KafkaApis(cluster.nodes[0]).handle(encode_request(request, 7, 1, ""), ClientConnection())
            assert answer is not None
            found = decode_response(ListOffsetsResponse, 7, answer)[1].topics[0].partitions[0]
            assert (found.error_code, found.offset) == (0, offset), (isolation_level, timestamp)

    play(test)


@pytest.mark.parametrize(
    ("timestamp", "version", "offset"),
    [(-3, 6, None), (-3, 7, 3), (-4, 7, None), (-4, 8, 1), (-5, 8, None)],
)
def test_list_offsets_knows_the_special_timestamps_of_its_version(timestamp: int, version: int, offset: int | None) -> None:
    """In Kafka: ``ReplicaManager.timestampMinSupportedVersion``; the last record has the highest timestamp."""

    async def test(cluster: BrokerCluster) -> None:
        log = log_of(cluster)
        for timestamp_ms in (1_000, 2_000, 3_000, 4_000):
            log.append_records([(None, b"v")], timestamp_ms, 0)
        log.delete_before(1)
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="orders", partitions=(wanted,)),))
        answer = await KafkaApis(cluster.nodes[0]).handle(encode_request(request, version, 1, ""), ClientConnection())
        assert answer is not None
        found = decode_response(ListOffsetsResponse, version, answer)[1].topics[0].partitions[0]
        expected = (codes.UNSUPPORTED_VERSION, -1) if offset is None else (codes.NONE, offset)
        assert (found.error_code, found.offset) == expected

    play(test)


# -- the nearest replica


def test_a_client_with_a_rack_is_sent_to_the_replica_there() -> None:
    async def test(cluster: BrokerCluster) -> None:
        write(cluster)
        partition = cluster.topics.partition("orders", 0)
        assert partition is not None
        assert partition.leader == 0
        leader, follower = Client(cluster, 0), Client(cluster, 1)
        sent = rows_of(await leader.fetch({0: 0}, rack="b"))[0]
        assert (sent.preferred_read_replica, sent.records, sent.high_watermark) == (1, b"", 1)
        near = rows_of(await follower.fetch({0: 0}, rack="b"))[0]
        assert near.preferred_read_replica == -1
        assert near.records
        for rack in ("a", "", "c"):
            assert rows_of(await leader.fetch({0: 0}, rack=rack))[0].records, rack
        assert rows_of(await leader.fetch({0: 7}, rack="b"))[0].error_code == codes.OFFSET_OUT_OF_RANGE
        cluster.stop(1)
        assert rows_of(await leader.fetch({0: 0}, rack="b"))[0].records

    play(test, brokers=2, racks=["a", "b"], config={"replica.selector.class": RACK_AWARE_SELECTOR})


def test_another_replica_selector_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"replica\.selector\.class must be one of"):
        BrokerConfig.from_mapping({"replica.selector.class": "com.example.MySelector"})


# -- a real client


def test_librdkafka_reads_what_was_committed() -> None:
    """Transactions that overlap and end in the other order."""
    with EmbeddedKafka({"orders": 1}) as kafka:

        def append(log: PartitionLog) -> None:
            for producer_id, value in ((-1, b"plain"), (7, b"rolled back"), (8, b"kept"), (7, b"rolled back, too")):
                log.append_records([(None, value)], 1_000, 0, producer_id, 0)
            log.append_marker(1_000, 0, 8, 0, True)
            log.append_marker(1_000, 0, 7, 0, False)
            log.append_records([(None, b"kept by another")], 1_000, 0, 7, 0)
            log.append_marker(1_000, 0, 7, 0, True)
            log.append_records([(None, b"open")], 1_000, 0, 9, 0)

        change_log(kafka, append)
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "enable.partition.eof": True}
        for level, expected in (
            ("read_committed", [b"plain", b"kept", b"kept by another"]),
            ("read_uncommitted", [b"plain", b"rolled back", b"kept", b"rolled back, too", b"kept by another", b"open"]),
        ):
            with contextlib.closing(Consumer({**settings, "isolation.level": level})) as consumer:
                consumer.assign([TopicPartition("orders", 0, 0)])
                values: list[bytes | None] = []
                while True:
                    message = consumer.poll(30)
                    assert message is not None, "neither a record nor the end"
                    if message.error() is not None:
                        assert message.error().code() == KafkaError._PARTITION_EOF
                        break
                    values.append(message.value())
                assert values == expected
