"""Kafka's own tools read what this coordinator writes to ``__consumer_offsets``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.java_hash import partition_for
from tests.support.java import ToolJars, run_kafka_tool

pytestmark = pytest.mark.kafka


def values(text: str) -> Iterator[Mapping[str, Any]]:
    """The JSON values that a formatter wrote, one behind the other without anything in between."""
    decoder = json.JSONDecoder()
    position = 0
    while position < len(text) and text[position:].strip():
        value, position = decoder.raw_decode(text, position)
        yield value


def formatted(tool_jars: ToolJars, kafka: EmbeddedKafka, partition: int, formatter: str) -> list[Mapping[str, Any]]:
    """The records of one partition of ``__consumer_offsets`` as ``kafka-console-consumer.sh --formatter`` writes them."""
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "nobody"})
    _, end_offset = reader.get_watermark_offsets(TopicPartition("__consumer_offsets", partition), timeout=60)
    reader.close()
    source = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", "__consumer_offsets", "--partition", str(partition)]
    extent = ["--offset", "earliest", "--max-messages", str(end_offset)]
    formatting = ["--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    ran = run_kafka_tool(tool_jars, "consumer.ConsoleConsumer", *source, *extent, *formatting)
    assert ran.returncode == 0, ran.stderr
    assert f"Processed a total of {end_offset} messages" in ran.stderr
    return list(values(ran.stdout))


def test_kafkas_formatters_read_groups_and_offsets(tool_jars: ToolJars) -> None:
    with EmbeddedKafka({"orders": 2}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("orders", b"first", partition=1)
        assert producer.flush(90) == 0
        del producer
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        consumer.poll(0)
        while len(consumer.assignment()) < 2:
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition("orders", 1, 1)], asynchronous=False)
        member_id = consumer.memberid()
        consumer.close()
        partition = partition_for("billing", 50)
        offsets = formatted(tool_jars, kafka, partition, "OffsetsMessageFormatter")
        groups = formatted(tool_jars, kafka, partition, "GroupMetadataMessageFormatter")
    (offset,) = offsets
    assert offset["key"] == {"type": 1, "data": {"group": "billing", "topic": "orders", "partition": 1}}
    assert offset["value"]["data"]["offset"] == 1
    assert {json.dumps(record["key"]) for record in groups} == {json.dumps({"type": 2, "data": {"group": "billing"}})}
    stable = next(record["value"]["data"] for record in groups if record["value"]["data"]["members"])
    assert stable["protocolType"] == "consumer"
    assert stable["leader"] == member_id
    assert [member["memberId"] for member in stable["members"]] == [member_id]
    assert groups[-1]["value"]["data"]["members"] == []
