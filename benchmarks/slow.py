"""Benchmark (b), slow applications: one member joins a group whose members work for two seconds on each batch.

``python -m benchmarks.slow [--members 50] [--work-ms 2000] [--rounds 3] [--linger-ms 0 1000]``

*join*: until the last partition has moved. *generations*: the number of generations that the join took. *wait*: the longest
wait for a next batch, during the join, of any member that keeps all of its partitions. Such a member has records to read, so
without a rebalance it would wait only for its own poll.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.fleet import CONFLUENT, CONFLUENT_NEW, JAVA, KAFKA_PYTHON, OURS, Fleet, Variant, Watch, start_fleet
from benchmarks.table import markdown, median, number
from consumer_coord.testing.real_kafka import RealKafka

PARTITIONS = 240
RECORDS = 1_200_000
VARIANTS = (OURS, CONFLUENT, CONFLUENT_NEW, KAFKA_PYTHON, JAVA)
HEAD = ("client", "join, s", "generations", "longest wait of a keeper, ms", "unowned")
_groups = itertools.count(1)


def fill(kafka: RealKafka) -> str:
    """Fill a topic that is never read to its end."""
    topic = kafka.new_topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": 1_000_000})
    for index in range(RECORDS):
        while True:
            try:
                producer.produce(topic, b"0123456789", partition=index % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def measure(
    variant: Variant, kafka: RealKafka, topic: str, members: int, work_ms: int, config: Mapping[str, int]
) -> Mapping[str, float]:
    """Measure one join."""
    libs = cluster.libs() if variant.client == "java" else Path()
    group = f"slow-{next(_groups)}"

    def fleet(size: int, name: str) -> Fleet:
        return start_fleet(
            variant, libs, kafka.bootstrap_servers, group, topic, size, name=name, work_ms=work_ms, config=config
        )

    first, joiner = fleet(members, "first"), fleet(1, "joiner")
    try:
        for one in (first, joiner):
            one.await_ready()
        watch = Watch([first, joiner], PARTITIONS, settled_s=2 * work_ms / 1000 + 1)
        first.subscribe()
        watch.settle(members)
        generation, seen = first.usage()["generation"], len(first.idle_ms)
        began = joiner.subscribe()
        ended = watch.settle(members + 1)
        movers = {one.owner[1] for one in first.told if one.at_ns > began and not one.gained and one.partitions}
        waits = [ms for member, ms in first.idle_ms[seen:] if member not in movers]
        return {
            "join": (ended - began) / 1e9,
            "generations": first.usage()["generation"] - generation,
            "wait": max(waits, default=float("nan")),
            "unowned": watch.unowned_s(began),
        }
    finally:
        first.kill()
        joiner.kill()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.slow", description=__doc__)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--work-ms", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--linger-ms", type=int, nargs="*", default=[], help="also run ours with these release.linger.ms")
    parser.add_argument("--only", nargs="+", help="names of clients, as in the table")
    options = parser.parse_args(arguments)
    cases: list[tuple[str, Variant, Mapping[str, int]]] = [
        (one.name, one, {}) for one in VARIANTS if options.only is None or one.name in options.only
    ]
    cases += [(f"{OURS.name}, linger {ms} ms", OURS, {"release.linger.ms": ms}) for ms in options.linger_ms]
    results: dict[str, list[Mapping[str, float]]] = {name: [] for name, _, _ in cases}
    with cluster.broker() as kafka:
        topic = fill(kafka)
        for _ in range(options.rounds):
            for name, variant, config in cases:
                try:
                    found = measure(variant, kafka, topic, options.members, options.work_ms, config)
                except TimeoutError as error:
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
                    continue
                results[name].append(found)
                print(name, json.dumps(found), file=sys.stderr, flush=True)
    rows = [
        [name, *(number(median([one[key] for one in found])) for key in ("join", "generations", "wait", "unowned"))]
        for name, found in results.items()
    ]
    print(f"\n{options.members} members, {options.work_ms} ms of work a batch, medians of {options.rounds}:\n")
    print(markdown(HEAD, rows), flush=True)


if __name__ == "__main__":
    main()
