"""The requests this package knows, by API key."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from consumer_coord.wire import messages as m
from consumer_coord.wire.schema import Struct, message_spec


@attrs.frozen
class Api:
    """A request and its response.  ``flexible_from`` is None when no version of it is flexible (KIP-482)."""

    key: int
    name: str
    request: type[Struct]
    response: type[Struct]
    min_version: int
    max_version: int
    flexible_from: int | None

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact types, tagged fields, and headers with a tag buffer."""
        return self.flexible_from is not None and version >= self.flexible_from


def _api(key: int, request: type[Struct], response: type[Struct]) -> Api:
    spec = message_spec(request)
    assert message_spec(response) == spec, response
    flexible_from = spec.flexible.first if spec.flexible.first <= spec.flexible.last else None
    name = request.__name__.removesuffix("Request")
    return Api(key, name, request, response, spec.versions.first, spec.versions.last, flexible_from)


_ALL = (
    _api(0, m.ProduceRequest, m.ProduceResponse),
    _api(1, m.FetchRequest, m.FetchResponse),
    _api(2, m.ListOffsetsRequest, m.ListOffsetsResponse),
    _api(3, m.MetadataRequest, m.MetadataResponse),
    _api(8, m.OffsetCommitRequest, m.OffsetCommitResponse),
    _api(9, m.OffsetFetchRequest, m.OffsetFetchResponse),
    _api(10, m.FindCoordinatorRequest, m.FindCoordinatorResponse),
    _api(11, m.JoinGroupRequest, m.JoinGroupResponse),
    _api(12, m.HeartbeatRequest, m.HeartbeatResponse),
    _api(13, m.LeaveGroupRequest, m.LeaveGroupResponse),
    _api(14, m.SyncGroupRequest, m.SyncGroupResponse),
    _api(15, m.DescribeGroupsRequest, m.DescribeGroupsResponse),
    _api(16, m.ListGroupsRequest, m.ListGroupsResponse),
    _api(17, m.SaslHandshakeRequest, m.SaslHandshakeResponse),
    _api(18, m.ApiVersionsRequest, m.ApiVersionsResponse),
    _api(19, m.CreateTopicsRequest, m.CreateTopicsResponse),
    _api(20, m.DeleteTopicsRequest, m.DeleteTopicsResponse),
    _api(21, m.DeleteRecordsRequest, m.DeleteRecordsResponse),
    _api(22, m.InitProducerIdRequest, m.InitProducerIdResponse),
    _api(23, m.OffsetForLeaderEpochRequest, m.OffsetForLeaderEpochResponse),
    _api(32, m.DescribeConfigsRequest, m.DescribeConfigsResponse),
    _api(36, m.SaslAuthenticateRequest, m.SaslAuthenticateResponse),
    _api(37, m.CreatePartitionsRequest, m.CreatePartitionsResponse),
    _api(42, m.DeleteGroupsRequest, m.DeleteGroupsResponse),
    _api(47, m.OffsetDeleteRequest, m.OffsetDeleteResponse),
    _api(60, m.DescribeClusterRequest, m.DescribeClusterResponse),
    _api(68, m.ConsumerGroupHeartbeatRequest, m.ConsumerGroupHeartbeatResponse),
    _api(69, m.ConsumerGroupDescribeRequest, m.ConsumerGroupDescribeResponse),
)

#: API key -> API.
APIS: Mapping[int, Api] = {api.key: api for api in _ALL}

_BY_REQUEST: Mapping[type[Struct], Api] = {api.request: api for api in _ALL}


def api_for(request: type[Struct]) -> Api:
    """The API that a request's class belongs to; :class:`KeyError` for a class that is no request."""
    return _BY_REQUEST[request]
