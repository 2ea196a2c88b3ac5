"""What each request does, one module per family, and the table of what is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from consumer_coord.broker.requests import admin, group, log, metadata, offsets
from consumer_coord.broker.requests.errors import error_response
from consumer_coord.wire.apis import APIS

__all__ = ["SERVED", "Served", "error_response"]


@attrs.frozen
class Served:
    """A request that the broker serves, in which versions, and how."""

    min_version: int
    max_version: int
    handler: Callable[..., Awaitable[Any]]


def _served(api_key: int, handler: Callable[..., Awaitable[Any]], max_version: int | None = None) -> Served:
    api = APIS[api_key]
    return Served(api.min_version, api.max_version if max_version is None else max_version, handler)


#: API key -> what is served of it. The versions are those that the codec knows, unless something here would be missing.
SERVED: Mapping[int, Served] = {
    0: _served(0, log.produce, max_version=12),
    1: _served(1, log.fetch, max_version=12),
    2: _served(2, log.list_offsets, max_version=8),
    3: _served(3, metadata.metadata, max_version=13),
    8: _served(8, offsets.offset_commit),
    9: _served(9, offsets.offset_fetch, max_version=9),
    10: _served(10, group.find_coordinator, max_version=5),
    11: _served(11, group.join_group),
    12: _served(12, group.heartbeat),
    13: _served(13, group.leave_group),
    14: _served(14, group.sync_group),
    15: _served(15, group.describe_groups),
    16: _served(16, group.list_groups),
    18: _served(18, metadata.api_versions),
    19: _served(19, admin.create_topics),
    20: _served(20, admin.delete_topics),
    21: _served(21, log.delete_records),
    22: _served(22, log.init_producer_id, max_version=5),
    23: _served(23, log.offset_for_leader_epoch),
    32: _served(32, admin.describe_configs),
    37: _served(37, admin.create_partitions),
    42: _served(42, group.delete_groups),
    47: _served(47, offsets.offset_delete),
    60: _served(60, metadata.describe_cluster, max_version=1),
    68: _served(68, group.consumer_group_heartbeat),
    69: _served(69, group.consumer_group_describe),
}

metadata.SERVED_VERSIONS.update({key: (api.min_version, api.max_version) for key, api in SERVED.items()})
