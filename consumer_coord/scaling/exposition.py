"""The figures of groups as JSON for one group, and in Prometheus' text format for all.

A value that no broker reported is null, or missing; it is never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from consumer_coord.admin.report import GroupReport
from consumer_coord.lag.partition_lag import PartitionLag
from consumer_coord.scaling.scaler import GroupFigures

#: The media type of Prometheus' text format.
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Metric -> its help text. All are gauges.
METRICS = {
    "kafka_group_wanted_replicas": "Replicas that the group should have.",
    "kafka_group_wanted_replicas_held": "1 if the last reading could not change the wanted replicas, otherwise 0.",
    "kafka_group_wanted_replicas_age_seconds": "Seconds since a reading that could change the wanted replicas.",
    "kafka_group_members": "Members of the group.",
    "kafka_group_lag_records": "Unread records of a topic.",
    "kafka_group_lag_seconds": "Age of the oldest first unread record of a topic.",
    "kafka_group_partitions_with_lag": "Partitions with unread records.",
    "kafka_group_partitions_unknown": "Partitions whose lag no broker reported.",
}


def as_json(group: str, figures: GroupFigures, now: float) -> dict[str, Any]:
    """Return the figures of a group; ``docs/scaling.md`` describes the fields."""
    report, wanted = figures.report, figures.wanted
    lags = [] if report is None else _present(report)
    records = [lag.records for lag in lags]
    complete = report is not None and bool(report.rows) and None not in records
    seconds = [lag.seconds for lag in lags]
    return {
        "group": group,
        "state": None if report is None else report.group.state,
        "members": None if report is None else len(report.group.members),
        "partitions": None if report is None else len(lags),
        "lag": sum(one or 0 for one in records) if complete else None,
        "lag_seconds": max((one or 0.0 for one in seconds), default=0.0) if complete and None not in seconds else None,
        "partitions_with_lag": None if report is None else sum(bool(one) for one in records),
        "partitions_unknown": None if report is None else records.count(None),
        "wanted_replicas": wanted.replicas,
        "held": wanted.held,
        "age_seconds": None if wanted.confirmed_at is None else round(now - wanted.confirmed_at, 3),
    }


def as_text(figures: Mapping[str, GroupFigures], now: float) -> str:
    """Return the figures of all groups in Prometheus' text format."""
    rows: dict[str, list[str]] = {name: [] for name in METRICS}
    for group, of_group in figures.items():
        for name, labels, value in _samples(group, of_group, now):
            if value is not None:
                shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
                rows[name].append(f"{name}{{{shown}}} {value}")
    lines: list[str] = []
    for name, samples in rows.items():
        lines += [f"# HELP {name} {METRICS[name]}", f"# TYPE {name} gauge", *samples]
    return "\n".join(lines) + "\n"


def _samples(group: str, figures: GroupFigures, now: float) -> Iterator[tuple[str, dict[str, str], float | None]]:
    labels = {"group": group}
    told = as_json(group, figures, now)
    yield "kafka_group_wanted_replicas", labels, told["wanted_replicas"]
    yield "kafka_group_wanted_replicas_held", labels, int(told["held"] is not None)
    yield "kafka_group_wanted_replicas_age_seconds", labels, told["age_seconds"]
    for name in ("members", "partitions_with_lag", "partitions_unknown"):
        yield f"kafka_group_{name}", labels, told[name]
    if figures.report is None:
        return
    for topic in sorted({row.partition.topic for row in figures.report.rows}):
        lags = _present(figures.report, topic)
        of_topic = {"group": group, "topic": topic}
        yield "kafka_group_lag_records", of_topic, _complete([lag.records for lag in lags], sum)
        yield "kafka_group_lag_seconds", of_topic, _complete([lag.seconds for lag in lags], max)


def _present(report: GroupReport, topic: str | None = None) -> list[PartitionLag]:
    """Return the lags of the partitions that exist."""
    rows: Iterable[Any] = report.rows if topic is None else (row for row in report.rows if row.partition.topic == topic)
    return [row.lag for row in rows if not row.lag.deleted]


def _complete(values: list[Any], combine: Any) -> float | None:
    return None if not values or None in values else combine(values)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
