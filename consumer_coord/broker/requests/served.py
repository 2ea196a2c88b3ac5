"""The table of served requests: versions, handler, and the response if everything failed.

To serve a newer version, read its changes, change the handler, and increase the version in the row. The codec may support newer
versions, but a version without a row is not advertised. ``tests/broker/test_every_version.py`` repeats the versions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from consumer_coord.broker.classic_join import RequestContext
from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.requests import admin, fetch, group, log, metadata, offsets
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from consumer_coord.wire.schema import Struct

#: The node id of a request that names no node.
_NO_NODE = -1


@attrs.frozen
class Served:
    """A request that the broker serves, the versions that its handler supports, and the handler.

    ``failed(request, version, error code)`` returns the response in which everything failed (Kafka's ``getErrorResponse``).
    """

    min_version: int
    max_version: int
    handler: Callable[[BrokerNode, RequestContext, Any], Awaitable[Struct | None]]
    failed: Callable[[Any, int, int], Struct]


#: Names and versions of clients (``ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN``).
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_FROM = 3


async def _api_versions(node: BrokerNode, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    named = (request.client_software_name, request.client_software_version)
    nameless = context.api_version >= _SOFTWARE_FROM and not all(map(_SOFTWARE.fullmatch, named))
    # A request names both cluster and node, or neither (KIP-1242).
    if nameless or (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=error_codes.INVALID_REQUEST)
    sought = (request.cluster_id, request.node_id)
    if request.cluster_id is not None and sought != (node.cluster.cluster_id, node.broker_id):
        return ApiVersionsResponse(error_code=error_codes.REBOOTSTRAP_REQUIRED)
    return ApiVersionsResponse(
        api_keys=tuple(
            ApiVersion(api_key=key, min_version=served.min_version, max_version=served.max_version)
            for key, served in SERVED.items()
        )
    )


def _api_versions_failed(request: ApiVersionsRequest, version: int, code: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=code)


#: API key -> the served request.
SERVED: Mapping[int, Served] = {
    0: Served(3, 12, log.produce, log.produce_failed),
    1: Served(4, 18, fetch.fetch, fetch.fetch_failed),
    2: Served(1, 8, log.list_offsets, log.list_offsets_failed),
    3: Served(0, 13, metadata.metadata, metadata.metadata_failed),
    8: Served(2, 10, offsets.offset_commit, offsets.offset_commit_failed),
    9: Served(1, 10, offsets.offset_fetch, offsets.offset_fetch_failed),
    10: Served(0, 5, group.find_coordinator, group.find_coordinator_failed),
    11: Served(0, 9, group.join_group, group.join_group_failed),
    12: Served(0, 4, group.heartbeat, group.heartbeat_failed),
    13: Served(0, 5, group.leave_group, group.leave_group_failed),
    14: Served(0, 5, group.sync_group, group.sync_group_failed),
    15: Served(0, 6, group.describe_groups, group.describe_groups_failed),
    16: Served(0, 5, group.list_groups, group.list_groups_failed),
    18: Served(0, 5, _api_versions, _api_versions_failed),
    19: Served(2, 7, admin.create_topics, admin.create_topics_failed),
    20: Served(1, 6, admin.delete_topics, admin.delete_topics_failed),
    21: Served(0, 2, log.delete_records, log.delete_records_failed),
    22: Served(0, 5, log.init_producer_id, log.init_producer_id_failed),
    23: Served(2, 4, log.offset_for_leader_epoch, log.offset_for_leader_epoch_failed),
    32: Served(1, 4, admin.describe_configs, admin.describe_configs_failed),
    37: Served(0, 3, admin.create_partitions, admin.create_partitions_failed),
    42: Served(0, 3, group.delete_groups, group.delete_groups_failed),
    47: Served(0, 0, offsets.offset_delete, offsets.offset_delete_failed),
    60: Served(0, 1, metadata.describe_cluster, metadata.describe_cluster_failed),
    68: Served(0, 1, group.consumer_group_heartbeat, group.consumer_group_heartbeat_failed),
    69: Served(0, 1, group.consumer_group_describe, group.consumer_group_describe_failed),
}


def error_response(request: Struct, version: int, error_code: int) -> Struct:
    """Return a response to ``request`` in which everything failed with ``error_code``."""
    return SERVED[api_for(type(request)).key].failed(request, version, error_code)
