"""Metrics that a real broker asks for and receives (KIP-714), next to those of Java's consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.java import JavaProgram, ToolJars, run_kafka_tool
from tests.support.members import Members
from tests.support.producer import Producer
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka

PREFIX = "org.apache.kafka.consumer."


@attrs.frozen
class Receiver:
    """A broker with the plug-in, and the file that the plug-in writes."""

    kafka: RealKafka
    file: Path

    def pushes(self, client_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the pushes of a client, in order."""
        if not self.file.exists():
            return []
        whole = self.file.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in whole if line.endswith("\n")]
        return [one for one in found if one["client_id"] == client_id]

    def names(self, client_id: str) -> set[str]:
        """Return the names of all metrics that a client pushed."""
        return {point["name"] for one in self.pushes(client_id) for point in one["points"]}

    def total(self, client_id: str, name: str) -> float:
        """Return the sum of a counter that a client pushed."""
        points = [point for one in self.pushes(client_id) for point in one["points"] if point["name"] == PREFIX + name]
        assert {(point["temporality"], point["monotonic"]) for point in points} <= {("AGGREGATION_TEMPORALITY_DELTA", True)}
        return float(sum(point["value"] for point in points))


@pytest.fixture(scope="module")
def receiver(kafka_libs: Path, tool_jars: ToolJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """Start a broker that receives metrics, with a topic of 30 records and a subscription to all metrics."""
    file = tmp_path_factory.mktemp("telemetry") / "pushes"
    properties = {"metric.reporters": "TelemetryReporter", "test.telemetry.file": str(file)}
    plug_in = JavaProgram(kafka_libs, "TelemetryReporter").compiled()
    with RealKafka(kafka_libs, properties=properties, plug_ins=[plug_in]) as kafka:
        arguments = ["--alter", "--name", "all", "--metrics", "*", "--interval", "1000"]
        ran = run_kafka_tool(tool_jars, "ClientMetricsCommand", "--bootstrap-server", kafka.bootstrap_servers, *arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        kafka.create_topic("orders", partitions=2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.metrics.push": False})
        for number in range(30):
            producer.produce("orders", b"v" * 100, partition=number % 2)
        assert producer.flush(60) == 0
        yield Receiver(kafka, file)


def settings(receiver: Receiver, client_id: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a consumer with this package's Fetch: librdkafka pushes metrics of its own, as another client."""
    return {
        "librdkafka.enable": False,
        "bootstrap.servers": receiver.kafka.bootstrap_servers,
        "group.id": f"group of {client_id}",
        "client.id": client_id,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        **more,
    }


def check(receiver: Receiver, client_id: str) -> None:
    """Check what a consumer that read 30 records pushed until its close."""
    pushes = receiver.pushes(client_id)
    assert [one["terminating"] for one in pushes] == [False] * (len(pushes) - 1) + [True]
    assert len({one["instance"] for one in pushes}) == 1
    assert pushes[0]["labels"]["group_id"] == f"group of {client_id}"
    assert receiver.total(client_id, "fetch.manager.records.consumed.total") == 30
    assert receiver.total(client_id, "coordinator.rebalance.total") >= 1
    assert receiver.total(client_id, "coordinator.commit.total") >= 1
    lags = [
        (one["attributes"], one["value"]) for one in pushes[-2]["points"] if one["name"] == f"{PREFIX}fetch.manager.records.lag"
    ]
    assert sorted(lags, key=str) == [({"topic": "orders", "partition": str(number)}, 0.0) for number in range(2)]


def enough(receiver: Receiver, client_id: str) -> bool:
    return len(receiver.pushes(client_id)) > 2 and receiver.total(client_id, "coordinator.commit.total") > 0


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_blocking_consumer(protocol: str, columns: bool, receiver: Receiver) -> None:
    client_id = f"{protocol}-{'columns' if columns else 'messages'}"
    with GroupConsumer(settings(receiver, client_id, **{"group.protocol": protocol})) as consumer:
        consumer.subscribe(["orders"])
        seen = 0

        def done() -> bool:
            nonlocal seen
            seen += len(consumer.consume_arrow(timeout=0.1)) if columns else consumer.poll(0.1) is not None
            return seen == 30 and enough(receiver, client_id)

        eventually(done)
    check(receiver, client_id)


def test_the_asyncio_consumer(receiver: Receiver) -> None:
    async def read() -> None:
        async with AsyncGroupConsumer(settings(receiver, "asyncio")) as consumer:
            await consumer.subscribe(["orders"])
            seen = 0
            async with asyncio.timeout(180):
                while not (seen == 30 and enough(receiver, "asyncio")):
                    seen += await consumer.poll(0.1) is not None

    asyncio.run(read())
    check(receiver, "asyncio")


def test_the_names_are_those_of_javas_consumer(receiver: Receiver, kafka_libs: Path) -> None:
    members = Members(lambda: kafka_libs, lambda: receiver.kafka.bootstrap_servers)
    try:
        java = members.start("java", "group of java", ["orders"], config={"client.id": "java", "enable.metrics.push": True})
        java.wait_for_total(30)
        java.command("commit")
        eventually(lambda: len(receiver.pushes("java")) > 1 and f"{PREFIX}coordinator.commit.total" in receiver.names("java"))
        java.leave()
    finally:
        members.close()
    if not receiver.pushes("classic-messages"):
        test_the_blocking_consumer("classic", False, receiver)
    ours = {name for name in receiver.names("classic-messages") if name.startswith(PREFIX)}
    theirs = receiver.names("java")
    assert len(ours) > 50
    assert not ours - theirs
    assert {one["labels"].keys() >= {"group_id", "group_member_id"} for one in receiver.pushes("java")[1:]} == {True}
