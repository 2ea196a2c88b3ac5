"""Messages about the replicas of partitions: their directories, leaders and places."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, Struct, array, field


class DescribableLogDirTopic(Struct):
    topic: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class DescribeLogDirsRequest(Struct, versions="1-5", flexible="2+"):
    """Request for the log directories of a broker; without ``topics``, for all partitions."""

    topics: Sequence[DescribableLogDirTopic] | None = field(array(DescribableLogDirTopic), nullable="0+")


class DescribeLogDirsPartition(Struct):
    """Element of ``DescribeLogDirsTopic.partitions``; the size is in bytes."""

    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)


class DescribeLogDirsTopic(Struct):
    name: str = field(STRING)
    partitions: Sequence[DescribeLogDirsPartition] = field(array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Struct):
    """Element of ``DescribeLogDirsResponse.results``: a directory, with the bytes of its volume, or -1."""

    error_code: int = field(INT16)
    log_dir: str = field(STRING)
    topics: Sequence[DescribeLogDirsTopic] = field(array(DescribeLogDirsTopic))
    total_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    usable_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    is_cordoned: bool = field(BOOL, "5+", ignorable=True)


class DescribeLogDirsResponse(Struct, versions="1-5", flexible="2+"):
    """Response with the directories of a broker."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "3+", ignorable=True)
    results: Sequence[DescribeLogDirsResult] = field(array(DescribeLogDirsResult))


class ElectLeadersTopic(Struct):
    topic: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class ElectLeadersRequest(Struct, versions="0-2", flexible="2+"):
    """Request to elect leaders: the preferred replicas (election type 0), or any replica where no leader is up (1, KIP-460)."""

    election_type: int = field(INT8, "1+")
    topic_partitions: Sequence[ElectLeadersTopic] | None = field(array(ElectLeadersTopic), nullable="0+")
    timeout_ms: int = field(INT32, default=60_000)


class ElectLeadersPartitionResult(Struct):
    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ElectLeadersTopicResult(Struct):
    topic: str = field(STRING)
    partition_result: Sequence[ElectLeadersPartitionResult] = field(array(ElectLeadersPartitionResult))


class ElectLeadersResponse(Struct, versions="0-2", flexible="2+"):
    """Response with the outcome for each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "1+")
    replica_election_results: Sequence[ElectLeadersTopicResult] = field(array(ElectLeadersTopicResult))


class ReassignablePartition(Struct):
    """Element of ``ReassignableTopic.partitions``; None instead of replicas cancels a move."""

    partition_index: int = field(INT32)
    replicas: Sequence[int] | None = field(array(INT32), nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = field(STRING)
    partitions: Sequence[ReassignablePartition] = field(array(ReassignablePartition))


class AlterPartitionReassignmentsRequest(Struct, versions="0-1", flexible="0+"):
    """Request to move replicas to other brokers (KIP-455)."""

    timeout_ms: int = field(INT32, default=60_000)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    topics: Sequence[ReassignableTopic] = field(array(ReassignableTopic))


class ReassignablePartitionResponse(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = field(STRING)
    partitions: Sequence[ReassignablePartitionResponse] = field(array(ReassignablePartitionResponse))


class AlterPartitionReassignmentsResponse(Struct, versions="0-1", flexible="0+"):
    """Response with the outcome for each partition."""

    throttle_time_ms: int = field(INT32)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    responses: Sequence[ReassignableTopicResponse] = field(array(ReassignableTopicResponse))


class ListPartitionReassignmentsTopic(Struct):
    name: str = field(STRING)
    partition_indexes: Sequence[int] = field(array(INT32))


class ListPartitionReassignmentsRequest(Struct, versions="0", flexible="0+"):
    """Request for the moves of replicas that are under way; without ``topics``, for all partitions."""

    timeout_ms: int = field(INT32, default=60_000)
    topics: Sequence[ListPartitionReassignmentsTopic] | None = field(
        array(ListPartitionReassignmentsTopic), nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = field(INT32)
    replicas: Sequence[int] = field(array(INT32))
    adding_replicas: Sequence[int] = field(array(INT32))
    removing_replicas: Sequence[int] = field(array(INT32))


class OngoingTopicReassignment(Struct):
    name: str = field(STRING)
    partitions: Sequence[OngoingPartitionReassignment] = field(array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(Struct, versions="0", flexible="0+"):
    """Response with the moves that are under way."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    topics: Sequence[OngoingTopicReassignment] = field(array(OngoingTopicReassignment))
