"""Records in parallel: ``process`` and other libraries, next to a bare loop of as many tasks, threads or processes.

``python -m benchmarks.parallel [--rounds 5] [--seconds 5] [--only asyncio threads processes] [--concurrency 1 10 100 1000]
[--peers pool ...] [--again] [--table]``; with ``--cases [CASE ...]``, the cases of
:mod:`benchmarks.parallel_cases`; with ``--memory [600]``, the memory of a long process.

Handlers sleep 5 ms (asyncio, threads) or compute 1 ms (processes). The bare loop calls the same handlers without a Kafka: it is
the most that any consumer can reach. Each record has 100 bytes, and one of 5,000 keys in 8 partitions. The programs are in
``parallel_peers/``, and run in turns, each in a process of its own; every round is shown, and kept in the file of results at
once, so that a run that was interrupted continues. A rate counts from the first call of a handler, for ``--seconds`` or until
the topic's 200,000 records are handled. *ratio* is the median of the rounds' ratios to the bare loop of the same round, with
the smallest and the largest. *overhead* is the processor time of a record beyond the bare loop's, in microseconds; for
processes, that of the parent.

Goals: 0.9 of a bare loop that handles at most 10,000 records/s; above that, 25 us (asyncio) and 50 us (threads) of overhead.

The peers: ``pool``, threads on confluent-kafka by hand; ``pyrallel`` (needs a Python from 3.12 on, with a new environment);
``prosody`` (with its mock, a broker in its process with three partitions); ``java``, Confluent's Parallel Consumer. A peer that
cannot be had is named with the reason, and left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from confluent_kafka import Producer

from benchmarks import cluster, parallel_cases, parallel_memory
from benchmarks.parallel_peers.calls import Task
from benchmarks.parallel_peers.programs import PEERS, ROOT, command
from benchmarks.results import Results, add_options, from_options
from benchmarks.table import markdown, median, number
from consumer_coord.testing.jars import UnavailableError
from consumer_coord.testing.kafka_cluster import KafkaCluster, unique_name

#: Driver -> how many handlers at once. More processes than cores handle no more records.
CONCURRENCY = {"asyncio": (1, 10, 100, 1_000), "threads": (1, 10, 100, 1_000), "processes": (1, 2, 10)}
WORK_S = {"asyncio": 0.005, "threads": 0.005, "processes": 0.001}
PARTITIONS, KEYS, RECORDS = 8, 5_000, 200_000
BARE, OURS = "bare", "ours"
_HEAD = (
    "handlers",
    "client",
    "records/s",
    "ratio (smallest-largest)",
    "overhead, us",
    "goal",
    "every round: records/s, CPU us",
)


def fill(kafka: KafkaCluster) -> str:
    """Create the topic."""
    topic = unique_name("records")
    kafka.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    value = json.dumps("x" * 98)
    for record in range(RECORDS):
        key = record % KEYS
        producer.produce(topic, value, key=str(key), partition=key % PARTITIONS)
        if record % 10_000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    return topic


def measure(client: str, task: Task) -> Mapping[str, float]:
    """Run a program once."""
    with tempfile.NamedTemporaryFile() as calls:
        ran = subprocess.run(
            command(client, task),
            cwd=ROOT,
            env={**os.environ, "CALLS": calls.name, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=task.seconds * 10 + 180,
            check=False,
        )
    if ran.returncode != 0:
        raise RuntimeError(f"{client} ended with code {ran.returncode}:\n{ran.stdout[-500:]}{ran.stderr[-2000:]}")
    found: dict[str, float] = json.loads([line for line in ran.stdout.splitlines() if line.startswith("{")][-1])
    return found


def run(tasks: Sequence[Task], results: Results, rounds: int, peers: Sequence[str]) -> None:
    """Measure what is missing."""
    missing: set[str] = set()
    with cluster.broker() as kafka:
        topic = fill(kafka)
        for task in tasks:
            able = [one for one in (BARE, OURS, *peers) if task.driver in PEERS[one].drivers and one not in missing]
            for client in list(able):
                try:
                    command(client, task)
                except UnavailableError as error:
                    print(f"{client} is left out: {error}", file=sys.stderr, flush=True)
                    missing.add(client)
                    able.remove(client)

            def once(client: str, task: Task = task) -> Mapping[str, float]:
                place = {"bootstrap": kafka.bootstrap_servers, "topic": topic, "group": unique_name("g")}
                return measure(client, Task(**{**vars(task), **place}))

            results.complete(task.driver, str(task.concurrency), able, rounds, once)


def lines(results: Results, tasks: Sequence[Task]) -> list[list[str]]:
    """Return the cells of the table for what was measured."""
    found = []
    for task in tasks:
        rounds_of = functools.partial(results.rounds, task.driver, str(task.concurrency))
        bare = rounds_of(BARE)
        for client in PEERS:
            rounds = rounds_of(client)
            if not rounds:
                continue
            pairs = list(zip(rounds, bare, strict=False))
            ratios = [one["rate"] / other["rate"] for one, other in pairs]
            overhead = median([one["cpu"] - other["cpu"] for one, other in pairs])
            goal = "" if client != OURS else _reached(task.driver, median([one["rate"] for one in bare]), ratios, overhead)
            found.append(
                [
                    f"{task.driver}, {task.concurrency:,}",
                    client,
                    number(median([one["rate"] for one in rounds])),
                    f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if client != BARE else "",
                    number(overhead) if client != BARE else "",
                    goal,
                    "; ".join(f"{number(one['rate'])}, {number(one['cpu'])}" for one in rounds),
                ]
            )
    return found


def _reached(driver: str, bare: float, ratios: Sequence[float], overhead: float) -> str:
    if bare <= 10_000:
        return f"ratio 0.9: {'yes' if median(ratios) >= 0.9 else 'no'}"
    if driver == "processes":
        return ""
    most = 25 if driver == "asyncio" else 50
    return f"{most} us: {'yes' if overhead <= most else 'no'}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.parallel", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", nargs="+", choices=CONCURRENCY, default=list(CONCURRENCY))
    parser.add_argument("--concurrency", nargs="+", type=int)
    parser.add_argument("--peers", nargs="*", choices=[one for one in PEERS if one not in (BARE, OURS)])
    add_options(parser, "parallel")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--cases", nargs="*", metavar="CASE", help="what is lost, repeated and stuck in hard cases")
    parser.add_argument("--memory", nargs="?", type=float, const=600.0, metavar="SECONDS", help="memory of a long process")
    options = parser.parse_args(arguments)
    peers = [one for one in PEERS if one not in (BARE, OURS)] if options.peers is None else options.peers
    if options.memory is not None:
        parallel_memory.run(options.memory)
        return
    results = from_options(options)
    if options.cases is not None:
        parallel_cases.run(options.cases, [OURS, *peers], results, measures=not options.table)
        return
    tasks = [
        Task(driver, concurrency=count, records=RECORDS, seconds=options.seconds, work=WORK_S[driver])
        for driver in options.only
        for count in options.concurrency or CONCURRENCY[driver]
    ]
    if not options.table:
        run(tasks, results, options.rounds, peers)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores\n")
    print(markdown(_HEAD, lines(results, tasks)), flush=True)


if __name__ == "__main__":
    main()
