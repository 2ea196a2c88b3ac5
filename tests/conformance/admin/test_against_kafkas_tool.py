"""``consumer-coord`` and Kafka's own ``kafka-consumer-groups`` on one broker: the same flags, the same answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from consumer_coord.admin.commands import ExitCode
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.admin import committed_offsets
from tests.support.commands import Ran, Run
from tests.support.members import Members, await_shared

pytestmark = pytest.mark.kafka


def produce(kafka: KafkaCluster, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(partitions * each):
        producer.produce(topic, b"value", partition=number % partitions)
    assert producer.flush(180) == 0


def same_lines(ours: Ran, theirs: Ran) -> None:
    """The same lines; where two members have as many partitions, Kafka's tool puts either first."""
    assert (ours.lines[0], sorted(ours.lines)) == (theirs.lines[0], sorted(theirs.lines))


#: The flags with which the lag is that of Kafka's tool.
AS_KAFKAS_TOOL = ("--isolation", "read_uncommitted", "--without-commit", "unknown")


@pytest.fixture
def orders(kafka: KafkaCluster, topic: NewTopicFactory) -> str:
    """A topic with three partitions of twenty records."""
    name = topic(3, prefix="orders")
    produce(kafka, name, 3, 20)
    return name


def test_a_living_group(
    kafka: KafkaCluster,
    orders: str,
    topic: NewTopicFactory,
    group: str,
    members: Members,
    run: Run,
    kafka_tool: Run,
) -> None:
    bills = topic(2, prefix="bills")
    first = members.start("confluent-kafka", group, [orders, bills])
    second = members.start("java", group, [orders], instance_id="static-1")
    await_shared([first, second], {orders: 3, bills: 2})
    first.command("commit")
    for flags in ([], ["--members"], ["--state", "--verbose"]):
        ours = run("describe", group, *flags, *AS_KAFKAS_TOOL)
        theirs = kafka_tool("--describe", "--group", group, *flags)
        assert ours.code == (0 if flags else ExitCode.INCOMPLETE), "the lag of partitions without a commit is unknown"
        same_lines(ours, theirs)
        same_lines(run("--describe", "--group", group, *flags, *AS_KAFKAS_TOOL), theirs)

    # Only our tool shows subscriptions, decoded from any client.
    ours, theirs = (
        run("describe", group, "--members", "--verbose"),
        kafka_tool("--describe", "--group", group, "--members", "--verbose"),
    )
    width = ours.lines[0].index("SUBSCRIPTION")
    assert sorted(line[:width].rstrip() for line in ours.lines) == sorted(theirs.lines)
    shown = {member["client_id"]: member for member in run("describe", group, "--json").json["groups"][0]["members"]}
    assert shown["rdkafka"]["subscription"]["topics"] == sorted([orders, bills])
    java = next(member for member in shown.values() if member["instance_id"] == "static-1")
    assert java["subscription"]["topics"] == [orders]

    before = committed_offsets(kafka.admin, group)
    refused = run("reset", group, "--to-earliest", "--all-topics", "--execute")
    told = f"Assignments can only be reset if the group '{group}' is inactive, but the current state is Stable."
    assert (refused.code, told in refused.err) == (4, True)
    assert told in kafka_tool("--reset-offsets", "--group", group, "--to-earliest", "--all-topics", "--execute").out
    assert committed_offsets(kafka.admin, group) == before
    assert run("delete", group).code == 4
    assert run("delete-offsets", group, "--topic", orders).code == 4


def test_an_empty_group_reset_in_every_way(
    kafka: KafkaCluster, orders: str, group: str, members: Members, run: Run, kafka_tool: Run
) -> None:
    member = members.start("confluent-kafka", group, [orders])
    member.wait_until(lambda: member.total == 60, "60 records")
    member.command("commit")
    member.leave()
    described = run("describe", group)
    assert described.code == 0
    assert f"Consumer group '{group}' has no active members." in described.err
    same_lines(described, kafka_tool("--describe", "--group", group))

    for flags in (
        ["--to-earliest", "--all-topics"],
        ["--shift-by", "-5", "--topic", f"{orders}:0,2"],
        ["--to-offset", "5000", "--topic", orders],
    ):
        ours = run("reset", group, *flags, "--dry-run")
        theirs = kafka_tool("--reset-offsets", "--group", group, *flags, "--dry-run")
        mine = [line for line in ours.lines if line.startswith(("GROUP", group))]
        assert ours.code == 0
        assert sorted(mine) == sorted(line for line in theirs.lines if line.startswith(("GROUP", group)))
    assert set(committed_offsets(kafka.admin, group).values()) == {20}

    assert run("reset", group, "--to-offset", "7", "--topic", orders, "--execute").code == 0
    assert set(committed_offsets(kafka.admin, group).values()) == {7}
    verbose = ["--describe", "--group", group, "--verbose"]
    same_lines(run(*verbose), kafka_tool(*verbose))
    deleted = run("delete-offsets", group, "--topic", f"{orders}:0,1")
    assert deleted.code == 0
    assert [line.split() for line in deleted.lines[1:]] == [[orders, str(number), "Successful"] for number in range(2)]
    assert set(committed_offsets(kafka.admin, group)) == {(orders, 2)}


def test_a_plan_exported_by_either_is_read_by_the_other(
    kafka: KafkaCluster, orders: str, group: str, tmp_path: Path, run: Run, kafka_tool: Run
) -> None:
    flags = ["--to-offset", "9", "--topic", orders, "--dry-run", "--export"]
    ours, theirs = run("reset", group, *flags), kafka_tool("--reset-offsets", "--group", group, *flags)
    assert sorted(ours.lines) == sorted(theirs.lines) == [f"{orders},{number},9" for number in range(3)]
    plan = str(tmp_path / "plan.csv")
    with open(plan, "w") as file:
        file.write(ours.out)
    assert kafka_tool("--reset-offsets", "--group", group, "--from-file", plan, "--execute").code == 0
    assert committed_offsets(kafka.admin, group) == {(orders, number): 9 for number in range(3)}
    with open(plan, "w") as file:
        file.write(theirs.out.replace(",9", ",4"))
    assert run("reset", group, "--from-file", plan, "--execute").code == 0
    assert committed_offsets(kafka.admin, group) == {(orders, number): 4 for number in range(3)}
    # Made by the reset alone, it is a group like any other.
    assert group in run("list").lines
    assert run("delete", group).out.strip() == f"Deletion of requested consumer groups ('{group}') was successful."
    assert run("delete", group).code == 3
