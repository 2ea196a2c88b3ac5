"""Goals next to the peer: idle members, the import, and the first message of a process, as one table.

``python -m benchmarks.goals [--members 50] [--seconds 20] [--rounds 5]``

*before*: measured on 24 November 2026. *now* and *peer* are medians. The clients run in turns within each round. The figures
use processor time, because other work on the machine disturbs this time less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import attrs

from benchmarks import cluster, first_message, idle
from benchmarks.fleet import CONFLUENT, OURS
from benchmarks.table import markdown, median, number
from tests.support.real_kafka import RealKafka

HEAD = ("row", "before", "now", "peer", "goal", "reached")
_IMPORTS = {"ours": "from consumer_coord import GroupConsumer", "confluent-kafka": "import confluent_kafka"}
_PRINT_MEMORY = """
import os
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
"""


@attrs.frozen
class Row:
    """A row of the table. ``limit`` is the largest value that meets the goal."""

    name: str
    before: float
    now: float
    peer: float
    limit: float

    def cells(self) -> list[str]:
        """Return the row's text."""
        values = (number(one) for one in (self.before, self.now, self.peer, self.limit))
        return [self.name, *values, "yes" if self.now <= self.limit else "no"]


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


def _imports(rounds: int) -> list[Row]:
    for client in _IMPORTS:
        imported(client)
    found: dict[str, list[tuple[float, float]]] = {client: [] for client in _IMPORTS}
    for _ in range(rounds):
        for client, runs in found.items():
            runs.append(imported(client))
    ours, peer = ([median(column) for column in zip(*found[client], strict=True)] for client in _IMPORTS)
    return [
        Row("import, CPU ms", 150, ours[0], peer[0], 100),
        Row("import, MB", 29, ours[1], peer[1], 26),
    ]


def _first_messages(kafka: RealKafka, rounds: int) -> list[Row]:
    place = first_message.Place(
        kafka.bootstrap_servers, first_message.fill(kafka, 1), {"bootstrap.servers": kafka.bootstrap_servers}
    )
    found: dict[str, list[float]] = {client: [] for client in first_message.CLIENTS}
    for _ in range(rounds):
        for client, runs in found.items():
            runs.append(first_message.run("process", client, place))
    peer = median(found["confluent-kafka"])
    return [
        Row("first message of a process, s", float("nan"), median(found["ours"]), peer, peer),
        Row("the same with consume_arrow, s", float("nan"), median(found["ours-columns"]), peer, peer),
    ]


def _idle(kafka: RealKafka, members: int, seconds: float, rounds: int) -> list[Row]:
    topic = kafka.new_topic(idle.PARTITIONS)
    found: dict[str, list[Mapping[str, float]]] = {}
    for _ in range(rounds):
        for variant in (OURS, idle.DATA_PLANE, CONFLUENT):
            found.setdefault(variant.name, []).append(idle.measure(variant, kafka, topic, members, seconds))
            print(variant.name, json.dumps(found[variant.name][-1]), file=sys.stderr, flush=True)

    def of(name: str, figure: str) -> float:
        return median([one[figure] for one in found[name]])

    ours, peer, alone = OURS.name, CONFLUENT.name, idle.DATA_PLANE.name
    cpu_s, what = of(peer, "cpu_s"), f"{members} idle members"
    return [
        Row(f"{what}, CPU s", 2.54, of(ours, "cpu_s"), cpu_s, cpu_s),
        Row(f"{what}, MB", 92, of(ours, "rss_mb"), of(peer, "rss_mb"), of(alone, "rss_mb") + 8),
        # One connection to the coordinator, and the pair of sockets that wakes asyncio's loop.
        Row(f"{what}, sockets", 103, of(ours, "sockets"), of(peer, "sockets"), 2 * members + 3),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.goals", description=__doc__)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    rows = _imports(options.rounds)
    with cluster.broker() as kafka:
        rows += _first_messages(kafka, options.rounds)
        rows += _idle(kafka, options.members, options.seconds, options.rounds)
    print(f"\nmedians of {options.rounds}:\n\n{markdown(HEAD, [row.cells() for row in rows])}", flush=True)


if __name__ == "__main__":
    main()
