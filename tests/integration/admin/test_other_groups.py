"""The operators' commands on share groups (KIP-932) and groups of Kafka Streams (KIP-1071), on a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import ShareConsumer

from consumer_coord.admin.commands import ExitCode
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.integration.watch.test_command import Watch
from tests.support.commands import Run
from tests.support.streams_member import streams_heartbeat
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka

#: Every successful operation ends earlier.
DEADLINE_S = 180.0


@pytest.fixture(params=["share", "streams"])
def other(request: pytest.FixtureRequest, kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> Iterator[tuple[str, str]]:
    """The type and the name of a group with a member."""
    name = topic(2, prefix="orders")
    if request.param == "streams":
        ends = time.monotonic() + DEADLINE_S
        while True:
            try:
                streams_heartbeat(kafka.bootstrap_servers, group, name)
                break
            except AssertionError:
                # The coordinator loads.
                assert time.monotonic() < ends
                time.sleep(0.2)
        yield "streams", group
        return
    consumer = ShareConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "client.id": "share-1"})
    try:
        consumer.subscribe([name])
        yield "share", group
    finally:
        consumer.close()


def settle(run: Run, group: str) -> None:
    """Wait until the group has its member."""

    def has_member() -> bool:
        lines = [line.split() for line in run("list", "--state").lines]
        return any(words[:1] == [group] and words[-1] != "Empty" for words in lines)

    eventually(has_member, every_s=0.1)


def test_each_command_names_the_type_of_the_group(other: tuple[str, str], run: Run) -> None:
    kind, group = other
    settle(run, group)
    assert [group, kind.title()] in [line.split()[:2] for line in run("list", "--type").lines]
    assert group in run("list").lines
    assert {"group": group, "type": kind.title()}.items() <= next(
        row for row in run("list", "--json").json["groups"] if row["group"] == group
    ).items()

    shown = run("describe", group, "--json")
    assert shown.code == ExitCode.DONE, shown.err
    (described,) = shown.json["groups"]
    assert (described["type"], described["protocol_type"]) == (kind.title(), kind)
    (member,) = described["members"]
    assert member["client_id"] == f"{kind}-1"
    assert described["state"] in ("Stable", "Assigning", "Reconciling", "NotReady")
    for flags in (["--members"], ["--state"]):
        told = run("describe", group, *flags)
        assert told.code == ExitCode.DONE
        assert any(line.startswith(group) and (described["state"] in line or f"{kind}-1" in line) for line in told.lines)
    assert described["state"] in run("describe", group, "--state").out
    assert f"{kind}-1" in run("describe", group, "--members").out

    refused = run("reset", group, "--to-earliest", "--topic", "orders", "--execute")
    assert refused.code == ExitCode.IN_USE
    assert f"Assignments can only be reset if the group '{group}' is inactive" in refused.err
    deleted = run("delete", group)
    assert deleted.code == ExitCode.IN_USE
    assert f"{kind} group '{group}' has active members; stop them first" in deleted.err


def test_commands_on_all_groups_pass_over_other_types(other: tuple[str, str], run: Run) -> None:
    _, group = other
    settle(run, group)
    assert group not in run("lag", "--all-groups").out
    assert group not in [each["group"] for each in run("describe", "--all-groups", "--json").json["groups"]]


def test_a_misspelled_name_of_another_type_gets_a_suggestion(other: tuple[str, str], run: Run) -> None:
    _, group = other
    settle(run, group)
    missing = run("describe", f"{group}x")
    assert missing.code == ExitCode.NOT_FOUND
    assert f"consumer group '{group}x' does not exist; did you mean '{group}'?" in missing.err


def test_the_page_says_that_it_shows_consumer_groups(other: tuple[str, str], run: Run, kafka: KafkaCluster) -> None:
    kind, group = other
    settle(run, group)
    watch = Watch("--bootstrap-server", kafka.bootstrap_servers, group)
    try:
        told = next(
            found["info"]["error"]
            for name, event in watch.events()
            for message in (event["messages"] if name == "start" else [event])
            if (found := message.get("groups", {}).get(group)) and found.get("info", {}).get("error")
        )
    finally:
        watch.end()
    assert told == f"group '{group}' is a {kind} group, but watch supports only consumer groups; use describe or lag"
