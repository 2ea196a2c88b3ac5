"""The fetcher on real brokers: the records that librdkafka reads, and what the brokers say of epochs, sessions and topics."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Row
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from consumer_coord.broker.record_batch import Record
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch import FetchConfig, Fetcher, FetchStart, StopReason
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.metadata import Broker
from consumer_coord.net.shared_clusters import cluster_client
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.codec import decode_response
from consumer_coord.wire.messages.log import FetchRequest, FetchResponse
from tests.support.fetch.world import Reader
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 3
DEADLINE_S = 180
#: The fields of a record that both readers see.
Seen = tuple[int, int, "bytes | None", "bytes | None"]


def seen(record: Record) -> Seen:
    """A record as the fetcher's reader sees it."""
    return record.offset, record.timestamp_ms, record.key, record.value


def fill(kafka: KafkaCluster, topic: str) -> None:
    """Write plain and gzipped batches, nulls, and transactions that overlap, end in the other order, and are aborted."""
    servers = {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5}
    number = 0

    def write(producer: Any, count: int, size: int = 20) -> None:
        nonlocal number
        for _ in range(count):
            value = None if number % 11 == 0 else (b"%d-" % number) * (size // 4)
            key = None if number % 7 == 0 else b"k%d" % number
            producer.produce(topic, value, key, partition=number % PARTITIONS)
            number += 1
        assert producer.flush(DEADLINE_S) == 0

    plain, gzip = Producer(servers), Producer({**servers, "compression.type": "gzip"})
    one, two = (Producer({**servers, "transactional.id": f"{topic}-{which}"}) for which in "ab")
    for producer in (one, two):
        producer.init_transactions(DEADLINE_S)
    for round_ in range(6):
        write(plain, 50)
        one.begin_transaction()
        write(one, 20)
        two.begin_transaction()
        write(two, 20)
        write(gzip, 100, size=200)
        write(one, 10)
        for producer in (two, one) if round_ % 2 else (one, two):
            aborts = (round_ + (producer is one)) % 2
            (producer.abort_transaction if aborts else producer.commit_transaction)(DEADLINE_S)
    write(plain, 30, size=4_000)


def by_librdkafka(kafka: KafkaCluster, topic: str, isolation_level: str) -> dict[TopicPartition, list[Seen]]:
    """Every record of a topic, read by librdkafka."""
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "looks",
        "enable.partition.eof": True,
        "isolation.level": isolation_level,
    }
    found: dict[TopicPartition, list[Seen]] = {TopicPartition(topic, number): [] for number in range(PARTITIONS)}
    with contextlib.closing(Consumer(settings)) as consumer:
        consumer.assign([Row(topic, number, 0) for number in range(PARTITIONS)])
        ended: set[int | None] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, "neither a record nor the end"
            if message.error() is not None:
                ended.add(message.partition())
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            found[TopicPartition(topic, partition)].append((offset, message.timestamp()[1], message.key(), message.value()))
    return found


def ends_of(kafka: KafkaCluster, topic: str) -> dict[TopicPartition, int]:
    """The end offset of every partition."""
    with contextlib.closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "looks"})) as consumer:
        return {
            TopicPartition(topic, number): consumer.get_watermark_offsets(Row(topic, number), DEADLINE_S)[1]
            for number in range(PARTITIONS)
        }


Story = Callable[[Reader, ClusterClient], Awaitable[None]]


def read(kafka: KafkaCluster, story: Story, *, client: Mapping[str, Any] | None = None, **settings: Any) -> Reader:
    """Let a story read with a fetcher; settings are the fetcher's."""
    config = FetchConfig(**settings)

    async def main() -> Reader:
        addresses = [address.partition(":")[::2] for address in kafka.bootstrap_servers.split(",")]
        bootstrap = tuple((host, int(port)) for host, port in addresses)
        cluster = cluster_client(ClientConfig(bootstrap_servers=bootstrap, **(client or {})))
        reader = Reader(Fetcher(cluster, config), config.read_committed, seen)
        try:
            await story(reader, cluster)
        finally:
            await reader.fetcher.close()
            await cluster.close()
        return reader

    return asyncio.run(main())


def whole(ends: Mapping[TopicPartition, int]) -> Story:
    """Read from the first record to these ends."""

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        reader.assign({partition: FetchStart(1, 0) for partition in ends})
        await reader.read_to(ends)

    return story


def same_as_librdkafka(kafka: KafkaCluster, topic: str) -> None:
    """Compare, in both isolation levels and with responses that cut batches off."""
    ends = ends_of(kafka, topic)
    for committed in (False, True):
        expected = by_librdkafka(kafka, topic, "read_committed" if committed else "read_uncommitted")
        assert all(len(records) > 100 for records in expected.values())
        for most in (1 << 20, 5_000):
            reader = read(kafka, whole(ends), read_committed=committed, max_partition_fetch_bytes=most)
            assert reader.records == expected
            assert reader.stopped == []
            assert reader.taken > 10 or most > 5_000


def test_the_records_that_librdkafka_reads(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    name = topic(PARTITIONS)
    fill(kafka, name)
    same_as_librdkafka(kafka, name)


def test_a_compacted_topic(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    name = topic(PARTITIONS, config={"segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def write(count: int) -> None:
        for number in range(count):
            producer.produce(name, b"v%d" % number, b"k%d" % (number % 40), partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0

    write(1_500)
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[compact])
    kafka.admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def is_compacted() -> bool:
        write(PARTITIONS)
        return all(records[0][0] > 100 for records in by_librdkafka(kafka, name, "read_uncommitted").values())

    eventually(is_compacted, "the compaction", within_s=2 * DEADLINE_S, every_s=0.5)
    ends = ends_of(kafka, name)
    assert read(kafka, whole(ends)).records == by_librdkafka(kafka, name, "read_uncommitted")


# -- epochs, sessions and topics


def spoken(cluster: ClusterClient) -> int | None:
    """The version of Fetch that the first broker is sent."""
    return cluster.version_spoken(next(iter(cluster.metadata.brokers.values())), FetchRequest)


@pytest.fixture(scope="module")
def few_sessions(kafka_libs: Path) -> Iterator[RealKafka]:
    """A broker with room for two fetch sessions, which a test may restart."""
    slots = {"max.incremental.fetch.session.cache.slots": "2"}
    with RealKafka(kafka_libs, properties=slots, outlives_test=True) as kafka:
        yield kafka


def test_the_newest_broker_says_where_a_position_diverges(few_sessions: RealKafka) -> None:
    """After a restart of the broker an offset of its new epoch is none of its old one's."""
    kafka, name = few_sessions, few_sessions.new_topic(PARTITIONS)
    fill(kafka, name)
    first = ends_of(kafka, name)
    kafka.restart()
    fill(kafka, name)
    one = TopicPartition(name, 0)
    end = first[one]

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        reader.assign({one: FetchStart(1, end)})
        await reader.until(lambda: bool(reader.records))
        old, new = 0, reader.epochs[one]
        assert new > old
        assert spoken(cluster) == 18
        reader.assign({one: FetchStart(2, end + 2, old)})
        await reader.until(lambda: bool(reader.stopped))
        reader.assign(
            {one: FetchStart(3, end, old), TopicPartition(name, 1): FetchStart(3, first[TopicPartition(name, 1)], -1)}
        )
        await reader.until(lambda: reader.positions[one][1] > end)

    reader = read(kafka, story)
    (stopped,) = reader.stopped
    assert (stopped.reason, stopped.offset) == (StopReason.TRUNCATED, end + 2)
    assert (stopped.end_offset, stopped.end_epoch) == (end, 0)


def test_reading_goes_on_over_a_restart_and_among_evicted_sessions(few_sessions: RealKafka) -> None:
    kafka, name = few_sessions, few_sessions.new_topic(PARTITIONS)
    fill(kafka, name)
    before = ends_of(kafka, name)

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        readers = [reader, *(Reader(Fetcher(cluster), row_of=seen) for _ in range(4))]
        for one in readers:
            one.assign({partition: FetchStart(1, 0) for partition in before})
        for one in readers:
            await one.read_to(before)
        await asyncio.to_thread(kafka.restart)
        await asyncio.to_thread(fill, kafka, name)
        after = await asyncio.to_thread(ends_of, kafka, name)
        for one in readers:
            await one.read_to(after)
            assert (one.records, one.stopped) == (reader.records, [])
        for one in readers[1:]:
            await one.fetcher.close()

    assert read(kafka, story).records == by_librdkafka(kafka, name, "read_uncommitted")


def test_a_topic_that_was_created_again_and_a_log_that_was_trimmed(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    name = topic(PARTITIONS)
    fill(kafka, name)
    ends = ends_of(kafka, name)
    one, two = TopicPartition(name, 0), TopicPartition(name, 1)

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        reader.assign({one: FetchStart(1, 0)})
        await reader.read_to({one: ends[one]})
        rows = kafka.admin.delete_records([Row(name, 1, 10)])
        await asyncio.to_thread(next(iter(rows.values())).result, DEADLINE_S)
        reader.assign({two: FetchStart(1, 3)})
        await reader.until(lambda: bool(reader.stopped))
        await asyncio.to_thread(kafka.delete_topic, name)
        await asyncio.to_thread(kafka.create_topic, name, PARTITIONS)
        await reader.until(lambda: len(reader.stopped) == 2)

    reader = read(kafka, story, client={"metadata_max_age_ms": 2_000})
    assert [(one.partition, one.reason) for one in reader.stopped] == [
        (two, StopReason.OUT_OF_RANGE),
        (one, StopReason.RECREATED),
    ]


def observe(cluster: ClusterClient, responses: list[tuple[int, FetchResponse]]) -> None:
    """Append the id of the broker and the response of every Fetch, before its records are taken."""
    request = cluster.request

    def watched(broker: Broker, message: Versioned) -> Versioned:
        take, follow = message.decode, message.follow
        assert take is not None
        assert follow is not None

        def seen_first(version: int, frame: bytes) -> Any:
            responses.append((broker.id, decode_response(FetchResponse, version, frame)[1]))
            return take(version, frame)

        def followed(answer: Any) -> tuple[Versioned, float] | None:
            then = follow(answer)
            return None if then is None else (watched(broker, then[0]), then[1])

        return attrs.evolve(message, decode=seen_first, follow=followed)

    async def observed(broker: Broker, message: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(message, Versioned) and message.request_class is FetchRequest:
            message = watched(broker, message)
        return await request(broker, message, *arguments, **keywords)

    cluster.request = observed  # type: ignore[method-assign]


def test_the_nearest_replica_is_read(kafka_libs: Path) -> None:
    """KIP-392: the leader names the follower in the client's rack, and the records come from the follower."""
    nearest = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with RealKafka(kafka_libs, brokers=2, properties=nearest, racks=["a", "b"]) as kafka:
        name = kafka.new_topic(PARTITIONS, replication_factor=2)
        fill(kafka, name)
        kafka.await_in_sync()
        ends = ends_of(kafka, name)
        leader = kafka.admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions[0].leader
        one, responses = TopicPartition(name, 0), list[tuple[int, FetchResponse]]()

        async def story(reader: Reader, cluster: ClusterClient) -> None:
            observe(cluster, responses)
            await whole({one: ends[one]})(reader, cluster)

        reader = read(kafka, story, client_rack="b" if leader == 1 else "a")
        assert reader.records == {one: by_librdkafka(kafka, name, "read_uncommitted")[one]}
        assert [broker for broker, _ in responses][:2] == [leader, 3 - leader]
        assert leader not in [broker for broker, _ in responses][1:]


def limit_consumers(kafka: KafkaCluster, client_id: str, bytes_per_s: float) -> None:
    """Set ``consumer_byte_rate`` for a client id: AlterClientQuotas v0, which no client library here sends."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    entity = struct.pack(">i", 1) + text("client-id") + text(client_id)
    operation = struct.pack(">i", 1) + text("consumer_byte_rate") + struct.pack(">d?", bytes_per_s, False)
    request = struct.pack(">hhi", 49, 0, 1) + text("test") + struct.pack(">i", 1) + entity + operation + b"\0"
    host, _, port = kafka.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        response = connection.makefile("rb").read(4 + 4 + 4 + 4 + 2)
    assert struct.unpack(">iiiih", response)[4] == 0


def test_a_quota_delays_the_next_fetch_and_loses_nothing(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    """The broker allows 30 KB in the first ten seconds, and this reads 45 KB."""
    name = topic(PARTITIONS)
    limit_consumers(kafka, name, bytes_per_s=3_000)
    # A batch that is larger than the quota of ten seconds would never be sent.
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "batch.num.messages": 10})
    values = [b"%04d" % number * 100 for number in range(100)]
    for value in values:
        producer.produce(name, value, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    one, responses = TopicPartition(name, 0), list[tuple[int, FetchResponse]]()

    told: list[int] = []

    class Told:
        def connection_failed(self, broker: Broker, error: CoordinatorError) -> None: ...

        def throttled(self, broker: Broker, throttle_ms: int) -> None:
            told.append(throttle_ms)

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        observe(cluster, responses)
        cluster.listeners[listener] = None
        await whole({one: len(values)})(reader, cluster)

    listener = Told()
    reader = read(kafka, story, client={"client_id": name}, max_partition_fetch_bytes=5_000)
    assert [throttle_ms for throttle_ms in told if throttle_ms] == [
        response.throttle_time_ms for _, response in responses if response.throttle_time_ms
    ]
    assert any(response.throttle_time_ms > 0 for _, response in responses)
    assert [value for _, _, _, value in reader.records[one]] == values
    assert reader.stopped == []
