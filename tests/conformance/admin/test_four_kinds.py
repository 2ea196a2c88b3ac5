"""The commands on the four kinds of groups, next to the tool that Kafka has for each kind, on one broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer

from consumer_coord.admin.commands import ExitCode
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.commands import Ran, Run
from tests.support.java import JavaProgram, ToolJars
from tests.support.streams_member import streams_heartbeat
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka

AS_KAFKAS_TOOL = ("--isolation", "read_uncommitted", "--without-commit", "unknown")
_TOOLS = {
    "share": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "streams": "org.apache.kafka.tools.streams.StreamsGroupCommand",
}


@pytest.fixture
def orders(kafka: KafkaCluster, topic: NewTopicFactory) -> str:
    """A topic with two partitions of twenty records."""
    name = topic(2, prefix="orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(40):
        producer.produce(name, b"value", partition=number % 2)
    assert producer.flush(180) == 0
    return name


@pytest.fixture
def tool(kafka: KafkaCluster, kafka_libs: Path, tool_jars: ToolJars) -> Iterator[Callable[[str], Run]]:
    """Return ``tool("share")("--describe", …)``, which runs Kafka's tool for a kind of groups."""
    started = {}

    def of(kind: str) -> Run:
        if kind not in started:
            started[kind] = JavaProgram(kafka_libs, "ToolServer").start(_TOOLS[kind], also=tool_jars.tools)

        def run(*arguments: str) -> Ran:
            answer = started[kind].request(json.dumps(["--bootstrap-server", kafka.bootstrap_servers, *arguments]))
            return Ran(**json.loads(answer))

        return run

    try:
        yield of
    finally:
        for process in started.values():
            process.close()


def cells(ran: Ran) -> list[list[str]]:
    """Return the words of a table's lines, the header first."""
    header, *rows = (line.split() for line in ran.lines)
    return [header, *sorted(rows)]


def test_a_share_group(kafka: KafkaCluster, orders: str, group: str, run: Run, tool: Callable[[str], Run]) -> None:
    theirs = tool("share")
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    consumer = ShareConsumer({**settings, "client.id": "share-1"})
    try:
        consumer.subscribe([orders])

        def joined() -> bool:
            consumer.poll(0.1)
            described = run("describe", group, "--json").json["groups"]
            # The coordinator assigns the partitions first, and then initializes their state.
            return bool(described) and len(described[0]["partitions"]) == 2

        eventually(joined)
        assert [group, "Share", "Stable"] in [line.split() for line in run("list", "--type", "--state").lines]
        for flags in ([], ["--verbose"]):
            ours = run("describe", group, *flags, *AS_KAFKAS_TOOL)
            assert cells(ours) == cells(theirs("--describe", "--group", group, *flags))
        assert run("reset", group, "--to-earliest", "--topic", orders, "--execute").code == ExitCode.IN_USE
        assert run("delete", group).code == ExitCode.IN_USE
    finally:
        consumer.close()

    plan = ["--to-earliest", "--topic", orders]
    ours = run("reset", group, *plan, "--dry-run")
    assert cells(ours) == cells(theirs("--reset-offsets", "--group", group, *plan, "--dry-run"))
    # Kafka's tool can only reset to the earliest or latest offset, or to a time.
    assert run("reset", group, "--to-offset", "15", "--topic", orders, "--execute").code == ExitCode.DONE
    described = theirs("--describe", "--group", group)
    assert [row[3:] for row in cells(described)[1:]] == [["15", "5"], ["15", "5"]]
    assert cells(run("describe", group, *AS_KAFKAS_TOOL)) == cells(described)
    assert run("lag", group, "--max-lag", "5", "--max-lag-seconds", "3600").code == ExitCode.DONE
    behind = run("lag", group, "--max-lag", "4", "--json")
    assert behind.code == ExitCode.BEHIND
    assert {row["lag"] for row in behind.json["groups"][0]["partitions"]} == {5}
    assert run("reset", group, "--shift-by", "-3", "--all-topics", "--execute").code == ExitCode.DONE
    assert [row[3:] for row in cells(theirs("--describe", "--group", group))[1:]] == [["12", "8"], ["12", "8"]]

    consumer = ShareConsumer({**settings, "client.id": "share-2"})
    try:
        consumer.subscribe([orders])

        def finished() -> bool:
            # The next poll acknowledges the records of the last.
            consumer.poll(0.2)
            return {row["lag"] for row in run("lag", group, "--json").json["groups"][0]["partitions"]} == {0}

        eventually(finished, within_s=120)
        assert [row[4] for row in cells(theirs("--describe", "--group", group))[1:]] == ["0", "0"]
        assert run("lag", group, "--max-lag", "0", "--max-lag-seconds", "0").code == ExitCode.DONE
    finally:
        consumer.close()

    partition = run("delete-offsets", group, "--topic", f"{orders}:0")
    assert (partition.code, "share group, whose offsets are deleted by topic" in partition.err) == (ExitCode.USAGE, True)
    deleted = run("delete-offsets", group, "--topic", orders)
    assert (deleted.code, [row[2] for row in cells(deleted)[1:]]) == (ExitCode.DONE, ["Successful", "Successful"])
    assert not [line for line in theirs("--describe", "--group", group).lines if orders in line]
    assert run("delete", group).out.strip() == f"Deletion of requested share groups ('{group}') was successful."
    assert run("delete", group).code == ExitCode.NOT_FOUND


def test_a_streams_group(kafka: KafkaCluster, orders: str, group: str, run: Run, tool: Callable[[str], Run]) -> None:
    theirs = tool("streams")
    member = str(uuid.uuid4())
    # A look-up of the coordinator creates __consumer_offsets.
    assert run("describe", group).code == ExitCode.NOT_FOUND

    def joined() -> bool:
        try:
            streams_heartbeat(kafka.bootstrap_servers, group, orders, member=member)
        except AssertionError:
            return False  # the coordinator loads
        return True

    eventually(joined)
    ours, kafkas = (
        cells(ran) for ran in (run("describe", group, "--state"), theirs("--describe", "--group", group, "--state"))
    )
    assert {"sticky", "1"} <= {*ours[1]} & {*kafkas[1]}
    assert [group, "Streams"] in [line.split() for line in run("list", "--type").lines]
    assert member in run("describe", group, "--members").out
    assert run("reset", group, "--to-offset", "15", "--topic", orders, "--execute").code == ExitCode.IN_USE
    assert run("delete", group).code == ExitCode.IN_USE

    def leave() -> None:
        streams_heartbeat(kafka.bootstrap_servers, group, orders, member=member, epoch=-1)
        eventually(lambda: run("describe", group, "--json").json["groups"][0]["state"] == "Empty")

    leave()
    assert run("reset", group, "--to-offset", "15", "--topic", orders, "--execute").code == ExitCode.DONE
    # Kafka's tool shows only the partitions of tasks that members have.
    epoch = streams_heartbeat(kafka.bootstrap_servers, group, orders, member=member)

    def has_tasks() -> bool:
        nonlocal epoch
        epoch = streams_heartbeat(kafka.bootstrap_servers, group, orders, member=member, epoch=epoch)
        described = run("describe", group, "--json").json["groups"][0]
        return bool(described["members"][0]["assignment"] == {"sub-0": [0, 1]})

    eventually(has_tasks, every_s=0.2)
    assert {row["member_id"] for row in run("describe", group, "--json").json["groups"][0]["partitions"]} == {member}
    for flags in ([], ["--verbose"]):
        described = theirs("--describe", "--group", group, *flags)
        assert cells(run("describe", group, *flags, *AS_KAFKAS_TOOL)) == cells(described)
        assert {row[-1] for row in cells(described)[1:]} == {"5"}
    leave()
    assert run("lag", group, "--max-lag", "5").code == ExitCode.DONE
    assert run("lag", group, "--max-lag", "4", "--seconds").code == ExitCode.BEHIND
    top = [json.loads(line) for line in run("lag", group, "--count", "1", "--json").out.splitlines()]
    assert [(row["topic"], row["lag"]) for row in top] == [(orders, 10)]
    assert run("delete-offsets", group, "--topic", f"{orders}:0").code == ExitCode.DONE
    assert [row[2] for row in cells(run("describe", group))[1:]] == ["1"]
    assert run("delete", group).out.strip() == f"Deletion of requested streams groups ('{group}') was successful."
    assert run("delete", group).code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_classic_and_consumer_groups(
    protocol: str, kafka: KafkaCluster, orders: str, group: str, run: Run, kafka_tool: Run
) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": protocol})
    try:
        consumer.subscribe([orders])
        eventually(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
        assert [group, protocol.title(), "Stable"] in [line.split() for line in run("list", "--type", "--state").lines]
        assert cells(run("describe", group, *AS_KAFKAS_TOOL)) == cells(kafka_tool("--describe", "--group", group))
        for command in (["reset", "--to-earliest", "--topic", orders, "--execute"], ["delete"]):
            assert run(command[0], group, *command[1:]).code == ExitCode.IN_USE
    finally:
        consumer.close()
    # The coordinator may notice a member's leave after the answer to it.
    eventually(lambda: run("reset", group, "--to-offset", "15", "--topic", orders, "--execute").code == ExitCode.DONE)
    assert cells(run("describe", group, *AS_KAFKAS_TOOL)) == cells(kafka_tool("--describe", "--group", group))
    assert run("lag", group, "--max-lag", "5").code == ExitCode.DONE
    assert run("lag", group, "--max-lag", "4").code == ExitCode.BEHIND
    assert run("delete", group).out.strip() == f"Deletion of requested consumer groups ('{group}') was successful."
