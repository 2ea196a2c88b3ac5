"""Benchmark (c): cost of fifty idle members in one process: memory, threads, processor time, requests per second.

``python -m benchmarks.idle [--members 50] [--seconds 20] [--rounds 3]``

240 partitions, heartbeats every 500 ms, polls of 100 ms, no records. *our loop* is the processor time of our background thread.
*data plane alone* is the same number of ``confluent_kafka.Consumer`` objects that are polled in the same way, with the same
partitions but without a group. The difference is the cost of the group.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import cluster
from benchmarks.fleet import (
    AIOKAFKA,
    CONFLUENT,
    CONFLUENT_NEW,
    JAVA,
    KAFKA_PYTHON,
    OURS,
    OURS_COLUMNS,
    OURS_NEW,
    Variant,
    Watch,
    start_fleet,
)
from benchmarks.results import add_options, from_options
from benchmarks.table import markdown, number
from consumer_coord.testing.real_kafka import RealKafka

PARTITIONS = 240
DATA_PLANE = Variant("data plane alone", "manual")
VARIANTS = (OURS, OURS_COLUMNS, OURS_NEW, DATA_PLANE, CONFLUENT, CONFLUENT_NEW, KAFKA_PYTHON, AIOKAFKA, JAVA)
HEAD = ("client", "memory, MB", "sockets", "threads", "threads of the client", "CPU s", "of it our loop, s", "group requests/s")
FIGURES = ("rss_mb", "sockets", "threads", "our_threads", "cpu_s", "ours_s", "requests_per_s")
_groups = itertools.count(1)


def measure(variant: Variant, kafka: RealKafka, topic: str, members: int, seconds: float) -> Mapping[str, float]:
    """Measure one fleet while it is stable and idle."""
    libs = cluster.libs() if variant.client == "java" else Path()
    name = f"idle-{next(_groups)}"
    fleet = start_fleet(variant, libs, kafka.bootstrap_servers, name, topic, members, name=name)
    try:
        fleet.await_ready()
        fleet.subscribe()
        Watch([fleet], PARTITIONS).settle(members)
        time.sleep(3)
        before = fleet.usage()
        time.sleep(seconds)
        after = fleet.usage()
    finally:
        fleet.kill()
    return {
        "rss_mb": after["rss_mb"],
        "sockets": after.get("sockets", float("nan")),
        "threads": after["threads"],
        "our_threads": after.get("our_threads", float("nan")),
        "cpu_s": after["cpu_s"] - before["cpu_s"],
        "ours_s": after["ours_s"] - before["ours_s"] if variant.client.startswith("ours") else float("nan"),
        "requests_per_s": (after["requests"] - before["requests"]) / seconds if "requests" in after else float("nan"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.idle", description=__doc__)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of clients, as in the table")
    parser.add_argument("--few", action="store_true", help="only this library and librdkafka, cooperative")
    add_options(parser, "idle")
    options = parser.parse_args(arguments)
    only = [OURS.name, OURS_COLUMNS.name, CONFLUENT.name] if options.few else options.only
    variants = [one for one in VARIANTS if only is None or one.name in only]
    results, case = from_options(options), f"{options.members} members, {options.seconds:g} s"
    with cluster.broker() as kafka:
        topic = kafka.new_topic(PARTITIONS)

        def once(name: str) -> Mapping[str, float]:
            [variant] = [one for one in variants if one.name == name]
            return measure(variant, kafka, topic, options.members, options.seconds)

        results.complete("idle", case, [one.name for one in variants], options.rounds, once)
    rows = [[one.name, *(number(results.figure("idle", case, one.name, key).median) for key in FIGURES)] for one in variants]
    print(f"\n{options.members} idle members in one process, {options.seconds:g} s, medians of {options.rounds}:\n")
    print(markdown(HEAD, rows), flush=True)


if __name__ == "__main__":
    main()
