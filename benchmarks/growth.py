"""Benchmark (e): growth of a rebalance with members and partitions: time, bytes and processor time, as a plot.

``python -m benchmarks.growth [--svg docs/growth.svg]``

The members have no data plane (``ConsumerCoordinator``), use cooperative-sticky, and run in ``--processes`` processes with one
loop each. The benchmark measures one rebalance with both of its rounds: one more member joins a stable group, until every
member has its last assignment. Bytes are those that all members send and receive.

A hundred thousand partitions need more memory mappings and open files than Linux allows for one process. As root, the program
raises both limits. If it may not open enough files, it starts more brokers, each with a part of the partitions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from confluent_kafka import KafkaException

from benchmarks import cluster
from benchmarks.growing import Figures, State
from benchmarks.table import markdown, number
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.admin import log_offsets
from tests.support.line_process import LineProcess
from tests.support.processes import processor_s
from tests.support.waiting import eventually

#: (members, partitions)
BY_MEMBERS = tuple((members, 1_000) for members in (2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000))
BY_PARTITIONS = ((50, 10), (50, 100), (50, 1_000), (50, 10_000), (50, 100_000))
_QUIET_S = 0.5
_DEADLINE_S = 600.0
#: A broker on a small machine accepts about this number of partitions in one topic at once, so more partitions need more
#: topics.
_PARTITIONS_A_TOPIC = 1_000
#: Per partition, a broker maps two index files and keeps one file open. The third number is the number of its other open files.
_MAPPINGS_A_PARTITION = 2
_FILES_A_PARTITION = 1
_OTHER_FILES = 3_000
_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_groups = itertools.count(1)


@attrs.frozen
class Point:
    """A measurement. Times are in seconds."""

    members: int
    partitions: int
    seconds: float
    cpu_s: float
    broker_cpu_s: float
    megabytes: float
    generations: int


class Growing:
    """The processes of a group."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str], processes: int, **settings: int) -> None:
        config = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"growth-{next(_groups)}",
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "cooperative-sticky",
            **settings,
        }
        command = [sys.executable, "-m", "benchmarks.growing", json.dumps({"config": config, "topics": list(topics)})]
        self._processes = [LineProcess(command, name=f"members {number}") for number in range(processes)]

    def add(self, members: int) -> None:
        """Start more members, evenly spread over the processes."""
        for index, process in enumerate(self._processes):
            process.request(json.dumps({"add": len(range(index, members, len(self._processes)))}), _DEADLINE_S)

    def states(self) -> list[State]:
        """Return the state of each process."""
        for process in self._processes:
            process.send("{}")
        return [State(**json.loads(process.receive(_DEADLINE_S))) for process in self._processes]

    def figures(self) -> list[Figures]:
        """Return the figures of each process."""
        return [Figures(**json.loads(process.request('{"figures": true}', _DEADLINE_S))) for process in self._processes]

    def settled(self, members: int, partitions: int) -> tuple[float, list[State]]:
        """Wait until the group is stable; return the time when it became stable, and the states at that time.

        This is the time when the last partition moved or, if no partition moved, when the last member joined.
        """
        since = time.monotonic()
        ends = since + _DEADLINE_S
        stable_at: float | None = None
        while time.monotonic() < ends:
            states = self.states()
            moved_at = max(state.moved_at for state in states)
            shared = sum(state.held for state in states) == partitions
            fed = min(state.least for state in states if state.members) >= min(1, partitions // members)
            if sum(state.joined for state in states) != members:
                stable_at = None
            elif stable_at is None:
                stable_at = time.monotonic()
            elif shared and fed and time.monotonic() - moved_at > _QUIET_S:
                return (moved_at if moved_at >= since else stable_at), states
            time.sleep(0.02)
        raise TimeoutError(f"{members} members and {partitions} partitions did not settle: {states}")

    def close(self) -> None:
        """Close all members."""
        for process in self._processes:
            process.close()


def measure(kafka: RealKafka, topics: Sequence[str], members: int, partitions: int, processes: int) -> Point:
    """Measure the join of one more member to a stable group."""
    group = Growing(kafka.bootstrap_servers, topics, min(processes, members))
    try:
        group.add(members)
        _, before = group.settled(members, partitions)
        began, broker_s = time.monotonic(), brokers_s(kafka)
        group.add(1)
        # The processor time also includes heartbeats, and the requests for these states.
        ended, after = group.settled(members + 1, partitions)
        return Point(
            members,
            partitions,
            ended - began,
            sum(state.cpu_s for state in after) - sum(state.cpu_s for state in before),
            brokers_s(kafka) - broker_s,
            (sum(state.sent for state in after) - sum(state.sent for state in before)) / 1e6,
            max(state.generation for state in after) - max(state.generation for state in before),
        )
    finally:
        group.close()


def brokers_s(kafka: RealKafka) -> float:
    """Return the processor time that all brokers have used so far, in seconds."""
    return sum(processor_s(str(pid)) for pid in kafka.pids)


def raise_limits(partitions: int) -> int:
    """Raise the limits of this process and its brokers for memory mappings and files; return the number of brokers needed.

    End the program if a broker may not open enough files for any partition, or if the kernel refuses the memory mappings.
    """
    files = _FILES_A_PARTITION * partitions + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < files:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files if 0 <= hard < files else hard))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            files = hard
    if files <= _OTHER_FILES:
        sys.exit(
            f"a broker may open {files:,} files, and needs {_OTHER_FILES:,} in addition to those of partitions: ulimit -n 20000"
        )
    brokers = math.ceil(partitions * _FILES_A_PARTITION / (files - _OTHER_FILES))
    mappings = _MAPPINGS_A_PARTITION * math.ceil(partitions / brokers) * 3 // 2 + 65_530
    if int(_MAX_MAP_COUNT.read_text()) < mappings:
        try:
            _MAX_MAP_COUNT.write_text(str(mappings))
        except OSError as error:
            sys.exit(
                f"{partitions:,} partitions on {brokers} brokers need {mappings:,} memory mappings each ({error}):"
                f" sysctl vm.max_map_count={mappings}; or --most-partitions 10000"
            )
    return brokers


def topics_for(kafka: RealKafka, partitions: int) -> list[str]:
    """Create topics with ``partitions`` partitions in all, and wait until the logs exist, because this slows down a broker."""
    full, rest = divmod(partitions, _PARTITIONS_A_TOPIC)
    sizes = [_PARTITIONS_A_TOPIC] * full + ([rest] if rest else [])
    topics = []
    for size in sizes:
        topic = kafka.new_topic(size)
        topics.append(topic)

        def logs_are_there(topic: str = topic, size: int = size) -> bool:
            try:
                return bool(log_offsets(kafka.admin, topic, size))
            except KafkaException:
                # Although the metadata names this broker as the leader, it is not ready: it is still creating the log.
                return False

        eventually(logs_are_there, f"the logs of {topic}", within_s=_DEADLINE_S)
    return topics


# -- the plot -------------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 340, 250, 60, 46, 90
_SERIES = (("seconds", "#1b6ca8", "time, s"), ("cpu_s", "#c0392b", "CPU, s"), ("megabytes", "#2e8b57", "MB on the wire"))


def plot(panels: Sequence[tuple[str, str, Sequence[Point]]]) -> str:
    """Return panels side by side, with both axes logarithmic. A panel is (title, field on the x axis, points)."""
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + 76
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    values = [max(getattr(point, key), 1e-3) for _, _, points in panels for point in points for key, _, _ in _SERIES]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    for index, (title, x_field, points) in enumerate(panels):
        left = _LEFT + index * (_WIDTH + _GAP)
        xs = [math.log10(getattr(point, x_field)) for point in points]
        x_low, x_high = min(xs), max(xs)

        def at(x: float, y: float, left: int = left, x_low: float = x_low, x_high: float = x_high) -> tuple[float, float]:
            across = (x - x_low) / (x_high - x_low or 1)
            up = (math.log10(max(y, 1e-3)) - low) / (high - low)
            return left + across * _WIDTH, _TOP + _HEIGHT * (1 - up)

        out.append(f'<text x="{left}" y="{_TOP - 16}" font-size="14" font-weight="bold">{title}</text>')
        for power in range(low, high + 1):
            _, y = at(x_low, 10.0**power)
            out.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
            out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
        for point, x in zip(points, xs, strict=True):
            across, _ = at(x, 1.0)
            bottom = _TOP + _HEIGHT
            out.append(f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="#444444"/>')
            label = f"{getattr(point, x_field):,}"
            out.append(f'<text x="{across:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
        out.append(f'<text x="{left + _WIDTH / 2}" y="{_TOP + _HEIGHT + 38}" text-anchor="middle">{x_field}</text>')
        for key, colour, _ in _SERIES:
            places = [at(x, getattr(point, key)) for point, x in zip(points, xs, strict=True)]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    for index, (_, colour, name) in enumerate(_SERIES):
        x = _LEFT + index * 150
        y = _TOP + _HEIGHT + 62
        out.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="{y}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--svg", type=Path, help="also write the plot to this file")
    parser.add_argument("--processes", type=int, default=4, help="number of processes for the members")
    parser.add_argument("--most-members", type=int, default=2_000)
    parser.add_argument("--most-partitions", type=int, default=100_000)
    options = parser.parse_args(arguments)
    series = (
        ("one more member, 1,000 partitions", "members", BY_MEMBERS),
        ("one more member, 50 members", "partitions", BY_PARTITIONS),
    )
    within = [
        (title, field, [case for case in cases if case[0] <= options.most_members and case[1] <= options.most_partitions])
        for title, field, cases in series
    ]
    brokers = raise_limits(max(partitions for _, _, cases in within for _, partitions in cases))
    print(f"brokers: {brokers}", file=sys.stderr, flush=True)
    panels = []
    # 100,000 partitions need small indexes, because a broker keeps two indexes per partition in memory. The group's record
    # in __consumer_offsets needs a larger limit than the default, 1 MiB.
    properties = {"log.index.size.max.bytes": "4096", "message.max.bytes": str(4 << 20)}
    with cluster.broker(brokers, properties=properties, heap="4g" if brokers == 1 else "2g") as kafka:
        for title, field, cases in within:
            points: list[Point] = []
            known: dict[int, list[str]] = {}
            for members, partitions in cases:
                if partitions not in known:
                    known[partitions] = topics_for(kafka, partitions)
                points.append(measure(kafka, known[partitions], members, partitions, options.processes))
                print(json.dumps(attrs.asdict(points[-1])), file=sys.stderr, flush=True)
            panels.append((title, field, points))
    if options.svg is not None:
        options.svg.write_text(plot(panels))
    for title, _, points in panels:
        keys = [one.name for one in attrs.fields(Point)]
        print(f"\n{title}:\n\n{markdown(keys, [[number(float(getattr(one, key))) for key in keys] for one in points])}")


if __name__ == "__main__":
    main()
