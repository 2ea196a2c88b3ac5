"""Counters and timings under the Java client's names (``ConsumerCoordinatorMetrics``, ``AbstractCoordinator``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

#: Java's metrics.sample.window.ms times metrics.num.samples: averages and maxima look this far back.
_WINDOW_S = 60.0
_MOST_SAMPLES = 1_000


@attrs.define
class _Sensor:
    """One kind of event: how often it happened and how long it took."""

    total: int = 0
    total_ms: float = 0.0
    samples: list[tuple[float, float]] = attrs.field(factory=list)

    def record(self, moment: float, value_ms: float) -> None:
        self.total += 1
        self.total_ms += value_ms
        self.samples.append((moment, value_ms))
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[: _MOST_SAMPLES // 2]

    def recent(self, moment: float) -> list[float]:
        return [value for at, value in self.samples if moment - at <= _WINDOW_S]


class Metrics:
    """What one coordinator counts; recorded and read on its loop, cheap enough to be always on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._sensors: dict[str, _Sensor] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self.last_heartbeat_at: float | None = None
        self.last_poll_at: float | None = None
        self.last_rebalance_at: float | None = None

    def record(self, name: str, value_ms: float = 0.0) -> None:
        """One event called ``name`` ("join", "sync", "commit", "heartbeat", "rebalance", ...) that took ``value_ms``."""
        self._sensors.setdefault(name, _Sensor()).record(self._clock(), value_ms)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """A figure that is read when somebody looks."""
        self._gauges[name] = read

    def count(self, name: str) -> int:
        """How often ``name`` was recorded."""
        sensor = self._sensors.get(name)
        return 0 if sensor is None else sensor.total

    def snapshot(self) -> Mapping[str, float]:
        """All figures by Java's names: ``join-total``, ``join-rate`` (per second), ``join-time-avg``, ``join-time-max`` (ms),
        ``rebalance-latency-avg``, ``last-heartbeat-seconds-ago``, ..."""
        moment = self._clock()
        window = max(1.0, min(_WINDOW_S, moment - self._started))
        figures: dict[str, float] = {}
        for name, sensor in sorted(self._sensors.items()):
            recent = sensor.recent(moment)
            timing = "latency" if name in _LATENCIES else "time"
            figures[f"{name}-total"] = float(sensor.total)
            figures[f"{name}-rate"] = len(recent) / window
            if name not in _UNTIMED:
                figures[f"{name}-{timing}-avg"] = sum(recent) / len(recent) if recent else 0.0
                figures[f"{name}-{timing}-max"] = max(recent, default=0.0)
                figures[f"{name}-{timing}-total"] = sensor.total_ms
        figures["rebalance-rate-per-hour"] = figures.get("rebalance-rate", 0.0) * 3600
        for name, at in (
            ("last-heartbeat-seconds-ago", self.last_heartbeat_at),
            ("last-poll-seconds-ago", self.last_poll_at),
            ("last-rebalance-seconds-ago", self.last_rebalance_at),
        ):
            figures[name] = -1.0 if at is None else moment - at
        for name, read in self._gauges.items():
            figures[name] = read()
        return figures


_LATENCIES = frozenset({"rebalance", "commit", "partition-revoked", "partition-assigned", "partition-lost"})
_UNTIMED = frozenset({"failed-rebalance", "commit-refused", "commit-resent", "early-heartbeat", "coordinator-lookup"})
