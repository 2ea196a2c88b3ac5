"""Messages about the offsets that a group commits, and about the offsets of a partition's log."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Struct, array, field

#: The newest version of OffsetCommit with topic names. Later versions have topic ids.
OFFSET_COMMIT_BY_NAME = 9
#: The newest version of OffsetFetch with topic names. Later versions have topic ids.
OFFSET_FETCH_BY_NAME = 9


class OffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """Element of ``OffsetCommitRequest.topics``; from version 10 on, an id identifies the topic (KIP-848)."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    partitions: Sequence[OffsetCommitRequestPartition] = field(array(OffsetCommitRequestPartition))


class OffsetCommitRequest(Struct, versions="2-10", flexible="8+"):
    """Request to commit offsets of a group. The broker does not fence a request with generation -1 and no member id."""

    group_id: str = field(STRING)
    generation_id_or_member_epoch: int = field(INT32, default=-1, ignorable=True)
    member_id: str = field(STRING, ignorable=True)
    group_instance_id: str | None = field(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)
    topics: Sequence[OffsetCommitRequestTopic] = field(array(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetCommitResponseTopic(Struct):
    """Element of ``OffsetCommitResponse.topics``; from version 10 on, an id identifies the topic."""

    name: str = field(STRING, "0-9", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    partitions: Sequence[OffsetCommitResponsePartition] = field(array(OffsetCommitResponsePartition))


class OffsetCommitResponse(Struct, versions="2-10", flexible="8+"):
    """Response with an error code for each partition."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: Sequence[OffsetCommitResponseTopic] = field(array(OffsetCommitResponseTopic))


class OffsetFetchRequestTopic(Struct):
    name: str = field(STRING, "0-7")
    partition_indexes: Sequence[int] = field(array(INT32), "0-7")


class OffsetFetchRequestTopics(Struct):
    """Element of ``OffsetFetchRequestGroup.topics``; from version 10 on, an id identifies the topic."""

    name: str = field(STRING, "8-9", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    partition_indexes: Sequence[int] = field(array(INT32), "8+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = field(STRING, "8+")
    member_id: str | None = field(STRING, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    topics: Sequence[OffsetFetchRequestTopics] | None = field(array(OffsetFetchRequestTopics), "8+", nullable="8+")


class OffsetFetchRequest(Struct, versions="1-10", flexible="6+"):
    """Request for committed offsets: up to version 7 of one group, from version 8 on of several groups (KIP-709)."""

    group_id: str = field(STRING, "0-7")
    topics: Sequence[OffsetFetchRequestTopic] | None = field(array(OffsetFetchRequestTopic), "0-7", nullable="2-7")
    groups: Sequence[OffsetFetchRequestGroup] = field(array(OffsetFetchRequestGroup), "8+")
    require_stable: bool = field(BOOL, "7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = field(INT32, "0-7")
    committed_offset: int = field(INT64, "0-7")
    committed_leader_epoch: int = field(INT32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "0-7", nullable="0-7")
    error_code: int = field(INT16, "0-7")


class OffsetFetchResponseTopic(Struct):
    name: str = field(STRING, "0-7")
    partitions: Sequence[OffsetFetchResponsePartition] = field(array(OffsetFetchResponsePartition), "0-7")


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = field(INT32, "8+")
    committed_offset: int = field(INT64, "8+")
    committed_leader_epoch: int = field(INT32, "8+", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "8+", nullable="8+")
    error_code: int = field(INT16, "8+")


class OffsetFetchResponseTopics(Struct):
    """Element of ``OffsetFetchResponseGroup.topics``; from version 10 on, an id identifies the topic."""

    name: str = field(STRING, "8-9", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    partitions: Sequence[OffsetFetchResponsePartitions] = field(array(OffsetFetchResponsePartitions), "8+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = field(STRING, "8+")
    topics: Sequence[OffsetFetchResponseTopics] = field(array(OffsetFetchResponseTopics), "8+")
    error_code: int = field(INT16, "8+")


class OffsetFetchResponse(Struct, versions="1-10", flexible="6+"):
    """Response with the committed offsets: up to version 7 in ``topics``, for one group; from version 8 on in ``groups``."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    topics: Sequence[OffsetFetchResponseTopic] = field(array(OffsetFetchResponseTopic), "0-7")
    error_code: int = field(INT16, "2-7", ignorable=True)
    groups: Sequence[OffsetFetchResponseGroup] = field(array(OffsetFetchResponseGroup), "8+")


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = field(INT32)


class OffsetDeleteRequestTopic(Struct):
    name: str = field(STRING)
    partitions: Sequence[OffsetDeleteRequestPartition] = field(array(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(Struct, versions="0"):
    """Request to delete committed offsets of topics that the group does not consume (KIP-496)."""

    group_id: str = field(STRING)
    topics: Sequence[OffsetDeleteRequestTopic] = field(array(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class OffsetDeleteResponseTopic(Struct):
    name: str = field(STRING)
    partitions: Sequence[OffsetDeleteResponsePartition] = field(array(OffsetDeleteResponsePartition))


class OffsetDeleteResponse(Struct, versions="0"):
    """Response with an error code for each partition."""

    error_code: int = field(INT16)
    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: Sequence[OffsetDeleteResponseTopic] = field(array(OffsetDeleteResponseTopic))


class ListOffsetsPartition(Struct):
    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)
    timestamp: int = field(INT64)


class ListOffsetsTopic(Struct):
    name: str = field(STRING)
    partitions: Sequence[ListOffsetsPartition] = field(array(ListOffsetsPartition))


class ListOffsetsRequest(Struct, versions="1-10", flexible="6+"):
    """Request for offsets by timestamp (-1: latest, -2: earliest, -3: the offset of the record with the largest timestamp)."""

    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, "2+")
    topics: Sequence[ListOffsetsTopic] = field(array(ListOffsetsTopic))
    timeout_ms: int = field(INT32, "10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    timestamp: int = field(INT64, default=-1)
    offset: int = field(INT64, default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = field(STRING)
    partitions: Sequence[ListOffsetsPartitionResponse] = field(array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(Struct, versions="1-10", flexible="6+"):
    """Response with an offset for each partition."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: Sequence[ListOffsetsTopicResponse] = field(array(ListOffsetsTopicResponse))
