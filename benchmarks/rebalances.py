"""Benchmark (b): rebalances on one broker: start, join, leave, silent death, and the time partitions have no owner.

``python -m benchmarks.rebalances --members 50 --rounds 3 [--across] [--only ours,cooperative ...]``

240 partitions, session 6 s, heartbeats every 500 ms, polls of 100 ms. *start*: N existing members subscribe; until all own
partitions. *join*: one more member in a separate process. *leave*: that member closes. *death*: another member joins and is
killed. Each step lasts until the last partition has moved. *unowned*: partition-seconds without an owner during *join*. All
members run in one process, or, with ``--across``, in one process per member. The clients run in turns within each round.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from benchmarks import cluster
from benchmarks.fleet import CONFIG, CONFLUENT, OURS, VARIANTS, Fleet, Variant, Watch, start_fleet
from benchmarks.results import Results, add_options, from_options
from benchmarks.table import markdown, number
from consumer_coord.testing.real_kafka import RealKafka

PARTITIONS = 240
MEASURES = ("start", "join", "leave", "death", "unowned", "generations")
#: The same intervals for the consumer protocol, in which the broker sets them.
NEW_PROTOCOL = {
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
}
_groups = itertools.count(1)


@attrs.frozen
class Run:
    """A client's figures of one round, in seconds; ``unowned`` in partition-seconds, ``generations`` of *join*."""

    start: float
    join: float
    leave: float
    death: float
    unowned: float
    generations: float


def measure(
    variant: Variant, kafka: RealKafka, topic: str, members: int, *, across: bool, death: bool, phase: float = 0.0
) -> Run:
    """Run one round: start, join, leave, and optionally a death.

    ``phase``: the fraction of a heartbeat interval after which the new member joins. The members send heartbeats at the same
    time, and the group becomes stable after whole intervals. So without this delay, every join would follow immediately after a
    heartbeat.
    """
    libs = cluster.libs() if variant.client == "java" else Path()
    group = f"group-{next(_groups)}"

    def fleet(size: int, name: str) -> Fleet:
        return start_fleet(variant, libs, kafka.bootstrap_servers, group, topic, size, name=name)

    started: list[Fleet] = []
    try:
        for number_ in range(members if across else 1):
            started.append(fleet(1 if across else members, f"fleet {number_}"))
        first = tuple(started)
        joiner, mortal = fleet(1, "joiner"), fleet(1, "mortal")
        started += [joiner, mortal]
        for one in started:
            one.await_ready()
        watch = Watch(started, PARTITIONS)

        began = min([one.subscribe() for one in first])
        start_s = (watch.settle(members) - began) / 1e9
        generation = first[0].usage()["generation"]
        time.sleep(phase * CONFIG["heartbeat.interval.ms"] / 1000)
        began = joiner.subscribe()
        join_s = (watch.settle(members + 1) - began) / 1e9
        unowned = watch.unowned_s(began)
        generations = first[0].usage()["generation"] - generation
        # Without this delay, the member would leave immediately after a heartbeat, which is the worst moment.
        time.sleep(phase * CONFIG["heartbeat.interval.ms"] / 1000)
        began = joiner.close_member(0)
        leave_s = (watch.settle(members) - began) / 1e9
        death_s = float("nan")
        if death:
            mortal.subscribe()
            watch.settle(members + 1)
            began = time.monotonic_ns()
            mortal.kill()
            death_s = (watch.settle(members, without=[("mortal", 0)]) - began) / 1e9
        return Run(start_s, join_s, leave_s, death_s, unowned, generations)
    finally:
        for one in started:
            one.kill()


def where(members: int, *, across: bool) -> str:
    """Return the case of a group: its size, and whether each member has a process of its own."""
    return f"{members} members, {'one process per member' if across else 'one process'}"


def compare(variants: Sequence[Variant], members: int, rounds: int, results: Results, *, across: bool, death: bool) -> None:
    """Measure what is missing of all clients."""
    named, case = {variant.name: variant for variant in variants}, where(members, across=across)
    with cluster.broker(properties=NEW_PROTOCOL) as kafka:
        topic = kafka.new_topic(PARTITIONS)
        measure(variants[0], kafka, topic, 2, across=False, death=False)  # warms the broker up

        def once(name: str) -> Mapping[str, float]:
            phase = (len(results.rounds("rebalances", case, name)) + 0.5) / rounds
            try:
                return attrs.asdict(measure(named[name], kafka, topic, members, across=across, death=death, phase=phase))
            except TimeoutError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                return dict.fromkeys(MEASURES, float("nan"))

        results.complete("rebalances", case, list(named), rounds, once)


def table(results: Results, case: str, names: Sequence[str], floor_s: float | None = None) -> str:
    """Return a table of medians. A row without figures means that the group never became stable.

    The table also has the join as a multiple of the first row's join.

    ``floor_s``: the shortest possible time of a join or a leave, if every process learns of it from a heartbeat response.
    """
    rows = []
    medians = {name: {one: results.figure("rebalances", case, name, one).median for one in MEASURES} for name in names}
    first = next(iter(medians.values()))
    for name, row in medians.items():
        rows.append([name, *(number(row[measure_]) for measure_ in MEASURES), number(row["join"] / first["join"])])
    if floor_s is not None:
        floors = (number(floor_s) if measure_ in ("join", "leave") else "" for measure_ in MEASURES)
        rows.append(["floor: the wait for a heartbeat", *floors, number(floor_s / first["join"])])
    return markdown(["client", *MEASURES, "join / first row"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.rebalances", description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--across", action="store_true", help="one process per member")
    parser.add_argument("--no-death", action="store_true", help="leave out the silent death, which takes a session timeout")
    parser.add_argument("--only", nargs="+", help="names of clients, as in the table")
    parser.add_argument("--few", action="store_true", help="only this library and librdkafka, cooperative")
    add_options(parser, "rebalances")
    options = parser.parse_args(arguments)
    only = [OURS.name, CONFLUENT.name] if options.few else options.only
    variants = [one for one in VARIANTS if only is None or one.name in only]
    results = from_options(options)
    for members in options.members:
        compare(variants, members, options.rounds, results, across=options.across, death=not options.no_death)
        case = where(members, across=options.across)
        # The rounds join at different moments of the interval, and the mean of these moments is the middle of the interval.
        floor_s = CONFIG["heartbeat.interval.ms"] / 2000 if options.across else None
        found = table(results, case, [one.name for one in variants], floor_s)
        print(f"\n{case}, medians of {options.rounds}:\n\n{found}", flush=True)


if __name__ == "__main__":
    main()
