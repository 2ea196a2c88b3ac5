"""The lag of groups on Kafka's own broker: transactions, compression and timestamps, next to Kafka's own tool."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord.admin.commands import ExitCode
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.commands import Run

pytestmark = pytest.mark.kafka

DEADLINE_S = 120.0
#: The flags with which the lag is that of Kafka's tool.
AS_KAFKAS_TOOL = ("--isolation", "read_uncommitted", "--without-commit", "unknown")


def transactional(kafka: KafkaCluster) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"lag-{uuid.uuid4()}"})
    producer.init_transactions(DEADLINE_S)
    return producer


def write(producer: Producer, topic: str, count: int, *, ends: str = "") -> None:
    """Write records in one transaction, which is committed, aborted or left open."""
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, b"v")
    assert producer.flush(DEADLINE_S) == 0
    if ends == "commit":
        producer.commit_transaction(DEADLINE_S)
    elif ends == "abort":
        producer.abort_transaction(DEADLINE_S)


def lag_of(run: Run, group: str, *flags: str) -> dict[str, Any]:
    ran = run("lag", group, "--json", *flags)
    assert ran.code in (ExitCode.DONE, ExitCode.BEHIND), ran.err
    (row,) = ran.json["groups"][0]["partitions"]
    return {**row, "code": ran.code}


def lag_of_kafkas_tool(kafka_tool: Run, group: str) -> int:
    header, row = (line.split() for line in kafka_tool("--describe", "--group", group).lines if "has no active" not in line)
    return int(row[header.index("LAG")])


def test_a_group_behind_a_transactional_topic(
    kafka: KafkaCluster, topic: NewTopicFactory, group: str, run: Run, kafka_tool: Run
) -> None:
    orders = topic(1, prefix="orders")
    producer = transactional(kafka)
    write(producer, orders, 10, ends="commit")
    # As a member commits that has read all records: the offset after the last one, which is that of the marker.
    assert run("reset", group, "--to-offset", "10", "--topic", orders, "--execute").code == 0
    read = lag_of(run, group, "--max-lag", "0", "--max-lag-seconds", "0")
    assert (read["lag"], read["lag_seconds"], read["code"]) == (0, 0, ExitCode.DONE)
    every = lag_of(run, group, "--max-lag", "0", *AS_KAFKAS_TOOL)
    assert (every["lag"], every["code"]) == (lag_of_kafkas_tool(kafka_tool, group), ExitCode.BEHIND)

    write(producer, orders, 500, ends="abort")
    assert lag_of(run, group, "--max-lag", "0")["code"] == ExitCode.DONE
    assert lag_of(run, group, *AS_KAFKAS_TOOL)["lag"] == lag_of_kafkas_tool(kafka_tool, group) == 502

    write(producer, orders, 5)
    assert lag_of(run, group, "--seconds")["lag"] == 0, "no member may read records of an open transaction"
    assert lag_of(run, group, *AS_KAFKAS_TOOL)["lag"] == lag_of_kafkas_tool(kafka_tool, group) == 507
    producer.commit_transaction(DEADLINE_S)
    told = lag_of(run, group, "--seconds", "--max-lag", "0")
    assert told["code"] == ExitCode.BEHIND
    assert 0 <= told["lag_seconds"] < DEADLINE_S


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_age_of_a_record_inside_a_compressed_batch(
    codec: str, kafka: KafkaCluster, topic: NewTopicFactory, group: str, run: Run
) -> None:
    orders = topic(1, prefix="orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 500})
    now_ms = int(time.time() * 1000)
    for number in range(50):
        producer.produce(orders, bytes(2_000), timestamp=now_ms - 1_000_000 + 10_000 * number)
    assert producer.flush(DEADLINE_S) == 0
    assert run("reset", group, "--to-offset", "7", "--topic", orders, "--execute").code == 0
    age = lag_of(run, group, "--seconds")["lag_seconds"]
    assert 930 <= age < 940 + DEADLINE_S
    described = run("describe", group, "--seconds", "--json").json["groups"][0]
    assert described["lag_seconds"] == described["partitions"][0]["lag_seconds"] >= 930
