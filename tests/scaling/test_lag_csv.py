"""``lag --export``, and the file that it writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from consumer_coord.admin.commands import ExitCode
from consumer_coord.broker import EmbeddedKafka, Fault
from consumer_coord.errors import ConfigurationError
from consumer_coord.scaling.lag_csv import header, parse_lags
from consumer_coord.scaling.wanted_replicas import Reading
from tests.support.commands import Run, run_command

HEAD = header()
DAY = "2026-11-16T00:0"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"t": 2}, brokers=2) as embedded:
        yield embedded


@pytest.fixture
def run(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return ``run("lag", "g", …)``, which runs consumer-coord on the embedded Kafka."""
    return lambda *arguments: run_command(capsys, kafka.bootstrap_servers, *arguments, "--timeout", "20000")


def test_an_export_can_be_read_again(kafka: EmbeddedKafka, run: Run) -> None:
    assert run("reset", "g", "--to-latest", "--topic", "t", "--execute").code == 0
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(8):
        producer.produce("t", b"v", partition=number % 2)
    assert producer.flush(60) == 0
    ran = run("lag", "g", "--export", "--interval-ms", "10", "--count", "2", "--seconds")
    assert ran.code == ExitCode.DONE
    assert ran.out.startswith(HEAD.strip())
    assert len(ran.lines) == 5
    lags = parse_lags(ran.out + run("lag", "g", "--export").out)
    assert (lags.group, lags.topics, len(lags.readings)) == ("g", {"t": 2}, 3)
    for at, reading in zip(lags.times, lags.readings, strict=True):
        assert reading == Reading(at=at, lag=8, partitions_with_lag=2, members=0)


def test_what_is_unknown_is_empty(kafka: EmbeddedKafka, run: Run) -> None:
    assert run("reset", "g", "--to-latest", "--topic", "t", "--execute").code == 0
    kafka.add_fault("ListOffsets", Fault(error_code=6), times=10_000, broker_id=kafka.brokers[1])
    ran = run("lag", "g", "--export")
    assert ran.code == ExitCode.INCOMPLETE
    (reading,) = parse_lags(ran.out).readings
    assert reading is not None
    assert (reading.unknown, reading.lag) == (1, 0)
    kafka.clear_faults()
    ran = run("lag", "never-there", "--export")
    assert (ran.code, "does not exist" in ran.err) == (ExitCode.NOT_FOUND, True)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--interval-ms", "1"], "add --export"),
        (["--export", "--count", "1"], "--count needs --interval-ms"),
        (["--export", "--json"], "remove --json"),
        (["--export", "--max-lag", "1"], "remove --json"),
    ],
)
def test_flags_that_make_no_sense(flags: list[str], complaint: str, run: Run) -> None:
    ran = run("lag", "g", *flags)
    assert (ran.code, complaint in ran.err) == (ExitCode.USAGE, True)


def test_readings_from_rows() -> None:
    lags = parse_lags(
        f"{HEAD}{DAY}2:00Z,g,unknown,,,,,\n"
        f"{DAY}0:00Z,g,Stable,3,t,0,5,1.5\n{DAY}0:00Z,g,Stable,3,u,3,0,\n"
        f"{HEAD}{DAY}1:00+00:00,g,PreparingRebalance,3,t,0,,\n"
    )
    first, rebalancing, silent = lags.readings
    assert lags.topics == {"t": 1, "u": 4}
    assert [at - lags.times[0] for at in lags.times] == [0, 60, 120]
    assert first == Reading(at=lags.times[0], lag=5, partitions_with_lag=1, members=3)
    assert rebalancing is not None
    assert (rebalancing.settled, rebalancing.unknown) == (False, 1)
    assert silent is None


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("", "the lag of one group, and has: none"),
        (f"{DAY}0:00Z,g,Stable,3,t,0,5,\n{DAY}0:00Z,h,Stable,3,t,0,5,\n", "and has: g, h"),
        (f"{DAY}0:00Z,g,unknown,,,,,\n", "no reading with a partition"),
        (f"{DAY}0:00Z,g,Stable,3,t,0\n", "line 2 is no row"),
        ("yesterday,g,Stable,3,t,0,5,\n", "line 2 is no row"),
        (f"{DAY}0:00Z,g,Stable,3,t,zero,5,\n", "line 2 is no row"),
        (f"{DAY}0:00Z,g,Stable,3,t,0,-5,\n", "line 2 has a negative number"),
    ],
)
def test_what_is_no_file_of_lags(rows: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_lags(HEAD + rows)
    assert complaint in str(refused.value)
