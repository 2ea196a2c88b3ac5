"""Handle the requests of group members and of administrators, as Kafka's ``KafkaApis`` does."""

from __future__ import annotations

import attrs

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.consumer_group import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from consumer_coord.wire.messages.group import (
    Coordinator,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

_GROUP = 0
_TRANSACTION = 1
_BATCHED_FROM = 4
_NO_NODE = -1


async def find_coordinator(
    node: BrokerNode, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Serve FindCoordinator for groups and transactions."""
    if context.api_version >= _BATCHED_FROM:
        return FindCoordinatorResponse(
            coordinators=tuple(_coordinator(node, key, request.key_type) for key in request.coordinator_keys)
        )
    found = _coordinator(node, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(node: BrokerNode, key: str, key_type: int) -> Coordinator:
    error_code, message = error_codes.NONE, None
    if key_type not in (_GROUP, _TRANSACTION):
        error_code, message = error_codes.INVALID_REQUEST, f"there are no coordinators of type {key_type}"
    else:
        cluster = node.cluster
        if key_type == _TRANSACTION:
            cluster.create_transaction_topic()
        found = cluster.transaction_coordinator_of(key) if key_type == _TRANSACTION else cluster.coordinator_of(key)
        if found is not None:
            return Coordinator(
                key=key, node_id=found.broker_id, host=found.host, port=found.port, error_code=0, error_message=None
            )
        error_code = error_codes.COORDINATOR_NOT_AVAILABLE
    return Coordinator(key=key, node_id=_NO_NODE, host="", port=_NO_NODE, error_code=error_code, error_message=message)


async def join_group(node: BrokerNode, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Serve JoinGroup."""
    response = await node.coordinator.join_group(context, request)
    if context.api_version < 7 and response.protocol_name is None:
        return attrs.evolve(response, protocol_name="")
    return response


async def sync_group(node: BrokerNode, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Serve SyncGroup. Since version 5, the request must contain the protocol type and the protocol name."""
    if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=error_codes.INCONSISTENT_GROUP_PROTOCOL)
    return await node.coordinator.sync_group(context, request)


async def leave_group(node: BrokerNode, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Serve LeaveGroup. Up to version 2, the request has one member, and the response has only this member's error code."""
    if context.api_version >= 3:
        return await node.coordinator.leave_group(context, request)
    single = LeaveGroupRequest(group_id=request.group_id, members=(MemberIdentity(member_id=request.member_id),))
    response = await node.coordinator.leave_group(context, single)
    error_code = response.error_code or (response.members[0].error_code if response.members else error_codes.NONE)
    return LeaveGroupResponse(error_code=error_code)


async def describe_groups(node: BrokerNode, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Serve DescribeGroups."""
    return DescribeGroupsResponse(groups=await node.coordinator.describe_groups(context, request.groups))


async def list_groups(node: BrokerNode, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """Serve ListGroups: the groups that this broker coordinates."""
    error_code, groups = await node.coordinator.list_groups(request.states_filter, request.types_filter)
    return ListGroupsResponse(error_code=error_code, groups=groups)


async def delete_groups(node: BrokerNode, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Serve DeleteGroups."""
    # A name that occurs twice in the request has only one result.
    return DeleteGroupsResponse(results=await node.coordinator.delete_groups(list(dict.fromkeys(request.groups_names))))


async def consumer_group_describe(
    node: BrokerNode, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Serve ConsumerGroupDescribe."""
    return ConsumerGroupDescribeResponse(groups=await node.coordinator.consumer_group_describe(request.group_ids))
