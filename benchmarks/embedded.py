"""Benchmark (n): start and throughput of the embedded Kafka, of this source tree and of others.

``python -m benchmarks.embedded [--rounds 5] [--records 500000] [--tree NAME=DIRECTORY ...]``

The embedded Kafka runs in a process of its own. ``import`` and ``start`` are the CPU times of importing and starting it (first
compile both trees to byte code), and ``serves after`` is the elapsed time of the start. ``write`` and ``read`` are the rates of
librdkafka with one topic of four partitions and records of 100 bytes, and the CPU times of the broker for each record, which a
busy machine changes less. ``--tree`` compares with the sources in another directory, say of
``git archive COMMIT | tar -x -C DIRECTORY``. The trees take turns within each round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PARTITIONS = 4
_TOPIC = "records"
_VALUE = b"x" * 100
_DEADLINE_S = 300.0


def serve() -> None:
    """Run an embedded Kafka until the end of standard input; write its times, and its CPU time for each line of the input."""
    began = time.process_time()
    from consumer_coord.broker import EmbeddedKafka

    imported, before = time.process_time(), time.perf_counter()
    with EmbeddedKafka({_TOPIC: PARTITIONS}, brokers=1) as kafka:
        started, serves_s = time.process_time(), time.perf_counter() - before
        print(json.dumps([kafka.bootstrap_servers, imported - began, started - imported, serves_s]), flush=True)
        for _ in sys.stdin:
            used = resource.getrusage(resource.RUSAGE_SELF)
            print(used.ru_utime + used.ru_stime, flush=True)


def measure(tree: Path, count: int) -> dict[str, float]:
    """Return one round's figures of the embedded Kafka in ``tree``."""
    # -P: this directory has a package "assignors", too.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        servers, import_s, start_s, serves_s = json.loads(process.stdout.readline())

        def cpu_s(stdin: IO[str] = process.stdin, stdout: IO[str] = process.stdout) -> float:
            print(file=stdin, flush=True)
            return float(stdout.readline())

        figures = {"import, CPU s": import_s, "start, CPU s": start_s, "serves after s": serves_s}
        for name, work in (("write", _write), ("read", _read)):
            before, began = cpu_s(), time.perf_counter()
            work(servers, count)
            figures[f"{name} records/s"] = count / (time.perf_counter() - began)
            figures[f"{name} broker's CPU ns/record"] = (cpu_s() - before) / count * 1e9
        process.stdin.close()
    return figures


def _write(servers: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": count})
    for number in range(count):
        producer.produce(_TOPIC, _VALUE, partition=number % PARTITIONS)
    if producer.flush(_DEADLINE_S):
        raise RuntimeError("not all records were acknowledged")


def _read(servers: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "benchmark", "enable.auto.commit": False})
    consumer.assign([TopicPartition(_TOPIC, number, 0) for number in range(PARTITIONS)])
    seen, ends = 0, time.monotonic() + _DEADLINE_S
    while seen < count:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            seen += 1
        if time.monotonic() > ends:
            raise RuntimeError(f"{seen} of {count} records were read")
    consumer.close()


def table(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the medians as Markdown: a row for each figure, and a column for each tree."""
    names = list(next(iter(results.values()))[0])
    lines = [f"| | {' | '.join(results)} |", "| --- |" + " --- |" * len(results)]
    for name in names:
        medians = (median(one[name] for one in rounds) for rounds in results.values())
        cells = (f"{found:.3f}" if found < 1 else f"{found:,.0f}" for found in medians)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.embedded", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return
    trees = {name: Path(directory) for name, _, directory in (one.partition("=") for one in options.tree)}
    trees["this tree"] = Path(__file__).resolve().parents[1]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for number in range(options.rounds):
        for name in list(trees)[:: 1 if number % 2 == 0 else -1]:
            results[name].append(measure(trees[name], options.records))
    print(table(results))


if __name__ == "__main__":
    main()
