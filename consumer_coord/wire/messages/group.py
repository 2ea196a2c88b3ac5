"""Messages of consumer groups: their coordinator, membership, and administration."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, BYTES, INT8, INT16, INT32, STRING, UUID, Struct, array, field


class FindCoordinatorRequest(Struct, versions="0-6", flexible="3+"):
    """Request for the coordinator of a group or a transactional id; from version 4, of several keys (KIP-699)."""

    key: str = field(STRING, "0-3")
    key_type: int = field(INT8, "1+")
    coordinator_keys: Sequence[str] = field(array(STRING), "4+")


class Coordinator(Struct):
    key: str = field(STRING, "4+")
    node_id: int = field(INT32, "4+")
    host: str = field(STRING, "4+")
    port: int = field(INT32, "4+")
    error_code: int = field(INT16, "4+")
    error_message: str | None = field(STRING, "4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Struct, versions="0-6", flexible="3+"):
    """Response with the coordinator: up to version 3 in the message's own fields, from version 4 in ``coordinators``."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16, "0-3")
    error_message: str | None = field(STRING, "1-3", nullable="1-3", ignorable=True)
    node_id: int = field(INT32, "0-3")
    host: str = field(STRING, "0-3")
    port: int = field(INT32, "0-3")
    coordinators: Sequence[Coordinator] = field(array(Coordinator), "4+")


class JoinGroupRequestProtocol(Struct):
    name: str = field(STRING)
    metadata: bytes = field(BYTES)


class JoinGroupRequest(Struct, versions="0-9", flexible="6+"):
    """Request to join the group's next generation; ``reason`` is for the broker's log (KIP-800)."""

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)
    protocols: Sequence[JoinGroupRequestProtocol] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = field(BYTES)


class JoinGroupResponse(Struct, versions="0-9", flexible="6+"):
    """Response with the new generation. The leader receives ``members``, and does not assign if ``skip_assignment`` is true."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, "9+")
    member_id: str = field(STRING)
    members: Sequence[JoinGroupResponseMember] = field(array(JoinGroupResponseMember))


class SyncGroupRequestAssignment(Struct):
    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


class SyncGroupRequest(Struct, versions="0-5", flexible="4+"):
    """Request for a member's assignment; the leader's request contains the assignments of all members."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignments: Sequence[SyncGroupRequestAssignment] = field(array(SyncGroupRequestAssignment))


class SyncGroupResponse(Struct, versions="0-5", flexible="4+"):
    """Response with the assignment of the requesting member."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = field(BYTES)


class HeartbeatRequest(Struct, versions="0-4", flexible="4+"):
    """Request that keeps a member's session alive."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)


class HeartbeatResponse(Struct, versions="0-4", flexible="4+"):
    """The response to a heartbeat, whose error code shows whether the member must rejoin."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)


class MemberIdentity(Struct):
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    reason: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Struct, versions="0-5", flexible="4+"):
    """Request to remove a member from its group; from version 3 several members, also by instance id (KIP-345)."""

    group_id: str = field(STRING)
    member_id: str = field(STRING, "0-2")
    members: Sequence[MemberIdentity] = field(array(MemberIdentity), "3+")


class MemberResponse(Struct):
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+")
    error_code: int = field(INT16, "3+")


class LeaveGroupResponse(Struct, versions="0-5", flexible="4+"):
    """Response with the outcome for each leaving member."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    members: Sequence[MemberResponse] = field(array(MemberResponse), "3+")


class DescribeGroupsRequest(Struct, versions="0-6", flexible="5+"):
    """Request for the state and the members of groups."""

    groups: Sequence[str] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL, "3+")


class DescribedGroupMember(Struct):
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


class DescribedGroup(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "6+", nullable="6+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: Sequence[DescribedGroupMember] = field(array(DescribedGroupMember))
    authorized_operations: int = field(INT32, "3+", default=-2147483648)


class DescribeGroupsResponse(Struct, versions="0-6", flexible="5+"):
    """Response with the requested groups, one :class:`DescribedGroup` for each."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    groups: Sequence[DescribedGroup] = field(array(DescribedGroup))


class ListGroupsRequest(Struct, versions="0-5", flexible="3+"):
    """Request for the groups that a broker coordinates, optionally filtered by state (KIP-518) or type (KIP-848)."""

    states_filter: Sequence[str] = field(array(STRING), "4+")
    types_filter: Sequence[str] = field(array(STRING), "5+")


class ListedGroup(Struct):
    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, "4+", ignorable=True)
    group_type: str = field(STRING, "5+", ignorable=True)


class ListGroupsResponse(Struct, versions="0-5", flexible="3+"):
    """Response with the groups that one broker coordinates."""

    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    error_code: int = field(INT16)
    groups: Sequence[ListedGroup] = field(array(ListedGroup))


class DeleteGroupsRequest(Struct, versions="0-3", flexible="2+"):
    """Request to delete empty groups with their offsets (KIP-229)."""

    groups_names: Sequence[str] = field(array(STRING))


class DeletableGroupResult(Struct):
    group_id: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)


class DeleteGroupsResponse(Struct, versions="0-3", flexible="2+"):
    """Response with the outcome for each group."""

    throttle_time_ms: int = field(INT32)
    results: Sequence[DeletableGroupResult] = field(array(DeletableGroupResult))


class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID)
    partitions: Sequence[int] = field(array(INT32))


class ConsumerGroupHeartbeatRequest(Struct, versions="0-1", flexible="0+"):
    """Request to join, stay in or leave a group of the consumer protocol (KIP-848); a field is None if it has not changed."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: Sequence[str] | None = field(array(STRING), nullable="0+", default=None)
    subscribed_topic_regex: str | None = field(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    topic_partitions: Sequence[ConsumerGroupHeartbeatRequestTopicPartitions] | None = field(
        array(ConsumerGroupHeartbeatRequestTopicPartitions), nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID)
    partitions: Sequence[int] = field(array(INT32))


class ConsumerGroupHeartbeatAssignment(Struct):
    """The structure in ``ConsumerGroupHeartbeatResponse.assignment``."""

    topic_partitions: Sequence[ConsumerGroupHeartbeatResponseTopicPartitions] = field(
        array(ConsumerGroupHeartbeatResponseTopicPartitions)
    )


class ConsumerGroupHeartbeatResponse(Struct, versions="0-1", flexible="0+"):
    """Response with the member's epoch and, if the target assignment has changed, the target assignment."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: ConsumerGroupHeartbeatAssignment | None = field(ConsumerGroupHeartbeatAssignment, nullable="0+", default=None)
