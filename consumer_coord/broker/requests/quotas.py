"""Handle the requests about quotas of clients."""

from __future__ import annotations

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import RefusedError
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaEntity,
    QuotaEntry,
    QuotaValue,
)


async def describe_client_quotas(
    node: BrokerNode, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Serve DescribeClientQuotas."""
    try:
        found = node.cluster.client_quotas.described(request.components, strict=request.strict)
    except RefusedError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    return DescribeClientQuotasResponse(
        error_message=None,
        entries=tuple(
            QuotaEntry(
                entity=tuple(QuotaEntity(*part) for part in entity),
                values=tuple(QuotaValue(key, value) for key, value in quotas.items()),
            )
            for entity, quotas in found
        ),
    )


async def alter_client_quotas(
    node: BrokerNode, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Serve AlterClientQuotas."""
    return AlterClientQuotasResponse(entries=tuple(_alter(node, entry, request.validate_only) for entry in request.entries))


def _alter(node: BrokerNode, entry: QuotaAlteration, validate_only: bool) -> QuotaAlterationResult:
    error_code, message = error_codes.NONE, None
    try:
        node.cluster.client_quotas.alter(entry.entity, entry.ops, validate_only=validate_only)
    except RefusedError as error:
        error_code, message = error.code, str(error)
    return QuotaAlterationResult(error_code, message, entry.entity)
