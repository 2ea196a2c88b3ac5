"""The operators' commands on groups of the consumer protocol (KIP-848), ours and librdkafka's, on both brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from consumer_coord import GroupConsumer
from consumer_coord.admin.commands import ExitCode
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.commands import Ran, Run, run_command

#: Every successful operation ends earlier.
DEADLINE_S = 180.0


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Bootstrap servers, and a topic there of two partitions, with 30 records and 10."""
    if request.param == "embedded":
        with EmbeddedKafka(topics={"orders": 2}) as kafka:
            fill(kafka.bootstrap_servers, "orders")
            yield kafka.bootstrap_servers, "orders"
    else:
        real = request.getfixturevalue("kafka")
        topic = real.new_topic(2, prefix="orders")
        fill(real.bootstrap_servers, topic)
        yield real.bootstrap_servers, topic


def fill(servers: str, topic: str) -> None:
    """40 records."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(40):
        producer.produce(topic, b"value", partition=0 if number < 30 else 1)
    assert producer.flush(DEADLINE_S) == 0


@pytest.fixture
def run(place: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> Run:
    """A command on the brokers of ``place``."""

    def run(*arguments: str) -> Ran:
        return run_command(capsys, place[0], *arguments)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("client", [GroupConsumer, Consumer], ids=["ours", "librdkafka"])
def test_a_group_from_its_first_member_to_its_deletion(
    client: Callable[[dict[str, Any]], Any], place: tuple[str, str], run: Run
) -> None:
    servers, topic = place
    group = unique_name("modern")
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    member = client(settings)
    try:
        member.subscribe([topic])
        taken: list[Any] = []
        ends = time.monotonic() + DEADLINE_S
        while len(taken) < 40:
            assert time.monotonic() < ends
            taken += member.consume(40 - len(taken), 0.1)
        assert not [one.error() for one in taken if one.error() is not None]
        member.commit(asynchronous=False)

        assert [group, "Consumer", "Stable"] in [line.split() for line in run("list", "--state", "--type").lines]
        (described,) = run("describe", group, "--json").json["groups"]
        (row,) = described["members"]
        assert (described["type"], described["state"], described["lag"]) == ("Consumer", "Stable", 0)
        assert row["assignment"] == row["target"] == {topic: [0, 1]}
        assert row["subscription"]["topics"] == [topic]
        assert row["epoch"] == described["target_epoch"] == described["epoch"] >= 1
        assert f"{topic}:0,1" in run("describe", group, "--members", "--verbose").lines[1]
        assert "uniform" in run("describe", group, "--state").out
        table = [line.split() for line in run("describe", group).lines]
        shown = [(line[1], line[2], line[3], line[5]) for line in table[1:]]
        assert shown == [(topic, "0", "30", "0"), (topic, "1", "10", "0")]
        assert all(member.memberid() in line for line in table[1:])

        fill(servers, topic)
        assert run("lag", group, "--max-lag", "30").code == ExitCode.DONE
        assert run("lag", group, "--max-lag", "29").code == ExitCode.BEHIND
        (live,) = (json.loads(line) for line in run("lag", group, "--count", "1", "--json").lines)
        assert (live["group"], live["state"], live["members"], live["lag"]) == (group, "Stable", 1, 40)

        for refused in (
            run("reset", group, "--to-earliest", "--all-topics", "--execute"),
            run("delete", group),
            run("delete-offsets", group, "--topic", topic),
        ):
            assert refused.code == ExitCode.IN_USE, refused
    finally:
        member.close()
    assert run("reset", group, "--to-offset", "5", "--topic", topic, "--execute").code == ExitCode.DONE
    (described,) = run("describe", group, "--json").json["groups"]
    assert (described["state"], described["lag"], described["members"]) == ("Empty", 70, [])
    assert run("delete-offsets", group, "--topic", f"{topic}:1").code == ExitCode.DONE
    (described,) = run("describe", group, "--json").json["groups"]
    assert [row["partition"] for row in described["partitions"]] == [0]

    again = client(settings)
    try:
        again.subscribe([topic])
        first: Any = None
        ends = time.monotonic() + DEADLINE_S
        while first is None or first.partition() != 0:
            assert time.monotonic() < ends
            first = again.poll(0.1)
        assert first.offset() == 5, "the group continues at the offset of the reset"
    finally:
        again.close()
    assert run("delete", group).code == ExitCode.DONE
    assert run("describe", group).code == ExitCode.NOT_FOUND
