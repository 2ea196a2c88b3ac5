"""Compare ``kafka_group`` with Spark's own JVM connector on one real broker, in turns.

    python -m benchmarks.spark                    everything, about an hour on two cores
    python -m benchmarks.spark --only drain --records 500000 --rounds 3

The output is medians in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.results import MEASURED, Results
from benchmarks.spark import executors, handover
from benchmarks.spark.session import CONNECTOR, OURS
from benchmarks.table import markdown, median, number
from consumer_coord.testing.real_kafka import RealKafka

PARTS = ("drain", "ranges", "cold", "trickle", "join", "members", "handover", "executors")


@attrs.frozen
class Topic:
    """A topic to read: ``size`` bytes per record, and 1 / ``share`` of ``--records`` records. Both sources get ``options``."""

    share: int
    size: int
    compression: str = "none"
    transactions: bool = False
    headers: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the queries that read the topic."""
        found = {"kafka.isolation.level": "read_committed"} if self.transactions else {}
        return found | ({"includeHeaders": "true"} if self.headers else {})


TOPICS = {
    "100 bytes": Topic(1, 100),
    "2 KB": Topic(10, 2_000),
    "20 KB": Topic(100, 20_000),
    "100 bytes, lz4": Topic(1, 100, "lz4"),
    "100 bytes, zstd": Topic(1, 100, "zstd"),
    "100 bytes, transactions": Topic(1, 100, transactions=True),
    "100 bytes, 2 headers": Topic(1, 100, headers=True),
}

#: Number of records in one transaction.
_TRANSACTION = 10_000


def fill(kafka: RealKafka, records: int, kind: Topic, partitions: int = 4) -> str:
    """Fill a topic with ``records`` records of the given kind."""
    topic = kafka.new_topic(partitions)
    size = kind.size
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "compression.type": kind.compression,
        "linger.ms": 20,
        "queue.buffering.max.messages": 500_000,
    }
    if kind.transactions:
        settings["transactional.id"] = topic
    producer = Producer(settings)
    if kind.transactions:
        producer.init_transactions(60)
        producer.begin_transaction()
    headers = [("trace", os.urandom(16)), ("type", b"order")] if kind.headers else None
    # Half of each record is random, so that it compresses by two, like a real record, and not by a hundred.
    half = size // 2
    noise = os.urandom(half * 10_000)
    for index in range(records):
        at = index % 10_000 * half
        value = noise[at : at + half] + b"0" * (size - half)
        while True:
            try:
                producer.produce(topic, value, key=b"%08d" % index, partition=index % partitions, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if index % 10_000 == 0:
            producer.poll(0)
        if kind.transactions and index % _TRANSACTION == _TRANSACTION - 1:
            producer.commit_transaction(60)
            producer.begin_transaction()
    if kind.transactions:
        producer.commit_transaction(60)
    assert producer.flush(120) == 0
    return topic


def child(*arguments: str) -> Any:
    """Run one measurement."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark.child", *arguments], capture_output=True, text=True, timeout=1800, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if run.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{run.stderr[-4000:]}")
    return json.loads(lines[-1].removeprefix("RESULT "))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=int, default=2_000_000, help="of 100 bytes; a tenth of them of 2 KB, a hundredth of 20 KB"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="of each turn of the trickle")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--topic", choices=TOPICS, action="append", help="of drain; all of them by default")
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 64], help="of the trickle")
    parser.add_argument("--sockets", choices=("unix", "tcp"), nargs="+", default=["unix", "tcp"], help="of the trickle")
    parser.add_argument("--plain-start", action="store_true", help="Spark's Python processes import PySpark from its archive")
    parser.add_argument(
        "--results", type=Path, default=MEASURED / "spark.jsonl", help="the file of the results of drain and ranges"
    )
    given = parser.parse_args(arguments)
    results = Results(given.results)
    os.environ["BENCH_PLAIN_START"] = "1" if given.plain_start else "0"
    parts = given.only or PARTS
    if "members" in parts:
        print_handover("two memberships", handover.measure_members(given.rounds))
        if parts == ["members"]:
            return
    with cluster.broker() as kafka:
        topics = _filled(kafka, given, parts)
        if "drain" in parts:
            _drain(kafka, given, topics, results)
        if "ranges" in parts:
            _ranges(kafka, given, topics, results)
        if "cold" in parts:
            _cold(kafka, given, next(iter(topics.values())))
        if "trickle" in parts:
            _trickle(kafka, given)
        if "join" in parts:
            at = kafka.bootstrap_servers
            print_join([child(at, "join", kafka.new_topic(8), "8") for _ in range(max(1, given.rounds // 2))])
        if "handover" in parts:
            topic = kafka.new_topic(handover.PARTITIONS)
            print_handover("two queries", child(kafka.bootstrap_servers, "handover", topic, str(given.rounds)))
        if "executors" in parts:
            _executors(kafka, given)


def _filled(kafka: RealKafka, given: argparse.Namespace, parts: Sequence[str]) -> Mapping[str, str]:
    """Fill the topics of the parts; return name -> topic."""
    wanted = given.topic or list(TOPICS) if "drain" in parts else ["100 bytes"] if {"cold", "ranges"} & set(parts) else []
    return {name: fill(kafka, given.records // TOPICS[name].share, TOPICS[name]) for name in wanted}


def _drain(kafka: RealKafka, given: argparse.Namespace, topics: Mapping[str, str], results: Results) -> None:
    at, found = kafka.bootstrap_servers, {}
    for name, topic in topics.items():
        found[name] = child(at, "drain", topic, str(given.rounds), json.dumps(TOPICS[name].options), "local[2]")
        for source, runs in found[name].items():
            rates = [
                {"batches_per_s": one["rows"] / one["add_batch_s"], "query_per_s": one["rows"] / one["wall_s"]} for one in runs
            ]
            results.replace("drain", name, source, rates)
    print_drains(found)


def _ranges(kafka: RealKafka, given: argparse.Namespace, topics: Mapping[str, str], results: Results) -> None:
    name, topic = next(iter(topics.items()))
    options = json.dumps(TOPICS[name].options)
    found = child(kafka.bootstrap_servers, "ranges", topic, str(given.rounds), options)
    for source, seconds in found["seconds"].items():
        results.replace("ranges", name, source, [{"per_s": found["rows"] / one} for one in seconds])
    print_ranges(name, found)


def _cold(kafka: RealKafka, given: argparse.Namespace, topic: str) -> None:
    runs: dict[str, list[Mapping[str, Any]]] = {CONNECTOR: [], OURS: []}
    for _ in range(max(1, given.rounds // 2)):
        for source in runs:
            runs[source].append(child(kafka.bootstrap_servers, "cold", source, topic))
    print_cold(runs)


def _trickle(kafka: RealKafka, given: argparse.Namespace) -> None:
    rows = []
    for partitions in given.partitions:
        for sockets in given.sockets:
            topic = kafka.new_topic(partitions)
            found = child(kafka.bootstrap_servers, "trickle", topic, str(partitions), str(given.seconds), sockets)
            rows.append((partitions, sockets, found))
    print_trickles(rows)


def _executors(kafka: RealKafka, given: argparse.Namespace) -> None:
    topic = fill(kafka, given.records, TOPICS["100 bytes"], executors.PARTITIONS)
    grown = {
        number: child(kafka.bootstrap_servers, "drain", topic, str(given.rounds), "{}", f"local-cluster[{number},1,1024]")
        for number in executors.NUMBERS
    }
    print_drains({f"{number} executors": drained for number, drained in grown.items()})
    executors.PLOT.write_text(executors.plot(executors.rates_of(grown)))


def print_handover(kind: str, found: Mapping[str, list[float]]) -> None:
    """Print the median and the range of each way in which a partition can move."""
    print(markdown([f"{kind}: until the new owner has written, s", "median", "least", "most", "rounds"], handover.rows(found)))
    print()


def print_drains(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print throughput and memory."""
    rows = []
    for name, sources in found.items():
        for what, key in (("addBatch", "add_batch_s"), ("wall", "wall_s")):
            seconds = {source: median([one[key] for one in runs]) for source, runs in sources.items()}
            rate = {source: sources[source][0]["rows"] / seconds[source] / 1000 for source in seconds}
            ratio = rate[OURS] / rate[CONNECTOR]
            # Compare the two sources within each round.
            ratios = [theirs[key] / ours[key] for theirs, ours in zip(sources[CONNECTOR], sources[OURS], strict=True)]
            rows.append(
                [
                    f"{name}, {what}",
                    number(seconds[CONNECTOR]),
                    number(seconds[OURS]),
                    number(rate[CONNECTOR]),
                    number(rate[OURS]),
                    f"{ratio:.2f}",
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                ]
            )
    head = ["topic", "connector, s", "kafka_group, s", "connector, k/s", "kafka_group, k/s", "ratio of rates", "by round"]
    print(markdown(head, rows), end="\n\n")
    peaks = dict.fromkeys(("planner", "worker"), 0.0)
    for sources in found.values():
        for one in sources[OURS]:
            for kind, peak in one["memory"].items():
                peaks[kind] = max(peaks[kind], peak)
    print(f"Peak memory: planner {peaks['planner']:.0f} MB, largest worker {peaks['worker']:.0f} MB.\n")


def print_ranges(name: str, found: Mapping[str, Any]) -> None:
    """Print the median of bounded reads, and every round."""
    seconds, thousands = found["seconds"], found["rows"] / 1000
    ratios = [theirs / ours for theirs, ours in zip(seconds[CONNECTOR], seconds[OURS], strict=True)]
    middle = {source: median(values) for source, values in seconds.items()}
    rounds = [" ".join(f"{one:.2f}" for one in values) for values in (seconds[CONNECTOR], seconds[OURS], ratios)]
    row = [name, *(number(thousands / middle[source]) for source in (CONNECTOR, OURS)), f"{median(ratios):.2f}", *rounds]
    head = ["spark.read", "connector, k/s", "kafka_group, k/s", "ratio", "connector, s", "kafka_group, s", "ratio by round"]
    print(markdown(head, [row]), end="\n\n")


def print_cold(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print the figures of the first query of a session."""
    rows = [
        [source, *(number(median([one[key] for one in found])) for key in ("wall_s", "add_batch_s"))]
        for source, found in runs.items()
    ]
    print(markdown(["cold first query", "wall, s", "addBatch, s"], rows), end="\n\n")


def print_trickles(rows: Sequence[tuple[int, str, Mapping[str, Any]]]) -> None:
    """Print the latency of small batches."""
    lines = []
    for partitions, sockets, found in rows:
        middle = {source: median(found[source]["batch_ms"]) for source in found}
        last = {source: last_hundredth(found[source]["batch_ms"]) for source in found}
        first = {source: median(found[source]["first_s"]) for source in found}
        lines.append(
            [
                f"{partitions} partitions, {sockets}",
                *(f"{middle[source]:.0f} / {last[source]:.0f}" for source in (CONNECTOR, OURS)),
                f"{middle[OURS] / middle[CONNECTOR]:.2f} / {last[OURS] / last[CONNECTOR]:.2f}",
                *(number(first[source]) for source in (CONNECTOR, OURS)),
            ]
        )
    head = ["1,000 records/s", "connector, ms (median / p99)", "kafka_group, ms", "ratio"]
    print(markdown([*head, "connector, s to the first batch", "kafka_group"], lines), end="\n\n")


def last_hundredth(values: Sequence[float]) -> float:
    """Return the 99th percentile; NaN for too few values."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else float("nan")


def print_join(found: Sequence[Mapping[str, Any]]) -> None:
    """Print how long a second query takes to join a running query."""
    print(
        f"A second query owned its share {number(median([one['join_s'] for one in found]))} s after start(); during that time,"
        f" the first one's longest batch took {number(median([max(one['during_ms']) for one in found]))} ms"
        f" (median before: {number(median([median(one['calm_ms']) for one in found]))} ms, longest before:"
        f" {number(median([max(one['calm_ms']) for one in found]))} ms).\n"
    )


if __name__ == "__main__":
    main()
