"""Messages about share groups (KIP-932) that operators' commands need."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, array, field


class ShareGroupDescribeRequest(Struct, versions="1", flexible="1+"):
    """Request for the state and the members of share groups."""

    group_ids: Sequence[str] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)


class ShareGroupDescribeTopicPartitions(Struct):
    """Element of ``ShareGroupDescribeAssignment.topic_partitions``."""

    topic_id: uuid.UUID = field(UUID)
    topic_name: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class ShareGroupDescribeAssignment(Struct):
    """``ShareGroupDescribeMember.assignment``; a partition may be assigned to several members."""

    topic_partitions: Sequence[ShareGroupDescribeTopicPartitions] = field(array(ShareGroupDescribeTopicPartitions))


class ShareGroupDescribeMember(Struct):
    """Element of ``ShareGroupDescribeGroup.members``."""

    member_id: str = field(STRING)
    rack_id: str | None = field(STRING, nullable="1+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: Sequence[str] = field(array(STRING))
    assignment: ShareGroupDescribeAssignment = field(ShareGroupDescribeAssignment, default=ShareGroupDescribeAssignment())


class ShareGroupDescribeGroup(Struct):
    """Element of ``ShareGroupDescribeResponse.groups``."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="1+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: Sequence[ShareGroupDescribeMember] = field(array(ShareGroupDescribeMember))
    authorized_operations: int = field(INT32, default=-2147483648)


class ShareGroupDescribeResponse(Struct, versions="1", flexible="1+"):
    """Response with the requested groups, one :class:`ShareGroupDescribeGroup` for each."""

    throttle_time_ms: int = field(INT32)
    groups: Sequence[ShareGroupDescribeGroup] = field(array(ShareGroupDescribeGroup))
