"""Messages with which a client asks for a subscription of metrics, and pushes the metrics (KIP-714)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, BYTES, INT8, INT16, INT32, STRING, UUID, Struct, array, field


class GetTelemetrySubscriptionsRequest(Struct, versions="0", flexible="0+"):
    """Request for the metrics to push; the first request has the zero id, and the response the id of this client instance."""

    client_instance_id: uuid.UUID = field(UUID)


class GetTelemetrySubscriptionsResponse(Struct, versions="0", flexible="0+"):
    """Response with prefixes of metric names: none, or ``*`` for all metrics. The broker prefers earlier compression types."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    client_instance_id: uuid.UUID = field(UUID)
    subscription_id: int = field(INT32)
    accepted_compression_types: Sequence[int] = field(array(INT8))
    push_interval_ms: int = field(INT32)
    telemetry_max_bytes: int = field(INT32)
    delta_temporality: bool = field(BOOL)
    requested_metrics: Sequence[str] = field(array(STRING))


class PushTelemetryRequest(Struct, versions="0", flexible="0+"):
    """Request with metrics: OpenTelemetry's ``MetricsData``, compressed with a type that the subscription accepts."""

    client_instance_id: uuid.UUID = field(UUID)
    subscription_id: int = field(INT32)
    terminating: bool = field(BOOL)
    compression_type: int = field(INT8)
    metrics: bytes = field(BYTES)


class PushTelemetryResponse(Struct, versions="0", flexible="0+"):
    """Response to pushed metrics."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
