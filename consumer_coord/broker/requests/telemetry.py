"""Handle the requests with which clients push their metrics (KIP-714)."""

from __future__ import annotations

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)


async def get_telemetry_subscriptions(
    node: BrokerNode, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Serve GetTelemetrySubscriptions."""
    return node.cluster.client_metrics.asked(request, node.broker_id)


async def push_telemetry(node: BrokerNode, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Serve PushTelemetry."""
    return node.cluster.client_metrics.pushed(request, context.client_id, node.broker_id)
