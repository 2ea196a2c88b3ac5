"""Reads pushed metrics: a small decoder of protocol buffers, apart from the encoder under test."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import cramjam

DELTA, CUMULATIVE = 1, 2
_CODECS: Mapping[int, Callable[[bytes], Any]] = {
    0: bytes,
    1: cramjam.gzip.decompress,
    3: cramjam.lz4.decompress,
    4: cramjam.zstd.decompress,
}


@attrs.frozen
class PushedPoint:
    """A data point. ``temporality`` is None for a gauge."""

    value: float
    attributes: Mapping[str, str]
    temporality: int | None
    monotonic: bool
    start_ns: int
    time_ns: int


@attrs.frozen
class Pushed:
    """The metrics of one push: labels, and name -> data points."""

    labels: Mapping[str, str]
    scope: str
    metrics: Mapping[str, Sequence[PushedPoint]]

    def value(self, name: str, **attributes: str) -> float:
        """Return the value of the only data point with these attributes."""
        (found,) = [one.value for one in self.metrics[name] if one.attributes == attributes]
        return found


def pushed(metrics: bytes, compression: int = 0) -> Pushed:
    """Decode OpenTelemetry's ``MetricsData`` with one resource and one scope."""
    data = bytes(_CODECS[compression](metrics))
    (resource_metrics,) = _all(data, 1)
    (resource,) = _all(resource_metrics, 1)
    (scope_metrics,) = _all(resource_metrics, 2)
    (scope,) = _all(scope_metrics, 1)
    (name,) = _all(scope, 1)
    found = {}
    for metric in _all(scope_metrics, 2):
        (metric_name,) = _all(metric, 1)
        assert metric_name.decode() not in found
        found[metric_name.decode()] = list(_points(metric))
    return Pushed(_attributes(resource, 1), name.decode(), found)


def _points(metric: bytes) -> Iterator[PushedPoint]:
    (kind,) = [(number, value) for number, value in _fields(metric) if number in (5, 7)]
    temporality = monotonic = None
    if kind[0] == 7:
        (temporality,), (monotonic,) = _all(kind[1], 2), _all(kind[1], 3)
    for point in _all(kind[1], 1):
        (start,), (time,), (value,) = _all(point, 2), _all(point, 3), _all(point, 4)
        number = struct.unpack("<d", value)[0]
        times = (struct.unpack("<Q", one)[0] for one in (start, time))
        yield PushedPoint(number, _attributes(point, 7), temporality, bool(monotonic), *times)


def _attributes(message: bytes, number: int) -> dict[str, str]:
    found = {}
    for entry in _all(message, number):
        (key,), (value,) = _all(entry, 1), _all(entry, 2)
        (text,) = _all(value, 1)
        found[key.decode()] = text.decode()
    return found


def _all(message: bytes, number: int) -> list[Any]:
    return [value for field, value in _fields(message) if field == number]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            size = {1: 8, 5: 4}.get(tag & 7)
            size = varint() if size is None else size
            assert at + size <= len(message)
            yield tag >> 3, message[at : at + size]
            at += size
