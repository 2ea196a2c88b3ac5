"""Rows of the Python clients: confluent-kafka (librdkafka), aiokafka and kafka-python."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.waiting import eventually, eventually_async
from tools.strangers.rows import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, committed_records, expect, new_topic, row

_WAIT_S = 45.0
_REQUEST_S = 30.0
_PARTITIONS = 3
_COUNT = 300


def version(package: str) -> str:
    """Return the version of a package, for confluent-kafka with that of librdkafka."""
    installed = importlib.metadata.version(package)
    if package != CONFLUENT:
        return installed
    import confluent_kafka

    return f"{installed} (librdkafka {confluent_kafka.libversion()[0]})"


# -- librdkafka ----------------------------------------------------------------------------------------------------------


def _producer(servers: str, **settings: Any) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, **{name.replace("_", "."): value for name, value in settings.items()}})


def _consumer(servers: str, group: str, **settings: Any) -> Any:
    from confluent_kafka import Consumer

    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({**config, **{name.replace("_", "."): value for name, value in settings.items()}})


def _read(consumer: Any, topic: str, count: int) -> list[bytes]:
    """Return ``count`` values, at least."""
    from confluent_kafka import KafkaException

    values: list[bytes] = []
    consumer.subscribe([topic])

    def enough() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error():
                raise KafkaException(message.error())
            values.append(message.value())
        return len(values) >= count

    eventually(enough, f"{count} records", within_s=_WAIT_S, shows=lambda: f"{len(values)} records")
    return values


def _committed_values(servers: str, topic: str, count: int) -> list[bytes]:
    return [value for _, value in committed_records(servers, topic, count)]


def _group(servers: str, **settings: Any) -> None:
    topic, group = new_topic(servers, _PARTITIONS), unique_name("group")
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = _producer(servers, enable_idempotence=True, compression_type=compression)
        for number in range(_COUNT // 5):
            producer.produce(topic, b"%d" % number, partition=number % _PARTITIONS)
        expect(producer.flush(_REQUEST_S), 0, "records that were not acknowledged")
    first, second = _consumer(servers, group, **settings), _consumer(servers, group, **settings)
    expect(len(_read(first, topic, _COUNT)), _COUNT, "records")
    first.commit(asynchronous=False)
    second.subscribe([topic])

    def shared() -> bool:
        expect([*first.consume(9, 0.1), *second.consume(9, 0.1)], [], "records that were read twice")
        return len(first.assignment()) > 0 and len(first.assignment()) + len(second.assignment()) == _PARTITIONS

    eventually(lambda: shared() and second.assignment(), "two members that share the topic", within_s=_WAIT_S)
    first.close()
    eventually(lambda: len(second.assignment()) == _PARTITIONS or second.poll(0.2), "all partitions", within_s=_WAIT_S)
    expect(sum(one.offset for one in second.committed(second.assignment(), _REQUEST_S)), _COUNT, "committed offsets")
    second.close()


@row(CONFLUENT, "produce with every compression; a group of two members, commits")
def librdkafka_group(servers: str) -> None:
    """Share a topic between two members of a classic group."""
    _group(servers, partition_assignment_strategy="cooperative-sticky")


@row(CONFLUENT, "the same in a group of the consumer protocol")
def librdkafka_consumer_group(servers: str) -> None:
    """Share a topic between two members of a group of KIP-848."""
    _group(servers, group_protocol="consumer")


@row(CONFLUENT, "transactions: commit, abort, fencing")
def librdkafka_transactions(servers: str) -> None:
    """Commit and abort transactions, and fence a producer by its successor."""
    from confluent_kafka import KafkaError, KafkaException

    topic, name = new_topic(servers), unique_name("txn")
    old = _producer(servers, transactional_id=name)
    old.init_transactions(_REQUEST_S)
    for value, end in ((b"a", old.commit_transaction), (b"b", old.abort_transaction), (b"c", old.commit_transaction)):
        old.begin_transaction()
        old.produce(topic, value)
        expect(old.flush(_REQUEST_S), 0, "records that were not acknowledged")
        end(_REQUEST_S)
    old.begin_transaction()
    old.produce(topic, b"d")
    expect(old.flush(_REQUEST_S), 0, "records that were not acknowledged")
    new = _producer(servers, transactional_id=name)
    new.init_transactions(_REQUEST_S)
    try:
        old.commit_transaction(_REQUEST_S)
    except KafkaException as fenced:
        expect(fenced.args[0].code(), KafkaError._FENCED, "error of the old producer")
    else:
        raise AssertionError("the old producer was not fenced")
    new.begin_transaction()
    new.produce(topic, b"e")
    new.commit_transaction(_REQUEST_S)
    expect(_committed_values(servers, topic, 3), [b"a", b"c", b"e"], "committed values")


@row(CONFLUENT, "exactly-once: read, process, write")
def librdkafka_exactly_once(servers: str) -> None:
    """Commit offsets in transactions, the first of which is aborted; the offsets of a member that left are refused."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    source, sink, group = new_topic(servers), new_topic(servers), unique_name("group")
    producer = _producer(servers)
    for number in range(10):
        producer.produce(source, b"%d" % number)
    expect(producer.flush(_REQUEST_S), 0, "records that were not acknowledged")
    transactional = _producer(servers, transactional_id=unique_name("txn"))
    transactional.init_transactions(_REQUEST_S)
    consumer = _consumer(servers, group)
    values = _read(consumer, source, 10)
    read = [TopicPartition(source, 0, 10)]
    for end in (transactional.abort_transaction, transactional.commit_transaction):
        transactional.begin_transaction()
        for value in values:
            transactional.produce(sink, value)
        transactional.send_offsets_to_transaction(read, consumer.consumer_group_metadata(), _REQUEST_S)
        end(_REQUEST_S)
        committed = consumer.committed([TopicPartition(source, 0)], _REQUEST_S)[0].offset
        expect(committed, 10 if end == transactional.commit_transaction else -1001, "committed offset")
    past = consumer.consumer_group_metadata()
    consumer.close()
    transactional.begin_transaction()
    try:
        transactional.send_offsets_to_transaction(read, past, _REQUEST_S)
    except KafkaException as refused:
        expect(refused.args[0].code(), KafkaError.UNKNOWN_MEMBER_ID, "error for a member that left")
    else:
        raise AssertionError("the offsets of a member that left were accepted")
    transactional.abort_transaction(_REQUEST_S)
    expect(_committed_values(servers, sink, 10), values, "committed values")


@row(CONFLUENT, "a transaction that is not ended in time")
def librdkafka_timeout(servers: str) -> None:
    """Read on after a transaction that the broker aborts."""
    topic = new_topic(servers)
    slow = _producer(servers, transactional_id=unique_name("txn"), transaction_timeout_ms=1000)
    slow.init_transactions(_REQUEST_S)
    slow.begin_transaction()
    slow.produce(topic, b"never")
    expect(slow.flush(_REQUEST_S), 0, "records that were not acknowledged")
    other = _producer(servers)
    other.produce(topic, b"after")
    expect(other.flush(_REQUEST_S), 0, "records that were not acknowledged")
    expect(_committed_values(servers, topic, 1), [b"after"], "committed values")


@row(CONFLUENT, "admin: topics, settings, partitions, records, offsets, groups")
def librdkafka_admin(servers: str) -> None:
    """Make the calls of AdminClient that need no security."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka import admin as of

    admin, topic, group = of.AdminClient({"bootstrap.servers": servers}), unique_name("topic"), unique_name("group")

    def only(futures: Mapping[Any, Any]) -> Any:
        return next(iter(futures.values())).result(_REQUEST_S)

    only(admin.create_topics([of.NewTopic(topic, 1, replication_factor=3, config={"segment.bytes": "1048576"})]))
    only(admin.create_partitions([of.NewPartitions(topic, 2)]))
    # What an administrator changes, Kafka's brokers know a little later.
    eventually(
        lambda: len(admin.list_topics(topic, timeout=_REQUEST_S).topics[topic].partitions) == 2, "partitions", within_s=_WAIT_S
    )
    expect(len(admin.describe_cluster().result(_REQUEST_S).nodes), 3, "brokers")
    changed = of.ConfigResource(of.ConfigResource.Type.TOPIC, topic)
    changed.add_incremental_config(of.ConfigEntry("retention.ms", "5000", incremental_operation=of.AlterConfigOpType.SET))
    only(admin.incremental_alter_configs([changed]))

    def settings() -> tuple[str, str]:
        described = only(admin.describe_configs([of.ConfigResource(of.ConfigResource.Type.TOPIC, topic)]))
        return described["retention.ms"].value, described["segment.bytes"].value

    eventually(lambda: settings() == ("5000", "1048576"), "settings", within_s=_WAIT_S, shows=settings)
    producer = _producer(servers)
    for _ in range(10):
        producer.produce(topic, b"value", partition=0)
    expect(producer.flush(_REQUEST_S), 0, "records that were not acknowledged")
    expect(only(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark, 4, "low watermark")
    ends = admin.list_offsets({TopicPartition(topic, 0): of.OffsetSpec.latest()})
    expect(only(ends).offset, 10, "end offset")
    only(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])]))
    (offsets,) = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).topic_partitions
    expect(offsets.offset, 7, "committed offset")
    expect(only(admin.describe_consumer_groups([group])).state.name, "EMPTY", "state of the group")
    only(admin.delete_consumer_groups([group]))
    only(admin.delete_topics([topic]))


# -- aiokafka ------------------------------------------------------------------------------------------------------------


def _asyncio(program: Callable[[str], Awaitable[None]]) -> Callable[[str], None]:
    async def run(servers: str) -> None:
        await program(servers)

    return lambda servers: asyncio.run(run(servers))


async def _aio_consumer(servers: str, topic: str, group: str, **settings: Any) -> Any:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **settings
    )
    await consumer.start()
    return consumer


async def _aio_read(consumer: Any, count: int) -> list[bytes]:
    values: list[bytes] = []

    async def enough() -> bool:
        for records in (await consumer.getmany(timeout_ms=200)).values():
            values.extend(record.value for record in records)
        return len(values) >= count

    await eventually_async(enough, f"{count} records", within_s=_WAIT_S, shows=lambda: f"{len(values)} records")
    return values


@row(AIOKAFKA, "produce with every compression; a group of two members, commits")
@_asyncio
async def aiokafka_group(servers: str) -> None:
    """Share a topic between two members of a group."""
    from aiokafka import AIOKafkaProducer

    topic, group = new_topic(servers, _PARTITIONS), unique_name("group")
    for compression in (None, "gzip", "snappy", "lz4", "zstd"):
        async with AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, compression_type=compression
        ) as producer:
            for number in range(_COUNT // 5):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % _PARTITIONS)
    first = await _aio_consumer(servers, topic, group)
    expect(len(await _aio_read(first, _COUNT)), _COUNT, "records")
    await first.commit()
    second = await _aio_consumer(servers, topic, group)

    async def shared() -> bool:
        expect(await first.getmany(timeout_ms=100), {}, "records that were read twice")
        expect(await second.getmany(timeout_ms=100), {}, "records that were read twice")
        shares = [len(first.assignment()), len(second.assignment())]
        return min(shares) > 0 and sum(shares) == _PARTITIONS

    await eventually_async(shared, "two members that share the topic", within_s=_WAIT_S)
    await first.stop()
    await second.stop()


@row(AIOKAFKA, "exactly-once: transactions, abort, offsets")
@_asyncio
async def aiokafka_exactly_once(servers: str) -> None:
    """Commit offsets in transactions, the first of which is aborted."""
    from aiokafka import AIOKafkaProducer, TopicPartition

    source, sink, group = new_topic(servers), new_topic(servers), unique_name("group")
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(10):
            await producer.send_and_wait(source, b"%d" % number)
    consumer = await _aio_consumer(servers, source, group)
    values = await _aio_read(consumer, 10)
    partition = TopicPartition(source, 0)
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=unique_name("txn")) as producer:
        for kept in (False, True):
            await producer.begin_transaction()
            for value in values:
                await producer.send(sink, value)
            await producer.send_offsets_to_transaction({partition: 10}, group)
            await (producer.commit_transaction() if kept else producer.abort_transaction())

            async def committed(offset: int | None = 10 if kept else None) -> bool:
                # With an old version of OffsetFetch, Kafka answers before it has written the markers.
                return bool(await consumer.committed(partition) == offset)

            await eventually_async(committed, "the committed offset", within_s=_WAIT_S)
    await consumer.stop()
    expect(_committed_values(servers, sink, 10), values, "committed values")


@row(AIOKAFKA, "admin: topics, settings, partitions, groups")
@_asyncio
async def aiokafka_admin(servers: str) -> None:
    """Make the calls of AIOKafkaAdminClient."""
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    topic = unique_name("topic")
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 3, topic_configs={"segment.bytes": "1048576"})])
        await admin.create_partitions({topic: NewPartitions(2)})

        async def grown() -> bool:
            (described,) = await admin.describe_topics([topic])
            return len(described["partitions"]) == 2

        await eventually_async(grown, "partitions", within_s=_WAIT_S)
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        settings = {entry[0]: entry[1] for answer in answers for entry in answer.resources[0][4]}
        expect(settings["segment.bytes"], "1048576", "setting")
        await admin.list_consumer_groups()
        await admin.delete_topics([topic])
    finally:
        await admin.close()


# -- kafka-python --------------------------------------------------------------------------------------------------------


def _kafka_python(kind: str, servers: str, *topics: str, **settings: Any) -> Any:
    import kafka

    return getattr(kafka, kind)(*topics, bootstrap_servers=servers, **settings)


def _python_read(consumer: Any, count: int) -> list[bytes]:
    values: list[bytes] = []

    def enough() -> bool:
        # kafka-python 3.0 loses its assignment if the time of a poll is over while it joins.
        for records in consumer.poll(timeout_ms=5_000).values():
            values.extend(record.value for record in records)
        return len(values) >= count

    eventually(enough, f"{count} records", within_s=_WAIT_S, shows=lambda: f"{len(values)} records")
    return values


@row(KAFKA_PYTHON, "produce with and without gzip; a group, commits")
def kafka_python_group(servers: str) -> None:
    """Read as a member of a group; its successor goes on at the committed offsets."""
    topic, group = new_topic(servers, _PARTITIONS), unique_name("group")
    for compression in (None, "gzip"):
        producer = _kafka_python("KafkaProducer", servers, compression_type=compression)
        sent = [producer.send(topic, b"%d" % number, partition=number % _PARTITIONS) for number in range(_COUNT // 2)]
        for future in sent:
            future.get(_REQUEST_S)
        producer.close()
    member = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    first = _kafka_python("KafkaConsumer", servers, topic, **member)
    expect(len(_python_read(first, _COUNT)), _COUNT, "records")
    first.commit()
    first.close()
    producer = _kafka_python("KafkaProducer", servers)
    producer.send(topic, b"last", partition=1).get(_REQUEST_S)
    producer.close()
    second = _kafka_python("KafkaConsumer", servers, topic, **member)
    expect(_python_read(second, 1), [b"last"], "records after the committed offsets")
    second.close()


@row(KAFKA_PYTHON, "exactly-once: transactions, abort, offsets")
def kafka_python_exactly_once(servers: str) -> None:
    """Commit offsets in transactions, the first of which is aborted."""
    from kafka.structs import OffsetAndMetadata, TopicPartition

    source, sink, group = new_topic(servers), new_topic(servers), unique_name("group")
    producer = _kafka_python("KafkaProducer", servers)
    for number in range(10):
        producer.send(source, b"%d" % number).get(_REQUEST_S)
    producer.close()
    member = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = _kafka_python("KafkaConsumer", servers, source, **member)
    values = _python_read(consumer, 10)
    partition = TopicPartition(source, 0)
    producer = _kafka_python("KafkaProducer", servers, transactional_id=unique_name("txn"))
    producer.init_transactions()
    for kept in (False, True):
        producer.begin_transaction()
        for value in values:
            producer.send(sink, value)
        producer.send_offsets_to_transaction({partition: OffsetAndMetadata(10, "", -1)}, consumer.group_metadata())
        (producer.commit_transaction if kept else producer.abort_transaction)()
        offset = 10 if kept else None
        eventually(
            lambda offset=offset: consumer.committed(partition) == offset,  # type: ignore[misc]
            "the committed offset",
            within_s=_WAIT_S,
        )
    producer.close()
    consumer.close()
    expect(_committed_values(servers, sink, 10), values, "committed values")


@row(KAFKA_PYTHON, "admin: topics, settings, groups")
def kafka_python_admin(servers: str) -> None:
    """Make the calls of KafkaAdminClient."""
    from kafka.admin import NewTopic

    topic = unique_name("topic")
    admin = _kafka_python("KafkaAdminClient", servers)
    try:
        admin.create_topics([NewTopic(topic, 2, 3, topic_configs={"segment.bytes": "1048576"})])
        (described,) = admin.describe_topics([topic])
        expect(len(described["partitions"]), 2, "partitions")
        admin.list_groups()
        admin.delete_topics([topic])
    finally:
        admin.close()
