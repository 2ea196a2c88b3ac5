"""Draw the owner of each partition over time, and the throughput of each query, as an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import attrs

_COLOURS = ("#2f6fb3", "#d9772b", "#3b9a63", "#8a56ac", "#b23a48")
_WIDTH, _LEFT, _RIGHT, _LANE, _PLOT = 1080, 110, 30, 26, 170
#: Average width of a letter in a label, in pixels.
_LETTER = 6.6


@attrs.frozen
class Holding:
    """Ownership of ``partition`` by ``query`` from ``start_s`` to ``end_s``."""

    query: str
    partition: int
    start_s: float
    end_s: float


@attrs.frozen
class Mark:
    """An event."""

    at_s: float
    text: str


def draw(
    holdings: Sequence[Holding],
    rows: Mapping[str, Sequence[tuple[float, int]]],
    marks: Sequence[Mark],
    *,
    partitions: int,
    end_s: float,
    title: str,
    summary: str,
) -> str:
    """Return the SVG; ``rows``: query -> (time, rows of a batch), in seconds since the first order."""
    colour = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(rows)}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end_s, 1)
    top = 112
    bottom = top + partitions * _LANE
    plot_top = bottom + 64
    plot_bottom = plot_top + _PLOT
    height = plot_bottom + 100

    def x(at_s: float) -> float:
        return round(_LEFT + min(max(at_s, 0), end_s) * scale, 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        ' font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="30" font-size="19" font-weight="600">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="52" fill="#555">{escape(summary)}</text>',
    ]
    at = float(_LEFT)
    for name, tint in colour.items():
        out.append(f'<rect x="{at}" y="66" width="14" height="14" rx="2" fill="{tint}"/>')
        out.append(f'<text x="{at + 20}" y="78">{escape(name)}</text>')
        at += 44 + 8 * len(name)
    for number in range(partitions):
        y = top + number * _LANE
        out.append(f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_LANE - 4}" fill="#f3f3f1"/>')
        out.append(f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">partition {number}</text>')
    for one in holdings:
        y = top + one.partition * _LANE
        wide = max(1.0, x(one.end_s) - x(one.start_s))
        out.append(
            f'<rect x="{x(one.start_s)}" y="{y}" width="{wide:.1f}" height="{_LANE - 4}" fill="{colour[one.query]}">'
            f"<title>{escape(one.query)}: {one.start_s:.1f} s to {one.end_s:.1f} s</title></rect>"
        )
    out += _plot(rows, colour, x, plot_top, plot_bottom, end_s)
    out += _marks(marks, x, top, plot_bottom)
    out.append("</svg>")
    return "\n".join(out)


def _plot(
    rows: Mapping[str, Sequence[tuple[float, int]]],
    colour: Mapping[str, str],
    x: object,
    top: int,
    bottom: int,
    end_s: float,
) -> list[str]:
    assert callable(x)
    width_s = max(1.0, end_s / 60)
    steps = int(end_s / width_s) + 1
    rates = {name: [0.0] * steps for name in rows}
    for name, batches in rows.items():
        for at_s, count in batches:
            rates[name][min(steps - 1, max(0, int(at_s / width_s)))] += count / width_s
    highest = max((rate for line in rates.values() for rate in line), default=1.0) or 1.0
    out = [
        f'<text x="{_LEFT}" y="{top - 12}" font-weight="600">orders read per second</text>',
        f'<text x="{_LEFT - 10}" y="{top + 5}" text-anchor="end">{highest:,.0f}</text>',
        f'<text x="{_LEFT - 10}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - _RIGHT}" y2="{bottom}" stroke="#999"/>',
    ]
    for name, line in rates.items():
        # Draw only from the query's first orders to its last, because a line at zero would suggest that the query ran at that
        # time.
        busy = [index for index, rate in enumerate(line) if rate] or [0]
        points = " ".join(
            f"{x((index + 0.5) * width_s)},{bottom - (bottom - top) * line[index] / highest:.1f}"
            for index in range(max(0, busy[0] - 1), min(steps, busy[-1] + 2))
        )
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour[name]}" stroke-width="2"/>')
    tick_s = next(step for step in (5, 10, 20, 30, 60, 120, 300, 10**9) if end_s / step <= 12)
    for number in range(int(end_s // tick_s) + 1):
        out.append(f'<text x="{x(number * tick_s)}" y="{bottom + 20}" text-anchor="middle">{number * tick_s} s</text>')
    return out


def _marks(marks: Sequence[Mark], x: object, top: int, bottom: int) -> list[str]:
    assert callable(x)
    out = []
    rows: list[float] = []
    for mark in marks:
        at, wide = x(mark.at_s), len(mark.text) * _LETTER
        anchor, left = ("end", at - wide) if at + wide > _WIDTH else ("start", at)
        # Find the first row with room for a label at this position.
        row = next((index for index, until in enumerate(rows) if until < left), len(rows))
        rows[row : row + 1] = [left + wide + _LETTER]
        out.append(f'<line x1="{at}" y1="{top - 4}" x2="{at}" y2="{bottom}" stroke="#222" stroke-dasharray="3 4"/>')
        y = bottom + 38 + 15 * row
        out.append(f'<text x="{at}" y="{y}" text-anchor="{anchor}" font-size="12">{escape(mark.text)}</text>')
    return out
