"""A file of past lags: ``lag --export`` writes it, and ``simulate --lag`` reads it.

The file has one row for each partition at each reading. A reading without an answer has one row without a topic. Headers may be
repeated, so that several files can be joined.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import attrs

from consumer_coord.admin.report import GroupReport
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.scaling.reading import SETTLED
from consumer_coord.scaling.wanted_replicas import Reading
from consumer_coord.topic_partition import TopicPartition

COLUMNS = ("time", "group", "state", "members", "topic", "partition", "lag", "lag_seconds")
_UNANSWERED = "unknown"


def header() -> str:
    """Return the first line of a file."""
    return ",".join(COLUMNS) + "\r\n"


def rows_of(group: str, found: GroupReport | CoordinatorError, time_s: float) -> str:
    """Return the lines of one reading. ``time_s``: seconds since 1970."""
    text = io.StringIO()
    rows = csv.writer(text)
    at = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    present = [] if isinstance(found, CoordinatorError) else [row for row in found.rows if not row.lag.deleted]
    if isinstance(found, CoordinatorError) or not present:
        rows.writerow([at, group, _UNANSWERED, *[""] * 5])
        return text.getvalue()
    for row in sorted(present, key=lambda one: one.partition):
        lag = ["" if value is None else value for value in (row.lag.records, row.lag.seconds)]
        state, members = found.group.state, len(found.group.members)
        rows.writerow([at, group, state, members, row.partition.topic, row.partition.partition, *lag])
    return text.getvalue()


@attrs.frozen
class PastLags:
    """The contents of a file: readings in the order of time, and topic -> number of partitions.

    A reading is None if no broker answered; ``times`` has the time of each, in seconds since 1970.
    """

    group: str
    topics: dict[str, int]
    times: tuple[float, ...]
    readings: tuple[Reading | None, ...]


def parse_lags(text: str) -> PastLags:
    """Parse a file; raise :class:`ConfigurationError` that names the line."""
    by_time: dict[float, list[_Row]] = {}
    groups: set[str] = set()
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if row and tuple(row) != COLUMNS:
            parsed = _parse(row, number)
            by_time.setdefault(parsed.at, []).append(parsed)
            groups.add(parsed.group)
    if len(groups) != 1:
        which = ", ".join(sorted(groups)) or "none"
        raise ConfigurationError(f"the file must have the lag of one group, and has: {which}. Export one group")
    times = sorted(by_time)
    topics: dict[str, int] = {}
    for one in _partitions(by_time.values()):
        topics[one.topic] = max(topics.get(one.topic, 0), one.partition + 1)
    if not topics:
        raise ConfigurationError("the file has no reading with a partition")
    (group,) = groups
    return PastLags(group, dict(sorted(topics.items())), tuple(times), tuple(_reading(at, by_time[at]) for at in times))


@attrs.frozen
class _Row:
    at: float
    group: str
    state: str
    members: int = 0
    topic: str = ""
    partition: int = -1
    lag: int | None = None


def _parse(row: list[str], number: int) -> _Row:
    try:
        time, group, state, members, topic, partition, lag, _ = row
        at = datetime.fromisoformat(time).timestamp()
        if not topic:
            return _Row(at, group, state)
        parsed = _Row(at, group, state, int(members), topic, int(partition), int(lag) if lag else None)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"line {number} is no row of lag --export: {','.join(row)[:80]!r}; the columns are {','.join(COLUMNS)}"
        ) from None
    if parsed.partition < 0 or (parsed.lag or 0) < 0 or parsed.members < 0:
        raise ConfigurationError(f"line {number} has a negative number: {','.join(row)[:80]!r}")
    return parsed


def _partitions(readings: Iterable[Iterable[_Row]]) -> Iterator[_Row]:
    return (row for rows in readings for row in rows if row.topic)


def _reading(at: float, rows: list[_Row]) -> Reading | None:
    """Return a reading for the formula. If a partition occurs twice, its last row counts."""
    present = {TopicPartition(row.topic, row.partition): row for row in _partitions([rows])}
    if not present:
        return None
    lags = [row.lag for row in present.values()]
    known = [lag for lag in lags if lag is not None]
    last = rows[-1]
    return Reading(
        at=at,
        lag=sum(known),
        partitions_with_lag=sum(lag > 0 for lag in known),
        members=last.members,
        unknown=len(lags) - len(known),
        settled=last.state in SETTLED,
    )
