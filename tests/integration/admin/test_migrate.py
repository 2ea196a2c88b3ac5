"""``consumer-coord migrate`` on Kafka's broker: moves of groups of Java, librdkafka and this library, checked and followed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from consumer_coord.admin.commands import ExitCode
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.admin import await_group, set_consumer_timeouts
from tests.support.churn_checks import lost_records, repeated_records
from tests.support.commands import Ran, Run, run_command
from tests.support.kafka.four_clients import PARTITIONS, Writing, batches, ends_of
from tests.support.members import Client, Member, Members, Setting, await_shared
from tests.support.migrating import Watching
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: Five members, of the clients that have both protocols.
FIVE: Sequence[Client] = ("java", "confluent-kafka", "java", "confluent-kafka", "ours")
COMMITS: dict[str, Setting] = {"enable.auto.commit": True, "auto.commit.interval.ms": 500}


class Rolling:
    """The members of a group, each of which can be restarted with other settings."""

    def __init__(self, kafka: KafkaCluster, members: Members, group: str, topic: str) -> None:
        self.kafka = kafka
        self.group = group
        self.topic = topic
        self._members = members
        self.running: list[Member] = []
        self.all: list[Member] = []

    def start(self, client: Client, *, assignors: Sequence[str] = ("range",), **config: Setting) -> Member:
        """Start a member; ``group_protocol="consumer"`` sets ``group.protocol``."""
        given = {name.replace("_", "."): value for name, value in config.items()}
        one = self._members.start(client, self.group, [self.topic], assignors=assignors, config={**COMMITS, **given})
        self.running.append(one)
        self.all.append(one)
        return one

    def replace(self, member: Member, client: Client | None = None, **settings: Any) -> None:
        """Close a member, and start another one in its place."""
        member.leave()
        self.running.remove(member)
        self.start(client or member.client, **settings)

    def await_shared(self, **conditions: Any) -> None:
        """Wait until the members share the topic."""
        await_shared(self.running, {self.topic: PARTITIONS}, **conditions)

    def by_id(self) -> dict[str, Member]:
        """Return member id -> member, as the members know it themselves."""
        return {one.command("state")["member_id"]: one for one in self.running}

    def counts(self) -> str:
        """Wait until all records were read and committed; return how many were read again."""
        ends = ends_of(self.kafka, self.topic)
        eventually(lambda: lost_records(batches(self.all), ends) == 0, "the last records of all partitions")
        reader = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": self.group})
        try:
            partitions = [TopicPartition(self.topic, number) for number in ends]
            eventually(lambda: all(one.offset == ends[one.partition] for one in reader.committed(partitions, timeout=90)))
        finally:
            reader.close()
        return f"{sum(ends.values())} records, none lost, {repeated_records(batches(self.all), ends)} read again"


@pytest.fixture
def rolling(kafka: KafkaCluster, topic: NewTopicFactory, group: str, members: Members) -> Rolling:
    """A group without members, with heartbeats of half a second in the consumer protocol."""
    set_consumer_timeouts(kafka.admin, group, session_ms=10_000, heartbeat_ms=500)
    return Rolling(kafka, members, group, topic(PARTITIONS))


@pytest.fixture
def one_way(kafka_libs: Path) -> Iterator[RealKafka]:
    """A broker that converts groups to the consumer protocol, but not back."""
    with RealKafka(kafka_libs, properties={"group.consumer.migration.policy": "upgrade"}) as broker:
        yield broker


def test_a_policy_without_a_way_back(
    one_way: RealKafka, group: str, members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the check says, and what the broker then does."""
    set_consumer_timeouts(one_way.admin, group, session_ms=10_000, heartbeat_ms=500)
    servers, name = one_way.bootstrap_servers, one_way.new_topic(PARTITIONS)

    def migrate(*flags: str) -> Ran:
        return run_command(capsys, servers, "migrate", group, *flags)

    old = members.start("java", group, [name], bootstrap_servers=servers)
    await_shared([old], {name: PARTITIONS})
    there = migrate("--json")
    assert there.code == ExitCode.DONE
    lost = "the way back without a stop: group.consumer.migration.policy of broker 1 is upgrade"
    assert any(lost in text for text in there.json["loses"])
    modern: dict[str, Setting] = {"group.protocol": "consumer"}
    new = members.start("java", group, [name], bootstrap_servers=servers, config=modern)
    await_shared([old, new], {name: PARTITIONS}, at_least=4)
    back = migrate("--to", "classic", "--json")
    assert back.code == ExitCode.FAILED
    assert "group.consumer.migration.policy of broker 1 is upgrade" in back.json["blocks"][0]
    eventually(lambda: "broker 1 is upgrade" in (migrate("--json").json["progress"]["back_refused"] or ""))

    new.leave()
    eventually(lambda: migrate("--json").json["progress"]["wait"] == "the group is Assigning")
    assert group in run_command(capsys, servers, "list", "--type", "consumer").out, "it was not converted back"
    # Only a member that joins makes the broker assign the partitions of the one that left.
    third = members.start("confluent-kafka", group, [name], bootstrap_servers=servers, config=modern)
    await_shared([old, third], {name: PARTITIONS}, at_least=4)


@pytest.mark.timeout(900)
def test_a_roll_to_the_consumer_protocol_and_back_under_load(
    rolling: Rolling, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, group = rolling.kafka.bootstrap_servers, rolling.group
    with Writing(servers, rolling.topic):
        for client in FIVE:
            rolling.start(client)
        rolling.await_shared(at_least=1)
        check = run("migrate", group, "--check", "--json")
        assert check.code == ExitCode.DONE
        clients = sorted(one["client"]["name"] for one in check.json["members"])
        assert clients == ["Java", "Java", "consumer-coord", "librdkafka", "librdkafka"]
        assert any("the assignor range, unless" in text for text in check.json["loses"])
        assert any("session.timeout.ms (the broker's: 10000)" in text for text in check.json["loses"])
        lines = roll(rolling, check.json["order"], tmp_path, "consumer", group_protocol="consumer")
        assert {one["type"] for one in lines} == {"Classic", "Consumer"}
        assert group in run("list", "--type", "consumer").out
        back = run("migrate", group, "--to", "classic", "--json")
        assert (back.code, len(back.json["order"])) == (ExitCode.DONE, 5)
        lines += roll(rolling, back.json["order"], tmp_path, "classic")
        rolling.await_shared(at_least=1)
    assert await_group(rolling.kafka.admin, group, members=5).assignor == "range"
    assert group in run("list", "--type", "classic").out
    assert not [one for one in lines if one["back"] is not None and one["wait"] is not None]
    errors = [event["error"] for one in rolling.all for event in one.named("error")]
    # A conversion ends the joins that wait, and librdkafka tells its application.
    assert all("REBALANCE_IN_PROGRESS" in error for error in errors), errors
    told = rolling.counts()
    with capsys.disabled():
        print(f"\nto the consumer protocol and back, five members: {told}; {len(lines)} lines")


def roll(rolling: Rolling, order: Sequence[str], tmp_path: Path, target: str, **settings: Any) -> list[dict[str, Any]]:
    """Restart the members in ``order``, each when ``migrate --watch`` says so; return the lines of the command."""
    servers, count = rolling.kafka.bootstrap_servers, len(order)
    with Watching(tmp_path, servers, rolling.group, "--to", target, "--interval-ms", "200") as watching:
        running = rolling.by_id()
        for moved, member_id in enumerate(order):
            line = watching.await_settled(moved, count)
            assert line["back"] is not None
            rolling.replace(running[member_id], **settings)
        line = watching.await_settled(count, count)
        assert line["complete"]
        assert watching.process.wait(120) == ExitCode.DONE
        return watching.answered


def test_user_data_of_librdkafkas_assignor_prevents_the_move_as_the_check_says(rolling: Rolling, run: Run) -> None:
    rolling.start("confluent-kafka", assignors=["cooperative-sticky"])
    rolling.await_shared()
    rolling.start("confluent-kafka", assignors=["cooperative-sticky"])
    rolling.await_shared(at_least=2)
    check = run("migrate", rolling.group, "--check")
    assert check.code == ExitCode.FAILED
    assert "have user data of the assignor cooperative-sticky" in check.out
    refused = rolling.start("confluent-kafka", group_protocol="consumer")
    assert "ConsumerGroupHeartbeat fatal error: Broker: The group id does not exist" in refused.wait_for("error")["error"]
    rolling.running.remove(refused)
    rolling.await_shared(at_least=2)


def test_two_rolls_from_eager_to_cooperative(rolling: Rolling, run: Run, tmp_path: Path) -> None:
    three: Sequence[Client] = ("java", "confluent-kafka", "ours")
    for client in three:
        rolling.start(client)
    rolling.await_shared(at_least=2)
    check = run("migrate", rolling.group, "--to", "cooperative-sticky")
    assert (check.code, "librdkafka has no lists of eager and cooperative" in check.out) == (ExitCode.FAILED, True)
    rolling.replace(rolling.running[1], "java")
    rolling.await_shared(at_least=2)
    check = run("migrate", rolling.group, "--to", "cooperative-sticky", "--json")
    assert (check.code, len(check.json["steps"])) == (ExitCode.DONE, 2)
    servers, group = rolling.kafka.bootstrap_servers, rolling.group
    with Watching(tmp_path, servers, group, "--to", "cooperative-sticky", "--interval-ms", "200") as watching:
        for assignors, before in ((["cooperative-sticky", "range"], "range"), (["cooperative-sticky"], "cooperative-sticky")):
            for member in list(rolling.running):
                eventually(lambda: watching.lines and watching.lines[-1]["wait"] is None)
                assert watching.answered[-1]["assignor"] == before
                rolling.replace(member, assignors=assignors)
                rolling.await_shared(at_least=2)
            eventually(lambda: watching.answered[-1]["assignor"] == "cooperative-sticky")
        # One more rebalance, in which all others keep partitions, unless there was one already.
        rolling.start("ours", assignors=["cooperative-sticky"])
        rolling.await_shared(at_least=2)
        line = eventually(
            lambda: next((one for one in watching.answered if one["moved"] >= 3 and one["wait"] is None), None),
            "three members that kept partitions",
            shows=lambda: "\n".join(map(str, watching.lines[-8:])),
        )
        assert line is not None
        assert str(line["back"]).startswith("in two rolls")
    told = {one["back"] for one in watching.answered if one["assignor"] == "range" and one["wait"] is None}
    assert told == {"restart the members that have both assignors with range alone"}


def test_a_move_from_confluent_kafka_to_this_library(rolling: Rolling, run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        rolling.start("confluent-kafka", assignors=["cooperative-sticky"])
    rolling.await_shared(at_least=4)
    check = run("migrate", rolling.group, "--to", "consumer-coord", "--json")
    assert (check.code, len(check.json["order"])) == (ExitCode.DONE, 2)
    servers, group = rolling.kafka.bootstrap_servers, rolling.group
    with Watching(tmp_path, servers, group, "--to", "consumer-coord", "--interval-ms", "200") as watching:
        running = rolling.by_id()
        for moved, member_id in enumerate(check.json["order"]):
            line = watching.await_settled(moved, 2)
            assert line["back"] == "restart the members that have moved with confluent-kafka, one after the other"
            rolling.replace(running[member_id], "ours", assignors=["cooperative-sticky"])
            rolling.await_shared(at_least=4)
        assert watching.process.wait(120) == ExitCode.DONE
