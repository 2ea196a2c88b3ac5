"""What one fetcher has fetched, under Java's names (``consumer-fetch-manager-metrics``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from consumer_coord.sensors import WINDOW_S, Sensor

#: Name of a figure -> (the events that it counts, the figure of their sensor).
_FIGURES: Final = {
    "fetch-total": ("latency", "total"),
    "fetch-rate": ("latency", "rate"),
    "fetch-latency-avg": ("latency", "time-avg"),
    "fetch-latency-max": ("latency", "time-max"),
    "fetch-size-avg": ("size", "time-avg"),
    "fetch-size-max": ("size", "time-max"),
    "bytes-consumed-total": ("size", "latency-total"),
    "records-per-request-avg": ("records", "time-avg"),
    "records-consumed-total": ("records", "latency-total"),
}


class FetchMetrics:
    """Counters and timings of the Fetch responses with partitions of one fetcher; used on its loop.

    Bytes are those of record batches as they were sent. Records are counted by the headers of the batches, so transaction
    markers and aborted records count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._sensors = {"latency": Sensor(), "size": Sensor(), "records": Sensor()}
        #: Of the response that is being applied.
        self._size = self._records = 0

    def delivered(self, size: int, records: int) -> None:
        """Count record batches of the present response."""
        self._size += size
        self._records += records

    def answered(self, latency_ms: float) -> None:
        """Record a response, after all its batches."""
        moment = self._clock()
        for name, value in (("latency", latency_ms), ("size", self._size), ("records", self._records)):
            self._sensors[name].record(moment, value)
        self._size = self._records = 0

    def snapshot(self) -> Mapping[str, float]:
        """Return all figures: times in milliseconds, sizes in bytes; an average or maximum without a response is NaN."""
        moment = self._clock()
        window_s = max(1.0, min(WINDOW_S, moment - self._started))
        recent = {name: sensor.recent(moment) for name, sensor in self._sensors.items()}
        found = {name: self._sensors[of].figure(end, recent[of], window_s) for name, (of, end) in _FIGURES.items()}
        for name in ("bytes", "records"):
            sensor = {"bytes": "size", "records": "records"}[name]
            found[f"{name}-consumed-rate"] = sum(sample.total_ms for sample in recent[sensor]) / window_s
        return found
