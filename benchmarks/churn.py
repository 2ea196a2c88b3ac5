"""Groups under churn: what is lost, repeated, refused, and how long the group takes to catch up.

``python -m benchmarks.churn [--seconds 40] [--rounds 3]``

Five to seven processes, 12 partitions, 4,000 records/s, a synchronous commit after each batch of 200; every 2-3 s one is
killed, frozen for 2 or 9 s (the session is 6 s), stopped or started.  The same trouble for each client, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

import attrs

from benchmarks import cluster
from benchmarks.table import markdown, number
from tests.support.churn import Group, Outcome, churn

CASES = (
    ("ours, cooperative", "ours", "cooperative-sticky"),
    ("librdkafka, cooperative", "confluent-kafka", "cooperative-sticky"),
    ("ours, range", "ours", "range"),
    ("librdkafka, range", "confluent-kafka", "range"),
)
PARTITIONS = 12
HEAD = ("client", "records", "lost", "repeated", "two owners", "commits refused", "though held", "no lag after, s")
_groups = itertools.count(1)


def row(name: str, found: Sequence[Outcome]) -> list[str]:
    """All rounds of a client, one beside the other."""

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
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.churn", description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[name for name, _, _ in CASES])
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only is None or case[0] in options.only]
    results: dict[str, list[Outcome]] = {name: [] for name, _, _ in cases}
    with cluster.broker() as kafka:
        for seed in range(options.rounds):
            for name, client, assignor in cases:
                topic = kafka.new_topic(PARTITIONS)
                group = Group(kafka, topic, f"churn-{next(_groups)}", client=client, assignor=assignor)
                try:
                    found = churn(kafka, topic, PARTITIONS, group, seconds=options.seconds, seed=seed)
                finally:
                    group.close()
                print(name, attrs.asdict(found), file=sys.stderr, flush=True)
                results[name].append(found)
    print(f"\n{options.seconds:g} s each, rounds side by side:\n")
    print(markdown(HEAD, [row(name, found) for name, found in results.items()]), flush=True)


if __name__ == "__main__":
    main()
