"""The operators' commands on a real broker: what Kafka's tool has no word for, and how they fail."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
import termios

import pytest
from confluent_kafka import Producer

from consumer_coord.admin.commands import ExitCode
from consumer_coord.admin.lag import COLUMNS
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.testing.processes import spawn
from tests.support.commands import Run
from tests.support.members import Members, await_shared

pytestmark = pytest.mark.kafka


@pytest.fixture
def orders(kafka: KafkaCluster, topic: NewTopicFactory) -> str:
    """A topic with two partitions, of 30 and of 10 records."""
    name = topic(2, prefix="orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(40):
        producer.produce(name, b"value", partition=0 if number < 30 else 1)
    assert producer.flush(180) == 0
    return name


@pytest.fixture
def behind(run: Run, orders: str, group: str) -> str:
    """A group without members that has read five records of each partition of ``orders``."""
    assert run("reset", group, "--to-offset", "5", "--topic", orders, "--execute").code == 0
    return group


def offsets_of(run: Run, group: str) -> dict[int, int]:
    """Partition -> committed offset of a group that reads one topic."""
    return {row["partition"]: row["offset"] for row in run("describe", group, "--json").json["groups"][0]["partitions"]}


def test_lag(run: Run, orders: str, behind: str) -> None:
    ran = run("lag", behind)
    assert (ran.code, [line.split() for line in ran.lines]) == (
        0,
        [["GROUP", "TOPIC", "#PARTITIONS", "LAG", "MAX-LAG", "STATE"], [behind, orders, "2", "30", "25", "Empty"]],
    )
    assert run("lag", behind, "--max-lag", "25").code == ExitCode.DONE
    assert run("lag", behind, "--max-lag", "24").code == ExitCode.BEHIND
    (group,) = run("lag", behind, "--json").json["groups"]
    assert group["lag"] == 30
    assert group["partitions"] == [
        {"topic": orders, "partition": 0, "lag": 25, "lag_seconds": None, "committed": True},
        {"topic": orders, "partition": 1, "lag": 5, "lag_seconds": None, "committed": True},
    ]


def test_reset_as_json_says_what_was_and_what_will_be(run: Run, orders: str, behind: str) -> None:
    ran = run("reset", behind, "--to-offset", "20", "--topic", orders, "--json")
    assert ran.json == {
        "executed": False,
        "groups": [
            {
                "group": behind,
                "partitions": [
                    {"topic": orders, "partition": 0, "old_offset": 5, "new_offset": 20},
                    {"topic": orders, "partition": 1, "old_offset": 5, "new_offset": 10},
                ],
            }
        ],
        "warnings": [f"new offset (20) of {orders}-1 is higher than the end of the log; 10 is used"],
        "errors": [],
    }


def test_a_reset_is_a_dry_run_unless_it_is_executed(run: Run, orders: str, behind: str) -> None:
    ran = run("reset", behind, "--to-latest", "--all-topics")
    assert (ran.code, "nothing was changed. Add --execute" in ran.err) == (0, True)
    assert offsets_of(run, behind) == {0: 5, 1: 5}
    ran = run("reset", behind, "--to-datetime", "2100-01-01T00:00:00.000", "--topic", f"{orders}:1", "--execute")
    assert (ran.code, f"{orders}-1 has no record at or after this time" in ran.err) == (0, True)
    assert offsets_of(run, behind) == {0: 5, 1: 10}
    assert run("reset", behind, "--to-current", "--all-topics", "--execute").code == 0
    assert offsets_of(run, behind) == {0: 5, 1: 10}


def test_shifting_what_was_never_committed_is_refused(run: Run, orders: str, group: str) -> None:
    ran = run("reset", group, "--shift-by", "1", "--topic", orders)
    assert (ran.code, f"no committed offset for {orders}-0, {orders}-1" in ran.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["describe", "never-there"], "'never-there' does not exist"),
        (["lag", "never-there"], "'never-there' does not exist"),
        (["delete", "never-there"], "'never-there' does not exist"),
        (["lag", "never-there", "--count", "1"], "'never-there' does not exist"),
        (["reset", "never-there", "--to-latest", "--topic", "no-topic"], "no such topic: no-topic"),
        (["reset", "never-there", "--to-latest", "--topic", "no-topic:0"], "no such topic: no-topic"),
    ],
)
def test_what_does_not_exist(run: Run, arguments: list[str], told: str) -> None:
    ran = run(*arguments)
    assert (ran.code, told in ran.err) == (ExitCode.NOT_FOUND, True)


def test_a_partition_that_does_not_exist(run: Run, orders: str, group: str) -> None:
    ran = run("reset", group, "--to-latest", "--topic", f"{orders}:1,7")
    assert (ran.code, f"no such partition: {orders}-7" in ran.err) == (ExitCode.NOT_FOUND, True)


def test_a_topic_that_is_misspelled_is_told_with_the_one_that_is_meant(run: Run, orders: str, group: str) -> None:
    ran = run("reset", group, "--to-latest", "--topic", f"{orders}x")
    assert (ran.code, f"no such topic: {orders}x; did you mean '{orders}'?" in ran.err) == (ExitCode.NOT_FOUND, True)


def test_one_group_of_two_that_does_not_exist(run: Run, behind: str) -> None:
    ran = run("describe", behind, "never-there", "--json")
    assert ran.code == ExitCode.NOT_FOUND
    assert [group["group"] for group in ran.json["groups"]] == [behind]
    assert [(error["group"], error["code"], error["exit_code"]) for error in ran.json["errors"]] == [("never-there", 69, 3)]


def test_a_topic_that_was_deleted_does_not_hold_the_report_up(
    kafka: KafkaCluster, topic: NewTopicFactory, run: Run, orders: str, behind: str
) -> None:
    gone = topic(1)
    run("reset", behind, "--to-latest", "--topic", gone, "--execute")
    kafka.delete_topic(gone)
    rows = run("describe", behind, "--json").json["groups"][0]["partitions"]
    # The broker forgets a deleted topic's offsets by and by.
    assert [row for row in rows if row["topic"] == gone and row["end"] is not None] == []
    assert [row["lag"] for row in rows if row["topic"] == orders] == [25, 5]


def test_list_by_state_and_type(run: Run, behind: str) -> None:
    assert behind in run("list").lines
    assert [behind, "Classic", "Empty"] in [line.split() for line in run("list", "--state", "--type").lines]
    assert behind in run("--list", "--state", "empty,dead").out
    assert behind not in run("list", "--state", "stable").out
    assert behind not in run("list", "--type", "consumer").out
    assert {"group": behind, "type": "Classic", "state": "Empty"} in run("list", "--json").json["groups"]


def test_live_lag_shows_lag_and_pace(kafka: KafkaCluster, run: Run, orders: str, group: str, members: Members) -> None:
    member = members.start("confluent-kafka", group, [orders])
    await_shared([member], {orders: 2})
    member.wait_until(lambda: member.total == 40, "40 records")
    member.command("commit")
    ran = run("lag", group, "--count", "2", "--interval-ms", "50")
    assert ran.code == 0
    first, second = ([line.split() for line in part.splitlines()] for part in ran.out.strip().split("\n\n"))
    assert first[0] == second[0] == list(COLUMNS)
    assert first[1] == [group, "Stable", "1", orders, "2", "0", "-", "-", "now"]
    assert second[1] == [group, "Stable", "1", orders, "2", "0", "0.0", "0.0", "now"]
    rows = [json.loads(line) for line in run("lag", group, "--count", "1", "--json").lines]
    assert [(row["group"], row["topic"], row["lag"], row["read_per_s"]) for row in rows] == [(group, orders, 0, None)]


def test_live_lag_on_a_terminal_is_a_live_table(kafka: KafkaCluster, orders: str, behind: str) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 200))
    command = [sys.executable, "-m", "consumer_coord", "lag", behind, "--count", "1"]
    process = spawn(
        [*command, "--bootstrap-server", kafka.bootstrap_servers],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        # The terminal says how wide it is, not COLUMNS, which a worker of pytest has.
        env={**{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    # The last one who had the terminal open ended: that is an error on Linux, not an end of file.
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert process.wait(180) == ExitCode.DONE
    assert b"\x1b[?1049h" in shown  # the alternate screen
    for part in ("CAUGHT-UP-IN", behind, orders, "30"):
        assert part.encode() in shown
