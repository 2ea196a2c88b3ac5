"""``lag``: the lag of groups by topic; once, or every few seconds, as a live table on a terminal, otherwise as plain lines."""

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
from consumer_coord.admin.commands import (
    ExitCode,
    chosen_groups,
    exit_code,
    failures_as_json,
    note_uncommitted,
    print_json,
    report_failures,
    report_left_out,
    report_unlisted,
    split_reports,
    unlisted_as_json,
    warn,
)
from consumer_coord.admin.documents import LagDocument, LaggingGroup, LiveLine
from consumer_coord.admin.lag_flags import lag_policy
from consumer_coord.admin.report import GroupReport, left_out_as_json, report_groups
from consumer_coord.environment import now
from consumer_coord.errors import ConfigurationError, CoordinatorError, RetriableError
from consumer_coord.log_text import printable, printable_json
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline

#: Milliseconds between two queries, if only ``--count`` is given.
_INTERVAL_MS = 2_000

COLUMNS = ("GROUP", "STATE", "MEMBERS", "TOPIC", "PARTITIONS", "LAG", "READ/S", "WRITTEN/S", "CAUGHT-UP-IN")
#: A further column for ``--seconds``.
SECONDS = "LAG-SECONDS"


@attrs.frozen
class Sample:
    """A topic of one group at one moment, with sums over ``measured``, the partitions whose lag is known.

    ``lag`` is None if no lag is known. ``unknown`` counts the partitions whose lag no broker has reported; all others
    that are not measured were deleted. The fields of a group whose coordinator did not answer are None.
    """

    at: float
    group: str
    state: str
    members: int | None
    topic: str
    partitions: int | None
    lag: int | None
    position: int
    end: int
    measured: frozenset[int] = frozenset()
    unknown: int = 0
    #: The age of the oldest first unread record, in seconds; None if it was not asked for, or is unknown.
    lag_seconds: float | None = None
    #: The same for the table: None if it was not asked for.
    seconds_cell: float | str | None = None

    @property
    def lag_cell(self) -> int | str:
        """The lag as the table shows it."""
        if self.lag is None:
            return text.UNKNOWN if self.unknown else text.DELETED
        return f">={self.lag}" if self.unknown else self.lag


@attrs.frozen
class Row:
    """A sample, and the rates since the previous sample, in records per second; the first sample has None as rates."""

    sample: Sample
    read: float | None
    written: float | None

    @property
    def caught_up_in_s(self) -> float | None:
        """Return the time until the lag is zero at the present rates, in seconds; None if the lag does not decrease."""
        if self.sample.lag is None or self.read is None or self.written is None or self.read <= self.written:
            return None
        return self.sample.lag / (self.read - self.written)

    def cells(self) -> list[object]:
        """Return the cells of a table row."""
        sample = self.sample
        rates = [None if rate is None else f"{rate:.1f}" for rate in (self.read, self.written)]
        left = self.caught_up_in_s
        caught_up = "now" if sample.lag_cell == 0 else None if left is None else f"{left:.0f}s"
        counts = [sample.members, sample.topic, sample.partitions, sample.lag_cell]
        ages = [] if sample.seconds_cell is None else [sample.seconds_cell]
        return [sample.group, sample.state, *counts, *rates, caught_up, *ages]

    def as_json(self) -> LiveLine:
        """Return the row as values for one line of JSON."""
        sample = self.sample
        return {
            "group": sample.group,
            "state": sample.state,
            "members": sample.members,
            "topic": sample.topic,
            "partitions": sample.partitions,
            "lag": sample.lag,
            "unknown": sample.unknown,
            "lag_seconds": sample.lag_seconds,
            "read_per_s": self.read,
            "written_per_s": self.written,
            "caught_up_in_s": self.caught_up_in_s,
        }


def samples(found: Mapping[str, GroupReport | CoordinatorError], at: float, *, seconds: bool = False) -> Iterator[Sample]:
    """Yield one sample for each topic of each group, and one for each group without topics or whose broker did not answer.

    ``seconds``: whether the reports have the lag in seconds.
    """
    for group_id, report in found.items():
        if isinstance(report, CoordinatorError):
            if isinstance(report, RetriableError):
                cell = text.UNKNOWN if seconds else None
                yield Sample(at, group_id, text.UNKNOWN, None, text.MISSING, None, None, 0, 0, unknown=1, seconds_cell=cell)
            continue
        group = report.group
        for topic in sorted({row.partition.topic for row in report.rows}) or [text.MISSING]:
            known = [row for row in report.rows if row.partition.topic == topic]
            measured = [row for row in known if row.lag.records is not None]
            ages = [row.lag.seconds for row in known if row.lag.seconds is not None]
            yield Sample(
                at,
                group.group_id,
                group.state,
                len(group.members),
                topic,
                len(known),
                sum(row.lag.records or 0 for row in measured) if measured or not known else None,
                sum(row.lag.position or 0 for row in measured),
                sum(row.lag.end or 0 for row in measured),
                frozenset(row.partition.partition for row in measured),
                sum(row.lag.records is None and not row.lag.deleted for row in known),
                max(ages, default=None),
                text.seconds_cell(known) if seconds else None,
            )


def rows(current: Sequence[Sample], previous: Mapping[tuple[str, str], Sample]) -> list[Row]:
    """Return rows with the rates since the previous samples, sorted by lag, the largest lag first."""
    made = []
    for sample in current:
        before = previous.get((sample.group, sample.topic))
        if (
            before is None
            or sample.at <= before.at
            or (before.partitions, before.measured)
            != (
                sample.partitions,
                sample.measured,
            )
        ):
            made.append(Row(sample, None, None))
            continue
        elapsed_s = sample.at - before.at
        read, written = sample.position - before.position, sample.end - before.end
        made.append(Row(sample, max(0, read) / elapsed_s, max(0, written) / elapsed_s))
    return sorted(made, key=lambda row: (-(row.sample.lag or 0), row.sample.group, row.sample.topic))


async def show_lag(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Show the lag of each group, by topic; live with ``--interval-ms`` or ``--count``."""
    if arguments.interval_ms is not None or arguments.count is not None:
        if arguments.max_lag is not None or arguments.max_lag_seconds is not None:
            raise ConfigurationError("--max-lag and --max-lag-seconds judge one query: remove --interval-ms and --count")
        return await _live(cluster, arguments)
    return await _once(cluster, arguments, deadline)


async def _once(cluster: ClusterClient, arguments: argparse.Namespace, deadline: Deadline) -> ExitCode:
    """Show the lag, and compare it with ``--max-lag`` and ``--max-lag-seconds``."""
    chosen = await chosen_groups(cluster, arguments, deadline)
    policy = lag_policy(arguments)
    reports, failures = split_reports(await report_groups(cluster, chosen.groups, deadline, policy))
    if arguments.json:
        groups: list[LaggingGroup] = [
            {
                "group": report.group.group_id,
                "state": report.group.state,
                "lag": report.lag,
                "lag_seconds": report.lag_seconds,
                "partitions": [
                    {
                        "topic": row.partition.topic,
                        "partition": row.partition.partition,
                        "lag": row.lag.records,
                        "lag_seconds": row.lag.seconds,
                        "committed": row.lag.committed is not None,
                    }
                    for row in report.rows
                ],
                "left_out": left_out_as_json(report.left_out),
                "seconds_left_out": left_out_as_json(report.seconds_left_out),
            }
            for report in reports
        ]
        document: LagDocument = {
            "groups": groups,
            "errors": failures_as_json(failures),
            "unlisted": unlisted_as_json(chosen.unlisted),
        }
        print_json(document)
    else:
        unknown = [group for group, error in failures.items() if isinstance(error, RetriableError)]
        print(text.lag_table(reports, unknown, seconds=policy.seconds))
    failed = report_failures(failures, alone=not reports)
    left_out = report_left_out(reports, arguments.without_commit, () if arguments.all_groups else chosen.groups)
    unlisted = report_unlisted(chosen.unlisted)
    lags = [row.lag for report in reports for row in report.rows]
    behind = any(
        (arguments.max_lag is not None and (lag.records or 0) > arguments.max_lag)
        or (arguments.max_lag_seconds is not None and (lag.seconds or 0) > arguments.max_lag_seconds)
        for lag in lags
    )
    if failed in (ExitCode.DONE, ExitCode.INCOMPLETE) and behind:
        return ExitCode.BEHIND
    return failed or left_out or unlisted


async def _live(cluster: ClusterClient, arguments: argparse.Namespace) -> ExitCode:
    """Show groups with rates until Ctrl-C, or ``--count`` times."""
    interval_s = (_INTERVAL_MS if arguments.interval_ms is None else arguments.interval_ms) / 1000
    with _screen(arguments) as show:
        previous: dict[tuple[str, str], Sample] = {}
        seen = 0
        while True:
            deadline, outcome = Deadline.after(arguments.timeout), ExitCode.DONE
            try:
                chosen = await chosen_groups(cluster, arguments, deadline)
                reports = await report_groups(cluster, chosen.groups, deadline, lag_policy(arguments))
                found = _answered(reports)
            except RetriableError as error:
                if arguments.count is not None:
                    raise
                warn(f"Warning: {error}")
            else:
                outcome = report_unlisted(chosen.unlisted)
                refused = next((one for one in found.values() if _is_refusal(one)), None)
                if isinstance(refused, CoordinatorError) and not arguments.all_groups:
                    warn(f"\nError: {refused}")
                    return exit_code(refused)
                current = list(samples(found, now(), seconds=arguments.seconds))
                show(rows(current, previous))
                outcome = outcome or _report_unknown(found)
                if not seen:
                    for report in found.values():
                        if isinstance(report, GroupReport) and report.uncommitted:
                            note_uncommitted(report, arguments.without_commit)
                previous = {(sample.group, sample.topic): sample for sample in current}
            seen += 1
            if seen == arguments.count:
                return outcome
            await asyncio.sleep(interval_s)


def _answered(found: Mapping[str, GroupReport | CoordinatorError]) -> Mapping[str, GroupReport | CoordinatorError]:
    """Return the reports; raise the error of a group if no broker answered for any group."""
    errors = [one for one in found.values() if isinstance(one, RetriableError)]
    if errors and len(errors) == len(found):
        raise errors[0]
    return found


def _is_refusal(found: GroupReport | CoordinatorError) -> bool:
    return isinstance(found, CoordinatorError) and not isinstance(found, RetriableError)


def _report_unknown(found: Mapping[str, GroupReport | CoordinatorError]) -> ExitCode:
    """Print why the lag of groups or partitions is unknown; return INCOMPLETE if there are any but deleted ones."""
    outcome = ExitCode.DONE
    for group_id, one in found.items():
        if isinstance(one, RetriableError):
            warn(f"Warning: group '{group_id}': {one}")
            outcome = ExitCode.INCOMPLETE
        elif isinstance(one, GroupReport):
            for row in one.rows:
                why = row.lag.unknown or row.lag.seconds_unknown
                if why is not None:
                    warn(f"Warning: {row.partition} of group '{group_id}': {why}")
                    outcome = outcome if row.lag.deleted else ExitCode.INCOMPLETE
    return outcome


def _print_rows(shown: Sequence[Row], *, columns: Sequence[str], as_json: bool) -> None:
    """Print a result as a table, or as one line of JSON per row."""
    if as_json:
        for row in shown:
            print(printable_json(row.as_json()))
    else:
        cells = zip(*(row.cells() for row in shown), strict=True) if shown else ((),) * len(columns)
        print(text.table((name, 1, column) for name, column in zip(columns, cells, strict=True)) + "\n")
    sys.stdout.flush()


class _Live:
    """A live table on the terminal's alternate screen, drawn with the package ``rich``."""

    def __init__(self, columns: Sequence[str] = COLUMNS) -> None:
        self._columns = columns
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
        made = self._table.Table(*self._columns, expand=True, header_style="bold", box=None)
        for row in shown:
            style = "green" if row.sample.lag == 0 else "yellow" if row.caught_up_in_s is not None else None
            cells = (text.MISSING if cell is None else printable(str(cell)) for cell in row.cells())
            made.add_row(*map(self._text, cells), style=style)
        self._live.update(made, refresh=True)


def _screen(arguments: argparse.Namespace) -> AbstractContextManager[Callable[[Sequence[Row]], None]]:
    columns = (*COLUMNS, SECONDS) if arguments.seconds else COLUMNS
    if sys.stdout.isatty() and not arguments.json:
        try:
            return _Live(columns)
        except ImportError:
            warn("For a live table: pip install 'consumer-coord[cli]'")
    return nullcontext(partial(_print_rows, columns=columns, as_json=arguments.json))
