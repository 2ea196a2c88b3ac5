"""Counters and timings under the Java client's names (``consumer-coordinator-metrics``), and a few that Java does not have.

Every name exists from the start, so that a graph has no gaps. Counters and rates begin with 0; an average or maximum without
samples is NaN, as in Java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consumer_coord.group import poll_metrics as poll_times
from consumer_coord.sensors import WINDOW_S, Sensor

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


def _later(one: float | None, other: float | None) -> float | None:
    return max((at for at in (one, other) if at is not None), default=None)


class Metrics:
    """The metrics of one coordinator; recorded and read on its loop. Recording is cheap enough to be always enabled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._sensors = {name: Sensor() for name in KINDS}
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
        window_s = max(1.0, min(WINDOW_S, moment - self._started))
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
