"""Messages about share groups (KIP-932) that operators' commands need."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT16, INT32, INT64, STRING, UUID, Struct, array, field


class ShareGroupDescribeRequest(Struct, versions="1", flexible="1+"):
    """Request for the state and the members of share groups."""

    group_ids: Sequence[str] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)


class ShareGroupDescribeTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID)
    topic_name: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class ShareGroupDescribeAssignment(Struct):
    """``ShareGroupDescribeMember.assignment``; a partition may be assigned to several members."""

    topic_partitions: Sequence[ShareGroupDescribeTopicPartitions] = field(array(ShareGroupDescribeTopicPartitions))


class ShareGroupDescribeMember(Struct):
    member_id: str = field(STRING)
    rack_id: str | None = field(STRING, nullable="1+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: Sequence[str] = field(array(STRING))
    assignment: ShareGroupDescribeAssignment = field(ShareGroupDescribeAssignment, default=ShareGroupDescribeAssignment())


class ShareGroupDescribeGroup(Struct):
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


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class DescribeShareGroupOffsetsRequestGroup(Struct):
    """Element of ``DescribeShareGroupOffsetsRequest.groups``; None as ``topics`` requests all partitions."""

    group_id: str = field(STRING)
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = field(
        array(DescribeShareGroupOffsetsRequestTopic), nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Struct, versions="0-1", flexible="0+"):
    """Request for the start offsets of share groups and, since version 1, their lag (KIP-1226)."""

    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = field(array(DescribeShareGroupOffsetsRequestGroup))


class DescribeShareGroupOffsetsResponsePartition(Struct):
    """Element of ``DescribeShareGroupOffsetsResponseTopic.partitions``; -1 for a start offset or lag that is not known."""

    partition_index: int = field(INT32)
    start_offset: int = field(INT64)
    leader_epoch: int = field(INT32)
    lag: int = field(INT64, "1+", default=-1, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID)
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = field(array(DescribeShareGroupOffsetsResponsePartition))


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = field(STRING)
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = field(array(DescribeShareGroupOffsetsResponseTopic))
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DescribeShareGroupOffsetsResponse(Struct, versions="0-1", flexible="0+"):
    """Response with the start offset of each partition: the first record that the group has not finished."""

    throttle_time_ms: int = field(INT32)
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = field(array(DescribeShareGroupOffsetsResponseGroup))


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: int = field(INT32)
    start_offset: int = field(INT64)


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING)
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = field(array(AlterShareGroupOffsetsRequestPartition))


class AlterShareGroupOffsetsRequest(Struct, versions="0", flexible="0+"):
    """Request to set the start offsets of a share group without members."""

    group_id: str = field(STRING)
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = field(array(AlterShareGroupOffsetsRequestTopic))


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID)
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = field(array(AlterShareGroupOffsetsResponsePartition))


class AlterShareGroupOffsetsResponse(Struct, versions="0", flexible="0+"):
    """Response with an error code for the group, and one for each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = field(array(AlterShareGroupOffsetsResponseTopic))


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING)


class DeleteShareGroupOffsetsRequest(Struct, versions="0", flexible="0+"):
    """Request to delete a share group's offsets of whole topics."""

    group_id: str = field(STRING)
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = field(array(DeleteShareGroupOffsetsRequestTopic))


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Struct, versions="0", flexible="0+"):
    """Response with an error code for the group, and one for each topic."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = field(array(DeleteShareGroupOffsetsResponseTopic))
