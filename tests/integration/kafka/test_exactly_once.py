"""Transactions on Apache Kafka: exactly once through kills, zombies and rebalances (KIP-447)."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from assignors import CooperativeStickyAssignor
from consumer_coord import GroupConsumer
from consumer_coord.consumer import group_metadata
from consumer_coord.group.generation import Generation
from consumer_coord.retry import Deadline
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory, unique_name
from consumer_coord.testing.processes import end, spawn
from examples.exactly_once import Billing, behind
from tests.support.admin import await_group, set_consumer_timeouts
from tests.support.group.classic import classic
from tests.support.waiting import eventually
from tests.support.white_box import blocking_coordinator_of, coordinator_of

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[3]
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 22, 25

#: More by hand: EXACTLY_ONCE_RECORDS=200000.
RECORDS = int(os.environ.get("EXACTLY_ONCE_RECORDS", "20000"))


def produce(kafka: KafkaCluster, topic: str, count: int, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % partitions)
        producer.poll(0)
    assert producer.flush(180) == 0


def committed_values(kafka: KafkaCluster, topic: str, until: Callable[[Counter[bytes]], bool]) -> Counter[bytes]:
    reader = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": unique_name("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    values: Counter[bytes] = Counter()
    deadline = time.monotonic() + 60
    while not until(values) and time.monotonic() < deadline:
        values.update(message.value() for message in reader.consume(1000, 0.5) if message.error() is None)
    # Whatever comes too often comes now.
    values.update(message.value() for message in reader.consume(1000, 1.0) if message.error() is None)
    reader.close()
    return values


def start(kafka: KafkaCluster, source: str, sink: str, group: str, protocol: str) -> Popen[bytes]:
    arguments = [kafka.bootstrap_servers, source, sink, group, "--batch", "200", "--protocol", protocol]
    return spawn([sys.executable, "-m", "examples.exactly_once", *arguments], cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_record_comes_out_once_through_kills_freezes_and_rebalances(
    protocol: str, kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    set_consumer_timeouts(kafka.admin, group, session_ms=6_000, heartbeat_ms=500)
    source, sink = topic(6), topic(1)
    produce(kafka, source, RECORDS // 2, 6)
    running = [start(kafka, source, sink, group, protocol) for _ in range(3)]
    frozen: Popen[bytes] | None = None
    try:
        committed_values(kafka, sink, lambda found: found.total() > 0)
        await_group(kafka.admin, group, members=3)
        end(running.pop(0))
        running.append(start(kafka, source, sink, group, protocol))
        produce(kafka, source, RECORDS - RECORDS // 2, 6)
        frozen = running.pop(0)
        os.kill(frozen.pid, 19)
        # Both sessions end; the frozen one wakes up as a zombie.
        await_group(kafka.admin, group, members=2)
        running.append(start(kafka, source, sink, group, protocol))
        os.kill(frozen.pid, 18)
        running.append(frozen)
        # The second half has the numbers of the first again, so each value is there twice at most.
        values = committed_values(kafka, sink, lambda found: found.total() >= RECORDS)
    finally:
        for process in running:
            end(process, grace_s=10)
    half = RECORDS // 2
    expected = Counter({b"invoice for %d" % number: 1 for number in range(half)})
    expected.update({b"invoice for %d" % number: 1 for number in range(RECORDS - half)})
    assert values == expected


def test_a_zombies_transaction_is_refused(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    source, sink = topic(1), topic(1)
    produce(kafka, source, 10, 1)
    billing = Billing(kafka.bootstrap_servers, source, sink, group)
    messages = eventually(lambda: billing.consumer.consume(10, 1))
    # The group loses this member while it works on the batch; the background joins again, as it should.
    core = coordinator_of(billing.consumer)
    generation = core.generation

    async def lose() -> None:
        await classic(core).status.leave("a test", Deadline.after(5000), rejoin=True)

    blocking_coordinator_of(billing.consumer).call(lose)
    eventually(lambda: core.generation > generation, "a new generation, and the batch was read under the old one")
    billing.producer.begin_transaction()
    billing.producer.produce(sink, b"a zombie's")
    with pytest.raises(KafkaException) as refused:
        billing.producer.send_offsets_to_transaction(behind(messages), billing.consumer.consumer_group_metadata(), 10)
    assert refused.value.args[0].code() in (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID)
    billing.undo(refused.value)
    done = 0
    while done < 10:
        done += billing.step()
    billing.close()
    values = committed_values(kafka, sink, lambda found: found.total() >= 10)
    assert values == Counter({b"invoice for %d" % number: 1 for number in range(10)})


def test_a_rebalance_aborts_no_transaction_that_is_shorter_than_half_the_rebalance_timeout(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    source, sink = topic(4), topic(1)
    produce(kafka, source, 400, 4)
    billing = Billing(kafka.bootstrap_servers, source, sink, group, batch=100)
    others: list[GroupConsumer] = []
    done = transactions = 0
    try:
        while done < 400:
            messages = billing.consumer.consume(100, 1)
            if not messages:
                # The remaining records may be in the other member's partitions, so this member may read none of them.
                while others:
                    others.pop().close()
                continue
            billing.producer.begin_transaction()
            fence = billing.consumer.consumer_group_metadata()
            # A member comes or goes in the middle of each transaction, and the group wants to rebalance at once.
            if not others:
                other = GroupConsumer(
                    {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False},
                    assignors=[CooperativeStickyAssignor()],
                )
                other.subscribe([source])
                others.append(other)
                other.poll(0.3)
            else:
                others.pop().close()
            for message in messages:
                billing.producer.produce(sink, message.value())
            billing.producer.send_offsets_to_transaction(behind(messages), fence, 10)
            billing.producer.commit_transaction(10)
            transactions += 1
            done += len(messages)
    finally:
        for other in others:
            other.close()
        billing.close()
    assert transactions >= 4


def test_the_private_format_of_librdkafkas_group_metadata_is_pinned(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str
) -> None:
    native = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    unsubscribed = bytes(native.consumer_group_metadata())
    native.close()
    state = Generation(0, "", None)
    ours = group_metadata.encode(group, state, None)
    head = len(b"CGMDv2:")
    assert unsubscribed[:head] == ours[:head], "librdkafka changed its format: consumer_coord/group_metadata.py must follow"
    assert unsubscribed[head + 4 :] == ours[head + 4 :]
    static = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.instance.id": "a"})
    assert bytes(static.consumer_group_metadata())[head + 4 :] == group_metadata.encode(group, state, "a")[head + 4 :]
    static.close()


def test_outside_the_group_there_is_no_metadata(kafka: KafkaCluster, group: str) -> None:
    consumer = GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    with pytest.raises(KafkaException, match="no group metadata outside the group"):
        consumer.consumer_group_metadata()
    consumer.close()
