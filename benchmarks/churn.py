"""Groups under churn: lost, repeated and refused records and commits, and the time to catch up.

``python -m benchmarks.churn [--seconds 40] [--rounds 3] [--migrate | --migrate-in-order]``

Five to seven processes, 12 partitions, 4,000 records/s, a synchronous commit after each batch of 200; every 2-3 s a process is
killed, frozen for 2 or 9 s (the session is 6 s), stopped or started. Each client has the same faults, and the clients run in
turns. With ``--migrate``, members of the other group protocol replace the members one by one, and then the reverse; every
second member is killed instead of closed. ``--migrate-in-order`` does the same without kills.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Sequence

import attrs

from benchmarks import cluster
from benchmarks.table import markdown, number
from tests.support.churn import Group, Outcome, churn, migrate, trouble


@attrs.frozen
class Case:
    """A row of the table: a client, its assignor and its group protocol."""

    name: str
    client: str
    assignor: str
    protocol: str = "classic"


CASES = (
    Case("ours, cooperative", "ours", "cooperative-sticky"),
    Case("librdkafka, cooperative", "confluent-kafka", "cooperative-sticky"),
    Case("ours, consumer protocol", "ours", "cooperative-sticky", "consumer"),
    Case("librdkafka, consumer protocol", "confluent-kafka", "cooperative-sticky", "consumer"),
    Case("ours, range", "ours", "range"),
    Case("librdkafka, range", "confluent-kafka", "range"),
)
PARTITIONS = 12
HEAD = ("client", "records", "lost", "repeated", "two owners", "commits refused", "though held", "no lag after, s")
_groups = itertools.count(1)


def row(name: str, found: Sequence[Outcome]) -> list[str]:
    """Return the results of all rounds of a client."""

    def each(values: Sequence[object]) -> str:
        return " / ".join(map(str, values))

    return [
        name,
        each([one.records for one in found]),
        each([one.lost for one in found]),
        each([one.repeated for one in found]),
        each([len(one.double_owners) for one in found]),
        each([one.refused for one in found]),
        each([len(one.refused_though_held) for one in found]),
        each(["never" if one.lag_zero_s is None else number(one.lag_zero_s) for one in found]),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.churn", description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--migrate", action="store_const", dest="disturb", const=migrate, default=trouble)
    in_order = functools.partial(migrate, kills=False)
    instead.add_argument("--migrate-in-order", action="store_const", dest="disturb", const=in_order)
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only is None or case.name in options.only]
    results: dict[str, list[Outcome]] = {case.name: [] for case in cases}
    with cluster.broker() as kafka:
        for seed in range(options.rounds):
            for case in cases:
                topic = kafka.new_topic(PARTITIONS)
                name = f"churn-{next(_groups)}"
                group = Group(kafka, topic, name, client=case.client, assignor=case.assignor, protocol=case.protocol)
                try:
                    found = churn(kafka, topic, PARTITIONS, group, seconds=options.seconds, seed=seed, disturb=options.disturb)
                finally:
                    group.close()
                print(case.name, attrs.asdict(found), file=sys.stderr, flush=True)
                results[case.name].append(found)
    print(f"\n{options.seconds:g} s each, rounds side by side:\n")
    print(markdown(HEAD, [row(name, found) for name, found in results.items()]), flush=True)


if __name__ == "__main__":
    main()
