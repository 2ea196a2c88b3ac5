"""What ``lag`` and ``describe`` count, with their exit codes, on the embedded Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord import GroupConsumer
from consumer_coord.admin.commands import ExitCode
from consumer_coord.broker import EmbeddedKafka, Fault
from tests.support.commands import Ran, Run, run_command
from tests.support.waiting import eventually


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers; each leads one of two partitions, with ten records that were written a minute ago."""
    with EmbeddedKafka({"t": 2}, brokers=2) as embedded:
        produce(embedded, 10, age_s=60)
        yield embedded


@pytest.fixture
def run(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return ``run("lag", "g", …)``, which runs consumer-coord on the embedded Kafka."""
    return lambda *arguments: run_command(capsys, kafka.bootstrap_servers, *arguments, "--timeout", "20000")


def produce(kafka: EmbeddedKafka, count: int, *, age_s: float = 0.0, ahead_s: float = 0.0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    written_ms = int((time.time() - age_s + ahead_s) * 1000)
    for number in range(2 * count):
        producer.produce("t", b"v", partition=number % 2, timestamp=written_ms)
    assert producer.flush(60) == 0


def rows(ran: Ran) -> dict[int, dict[str, Any]]:
    """Return partition -> its row."""
    return {row["partition"]: row for row in json.loads(ran.out)["groups"][0]["partitions"]}


@pytest.fixture
def uncommitted(kafka: EmbeddedKafka) -> Iterator[str]:
    """A group with a member that never commits."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}
    with GroupConsumer(settings) as consumer:
        consumer.subscribe(["t"])
        eventually(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
        yield "g"


@pytest.mark.parametrize(
    ("flag", "lag", "code", "note"),
    [
        ([], 10, ExitCode.BEHIND, "no commit for t-0, t-1; this lag counts from the beginning of the log"),
        (["--without-commit", "earliest"], 10, ExitCode.BEHIND, "this lag counts from the beginning of the log"),
        (["--without-commit", "latest"], 0, ExitCode.DONE, "no commit for t-0, t-1; this lag is 0"),
        (["--without-commit", "unknown"], None, ExitCode.INCOMPLETE, "the group has no commit for t-0"),
    ],
)
def test_a_partition_without_a_commit(
    flag: list[str], lag: int | None, code: ExitCode, note: str, uncommitted: str, run: Run
) -> None:
    told = run("lag", uncommitted, "--max-lag", "0", *flag)
    assert (told.code, note in told.err) == (code, True)
    as_json = run("lag", uncommitted, "--max-lag", "0", "--json", *flag)
    assert as_json.code == code
    assert {row["lag"] for row in rows(as_json).values()} == {lag}
    described = run("describe", uncommitted, *flag)
    assert described.code == (code if lag is None else ExitCode.DONE)
    assert note in described.err
    cells = {line.split()[5] for line in described.lines if line.startswith("g ")}
    assert cells == {"-" if lag is None else str(lag)}
    top = run("lag", uncommitted, "--count", "1", "--json", *flag)
    assert (top.code, json.loads(top.out)["lag"]) == (code if lag is None else 0, lag if lag is None else 2 * lag)
    assert note in top.err


def behind(run: Run, offset: int = 4) -> None:
    """Let group g have read ``offset`` records of each partition."""
    assert run("reset", "g", "--to-offset", str(offset), "--topic", "t", "--execute").code == 0


def test_the_lag_in_seconds_is_the_age_of_the_first_unread_record(kafka: EmbeddedKafka, run: Run) -> None:
    produce(kafka, 10)
    behind(run)
    ran = run("lag", "g", "--seconds", "--json")
    assert ran.code == ExitCode.DONE
    ages = [row["lag_seconds"] for row in rows(ran).values()]
    assert min(ages) >= 60, "not the age of the newer records"
    assert json.loads(ran.out)["groups"][0]["lag_seconds"] == max(ages)
    assert run("lag", "g", "--max-lag-seconds", "59").code == ExitCode.BEHIND
    assert run("lag", "g", "--max-lag-seconds", "3600").code == ExitCode.DONE
    header, line = run("lag", "g", "--seconds").lines
    assert header.split() == ["GROUP", "TOPIC", "#PARTITIONS", "LAG", "MAX-LAG", "LAG-SECONDS", "STATE"]
    assert float(line.split()[5]) >= 60
    behind(run, 20)
    assert run("lag", "g", "--max-lag-seconds", "0").code == ExitCode.DONE
    assert {row["lag_seconds"] for row in rows(run("describe", "g", "--seconds", "--json")).values()} == {0}
    assert "LAG-SECONDS" not in run("describe", "g").out


def test_a_time_in_the_future_is_no_age(kafka: EmbeddedKafka, run: Run) -> None:
    produce(kafka, 1, ahead_s=7200)
    behind(run, 10)
    ran = run("lag", "g", "--seconds", "--json")
    assert ran.code == ExitCode.INCOMPLETE
    assert {(row["lag"], row["lag_seconds"]) for row in rows(ran).values()} == {(1, None)}
    assert "in the future" in json.loads(ran.out)["groups"][0]["seconds_left_out"][0]["error"]
    assert "is not included in the lag in seconds of group 'g'" in ran.err
    # What is behind by its records is behind in any case.
    assert run("lag", "g", "--seconds", "--max-lag", "0").code == ExitCode.BEHIND
    assert "unknown" in run("describe", "g", "--seconds").out
    assert run("lag", "g", "--seconds", "--count", "1").code == ExitCode.INCOMPLETE


def test_an_ill_leader_costs_its_partition_only(kafka: EmbeddedKafka, run: Run) -> None:
    behind(run)
    kafka.add_fault("ListOffsets", Fault(error_code=6), times=10_000, broker_id=kafka.brokers[1])
    for most, code in (("5", ExitCode.BEHIND), ("6", ExitCode.INCOMPLETE)):
        ran = run("lag", "g", "--max-lag", most, "--json")
        assert ran.code == code
        assert sorted((row["lag"] is None, row["lag"] or 0) for row in rows(ran).values()) == [(False, 6), (True, 0)]
        assert "NOT_LEADER_OR_FOLLOWER" in ran.err
    kafka.clear_faults()
    kafka.add_fault("Fetch", Fault(error_code=6), times=10_000, broker_id=kafka.brokers[1])
    ran = run("lag", "g", "--seconds", "--json")
    assert ran.code == ExitCode.INCOMPLETE
    assert {row["lag"] for row in rows(ran).values()} == {6}, "the records are known"
    assert sorted(row["lag_seconds"] is None for row in rows(ran).values()) == [False, True]
    assert run("lag", "g", "--json").code == ExitCode.DONE


def test_a_deleted_topic_is_shown_as_deleted(kafka: EmbeddedKafka, run: Run) -> None:
    kafka.create_topic("gone", 1)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}
    with GroupConsumer(settings) as consumer:
        consumer.subscribe(["gone", "t"])
        eventually(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 3)
        # The members' assignment names the topic until they notice.
        kafka.delete_topic("gone")
        ran = run("lag", "g", "--seconds", "--max-lag", "10")
        assert ran.code == ExitCode.NOT_FOUND
        assert [line.split()[1:6] for line in ran.lines if "deleted" in line] == [["gone", "1", *["deleted"] * 3]]
        assert "gone-0 is not included in the lag of group 'g': gone-0 does not exist" in ran.err
        assert run("lag", "g", "--max-lag", "9").code == ExitCode.BEHIND, "that of t is known"
