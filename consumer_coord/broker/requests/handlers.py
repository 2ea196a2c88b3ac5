"""The table of served requests, with their versions and handlers.

To serve a newer version, read the changes in this version, change the handler, and increase the version in the table. The codec
may support newer versions, but the broker advertises only versions in the table. ``tests/broker/test_every_version.py`` also
lists the versions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.requests import (
    admin,
    configs,
    fetch,
    group,
    log,
    metadata,
    offsets,
    quotas,
    replicas,
    telemetry,
    transactions,
)
from consumer_coord.broker.transaction import NEW_CLIENT
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FeatureUpdateResult,
    FinalizedFeatureKey,
    SupportedFeatureKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from consumer_coord.wire.schema import Struct

#: The node id in a request that does not name a node.
_NO_NODE = -1


@attrs.frozen
class Served:
    """A request that the broker serves, the versions that its handler supports, and the handler."""

    min_version: int
    max_version: int
    handler: Callable[[BrokerNode, RequestContext, Any], Awaitable[Struct | None]]


#: Valid names and versions of clients (``ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN``).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_FROM = 3


#: Kafka lists these requests only if one of its ``metric.reporters`` receives clients' metrics.
_TELEMETRY = (71, 72)
#: By this feature, clients learn that each transaction has an epoch of its own, and need not add partitions (KIP-890).
_FEATURE = "transaction.version"
_SUPPORTED = (SupportedFeatureKey(_FEATURE, 0, NEW_CLIENT),)
_FINALIZED = (FinalizedFeatureKey(_FEATURE, NEW_CLIENT, NEW_CLIENT),)
#: Since this version, an UpdateFeatures response has one outcome for all features.
_ONE_OUTCOME_FROM = 2
#: Clients of older versions refuse features whose lowest version is 0.
_ZERO_FEATURES_FROM = 4


async def _api_versions(node: BrokerNode, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    named = (request.client_software_name, request.client_software_version)
    nameless = context.api_version >= _SOFTWARE_FROM and not all(map(_SOFTWARE.fullmatch, named))
    # A request must name both the cluster and the node, or neither (KIP-1242).
    if nameless or (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=error_codes.INVALID_REQUEST)
    sought = (request.cluster_id, request.node_id)
    if request.cluster_id is not None and sought != (node.cluster.cluster_id, node.broker_id):
        return ApiVersionsResponse(error_code=error_codes.REBOOTSTRAP_REQUIRED)
    return ApiVersionsResponse(
        api_keys=tuple(
            ApiVersion(api_key=key, min_version=served.min_version, max_version=served.max_version)
            for key, served in SERVED.items()
            if key not in _TELEMETRY or node.cluster.config.client_metrics_enable
        ),
        supported_features=_SUPPORTED if context.api_version >= _ZERO_FEATURES_FROM else (),
        finalized_features_epoch=0,
        finalized_features=_FINALIZED,
    )


async def _update_features(node: BrokerNode, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Serve UpdateFeatures: the level of the only feature stays as it is."""
    for update in request.feature_updates:
        problem = None
        if update.feature != _FEATURE:
            problem = f"there is no feature {update.feature}"
        elif update.max_version_level != NEW_CLIENT:
            problem = f"the level of {_FEATURE} is always {NEW_CLIENT} here"
        if problem is not None:
            return UpdateFeaturesResponse(error_code=error_codes.INVALID_UPDATE_VERSION, error_message=problem)
    rows = request.feature_updates if context.api_version < _ONE_OUTCOME_FROM else ()
    results = tuple(FeatureUpdateResult(one.feature, error_codes.NONE, None) for one in rows)
    return UpdateFeaturesResponse(error_message=None, results=results)


#: API key -> the served request.
SERVED: Mapping[int, Served] = {
    0: Served(3, 12, log.produce),
    1: Served(4, 18, fetch.fetch),
    2: Served(1, 8, log.list_offsets),
    3: Served(0, 13, metadata.metadata),
    8: Served(2, 10, offsets.offset_commit),
    9: Served(1, 10, offsets.offset_fetch),
    10: Served(0, 5, group.find_coordinator),
    11: Served(0, 9, group.join_group),
    12: Served(0, 4, lambda node, *asked: node.coordinator.heartbeat(*asked)),
    13: Served(0, 5, group.leave_group),
    14: Served(0, 5, group.sync_group),
    15: Served(0, 6, group.describe_groups),
    16: Served(0, 5, group.list_groups),
    18: Served(0, 5, _api_versions),
    19: Served(2, 7, admin.create_topics),
    20: Served(1, 6, admin.delete_topics),
    21: Served(0, 2, log.delete_records),
    22: Served(0, 5, transactions.init_producer_id),
    23: Served(2, 4, log.offset_for_leader_epoch),
    24: Served(0, 5, transactions.add_partitions_to_txn),
    25: Served(0, 4, transactions.add_offsets_to_txn),
    26: Served(0, 5, transactions.end_txn),
    27: Served(1, 1, log.write_txn_markers),
    28: Served(0, 6, transactions.txn_offset_commit),
    32: Served(1, 4, configs.describe_configs),
    33: Served(0, 2, configs.alter_configs),
    35: Served(1, 5, replicas.describe_log_dirs),
    37: Served(0, 3, admin.create_partitions),
    42: Served(0, 3, group.delete_groups),
    43: Served(0, 2, replicas.elect_leaders),
    44: Served(0, 1, configs.incremental_alter_configs),
    45: Served(0, 1, replicas.alter_partition_reassignments),
    46: Served(0, 0, replicas.list_partition_reassignments),
    47: Served(0, 0, offsets.offset_delete),
    48: Served(0, 1, quotas.describe_client_quotas),
    49: Served(0, 1, quotas.alter_client_quotas),
    57: Served(0, 2, _update_features),
    60: Served(0, 1, metadata.describe_cluster),
    61: Served(0, 0, log.describe_producers),
    65: Served(0, 0, transactions.describe_transactions),
    66: Served(0, 2, transactions.list_transactions),
    68: Served(0, 1, lambda node, *asked: node.coordinator.consumer_group_heartbeat(*asked)),
    69: Served(0, 1, group.consumer_group_describe),
    71: Served(0, 0, telemetry.get_telemetry_subscriptions),
    72: Served(0, 0, telemetry.push_telemetry),
    74: Served(0, 1, configs.list_config_resources),
}
