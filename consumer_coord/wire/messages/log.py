"""Messages that write, read and trim the logs of partitions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Struct, array, field

#: The value of ``FetchPartition.high_watermark`` for consumers, and for followers that do not know their high watermark.
NO_HIGH_WATERMARK = 2**63 - 1


class PartitionProduceData(Struct):
    index: int = field(INT32)
    records: bytes | None = field(RECORDS, nullable="0+")


class TopicProduceData(Struct):
    name: str = field(STRING, ignorable=True)
    partition_data: Sequence[PartitionProduceData] = field(array(PartitionProduceData))


class ProduceRequest(Struct, versions="3-12", flexible="9+"):
    """Request to append record batches; with ``acks`` 0 there is no response."""

    transactional_id: str | None = field(STRING, nullable="3+", default=None)
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: Sequence[TopicProduceData] = field(array(TopicProduceData))


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = field(INT32, "8+")
    batch_index_error_message: str | None = field(STRING, "8+", nullable="8+", default=None)


class ProduceLeaderIdAndEpoch(Struct):
    """The structure in ``PartitionProduceResponse.current_leader``."""

    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


class PartitionProduceResponse(Struct):
    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    record_errors: Sequence[BatchIndexAndErrorMessage] = field(array(BatchIndexAndErrorMessage), "8+", ignorable=True)
    error_message: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: ProduceLeaderIdAndEpoch = field(ProduceLeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = field(STRING, ignorable=True)
    partition_responses: Sequence[PartitionProduceResponse] = field(array(PartitionProduceResponse))


class ProduceNodeEndpoint(Struct):
    node_id: int = field(INT32, "10+")
    host: str = field(STRING, "10+")
    port: int = field(INT32, "10+")
    rack: str | None = field(STRING, "10+", nullable="10+", default=None)


class ProduceResponse(Struct, versions="3-12", flexible="9+"):
    """Response with the offsets at which the batches were appended."""

    responses: Sequence[TopicProduceResponse] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, ignorable=True)
    node_endpoints: Sequence[ProduceNodeEndpoint] = field(array(ProduceNodeEndpoint), "10+", tag=0)


class FetchPartition(Struct):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    fetch_offset: int = field(INT64)
    last_fetched_epoch: int = field(INT32, "12+", default=-1)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = field(INT32)
    replica_directory_id: uuid.UUID = field(UUID, "17+", tag=0, ignorable=True)
    high_watermark: int = field(INT64, "18+", tag=1, default=NO_HIGH_WATERMARK, ignorable=True)


class FetchTopic(Struct):
    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", ignorable=True)
    partitions: Sequence[FetchPartition] = field(array(FetchPartition))


class ForgottenTopic(Struct):
    topic: str = field(STRING, "7-12", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", ignorable=True)
    partitions: Sequence[int] = field(array(INT32), "7+")


class FetchReplicaState(Struct):
    """``FetchRequest.replica_state``: which follower fetches, -1 for a consumer (KIP-903)."""

    replica_id: int = field(INT32, "15+", default=-1)
    replica_epoch: int = field(INT64, "15+", default=-1)


class FetchRequest(Struct, versions="4-18", flexible="12+"):
    """Request for record batches from given offsets; the broker waits up to ``max_wait_ms`` until it has ``min_bytes``."""

    cluster_id: str | None = field(STRING, "12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int = field(INT32, "0-14", default=-1)
    replica_state: FetchReplicaState = field(FetchReplicaState, "15+", tag=1)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=2147483647, ignorable=True)
    isolation_level: int = field(INT8, ignorable=True)
    session_id: int = field(INT32, "7+", ignorable=True)
    session_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    topics: Sequence[FetchTopic] = field(array(FetchTopic))
    forgotten_topics_data: Sequence[ForgottenTopic] = field(array(ForgottenTopic), "7+")
    rack_id: str = field(STRING, "11+", default="", ignorable=True)


class FetchEpochEndOffset(Struct):
    """The structure in ``PartitionData.diverging_epoch``."""

    epoch: int = field(INT32, "12+", default=-1)
    end_offset: int = field(INT64, "12+", default=-1)


class FetchLeaderIdAndEpoch(Struct):
    """The structure in ``PartitionData.current_leader``."""

    leader_id: int = field(INT32, "12+", default=-1)
    leader_epoch: int = field(INT32, "12+", default=-1)


class SnapshotId(Struct):
    """The structure in ``PartitionData.snapshot_id``."""

    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)


class AbortedTransaction(Struct):
    producer_id: int = field(INT64)
    first_offset: int = field(INT64)


class PartitionData(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    high_watermark: int = field(INT64)
    last_stable_offset: int = field(INT64, default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    diverging_epoch: FetchEpochEndOffset = field(FetchEpochEndOffset, "12+", tag=0)
    current_leader: FetchLeaderIdAndEpoch = field(FetchLeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = field(SnapshotId, "12+", tag=2)
    aborted_transactions: Sequence[AbortedTransaction] | None = field(array(AbortedTransaction), nullable="4+", ignorable=True)
    preferred_read_replica: int = field(INT32, "11+", default=-1)
    records: bytes | None = field(RECORDS, nullable="0+")


class FetchableTopicResponse(Struct):
    topic: str = field(STRING, "0-12", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", ignorable=True)
    partitions: Sequence[PartitionData] = field(array(PartitionData))


class FetchNodeEndpoint(Struct):
    """Element of ``FetchResponse.node_endpoints``: where a leader named in this response listens (KIP-951)."""

    node_id: int = field(INT32, "16+")
    host: str = field(STRING, "16+")
    port: int = field(INT32, "16+")
    rack: str | None = field(STRING, "16+", nullable="16+", default=None)


class FetchResponse(Struct, versions="4-18", flexible="12+"):
    """Response with record batches of each partition; the last batch of a partition may be incomplete."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16, "7+", ignorable=True)
    session_id: int = field(INT32, "7+")
    responses: Sequence[FetchableTopicResponse] = field(array(FetchableTopicResponse))
    node_endpoints: Sequence[FetchNodeEndpoint] = field(array(FetchNodeEndpoint), "16+", tag=0)


class OffsetForLeaderPartition(Struct):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, default=-1, ignorable=True)
    leader_epoch: int = field(INT32)


class OffsetForLeaderTopic(Struct):
    topic: str = field(STRING)
    partitions: Sequence[OffsetForLeaderPartition] = field(array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(Struct, versions="2-4", flexible="4+"):
    """Request for the end offsets of leader epochs, to detect that a log was truncated (KIP-320)."""

    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: Sequence[OffsetForLeaderTopic] = field(array(OffsetForLeaderTopic))


class EpochEndOffset(Struct):
    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1, ignorable=True)
    end_offset: int = field(INT64, default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = field(STRING)
    partitions: Sequence[EpochEndOffset] = field(array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Struct, versions="2-4", flexible="4+"):
    """Response with the end offset of each requested epoch."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: Sequence[OffsetForLeaderTopicResult] = field(array(OffsetForLeaderTopicResult))


class DeleteRecordsPartition(Struct):
    partition_index: int = field(INT32)
    offset: int = field(INT64)


class DeleteRecordsTopic(Struct):
    name: str = field(STRING)
    partitions: Sequence[DeleteRecordsPartition] = field(array(DeleteRecordsPartition))


class DeleteRecordsRequest(Struct, versions="0-2", flexible="2+"):
    """Request to delete the records before an offset (KIP-107)."""

    topics: Sequence[DeleteRecordsTopic] = field(array(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16)


class DeleteRecordsTopicResult(Struct):
    name: str = field(STRING)
    partitions: Sequence[DeleteRecordsPartitionResult] = field(array(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(Struct, versions="0-2", flexible="2+"):
    """Response with the new first offset of each partition."""

    throttle_time_ms: int = field(INT32)
    topics: Sequence[DeleteRecordsTopicResult] = field(array(DeleteRecordsTopicResult))


class InitProducerIdRequest(Struct, versions="0-6", flexible="2+"):
    """Request for a producer id, for an idempotent or transactional producer."""

    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)
    enable2_pc: bool = field(BOOL, "6+")
    keep_prepared_txn: bool = field(BOOL, "6+")


class InitProducerIdResponse(Struct, versions="0-6", flexible="2+"):
    """Response with a producer id and its epoch."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)
    ongoing_txn_producer_id: int = field(INT64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = field(INT16, "6+", default=-1)
