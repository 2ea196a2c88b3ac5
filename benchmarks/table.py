"""Tables of medians in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def median(values: Sequence[float]) -> float:
    """Return the median, or NaN if there are no values."""
    return statistics.median(values) if values else float("nan")


def number(value: float) -> str:
    """Format a number: with two digits below ten, one digit below a hundred, none above, and a dash for NaN."""
    if value != value:
        return "-"
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ratios(rows: Mapping[str, float], to: str) -> Mapping[str, float]:
    """Return each value divided by the value of ``to``."""
    return {name: value / rows[to] if rows[to] else float("nan") for name, value in rows.items()}
