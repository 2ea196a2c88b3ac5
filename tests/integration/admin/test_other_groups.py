"""The operators' commands on share groups (KIP-932) and groups of Kafka Streams (KIP-1071), on a real broker."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import ShareConsumer

from consumer_coord.admin.commands import ExitCode
from tests.integration.watch.test_command import Watch
from tests.support.commands import Run
from tests.support.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka

#: Every successful operation ends earlier.
DEADLINE_S = 180.0
STREAMS_GROUP_HEARTBEAT = 88


def compact(text: str) -> bytes:
    """A short compact string."""
    return bytes([len(text) + 1]) + text.encode()


def join_streams_group(address: str, group: str, topic: str) -> None:
    """A StreamsGroupHeartbeat (v0), by hand: no Kafka Streams is at hand.  The member stays for a session of 45 s."""
    subtopology = compact("sub-0") + b"\x02" + compact(topic) + b"\x01" * 5 + b"\x00"
    body = (
        *(compact(group), compact(str(uuid.uuid4())), struct.pack(">ii", 0, 0), b"\x00\x00", struct.pack(">i", 60_000)),
        *(b"\x01", struct.pack(">i", 0), b"\x02", subtopology, b"\x00"),
        # No tasks yet, process id, no endpoint, no tags, no offsets, not at shutdown, no tagged fields.
        *(b"\x01\x01\x01", compact("process-1"), b"\xff", b"\x01", b"\x00\x00", b"\x00", b"\x00"),
    )
    header = struct.pack(">hhih", STREAMS_GROUP_HEARTBEAT, 0, 1, len(b"streams-1")) + b"streams-1" + b"\x00"
    frame = header + b"".join(body)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    # Correlation id, tag buffer, throttle time.
    (error,) = struct.unpack_from(">h", answer, 9)
    assert error == 0, answer


@pytest.fixture(params=["share", "streams"])
def other(request: pytest.FixtureRequest, kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> Iterator[tuple[str, str]]:
    """The type and the name of a group with a member."""
    name = topic(2, prefix="orders")
    if request.param == "streams":
        ends = time.monotonic() + DEADLINE_S
        while True:
            try:
                join_streams_group(kafka.bootstrap_servers, group, name)
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
    for flags in ([], ["--members"], ["--state"]):
        told = run("describe", group, *flags)
        assert told.code == ExitCode.DONE
        assert f"'{group}' is a {kind} group" in told.err
        assert f"kafka-{kind}-groups" in told.err
        assert any(line.startswith(group) and (described["state"] in line or f"{kind}-1" in line) for line in told.lines)
    assert described["state"] in run("describe", group, "--state").out
    assert f"{kind}-1" in run("describe", group).out

    for command in (
        ["lag", group],
        ["lag", group, "--json"],
        ["reset", group, "--to-earliest", "--topic", "orders", "--execute"],
        ["delete-offsets", group, "--topic", "orders"],
        ["top", group, "--count", "1"],
    ):
        refused = run(*command)
        assert refused.code == ExitCode.FAILED, command
        wanted = f"'{group}' is a {kind} group, but {command[0]} supports only consumer groups; use kafka-{kind}-groups"
        assert wanted in (refused.out if "--json" in command else refused.err)
        assert "does not exist" not in refused.err
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
    assert told == f"group '{group}' is a {kind} group, but watch supports only consumer groups; use kafka-{kind}-groups"
