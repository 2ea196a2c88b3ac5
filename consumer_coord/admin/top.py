"""``top``: show groups every few seconds, as a live table on a terminal, otherwise as plain lines."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs

from consumer_coord.admin import text
from consumer_coord.admin.commands import ExitCode, chosen_groups, consumer_groups, exit_code, warn
from consumer_coord.admin.report import GroupReport, report_groups
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, RetriableError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.printable import printable, printable_json
from consumer_coord.retry import Deadline

COLUMNS = ("GROUP", "STATE", "MEMBERS", "TOPIC", "PARTITIONS", "LAG", "READ/S", "WRITTEN/S", "CAUGHT-UP-IN")


@attrs.frozen
class Sample:
    """A topic of one group at one moment, with sums over the topic's partitions."""

    at: float
    group: str
    state: str
    members: int
    topic: str
    partitions: int
    lag: int
    committed: int
    end: int


@attrs.frozen
class Row:
    """A sample, and the rates since the previous sample, in records per second; the first sample has None as rates."""

    sample: Sample
    read: float | None
    written: float | None

    @property
    def caught_up_in_s(self) -> float | None:
        """Return the time until the lag is zero at the present rates, in seconds; None if the lag does not decrease."""
        if self.read is None or self.written is None or self.read <= self.written:
            return None
        return self.sample.lag / (self.read - self.written)

    def cells(self) -> list[object]:
        """Return the cells of a table row."""
        sample = self.sample
        rates = [None if rate is None else f"{rate:.1f}" for rate in (self.read, self.written)]
        left = self.caught_up_in_s
        caught_up = "now" if sample.lag == 0 else None if left is None else f"{left:.0f}s"
        counts = [sample.members, sample.topic, sample.partitions, sample.lag]
        return [sample.group, sample.state, *counts, *rates, caught_up]

    def as_json(self) -> dict[str, Any]:
        """Return the row as values for one line of JSON."""
        shown = attrs.asdict(self.sample, filter=lambda field, _: field.name not in ("at", "committed", "end"))
        return {**shown, "read_per_s": self.read, "written_per_s": self.written, "caught_up_in_s": self.caught_up_in_s}


def samples(reports: Sequence[GroupReport], at: float) -> Iterator[Sample]:
    """Yield one sample for each topic of each group, and one sample for each group without topics."""
    for report in reports:
        group = report.group
        for topic in sorted({row.partition.topic for row in report.rows}) or [text.MISSING]:
            known = [row for row in report.rows if row.partition.topic == topic]
            measured = [row for row in known if row.committed is not None and row.end is not None]
            yield Sample(
                at,
                group.group_id,
                group.state,
                len(group.members),
                topic,
                len(known),
                sum(row.lag or 0 for row in measured),
                sum(row.committed.offset for row in measured if row.committed is not None),
                sum(row.end for row in measured if row.end is not None),
            )


def rows(current: Sequence[Sample], previous: Mapping[tuple[str, str], Sample]) -> list[Row]:
    """Return rows with the rates since the previous samples, sorted by lag, the largest lag first."""
    made = []
    for sample in current:
        before = previous.get((sample.group, sample.topic))
        if before is None or sample.at <= before.at or before.partitions != sample.partitions:
            made.append(Row(sample, None, None))
            continue
        elapsed_s = sample.at - before.at
        read, written = sample.committed - before.committed, sample.end - before.end
        made.append(Row(sample, max(0, read) / elapsed_s, max(0, written) / elapsed_s))
    return sorted(made, key=lambda row: (-row.sample.lag, row.sample.group, row.sample.topic))


async def top_command(cluster: ClusterClient, arguments: argparse.Namespace, _: Deadline) -> ExitCode:
    """Run ``top``: show groups until Ctrl-C, or ``--count`` times."""
    with _screen(arguments) as show:
        previous: dict[tuple[str, str], Sample] = {}
        seen = 0
        while True:
            deadline = Deadline.after(arguments.timeout)
            try:
                groups = await chosen_groups(cluster, arguments, deadline)
                found = consumer_groups(await report_groups(cluster, groups, deadline), "top")
            except RetriableError as error:
                if arguments.count is not None:
                    raise
                warn(f"Warning: {error}")
            else:
                failures = [one for one in found.values() if isinstance(one, CoordinatorError)]
                if failures and not arguments.all_groups:
                    warn(f"\nError: {failures[0]}")
                    return exit_code(failures[0])
                current = list(samples([one for one in found.values() if isinstance(one, GroupReport)], now()))
                show(rows(current, previous))
                previous = {(sample.group, sample.topic): sample for sample in current}
            seen += 1
            if seen == arguments.count:
                return ExitCode.DONE
            await asyncio.sleep(arguments.interval)


def _print_rows(shown: Sequence[Row], *, as_json: bool) -> None:
    """Print a result as a table, or as one line of JSON per row."""
    if as_json:
        for row in shown:
            print(printable_json(row.as_json()))
    else:
        cells = zip(*(row.cells() for row in shown), strict=True) if shown else ((),) * len(COLUMNS)
        print(text.table((name, 1, column) for name, column in zip(COLUMNS, cells, strict=True)) + "\n")
    sys.stdout.flush()


class _Live:
    """A live table on the terminal's alternate screen, drawn with the package ``rich``."""

    def __init__(self) -> None:
        self._table: Any = importlib.import_module("rich.table")
        # rich shows a Text unchanged, but interprets markup in a str.
        self._text: Any = importlib.import_module("rich.text").Text
        self._live = importlib.import_module("rich.live").Live(screen=True, auto_refresh=False)

    def __enter__(self) -> _Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, shown: Sequence[Row]) -> None:
        made = self._table.Table(*COLUMNS, expand=True, header_style="bold", box=None)
        for row in shown:
            style = "green" if row.sample.lag == 0 else "yellow" if row.caught_up_in_s is not None else None
            cells = (text.MISSING if cell is None else printable(str(cell)) for cell in row.cells())
            made.add_row(*map(self._text, cells), style=style)
        self._live.update(made, refresh=True)


def _screen(arguments: argparse.Namespace) -> AbstractContextManager[Callable[[Sequence[Row]], None]]:
    if sys.stdout.isatty() and not arguments.json:
        try:
            return _Live()
        except ImportError:
            warn("For a live table: pip install 'consumer-coord[cli]'")
    return nullcontext(partial(_print_rows, as_json=arguments.json))
