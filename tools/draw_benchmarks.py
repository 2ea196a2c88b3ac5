"""Draw the charts of docs/benchmarks.md from its tables: ``python -m tools.draw_benchmarks``.

A chart is above its table, as an image ``img/benchmarks-NAME.svg``; each column of numbers is a series of bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import attrs

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
#: The title of each chart, and the columns that it leaves out.
CHARTS = {
    "throughput": ("messages a second, 1,000 bytes", ()),
    "cpu": ("microseconds of CPU time per message", ()),
    "first-message": ("seconds to the first message", ()),
    "rebalance": ("seconds until the member has joined", ("unowned, partition-seconds",)),
    "spark": ("rate of kafka_group, relative to Spark's connector", ()),
}
OURS, PEER = "#2b6cb0", "#b8c2cc"
_LABEL, _BARS, _BAR, _GAP, _TOP = 300, 360, 15, 9, 44


@attrs.frozen
class Chart:
    """A table as bars: ``rows`` are a label and one value for each of ``series``."""

    title: str
    series: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def charts(text: str) -> Iterator[tuple[str, Chart]]:
    """Yield the charts of a page: name and content."""
    for image in re.finditer(r"!\[[^\]]*\]\(img/benchmarks-([\w-]+)\.svg\)\n\n<!-- measured: [^>]* -->\n((?:\|.*\n)+)", text):
        title, left_out = CHARTS[image[1]]
        head, _, *body = ([cell.strip() for cell in line.strip("|\n ").split("|")] for line in image[2].splitlines())
        shown = [column for column in range(1, len(head)) if head[column] not in left_out]
        rows = [(cells[0].replace("`", ""), [cells[column] for column in shown]) for cells in body]
        yield image[1], Chart(title, [head[column] for column in shown], rows)


def draw(chart: Chart) -> str:
    """Return the picture of a chart."""
    values = [[number(cell) for cell in cells] for _, cells in chart.rows]
    scale = _BARS / max(max(row) for row in values)
    step = len(chart.series) * (_BAR + 1) + _GAP
    width, height = _LABEL + _BARS + 110, _TOP + step * len(chart.rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
        f"<title>{escape(chart.title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<text x="16" y="26" font-weight="bold">{escape(chart.title)}</text>',
    ]
    if len(chart.series) > 1:
        for place, name in enumerate(chart.series):
            left = _LABEL + 60 + place * 150
            parts.append(f'<rect x="{left}" y="16" width="12" height="12" fill="{colour(name)}"/>')
            parts.append(f'<text x="{left + 18}" y="26" fill="#444">{escape(name.removesuffix(", s"))}</text>')
    for place, ((label, cells), row) in enumerate(zip(chart.rows, values, strict=True)):
        top = _TOP + place * step
        middle = top + len(cells) * (_BAR + 1) / 2 + 4
        parts.append(f'<text x="{_LABEL - 10}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for series, (cell, value) in enumerate(zip(cells, row, strict=True)):
            at = top + series * (_BAR + 1)
            fill = colour(chart.series[series] if len(cells) > 1 else label)
            parts.append(f'<rect x="{_LABEL}" y="{at}" width="{max(value * scale, 1):.1f}" height="{_BAR}" fill="{fill}"/>')
            parts.append(f'<text x="{_LABEL + value * scale + 6:.1f}" y="{at + 12}" fill="#444">{cell.split()[0]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def number(cell: str) -> float:
    """Return the value of a cell such as ``0.16 (0.16-0.68)`` or ``538,215``."""
    return float(cell.split()[0].replace(",", ""))


def colour(name: str) -> str:
    """Return the colour of a bar: this project's, of another client, or of the second figure of a ratio."""
    return OURS if name.startswith("consumer-coord") or name == "batches" else PEER


def main() -> None:
    """Draw all charts."""
    for name, chart in charts(PAGE.read_text()):
        (PAGE.parent / "img" / f"benchmarks-{name}.svg").write_text(draw(chart))


if __name__ == "__main__":
    main()
