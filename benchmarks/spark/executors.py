"""Throughput of both sources with different numbers of executors of one core: the plot of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.spark.session import CONNECTOR, OURS
from benchmarks.table import median

#: The numbers of executors to compare, and the number of partitions that they read.
NUMBERS, PARTITIONS = (1, 2, 4), 64
PLOT = Path("docs/spark-executors.svg")


def rates_of(grown: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Mapping[int, Sequence[float]]]:
    """Return source -> number of executors -> thousands of records per second in each round, from the duration addBatch."""
    return {
        source: {
            executors: [one["rows"] / one["add_batch_s"] / 1000 for one in drained[source]]
            for executors, drained in grown.items()
        }
        for source in (CONNECTOR, OURS)
    }


def plot(rates: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    """Plot the medians over the number of executors, with a bar from the lowest to the highest round."""
    width, height, left, top = 440, 250, 64, 36
    executors = sorted({count for rows in rates.values() for count in rows})
    most = max(max(rounds) for rows in rates.values() for rounds in rows.values())
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {top + height + 70}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{left + width + 30}" height="{top + height + 70}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14" font-weight="bold">thousands of records a second, 64 partitions</text>',
    ]

    def at(count: int, rate: float) -> tuple[float, float]:
        across = (count - executors[0]) / max(1, executors[-1] - executors[0])
        return left + across * width, top + height * (1 - rate / (1.1 * most))

    for line in range(6):
        rate = 1.1 * most * line / 5
        _, y = at(executors[0], rate)
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{rate:.0f}</text>')
    for count in executors:
        x, y = at(count, 0)
        out.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{count}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">executors of one core</text>')
    for index, (source, rows) in enumerate(rates.items()):
        colour = ("#c0392b", "#1b6ca8")[index]
        middle = [at(count, median(rows[count])) for count in executors]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in middle)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for count, (x, y) in zip(executors, middle, strict=True):
            _, low = at(count, min(rows[count]))
            _, high = at(count, max(rows[count]))
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        x = left + index * 150
        out.append(f'<rect x="{x}" y="{top + height + 48}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{x + 18}" y="{top + height + 58}">{source}</text>')
    return "\n".join([*out, "</svg>", ""])
