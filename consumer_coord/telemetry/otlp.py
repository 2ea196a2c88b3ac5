"""OpenTelemetry's ``MetricsData`` in protocol buffers: the part that clients of Kafka push (``ClientTelemetryReporter``).

The numbers of the fields are those of ``opentelemetry/proto/metrics/v1/metrics.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.wire.varint import write_uvarint

_VARINT, _FIXED64, _BYTES = 0, 1, 2
#: Values of ``AggregationTemporality``.
DELTA, CUMULATIVE = 1, 2

_SCOPE: Final = "org.apache.kafka.consumer"


@attrs.frozen
class Point:
    """One value of a metric. ``temporality``: None for a gauge, otherwise that of a monotonic sum."""

    name: str
    value: float
    attributes: Mapping[str, str]
    start_ns: int
    time_ns: int
    temporality: int | None


def metrics_data(resource: Mapping[str, str], points: Iterable[Point]) -> bytes:
    """Return the encoded ``MetricsData``: one resource, with one metric for each name."""
    by_name: dict[str, list[Point]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    metrics = b"".join(_field(2, _metric(name, of)) for name, of in by_name.items())
    scope_metrics = _field(1, _field(1, _SCOPE.encode())) + metrics
    return _field(1, _field(1, _attributes(1, resource)) + _field(2, scope_metrics))


def _metric(name: str, points: Sequence[Point]) -> bytes:
    data_points = b"".join(_field(1, _data_point(point)) for point in points)
    temporality = points[0].temporality
    if temporality is None:
        return _field(1, name.encode()) + _field(5, data_points)
    return _field(1, name.encode()) + _field(7, data_points + _integer(2, temporality) + _integer(3, 1))


def _data_point(point: Point) -> bytes:
    times = _fixed(2, struct.pack("<Q", point.start_ns)) + _fixed(3, struct.pack("<Q", point.time_ns))
    return times + _fixed(4, struct.pack("<d", point.value)) + _attributes(7, point.attributes)


def _attributes(number: int, attributes: Mapping[str, str]) -> bytes:
    """Return ``KeyValue`` messages with string values."""
    return b"".join(
        _field(number, _field(1, key.encode()) + _field(2, _field(1, value.encode()))) for key, value in attributes.items()
    )


def _field(number: int, payload: bytes) -> bytes:
    return write_uvarint(number << 3 | _BYTES) + write_uvarint(len(payload)) + payload


def _integer(number: int, value: int) -> bytes:
    return write_uvarint(number << 3 | _VARINT) + write_uvarint(value)


def _fixed(number: int, packed: bytes) -> bytes:
    return write_uvarint(number << 3 | _FIXED64) + packed
