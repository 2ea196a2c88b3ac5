"""Benchmark (e): how a rebalance grows with members and partitions: time, bytes and processor time, as a plot.

``python -m benchmarks.growth [--svg docs/growth.svg]``

Members of ours without a data plane (``ConsumerCoordinator``), all in one process on one loop, cooperative-sticky, on one
broker.  Measured is one rebalance of a settled group that one more member joins, both rounds of it: until every member has
its last assignment.  Bytes are those of JoinGroup and SyncGroup on the wire, both ways.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from confluent_kafka import KafkaException

from assignors import CooperativeStickyAssignor
from benchmarks import cluster
from benchmarks.table import markdown, number
from consumer_coord.config import parse
from consumer_coord.consumer.handover import Handover, HoldsNothing, run_through
from consumer_coord.consumer.runtime import cluster_client
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.net import tcp
from tests.support.admin import log_offsets
from tests.support.processes import wait_until
from tests.support.real_kafka import RealKafka

#: (members, partitions)
BY_MEMBERS = ((2, 1_000), (5, 1_000), (10, 1_000), (20, 1_000), (50, 1_000), (100, 1_000), (200, 1_000), (500, 1_000))
BY_PARTITIONS = ((50, 10), (50, 100), (50, 1_000), (50, 10_000), (50, 100_000))
_QUIET_S = 0.5
_DEADLINE_S = 120.0
#: A broker of a small machine takes about this many partitions of one topic at once; more topics make up the rest.
_PARTITIONS_A_TOPIC = 1_000
_groups = itertools.count(1)


@attrs.frozen
class Point:
    """One measurement; times in seconds."""

    members: int
    partitions: int
    seconds: float
    cpu_s: float
    megabytes: float
    generations: int


class Application:
    """Carries out what the group wants, at once, for every member of the process."""

    def __init__(self, members: Sequence[ConsumerCoordinator]) -> None:
        self.members: list[ConsumerCoordinator] = []
        self.handovers: dict[ConsumerCoordinator, Handover] = {}
        self.moved_at = 0.0
        for member in members:
            self.add(member)

    def add(self, member: ConsumerCoordinator) -> None:
        """One more member."""
        self.members.append(member)
        self.handovers[member] = Handover(member, HoldsNothing())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for member in self.members:
                if member.application.attention:
                    self._attend(member)
            await asyncio.sleep(0.005)

    def _attend(self, member: ConsumerCoordinator) -> None:
        member.application.polled()
        if member.assignment.change():
            self.moved_at = time.monotonic()
            run_through(self.handovers[member].carry_out())


async def measure(kafka: RealKafka, topics: Sequence[str], members: int, partitions: int) -> Point:
    """A settled group, and one more member."""
    config = parse(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"growth-{next(_groups)}",
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    shared = cluster_client(config.client)

    def new() -> ConsumerCoordinator:
        member = ConsumerCoordinator(config.coordinator, shared, [CooperativeStickyAssignor()])
        member.subscribe(topics)
        return member

    application = Application([new() for _ in range(members)])
    running = asyncio.create_task(application.run())

    async def settled(count: int) -> float:
        """When the last partition moved, or the last member got its share where none had to."""
        since = time.monotonic()
        ends = since + _DEADLINE_S
        stable_at: float | None = None
        while time.monotonic() < ends:
            held = sum(len(member.assignment.held) for member in application.members)
            stable = all(member.protocol.joined for member in application.members)
            stable_at = (stable_at or time.monotonic()) if stable else None
            shares = [len(member.assignment.held) for member in application.members]
            quiet = time.monotonic() - application.moved_at > _QUIET_S
            if stable_at and quiet and held == partitions and min(shares) >= min(1, partitions // count):
                return application.moved_at if application.moved_at >= since else stable_at
            await asyncio.sleep(0.02)
        raise TimeoutError(f"{members} members and {partitions} partitions did not settle")

    try:
        await settled(members)
        generation = application.members[0].generation
        began, used, wire = time.monotonic(), time.process_time(), _bytes()
        application.add(new())
        # What waiting itself costs (this loop's looks, heartbeats) is in the processor time, too.
        ended = await settled(members + 1)
        return Point(
            members,
            partitions,
            ended - began,
            time.process_time() - used,
            (_bytes() - wire) / 1e6,
            application.members[0].generation - generation,
        )
    finally:
        running.cancel()
        await asyncio.gather(*(member.close(10_000) for member in application.members), return_exceptions=True)
        await shared.close()


_counted = [0]


def _bytes() -> int:
    return _counted[0]


def count_bytes() -> None:
    """Count everything that goes out or comes in."""
    send, receive = tcp.TcpTransport.send, tcp.TcpTransport.data_received

    def counting_send(self: tcp.TcpTransport, frame: bytes) -> None:
        _counted[0] += len(frame) + 4
        send(self, frame)

    def counting_receive(self: tcp.TcpTransport, data: bytes) -> None:
        _counted[0] += len(data)
        receive(self, data)

    setattr(tcp.TcpTransport, "send", counting_send)  # noqa: B010 - this process measures, nothing else
    setattr(tcp.TcpTransport, "data_received", counting_receive)  # noqa: B010


def topics_for(kafka: RealKafka, partitions: int) -> list[str]:
    """Topics with so many partitions in all, whose logs are there: a broker that makes logs answers groups late."""
    full, rest = divmod(partitions, _PARTITIONS_A_TOPIC)
    sizes = [_PARTITIONS_A_TOPIC] * full + ([rest] if rest else [])
    topics = [kafka.new_topic(size) for size in sizes]

    def logs_are_there() -> bool:
        try:
            return all(log_offsets(kafka.admin, topic, size) for topic, size in zip(topics, sizes, strict=True))
        except KafkaException:
            # "Not leader", although the metadata names it: it is still at it.
            return False

    wait_until(logs_are_there, _DEADLINE_S, f"the logs of {partitions} partitions")
    return topics


# -- the plot -------------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 340, 250, 60, 46, 90
_SERIES = (("seconds", "#1b6ca8", "time, s"), ("cpu_s", "#c0392b", "CPU, s"), ("megabytes", "#2e8b57", "MB on the wire"))


def plot(panels: Sequence[tuple[str, str, Sequence[Point]]]) -> str:
    """Panels side by side, both axes logarithmic; each is (title, the field on the x axis, points)."""
    import math

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
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--svg", type=Path, default=Path("docs/growth.svg"))
    parser.add_argument("--most-members", type=int, default=500)
    parser.add_argument("--most-partitions", type=int, default=100_000)
    options = parser.parse_args(arguments)
    count_bytes()
    panels = []
    with cluster.broker() as kafka:
        for title, field, cases in (
            ("one more member, 1,000 partitions", "members", BY_MEMBERS),
            ("one more member, 50 members", "partitions", BY_PARTITIONS),
        ):
            points: list[Point] = []
            known: dict[int, list[str]] = {}
            for members, partitions in cases:
                if members > options.most_members or partitions > options.most_partitions:
                    continue
                if partitions not in known:
                    known[partitions] = topics_for(kafka, partitions)
                points.append(asyncio.run(measure(kafka, known[partitions], members, partitions)))
                print(json.dumps(attrs.asdict(points[-1])), file=sys.stderr, flush=True)
            panels.append((title, field, points))
    options.svg.write_text(plot(panels))
    for title, _, points in panels:
        keys = [one.name for one in attrs.fields(Point)]
        print(f"\n{title}:\n\n{markdown(keys, [[number(float(getattr(one, key))) for key in keys] for one in points])}")


if __name__ == "__main__":
    main()
