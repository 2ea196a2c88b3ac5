"""The sources of metrics, and the names of metrics outside Java."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from consumer_coord.group.metrics import KINDS


class HasMetrics(Protocol):
    """A ``GroupConsumer``, ``AsyncGroupConsumer`` or coordinator: any object with Java's figures by Java's names."""

    def metrics(self) -> Mapping[str, float]:
        """Return the present figures."""


@attrs.frozen(eq=False)
class Source:
    """One member of a group, with the labels of its figures."""

    of: HasMetrics
    group: str
    client_id: str

    @property
    def labels(self) -> tuple[str, str]:
        """The group and the client id."""
        return self.group, self.client_id


def is_counter(name: str) -> bool:
    """Return whether a figure never decreases."""
    return name.endswith("-total")


def unit(name: str) -> str:
    """Return the unit ``s`` or ``ms``, empty for a plain number."""
    if name.endswith("-seconds-ago"):
        return "s"
    return "ms" if "-time-" in name or "-latency-" in name or name.startswith("time-") else ""


def describe(name: str) -> str:
    """Return a sentence about a figure."""
    return _DESCRIPTIONS.get(name) or name.replace("-", " ")


_DESCRIPTIONS = {
    "assigned-partitions": "Partitions that this member holds.",
    "last-heartbeat-seconds-ago": "Seconds since the coordinator last answered a heartbeat, -1 before the first.",
    "last-poll-seconds-ago": "Seconds since the application last polled, -1 before the first.",
    "last-rebalance-seconds-ago": "Seconds since the last rebalance was finished, -1 before the first.",
    "time-between-poll-avg": "Milliseconds between two polls of the application on average, over the last minute.",
    "time-between-poll-max": "Milliseconds between two polls of the application at most, over the last minute.",
    "poll-idle-ratio-avg": "The part of the application's time that its polls wait, over the last minute.",
    **{
        f"partition-{kind}-latency-{end}": f"The callback for {kind} partitions: milliseconds {text}, over the last minute."
        for kind in ("assigned", "revoked", "lost")
        for end, text in (("avg", "on average"), ("max", "at most"))
    },
    **{
        f"{kind}-{end}": text
        for kind, what in {
            "join": "JoinGroup",
            "sync": "SyncGroup",
            "heartbeat": "Heartbeat",
            "commit": "OffsetCommit",
            "assign": "assign of the assignor, as the leader,",
            "rebalance": "A rebalance, from its first JoinGroup to its assignment,",
            "failed-rebalance": "A rebalance that failed",
        }.items()
        for end, text in {
            "total": f"{what}: how many.",
            "rate": f"{what}: how many a second, over the last minute.",
            "rate-per-hour": f"{what}: how many an hour, over the last minute.",
            "time-avg": f"{what}: milliseconds on average, over the last minute.",
            "time-max": f"{what}: milliseconds at most, over the last minute.",
            "response-time-max": f"{what}: milliseconds at most, over the last minute.",
            "latency-avg": f"{what}: milliseconds on average, over the last minute.",
            "latency-max": f"{what}: milliseconds at most, over the last minute.",
            "latency-total": f"{what}: milliseconds in all.",
        }.items()
        if end in KINDS[kind]
    },
}
