"""Growth of time with members and partitions: ``python -m benchmarks.assignors.complexity``.

Measure plans after one member left and one joined, in processor time, print them, and draw them into
``docs/img/assignors-complexity.svg`` on logarithmic axes, where a line of slope 1 is linear growth.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import attrs

from assignors import Assignor, CooperativeStickyAssignor, RangeAssignor
from benchmarks.assignors.cases import JOINS, LEAVES, Case
from benchmarks.table import markdown, number

TARGET = Path(__file__).parents[2] / "docs" / "img" / "assignors-complexity.svg"
_PARTITIONS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
_MEMBERS = (100, 300, 1_000, 3_000, 10_000)
_ROUNDS = 3


@attrs.frozen
class Line:
    """A curve of the plot: milliseconds for each size."""

    name: str
    colour: str
    points: Sequence[tuple[int, float]]

    @property
    def slope(self) -> float:
        """The exponent with which the time grows with the size, measured over the larger half of the sizes."""
        (x1, y1), (x2, y2) = self.points[len(self.points) // 2], self.points[-1]
        return math.log(y2 / y1) / math.log(x2 / x1)


def measure(assignor: Assignor, case: Case) -> float:
    """Return the shortest of several times for a plan after one member left and one joined, in milliseconds."""
    cluster, members = case.cluster(), case.group()
    plan = assignor.assign(cluster, members)
    later = {
        member_id: attrs.evolve(member, owned=plan[member_id], generation=1)
        for member_id, member in members.items()
        if member_id != LEAVES
    }
    later[JOINS] = case.newcomer()
    best = math.inf
    for _ in range(_ROUNDS):
        start = time.thread_time()
        assignor.assign(cluster, later)
        best = min(best, time.thread_time() - start)
    return best * 1000


def main() -> None:
    """Measure the times, print them, and draw the plots."""
    kinds: Sequence[tuple[str, str, Assignor, str]] = (
        ("range, all alike", "#888888", RangeAssignor(), "all"),
        ("cooperative sticky, all alike", "#1f5fa8", CooperativeStickyAssignor(), "all"),
        ("cooperative sticky, one odd", "#2f8f4e", CooperativeStickyAssignor(), "odd"),
        ("cooperative sticky, random halves", "#c8641b", CooperativeStickyAssignor(), "half"),
    )
    by_partitions = [
        Line(name, colour, [(n, measure(assignor, Case("", 1_000, n, 200, kind))) for n in _PARTITIONS])
        for name, colour, assignor, kind in kinds
    ]
    by_members = [
        Line(name, colour, [(n, measure(assignor, Case("", n, 100_000, 200, kind))) for n in _MEMBERS])
        for name, colour, assignor, kind in kinds
    ]
    for title, sizes, lines in (("1,000 members", _PARTITIONS, by_partitions), ("100,000 partitions", _MEMBERS, by_members)):
        rows = [[line.name, *[number(y) for _, y in line.points], f"{line.slope:.2f}"] for line in lines]
        print(markdown([title, *[f"{size:,}" for size in sizes], "slope"], rows), end="\n\n")
    TARGET.write_text(draw(by_partitions, by_members))


def draw(by_partitions: Sequence[Line], by_members: Sequence[Line]) -> str:
    """Return two plots side by side."""
    body = [
        *_plot(by_partitions, 60, "partitions (1,000 members, 200 topics)"),
        *_plot(by_members, 480, "members (100,000 partitions, 200 topics)"),
    ]
    for place, line in enumerate(by_partitions):
        x, y = 60 + 400 * (place % 2), 352 + 20 * (place // 2)
        body.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" stroke="{line.colour}" stroke-width="2.5"/>')
        body.append(f'<text x="{x + 30}" y="{y}">{escape(line.name)}</text>')
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 390" width="860" height="390" '
            'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img">',
            "<title>Milliseconds for a plan after one member left and one came</title>",
            '<rect width="860" height="390" rx="8" fill="#ffffff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _plot(lines: Sequence[Line], left: int, label: str) -> list[str]:
    width, top, height = 340, 24, 250
    xs = [x for line in lines for x, _ in line.points]
    low_x, high_x = math.log10(min(xs)), math.log10(max(xs))
    low_y, high_y = 0.0, 4.0  # 1 ms to 10 s

    def at(x: float, y: float) -> tuple[float, float]:
        right = left + width * (math.log10(x) - low_x) / (high_x - low_x)
        down = top + height * (1 - (math.log10(max(y, 1.0)) - low_y) / (high_y - low_y))
        return round(right, 1), round(down, 1)

    parts = [f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>']
    for power, text in enumerate(("1 ms", "10 ms", "100 ms", "1 s", "10 s")):
        _, y = at(10**low_x, 10**power)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" fill="#555">{text}</text>')
    for power in range(math.ceil(low_x), math.floor(high_x) + 1):
        x, _ = at(10**power, 1)
        parts.append(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{top + height}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x}" y="{top + height + 18}" text-anchor="middle" fill="#555">{10**power:,}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">{escape(label)}</text>')
    for line in lines:
        points = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line.points))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{line.colour}"/>' for x, y in (at(*p) for p in line.points)]
    return parts


if __name__ == "__main__":
    main()
