"""Counters and timings under the Java client's names (``consumer-coordinator-metrics``), and a few that Java does not have.

Every name exists from the start, so that a graph has no gaps. Counters and rates begin with 0; an average or maximum without
samples is NaN, as in Java.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from consumer_coord import lazy_attrs as attrs
from consumer_coord.group import poll_metrics as poll_times

#: Window of averages, maxima and rates, in seconds: Java's metrics.sample.window.ms times metrics.num.samples.
_WINDOW_S = 60.0
#: Events within this time are counted together, in seconds.
_SAMPLE_S = 1.0

_METER = ("total", "rate")
_PER_HOUR = ("total", "rate-per-hour")

#: Event kind -> suffixes of its metrics: ``join`` and ``time-max`` make ``join-time-max``.
KINDS: Mapping[str, tuple[str, ...]] = {
    "join": (*_METER, "time-avg", "time-max"),
    "sync": (*_METER, "time-avg", "time-max"),
    "heartbeat": (*_METER, "response-time-max"),
    "rebalance": (*_PER_HOUR, "latency-avg", "latency-max", "latency-total"),
    "failed-rebalance": _PER_HOUR,
    "commit": (*_METER, "latency-avg", "latency-max"),
    # The application's thread runs the callbacks and records these events, so a reader on another thread may miss the last
    # event.
    "partition-assigned-latency": ("avg", "max"),
    "partition-revoked-latency": ("avg", "max"),
    "partition-lost-latency": ("avg", "max"),
    # Not in Java:
    "assign": (*_METER, "time-avg", "time-max"),
    "coordinator-lookup": ("total",),
    "member-id-required": ("total",),
    "early-heartbeat": ("total",),
    "commit-refused": ("total",),
    "commit-resent": ("total",),
    "partition-lost": ("total",),
    "lease-suspended": ("total",),
}

#: Every figure of a coordinator.
NAMES = (
    *(f"{kind}-{end}" for kind, ends in KINDS.items() for end in ends),
    "last-heartbeat-seconds-ago",
    "last-poll-seconds-ago",
    "last-rebalance-seconds-ago",
    *poll_times.NAMES,
    "assigned-partitions",
    "lease-suspended-seconds-total",
)


@attrs.define
class _Sample:
    """The events of about one second."""

    since: float
    count: int = 0
    total_ms: float = 0.0
    max_ms: float = -math.inf


@attrs.define
class _Sensor:
    """The number and the durations of one kind of event: since the start, and in the samples of the last minute."""

    total: int = 0
    total_ms: float = 0.0
    samples: tuple[_Sample, ...] = ()

    def record(self, moment: float, value_ms: float) -> None:
        self.total += 1
        self.total_ms += value_ms
        if not self.samples or moment - self.samples[-1].since >= _SAMPLE_S:
            # Another thread may read the samples, so the tuple is replaced.
            self.samples = (*self.recent(moment), _Sample(moment))
        sample = self.samples[-1]
        sample.count += 1
        sample.total_ms += value_ms
        sample.max_ms = max(sample.max_ms, value_ms)

    def recent(self, moment: float) -> Sequence[_Sample]:
        """Return the samples of the last minute."""
        return [sample for sample in self.samples if moment - sample.since <= _WINDOW_S]

    def figure(self, end: str, recent: Sequence[_Sample], window_s: float) -> float:
        """Return the figure for a suffix in :data:`KINDS`."""
        if end == "total":
            return float(self.total)
        if end == "latency-total":
            return self.total_ms
        count = sum(sample.count for sample in recent)
        if end == "rate":
            return count / window_s
        if end == "rate-per-hour":
            return count / window_s * 3600
        if not count:
            return math.nan
        if end.endswith("max"):
            return max(sample.max_ms for sample in recent)
        return sum(sample.total_ms for sample in recent) / count


def _later(one: float | None, other: float | None) -> float | None:
    return max((at for at in (one, other) if at is not None), default=None)


class Metrics:
    """The metrics of one coordinator; recorded and read on its loop. Recording is cheap enough to be always enabled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._sensors = {name: _Sensor() for name in KINDS}
        self._gauges: dict[str, Callable[[], float]] = {}
        self.polls: poll_times.PollTimes = poll_times.PollTimes(clock)
        self.last_heartbeat_at: float | None = None
        self.last_poll_at: float | None = None
        self.last_rebalance_at: float | None = None

    def record(self, name: str, value_ms: float = 0.0) -> None:
        """Record one event of a kind in :data:`KINDS` that took ``value_ms``."""
        self._sensors[name].record(self._clock(), value_ms)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Add a figure that is read at each :meth:`snapshot`."""
        self._gauges[name] = read

    def count(self, name: str) -> int:
        """Return how often ``name`` was recorded."""
        return self._sensors[name].total

    def snapshot(self) -> Mapping[str, float]:
        """Return all figures.

        Examples: ``join-total``, ``join-rate`` (per second), ``join-time-avg``, ``join-time-max`` (ms),
        ``rebalance-latency-avg``, ``last-heartbeat-seconds-ago`` (-1: never), ``assigned-partitions``.
        """
        moment = self._clock()
        # Divide by at least one second, because a rate over a shorter time would be a large number without meaning.
        window_s = max(1.0, min(_WINDOW_S, moment - self._started))
        figures: dict[str, float] = {}
        for name, ends in KINDS.items():
            sensor = self._sensors[name]
            recent = sensor.recent(moment)
            figures.update({f"{name}-{end}": sensor.figure(end, recent, window_s) for end in ends})
        for name, at in (
            ("last-heartbeat-seconds-ago", self.last_heartbeat_at),
            # `last_poll_at` covers all polls, but is updated only when a heartbeat is due. `PollTimes` is updated at once, but
            # only by polls that fetch messages.
            ("last-poll-seconds-ago", _later(self.last_poll_at, self.polls.last_at)),
            ("last-rebalance-seconds-ago", self.last_rebalance_at),
        ):
            figures[name] = -1.0 if at is None else moment - at
        figures.update(self.polls.figures())
        for name, read in self._gauges.items():
            figures[name] = read()
        return figures
