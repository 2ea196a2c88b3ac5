"""The goals of reading, next to confluent-kafka in the same run, as one table.

``python -m benchmarks.goals [--rounds 7] [--only "consume, 100 bytes" ...] [--again] [--table]``

The clients run in turns, each in a process of its own, and the figures of each run are added to the file of results at once. A
run that was interrupted continues where the file ends; ``--table`` prints the table of what the file has. A value is the median
of the rounds' ratios (ours divided by the peer's of the same round), and all rounds follow in brackets. A row of several cases
has their geometric mean first. Goals for rates are lower limits, all others upper limits. *R* marks what reading must reach
before librdkafka can go. The figures are explained in :mod:`benchmarks.reading`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import confluent_kafka
from confluent_kafka import Producer

from benchmarks import cluster, first_message, idle
from benchmarks.fleet import CONFLUENT, OURS
from benchmarks.results import Results, add_options, from_options
from benchmarks.table import markdown, median, number
from consumer_coord.testing.real_kafka import RealKafka

OURS_FIRST = ("ours", "confluent-kafka")
_MB = 1_000_000
_HEAD = ("row", "gate", "figure", "goal", "reached", "all cases", "cases: median (every round)")
_IMPORTS = {"ours": "from consumer_coord import GroupConsumer", "confluent-kafka": "import confluent_kafka"}
_PRINT_MEMORY = """
import os
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
"""


@attrs.frozen
class Topic:
    """What a topic has: records per partition, of ``size`` bytes."""

    records: tuple[int, ...]
    size: int = 100
    codec: str = "none"
    #: Number of records per batch; 0 for as many as fit.
    batch: int = 0
    #: A partition of which a transaction was begun and is not ended.
    open_transaction: int | None = None


@attrs.frozen
class Case:
    """A program of :mod:`benchmarks.reading` on a topic."""

    name: str
    program: str
    topic: Topic | None = None
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    brokers: int = 1
    tls: bool = False


@attrs.frozen
class Limit:
    """The goal of a figure. Absolute limits are for our own figure, all others for its ratio to the peer's."""

    figure: str
    value: float
    absolute: bool = False

    def met(self, value: float) -> bool:
        """Return whether a value reaches the goal."""
        return value >= self.value if self.figure == "rate" else value <= self.value

    def words(self) -> str:
        """Return the goal as text."""
        return f"{'at least' if self.figure == 'rate' else 'at most'} {self.value:g}{' (absolute)' if self.absolute else ''}"


@attrs.frozen
class Row:
    """A row of the table; ``gate``: reading without librdkafka must reach it."""

    name: str
    limits: Sequence[Limit]
    cases: Sequence[Case]
    gate: bool = True


def _even(total: int, partitions: int = 8, **more: Any) -> Topic:
    return Topic((total // partitions,) * partitions, **more)


def _read(name: str, topic: Topic, *, brokers: int = 1, tls: bool = False, **arguments: Any) -> Case:
    return Case(name, "read", topic, {"records": sum(topic.records), **arguments}, brokers, tls)


_SMALL = _even(1_000_000)
_LARGER = {
    name: [
        # confluent-kafka waits for as many records as it is asked for.
        _read(f"{partitions} partitions, {brokers} brokers", _even(count, partitions, size=size), brokers=brokers, most=most)
        for partitions in (1, 4)
        for brokers in (1, 3)
    ]
    for name, size, count, most in (
        ("1 KB", 1_000, 400_000, 500),
        ("5 KB", 5_000, 80_000, 500),
        ("1 MB", _MB, 400, 4),
        ("8 MB", 8 * _MB, 48, 1),
    )
}
_RATE = (Limit("rate", 1.0),)
ROWS: Sequence[Row] = (
    Row("consume, 100 bytes", [Limit("rate", 3.0), Limit("cpu", 0.35)], [_read("8 partitions", _SMALL)]),
    Row("poll, 100 bytes", [Limit("rate", 3.0), Limit("cpu", 0.4)], [_read("8 partitions", _SMALL, way="poll")]),
    Row("1 KB", [Limit("rate", 2.0)], _LARGER["1 KB"]),
    Row("5 KB", [Limit("rate", 1.2)], _LARGER["5 KB"]),
    Row("1 MB", [Limit("rate", 1.0)], _LARGER["1 MB"]),
    Row("8 MB", [Limit("rate", 1.0)], _LARGER["8 MB"]),
    Row(
        "formats, security, many partitions",
        [Limit("rate", 1.5)],
        [
            _read("lz4", _even(1_000_000, codec="lz4")),
            _read("zstd", _even(1_000_000, codec="zstd")),
            _read("TLS", _SMALL, tls=True),
            _read("64 partitions", _even(1_000_000, 64)),
            _read("200 partitions", _even(1_000_000, 200)),
            _read("one-record batches", _even(80_000, batch=1)),
        ],
    ),
    Row(
        "a hot partition",
        [Limit("rate", 1.0), Limit("gaps", 0.0)],
        [
            _read("next to idle ones", Topic((1_000_000, *[0] * 7))),
            _read("next to drained ones", Topic(tuple(8_000 * (number + 1) ** 2 for number in range(8)))),
            _read("next to an open transaction", Topic((500_000, 0), open_transaction=1)),
            _read("next to a consumer that takes nothing", Topic((500_000,)), stalled=True),
        ],
    ),
    Row(
        "an application that works between calls",
        _RATE,
        [
            _read(f"{work} ms", Topic((1_000_000,)), work_ms=work, most=100_000, part=min(0.9, 0.3 * 100 / work))
            for work in (20, 100, 500)
        ],
    ),
    Row("busy threads, 100 bytes", _RATE, [_read(f"{busy} threads", _even(300_000), busy=busy) for busy in (1, 4)]),
    Row(
        "busy threads, 5 KB",
        [Limit("rate", 0.5)],
        # The first batch, of which confluent-kafka waits for all 500, does not count.
        [_read(f"{busy} threads", _even(20_000, 4, size=5_000), busy=busy, part=0.95) for busy in (1, 4)],
    ),
    Row(
        "latency of single records",
        [Limit("p50", 1.0), Limit("p99", 1.0)],
        [Case(f"{rate}/s", "single", Topic((0,) * 8), {"rate": rate}) for rate in (100, 1_000, 10_000)],
    ),
    Row(
        "the same with busy threads",
        [Limit("p50", 1.5), Limit("p99", 1.5)],
        [Case(f"{busy} threads", "single", Topic((0,) * 8), {"rate": 100, "busy": busy}) for busy in (1, 4)],
    ),
    Row("CPU per record at 200/s", [Limit("cpu", 1.5)], [Case("200/s", "single", Topic((0,) * 8), {"rate": 200})]),
    Row(
        "empty calls",
        [Limit("poll", 5.0, absolute=True), Limit("consume", 1.5)],
        [Case("poll(0) in us, consume(100, 0.01)", "empty", Topic((0,) * 6))],
    ),
    Row("resume before each call", [Limit("rate", 0.9)], [_read("8 partitions", _SMALL, way="poll", resumes=True)]),
    Row(
        "idle members",
        [Limit("cpu", 0.6), Limit("mb", 0.8), Limit("sockets", 4, absolute=True)],
        [Case(f"{members}", "idle", None, {"members": members, "seconds": 10}) for members in (50, 500)],
    ),
    Row(
        "first record after an outage, s",
        [Limit("after", 1.0, absolute=True)],
        [Case(f"{kind} {seconds} s", "outage", Topic((0,)), {"kind": kind, "seconds": seconds})
         for kind, seconds in (("frozen", 2), ("frozen", 20), ("restarted", 5))],
    ),
    Row(
        "columns, busy threads",
        _RATE,
        [_read(f"{busy} threads", _even(300_000), busy=busy, way="columns", most=50_000, part=0.8) for busy in (1, 4)],
        gate=False,
    ),
    Row("import", [Limit("cpu", 1.4), Limit("mb", 24, absolute=True)], [Case("a process", "import")], gate=False),
    Row("first message of a process", [Limit("s", 1.0)], [Case("1 topic", "first")], gate=False),
)  # fmt: skip


class Place:
    """The brokers and topics of a run, which are made when a case needs them first."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._brokers: dict[tuple[int, bool], tuple[RealKafka, dict[str, Any]]] = {}
        self._topics: dict[tuple[Topic, int, bool], str] = {}

    def kafka(self, case: Case) -> tuple[RealKafka, dict[str, Any]]:
        """Return the brokers for a case, and the settings of their clients."""
        key = case.brokers, case.tls
        if key not in self._brokers:
            if case.tls:
                directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
                self._brokers[key] = self._stack.enter_context(first_message.tls_broker(directory))
            else:
                properties = {"message.max.bytes": str(20 * _MB), "replica.fetch.max.bytes": str(20 * _MB)}
                found = self._stack.enter_context(cluster.broker(case.brokers, properties))
                self._brokers[key] = found, {"bootstrap.servers": found.bootstrap_servers}
        return self._brokers[key]

    def topic(self, case: Case, kafka: RealKafka) -> str:
        """Return a topic that has what the case needs."""
        assert case.topic is not None
        key = case.topic, case.brokers, case.tls
        if key not in self._topics:
            self._topics[key] = fill(kafka, case.topic)
        return self._topics[key]


def fill(kafka: RealKafka, topic: Topic) -> str:
    """Create a topic with records whose values compress to about a half."""
    name = kafka.new_topic(len(topic.records))
    chance = random.Random(1)
    values = [chance.randbytes(topic.size // 2).hex().encode().ljust(topic.size, b"0") for _ in range(64)]
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "linger.ms": 20 if topic.batch != 1 else 0,
        "batch.num.messages": topic.batch or 10_000,
        "batch.size": _MB,
        "compression.type": topic.codec,
        "message.max.bytes": 20 * _MB,
        "queue.buffering.max.messages": 1_000_000,
    }
    producer = Producer(settings)
    for partition, count in enumerate(topic.records):
        for index in range(count):
            while True:
                try:
                    producer.produce(name, values[index % len(values)], partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0
    if topic.open_transaction is not None:
        settings |= {"transactional.id": name, "transaction.timeout.ms": 600_000}
        writer = Producer(settings)
        writer.init_transactions(60)
        writer.begin_transaction()
        writer.produce(name, b"x", partition=topic.open_transaction)
        assert writer.flush(60) == 0
        _open.append(writer)
    return name


#: Producers with an open transaction, which would be aborted with the object.
_open: list[Producer] = []


def measure(case: Case, client: str, place: Place) -> dict[str, float]:
    """Measure a case once with a client."""
    if case.program == "import":
        cpu_ms, mb = imported(client)
        return {"cpu": cpu_ms, "mb": mb}
    kafka, settings = place.kafka(case)
    if case.program == "first":
        topics = [place.topic(attrs.evolve(case, topic=Topic((1,) * first_message.PARTITIONS)), kafka)]
        return {"s": first_message.run("process", client, first_message.Place(kafka.bootstrap_servers, topics, settings))}
    if case.program == "idle":
        topic = place.topic(attrs.evolve(case, topic=Topic((0,) * idle.PARTITIONS)), kafka)
        variant = OURS if client == "ours" else CONFLUENT
        found = idle.measure(variant, kafka, topic, case.arguments["members"], case.arguments["seconds"])
        return {"cpu": found["cpu_s"], "mb": found["rss_mb"], "sockets": found["sockets"], "threads": found["threads"]}
    topic = place.topic(case, kafka)
    task = json.dumps([case.program, client, settings, topic, dict(case.arguments)])
    command = [sys.executable, "-m", "benchmarks.reading", task]
    if case.program == "outage":
        return _outage(command, case, kafka, topic)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{case.name}, {client}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: float(value) for name, value in found.items()}


def _outage(command: Sequence[str], case: Case, kafka: RealKafka, topic: str) -> dict[str, float]:
    """Stop the broker while a consumer reads, and start it again."""
    from benchmarks.reading import _producing

    kind, seconds = case.arguments["kind"], case.arguments["seconds"]
    with _producing({"bootstrap.servers": kafka.bootstrap_servers}, topic, 100, 100):
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "ready"
            time.sleep(3)
            if kind == "frozen":
                kafka.pause()
                time.sleep(seconds)
                kafka.resume()
            else:
                kafka.stop()
                time.sleep(seconds)
                kafka.restart()
            child.stdin.write("returned\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            child.wait(60)
        finally:
            child.kill()
            child.wait()
    found: dict[str, float] = json.loads(answer)
    return found


def imported(client: str) -> tuple[float, float]:
    """Return the processor time of an import in milliseconds, and the memory of its process in megabytes."""
    before = os.times()
    # With PYTHONDONTWRITEBYTECODE, each import would compile the modules again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _IMPORTS[client] + _PRINT_MEMORY]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    after = os.times()
    took_s = after.children_user + after.children_system - before.children_user - before.children_system
    return took_s * 1000, float(answer)


def rounds_of(results: Results, row: Row, case: Case, limit: Limit) -> list[float]:
    """Return a figure of each round: ours, or its ratio to the peer's."""
    ours, theirs = (results.rounds(row.name, case.name, client) for client in OURS_FIRST)
    if limit.absolute:
        return [one[limit.figure] for one in ours]
    if limit.figure == "gaps":
        # Gaps that the peer does not have.
        return [max(0.0, one["gaps"] - other["gaps"]) for one, other in zip(ours, theirs, strict=False)]
    return [one[limit.figure] / other[limit.figure] for one, other in zip(ours, theirs, strict=False)]


def _mean(values: Sequence[float], limit: Limit) -> float:
    """Return the geometric mean of ratios; the largest of other values."""
    if limit.absolute or limit.figure == "gaps":
        return max(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def lines(results: Results, rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of the table for what was measured."""
    found = []
    for row in rows:
        for limit in row.limits:
            rounds = {case.name: got for case in row.cases if (got := rounds_of(results, row, case, limit))}
            if not rounds:
                continue
            middles = {name: median(got) for name, got in rounds.items()}
            mean = _mean(list(middles.values()), limit)
            # A rate must not be below the peer's in any case, and no round may be far below the others.
            reached = limit.met(mean)
            if limit.figure == "rate":
                reached &= min(middles.values()) >= min(1.0, limit.value)
                reached &= all(min(got) >= 0.7 * middles[name] for name, got in rounds.items())
            each = [f"{name}: {number(middles[name])} ({' '.join(map(number, got))})" for name, got in rounds.items()]
            head = (row.name, "R" if row.gate else "", limit.figure, limit.words(), "yes" if reached else "no", number(mean))
            found.append([*head, "; ".join(each)])
    return found


def run(rows: Sequence[Row], results: Results, rounds: int) -> None:
    """Measure what is missing."""
    with contextlib.ExitStack() as stack:
        place = Place(stack)
        for row in rows:
            for case in row.cases:
                results.complete(row.name, case.name, OURS_FIRST, rounds, functools.partial(measure, case, place=place))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.goals", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS])
    add_options(parser, "goals")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if options.only is None or row.name in options.only]
    results = from_options(options)
    if not options.table:
        run(rows, results, options.rounds)
    print(f"Python {platform.python_version()}, confluent-kafka {confluent_kafka.__version__}, {os.cpu_count()} cores\n")
    print(markdown(_HEAD, lines(results, rows)), flush=True)


if __name__ == "__main__":
    main()
