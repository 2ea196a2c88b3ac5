"""Real clients on the embedded Kafka: librdkafka, kafka-python, aiokafka and Java."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.broker.client_versions import Recorder, check_documented
from tests.support.java import JavaProgram
from tests.support.members import Client, Members, await_shared
from tests.support.waiting import eventually

TOPICS = {"orders": 6}
RECORDS = 3_000


@pytest.fixture
def kafka3e() -> Iterator[EmbeddedKafka]:
    """Three embedded brokers."""
    with EmbeddedKafka(TOPICS, brokers=3) as kafka:
        yield kafka


def write(kafka: EmbeddedKafka, topic: str = "orders", count: int = RECORDS, config: Mapping[str, Any] | None = None) -> None:
    """Write ``count`` records with librdkafka, and wait for their acknowledgement."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **(config or {})})
    for number in range(count):
        producer.produce(topic, b"%d" % number, key=b"%d" % number)
    assert producer.flush(90) == 0


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_writes_and_reads(kafka3e: EmbeddedKafka, compression: str) -> None:
    recorder = Recorder(kafka3e)
    write(kafka3e, config={"compression.type": compression, "enable.idempotence": True})
    consumer = Consumer(
        {
            "bootstrap.servers": kafka3e.bootstrap_servers,
            "group.id": "group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.subscribe(["orders"])
    seen: set[bytes] = set()
    deadline_s = time.monotonic() + 30
    while len(seen) < RECORDS and time.monotonic() < deadline_s:
        for message in consumer.consume(500, 0.1):
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            assert value not in seen
            seen.add(value)
    assert len(seen) == RECORDS
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition("orders", number) for number in range(6)], timeout=60)
    assert sum(partition.offset for partition in committed) == RECORDS
    low, high = consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=60)
    assert (low, high) == (0, committed[0].offset)
    assert kafka3e.group_state("group") == "Stable"
    consumer.close()
    assert kafka3e.group_state("group") == "Empty"
    check_documented("confluent-kafka 2.16", recorder.uses)


def test_librdkafka_administers(kafka3e: EmbeddedKafka) -> None:
    recorder = Recorder(kafka3e)
    admin = AdminClient({"bootstrap.servers": kafka3e.bootstrap_servers})
    admin.create_topics([NewTopic("new", 2, replication_factor=3)])["new"].result(60)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("new", 2)])["new"].result(60)
    with pytest.raises(KafkaException, match="INVALID_REPLICATION_FACTOR"):
        admin.create_topics([NewTopic("wide", 2, replication_factor=4)])["wide"].result(60)
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        admin.create_topics([NewTopic("c", 1, config={"cleanup.policy": "shrink"})])["c"].result(60)
    admin.create_topics([NewTopic("c", 1, config={"cleanup.policy": "compact"})])["c"].result(60)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "c")
    changed.add_incremental_config(ConfigEntry("retention.ms", "5", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([changed])[changed].result(60)
    described = admin.describe_configs([changed])[changed].result(60)
    assert (described["cleanup.policy"].value, described["retention.ms"].value) == ("compact", "5")
    admin.create_partitions([NewPartitions("new", 5)])["new"].result(60)
    metadata = admin.list_topics(timeout=60)
    assert len(metadata.topics["new"].partitions) == 5
    assert len(metadata.brokers) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, "new")
    assert admin.describe_configs([resource])[resource].result(60)["cleanup.policy"].value == "delete"
    write(kafka3e, "new", 100)
    consumer = Consumer({"bootstrap.servers": kafka3e.bootstrap_servers, "group.id": "group"})
    consumer.subscribe(["new"])
    eventually(lambda: consumer.poll(0.05) is None and kafka3e.group_state("group") == "Stable", "a stable group")
    groups = admin.list_consumer_groups().result(60)
    assert [one.group_id for one in groups.valid] == ["group"]
    assert admin.describe_consumer_groups(["group"])["group"].result(60).state.name == "STABLE"
    consumer.close()
    admin.delete_consumer_groups(["group"])["group"].result(60)
    deleted = admin.delete_records([TopicPartition("new", 0, 5)])
    assert next(iter(deleted.values())).result(60).low_watermark == 5
    admin.delete_topics(["new"])["new"].result(60)
    eventually(lambda: "new" not in admin.list_topics(timeout=60).topics, "the end of the topic")
    check_documented("confluent-kafka 2.16", recorder.uses)


def committed_values(kafka: EmbeddedKafka, topic: str) -> list[bytes]:
    """Return what this package's and librdkafka's consumers read from one partition with read_committed: the same values."""
    found = []
    for kind in (GroupConsumer, Consumer):
        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": unique_name("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        values: list[bytes] = []
        consumer = kind(config)
        consumer.subscribe([topic])

        def at_end(consumer: Any = consumer, values: list[bytes] = values) -> bool:
            message = consumer.poll(0.1)
            if message is None or message.error() is None:
                values.extend([] if message is None else [message.value()])
                return False
            return bool(message.error().code() == KafkaError._PARTITION_EOF)

        eventually(at_end, "the end of the partition")
        consumer.close()
        found.append(values)
    assert found[0] == found[1]
    return found[0]


def test_librdkafka_runs_transactions(kafka3e: EmbeddedKafka) -> None:
    recorder = Recorder(kafka3e)
    kafka3e.create_topic("out")
    config = {"bootstrap.servers": kafka3e.bootstrap_servers, "transactional.id": "t"}
    producer, second = Producer(config), Producer(config)
    producer.init_transactions(60)
    consumer = Consumer({"bootstrap.servers": kafka3e.bootstrap_servers, "group.id": "exactly-once"})
    consumer.subscribe(["orders"])
    eventually(lambda: consumer.poll(0.05) is None and bool(consumer.assignment()), "an assignment")
    for number in range(4):
        producer.begin_transaction()
        producer.produce("out", b"%d" % number)
        position = [TopicPartition("orders", 0, number)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), 60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)
    assert consumer.committed([TopicPartition("orders", 0)], timeout=60)[0].offset == 2
    consumer.close()
    check_documented("confluent-kafka 2.16", set(recorder.uses))
    assert committed_values(kafka3e, "out") == [b"0", b"2"]
    producer.begin_transaction()
    producer.produce("out", b"lost")
    producer.flush(60)
    second.init_transactions(60)
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(60)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    assert committed_values(kafka3e, "out") == [b"0", b"2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "client", ["confluent-kafka", "kafka-python", "aiokafka", pytest.param("java", marks=pytest.mark.kafka)]
)
def test_groups_of_each_client(kafka3e: EmbeddedKafka, members: Members, client: Client) -> None:
    recorder = Recorder(kafka3e)
    write(kafka3e)
    written_by_us = set(recorder.uses)
    recorder.uses.clear()
    first = members.start(client, "group", ["orders"], bootstrap_servers=kafka3e.bootstrap_servers)
    await_shared([first], TOPICS)
    first.wait_for_total(RECORDS)
    first.command("commit")
    second = members.start(client, "group", ["orders"], bootstrap_servers=kafka3e.bootstrap_servers)
    await_shared([first, second], TOPICS)
    write(kafka3e)
    second.wait_until(lambda: first.total + second.total >= 2 * RECORDS, "all records")
    assert first.total + second.total == 2 * RECORDS, "each record once: the second member continues after the commit"
    second.command("commit")
    second.leave()
    await_shared([first], TOPICS)
    first.leave()
    eventually(lambda: kafka3e.group_state("group") == "Empty", "an empty group")
    names = {"confluent-kafka": "confluent-kafka 2.16", "kafka-python": "kafka-python 3.0", "aiokafka": "aiokafka 0.14"}
    uses = recorder.uses | (written_by_us if client == "confluent-kafka" else set())
    check_documented(names.get(client, "Java 4.4.0"), uses)


@pytest.mark.kafka
def test_a_group_of_all_clients(kafka3e: EmbeddedKafka, members: Members) -> None:
    clients: list[Client] = ["confluent-kafka", "kafka-python", "aiokafka", "java"]
    started = [members.start(client, "mixed", ["orders"], bootstrap_servers=kafka3e.bootstrap_servers) for client in clients]
    await_shared(started, TOPICS)
    write(kafka3e)
    started[0].wait_until(lambda: sum(one.total for one in started) >= RECORDS, "all records")


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])
def test_groups_survive_their_coordinator(kafka3e: EmbeddedKafka, members: Members, client: Client) -> None:
    write(kafka3e)
    started = [members.start(client, "group", ["orders"], bootstrap_servers=kafka3e.bootstrap_servers) for _ in range(2)]
    await_shared(started, TOPICS)
    before = kafka3e.coordinator_id("group")
    assert before is not None
    kafka3e.stop_broker(before)
    assert kafka3e.coordinator_id("group") not in (None, before)
    write(kafka3e)
    started[0].wait_until(lambda: sum(one.total for one in started) >= 2 * RECORDS, "all records")
    kafka3e.start_broker(before)
    kafka3e.move_coordinator("group", before)
    write(kafka3e)
    started[0].wait_until(lambda: sum(one.total for one in started) >= 3 * RECORDS, "all records")
    started[0].command("commit")
    await_shared(started, TOPICS)


def test_kafka_python_produces_and_administers(kafka3e: EmbeddedKafka) -> None:
    import kafka
    from kafka.admin import KafkaAdminClient
    from kafka.admin import NewTopic as NewTopicOfKafkaPython

    recorder = Recorder(kafka3e)
    servers = kafka3e.bootstrap_servers.split(",")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopicOfKafkaPython("new", 3, 1)])
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    for number in range(300):
        producer.send("new", b"%d" % number, partition=number % 3)
    producer.flush(90)
    producer.close()
    consumer = kafka.KafkaConsumer("new", bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=2_000)
    seen = set()
    for message in consumer:
        seen.add(message.value)
        if len(seen) == 300:
            break
    assert len(seen) == 300
    consumer.close()
    admin.delete_topics(["new"])
    admin.close()
    check_documented("kafka-python 3.0", recorder.uses)


def test_aiokafka_produces(kafka3e: EmbeddedKafka) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    recorder = Recorder(kafka3e)

    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka3e.bootstrap_servers, enable_idempotence=True)
        await producer.start()
        for number in range(300):
            await producer.send("orders", b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=kafka3e.bootstrap_servers, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        seen = set()
        async with asyncio.timeout(30):
            async for message in consumer:
                seen.add(message.value)
                if len(seen) == 300:
                    break
        await consumer.stop()

    asyncio.run(main())
    check_documented("aiokafka 0.14", recorder.uses)


def test_aiokafka_runs_transactions(kafka3e: EmbeddedKafka) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka import TopicPartition as PartitionOfAiokafka

    recorder = Recorder(kafka3e)
    kafka3e.create_topic("out")

    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka3e.bootstrap_servers, transactional_id="aio")
        await producer.start()
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait("out", b"%d" % number)
            await producer.send_offsets_to_transaction({PartitionOfAiokafka("orders", 0): number}, "aio-group")
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        await producer.stop()

    asyncio.run(main())
    check_documented("aiokafka 0.14", set(recorder.uses))
    assert committed_values(kafka3e, "out") == [b"0", b"2"]
    consumer = Consumer({"bootstrap.servers": kafka3e.bootstrap_servers, "group.id": "aio-group"})
    assert consumer.committed([TopicPartition("orders", 0)], timeout=60)[0].offset == 2
    consumer.close()


@pytest.mark.kafka
def test_java_produces_consumes_and_administers(kafka3e: EmbeddedKafka, kafka_libs: Path) -> None:
    recorder = Recorder(kafka3e)
    output = JavaProgram(kafka_libs, "EmbeddedKafkaClients").run(kafka3e.bootstrap_servers, deadline_s=180)
    assert output.splitlines()[-1] == "fenced"
    check_documented("Java 4.4.0", recorder.uses)
