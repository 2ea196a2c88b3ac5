"""The requests this package supports, by API key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from consumer_coord import lazy_attrs as attrs
from consumer_coord.wire.schema import Struct, message_spec

#: API key -> the module of :mod:`consumer_coord.wire.messages` with the API's table, and the API's name.
_TABLES = {
    0: ("log", "Produce"),
    1: ("log", "Fetch"),
    2: ("offsets", "ListOffsets"),
    3: ("cluster", "Metadata"),
    8: ("offsets", "OffsetCommit"),
    9: ("offsets", "OffsetFetch"),
    10: ("group", "FindCoordinator"),
    11: ("group", "JoinGroup"),
    12: ("group", "Heartbeat"),
    13: ("group", "LeaveGroup"),
    14: ("group", "SyncGroup"),
    15: ("group", "DescribeGroups"),
    16: ("group", "ListGroups"),
    17: ("security", "SaslHandshake"),
    18: ("cluster", "ApiVersions"),
    19: ("admin", "CreateTopics"),
    20: ("admin", "DeleteTopics"),
    21: ("log", "DeleteRecords"),
    22: ("log", "InitProducerId"),
    23: ("log", "OffsetForLeaderEpoch"),
    24: ("transactions", "AddPartitionsToTxn"),
    25: ("transactions", "AddOffsetsToTxn"),
    26: ("transactions", "EndTxn"),
    27: ("transactions", "WriteTxnMarkers"),
    28: ("transactions", "TxnOffsetCommit"),
    32: ("admin", "DescribeConfigs"),
    33: ("admin", "AlterConfigs"),
    35: ("replicas", "DescribeLogDirs"),
    36: ("security", "SaslAuthenticate"),
    37: ("admin", "CreatePartitions"),
    42: ("group", "DeleteGroups"),
    43: ("replicas", "ElectLeaders"),
    44: ("admin", "IncrementalAlterConfigs"),
    45: ("replicas", "AlterPartitionReassignments"),
    46: ("replicas", "ListPartitionReassignments"),
    47: ("offsets", "OffsetDelete"),
    48: ("quotas", "DescribeClientQuotas"),
    49: ("quotas", "AlterClientQuotas"),
    57: ("cluster", "UpdateFeatures"),
    60: ("cluster", "DescribeCluster"),
    61: ("transactions", "DescribeProducers"),
    65: ("transactions", "DescribeTransactions"),
    66: ("transactions", "ListTransactions"),
    68: ("group", "ConsumerGroupHeartbeat"),
    69: ("consumer_group", "ConsumerGroupDescribe"),
    71: ("telemetry", "GetTelemetrySubscriptions"),
    72: ("telemetry", "PushTelemetry"),
    74: ("admin", "ListConfigResources"),
    77: ("share_group", "ShareGroupDescribe"),
    89: ("streams_group", "StreamsGroupDescribe"),
    90: ("share_group", "DescribeShareGroupOffsets"),
    91: ("share_group", "AlterShareGroupOffsets"),
    92: ("share_group", "DeleteShareGroupOffsets"),
}

_KEYS = {name: key for key, (_, name) in _TABLES.items()}


@attrs.frozen
class Api:
    """A request and its response; ``flexible_from`` is None when no version is flexible (KIP-482)."""

    key: int
    name: str
    request: type[Struct]
    response: type[Struct]
    min_version: int
    max_version: int
    flexible_from: int | None

    def is_flexible(self, version: int) -> bool:
        """Return whether ``version`` has compact types, tagged fields, and headers with a tag buffer."""
        return self.flexible_from is not None and version >= self.flexible_from


@cache
def _api(key: int) -> Api:
    module, name = _TABLES[key]
    tables = import_module(f"consumer_coord.wire.messages.{module}")
    request, response = getattr(tables, f"{name}Request"), getattr(tables, f"{name}Response")
    spec = message_spec(request)
    assert message_spec(response) == spec, response
    flexible_from = spec.flexible.first if spec.flexible.first <= spec.flexible.last else None
    return Api(key, name, request, response, spec.versions.first, spec.versions.last, flexible_from)


class _Apis(Mapping[int, Api]):
    """A mapping that imports the table of an API when the API is first looked up."""

    def __getitem__(self, key: int) -> Api:
        return _api(key)

    def __iter__(self) -> Iterator[int]:
        return iter(_TABLES)

    def __len__(self) -> int:
        return len(_TABLES)


#: API key -> API.
APIS: Mapping[int, Api] = _Apis()


_by_class: dict[type[Struct], Api] = {}


def api_for(request: type[Struct]) -> Api:
    """Return the API to which a request's class belongs; raise :class:`KeyError` for any other class."""
    found = _by_class.get(request)
    if found is not None:
        return found
    api = APIS[_KEYS[request.__name__.removesuffix("Request")]]
    if api.request is not request:
        raise KeyError(request)
    _by_class[request] = api
    return api
