"""Messages about groups of the consumer protocol (KIP-848) that operators' commands need."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Struct, array, field


class ConsumerGroupDescribeRequest(Struct, versions="0-1", flexible="0+"):
    """Request for the state and the members of groups of the consumer protocol."""

    group_ids: Sequence[str] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)


class ConsumerGroupDescribeTopicPartitions(Struct):
    topic_id: uuid.UUID = field(UUID)
    topic_name: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class ConsumerGroupDescribeAssignment(Struct):
    """The structure in ``ConsumerGroupDescribeMember.assignment`` and ``target_assignment``."""

    topic_partitions: Sequence[ConsumerGroupDescribeTopicPartitions] = field(array(ConsumerGroupDescribeTopicPartitions))


class ConsumerGroupDescribeMember(Struct):
    """Element of ``ConsumerGroupDescribeGroup.members``; ``member_type`` 0 is a classic member, 1 a member of KIP-848."""

    member_id: str = field(STRING)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: Sequence[str] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+", default=None)
    assignment: ConsumerGroupDescribeAssignment = field(
        ConsumerGroupDescribeAssignment, default=ConsumerGroupDescribeAssignment()
    )
    target_assignment: ConsumerGroupDescribeAssignment = field(
        ConsumerGroupDescribeAssignment, default=ConsumerGroupDescribeAssignment()
    )
    member_type: int = field(INT8, "1+", default=-1, ignorable=True)


class ConsumerGroupDescribeGroup(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: Sequence[ConsumerGroupDescribeMember] = field(array(ConsumerGroupDescribeMember))
    authorized_operations: int = field(INT32, default=-2147483648)


class ConsumerGroupDescribeResponse(Struct, versions="0-1", flexible="0+"):
    """Response with the requested groups, one :class:`ConsumerGroupDescribeGroup` for each."""

    throttle_time_ms: int = field(INT32)
    groups: Sequence[ConsumerGroupDescribeGroup] = field(array(ConsumerGroupDescribeGroup))
