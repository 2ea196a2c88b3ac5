"""Times, durations and plans in the notation of operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from consumer_coord import GroupConsumer
from consumer_coord.admin.reset import export_plan, parse_datetime, parse_duration_ms, parse_plan
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import ConfigurationError
from consumer_coord.topic_partition import TopicPartition
from tests.support.commands import run_command
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("1970-01-01T00:00:01.500", 1_500),
        ("1970-01-01T00:00:01.500Z", 1_500),
        ("1970-01-01T02:00:00.000+02:00", 0),
        ("2017-08-04T00:00:00", 1_501_804_800_000),
    ],
)
def test_times(text: str, timestamp_ms: int) -> None:
    assert parse_datetime(text) == timestamp_ms


@pytest.mark.parametrize("text", ["2017-08-04", "yesterday", "2017-13-04T00:00:00.000", ""])
def test_invalid_times(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--to-datetime"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("PT0S", 0), ("P1D", 86_400_000), ("P1DT2H3M4.5S", 93_784_500), ("pt1h30m", 5_400_000), ("-PT1M", -60_000)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1H", "PT5", "P1DT", "P9999999999D", "PT99999999999999S", "PT" + "9" * 400 + "S"]
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--by-duration"):
        parse_duration_ms(text)


def test_plans_go_out_and_come_back() -> None:
    one = {"g": {TopicPartition("orders", 0): 5, TopicPartition('with,"comma', 1): 7}}
    assert parse_plan(export_plan(one), ["g"]) == one
    two = {"g": {TopicPartition("orders", 0): 5}, "h": {TopicPartition("orders", 1): 6}}
    assert export_plan(two) == "g,orders,0,5\nh,orders,1,6\n"
    assert parse_plan(export_plan(two), ["g", "h"]) == two
    assert parse_plan("g,orders,0,5\n\n", ["g"]) == {"g": {TopicPartition("orders", 0): 5}}


@pytest.mark.parametrize("line", ["orders,0", "orders,zero,5", "orders,0,-5", "g,orders,0,5,6"])
def test_invalid_plans(line: str) -> None:
    with pytest.raises(ConfigurationError, match="line 2"):
        parse_plan(f"orders,1,1\n{line}\n", ["g"])


def test_a_live_group_is_refused_without_a_word_of_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        servers = kafka.bootstrap_servers
        reset = ("reset", "billing", "--to-latest", "--topic", "orders")
        with GroupConsumer({"bootstrap.servers": servers, "group.id": "billing"}) as member:
            member.subscribe(["orders"])
            eventually(member.assignment, step=lambda: member.poll(0.05))
            ran = run_command(capsys, servers, *reset)
        assert "the group 'billing' is inactive, but the current state is Stable" in ran.err
        assert "dry run" not in ran.err
        assert ran.out == ""
        assert "A dry run: nothing was changed" in run_command(capsys, servers, *reset).err


@pytest.mark.parametrize("rule", [("--to-datetime", "1969-12-31T23:59:59.999"), ("--by-duration", "P99999D")])
def test_a_time_before_1970_selects_the_first_record(rule: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("orders", b"an order")
        producer.flush()
        ran = run_command(capsys, kafka.bootstrap_servers, "reset", "billing", *rule, "--topic", "orders", "--export")
    assert ran.out == "orders,0,0\n"


def test_a_plan_that_begins_with_a_byte_order_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.csv"
    file.write_text("orders,0,0\n", encoding="utf-8-sig")
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        ran = run_command(capsys, kafka.bootstrap_servers, "reset", "billing", "--from-file", str(file), "--export")
    assert ran.out == "orders,0,0\n"
