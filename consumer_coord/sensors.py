"""Counters and timings of one kind of event, as Java's ``Sensor`` with its ``Meter``, ``Avg`` and ``Max``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from consumer_coord import lazy_attrs as attrs

#: Window of averages, maxima and rates, in seconds: Java's metrics.sample.window.ms times metrics.num.samples.
WINDOW_S = 60.0
#: Events within this time are counted together, in seconds.
_SAMPLE_S = 1.0


@attrs.define
class _Sample:
    """The events of about one second."""

    since: float
    count: int = 0
    total_ms: float = 0.0
    max_ms: float = -math.inf


@attrs.define
class Sensor:
    """The number and the durations of one kind of event: since the start, and in the samples of the last minute."""

    total: int = 0
    total_ms: float = 0.0
    samples: tuple[_Sample, ...] = ()

    def record(self, moment: float, value_ms: float) -> None:
        """Count an event that took ``value_ms`` at the loop time ``moment``."""
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
        return [sample for sample in self.samples if moment - sample.since <= WINDOW_S]

    def figure(self, end: str, recent: Sequence[_Sample], window_s: float) -> float:
        """Return the figure for a suffix, such as ``total`` or ``time-avg``; NaN is an average or maximum without samples."""
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
