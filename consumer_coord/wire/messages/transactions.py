"""Messages of transactional producers, and of administrators who look at transactions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Struct, array, field

#: The newest version of TxnOffsetCommit with topic names. Later versions have topic ids.
TXN_OFFSET_COMMIT_BY_NAME = 5
#: The newest version of AddPartitionsToTxn that clients send, with one transaction. Brokers send later versions.
ADD_PARTITIONS_BY_CLIENTS = 3


class AddPartitionsToTxnTopic(Struct):
    """A topic's partitions in an AddPartitionsToTxn request."""

    name: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class AddPartitionsToTxnTransaction(Struct):
    """Element of ``AddPartitionsToTxnRequest.transactions``; with ``verify_only``, the broker only checks the partitions."""

    transactional_id: str = field(STRING, "4+")
    producer_id: int = field(INT64, "4+")
    producer_epoch: int = field(INT16, "4+")
    verify_only: bool = field(BOOL, "4+")
    topics: Sequence[AddPartitionsToTxnTopic] = field(array(AddPartitionsToTxnTopic), "4+")


class AddPartitionsToTxnRequest(Struct, versions="0-5", flexible="3+"):
    """Request to add partitions to transactions: up to version 3 to one, from version 4 on (between brokers) to several."""

    transactions: Sequence[AddPartitionsToTxnTransaction] = field(array(AddPartitionsToTxnTransaction), "4+")
    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = field(array(AddPartitionsToTxnTopic), "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


class AddPartitionsToTxnTopicResult(Struct):
    """The results of one topic in an AddPartitionsToTxn response."""

    name: str = field(STRING)
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = field(array(AddPartitionsToTxnPartitionResult))


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field(STRING, "4+")
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = field(array(AddPartitionsToTxnTopicResult), "4+")


class AddPartitionsToTxnResponse(Struct, versions="0-5", flexible="3+"):
    """Response with an error code for each partition."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "4+", ignorable=True)
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = field(array(AddPartitionsToTxnResult), "4+")
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = field(array(AddPartitionsToTxnTopicResult), "0-3")


class AddOffsetsToTxnRequest(Struct, versions="0-4", flexible="3+"):
    """Request to add a group's partition of ``__consumer_offsets`` to a transaction."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


class AddOffsetsToTxnResponse(Struct, versions="0-4", flexible="3+"):
    """Response with an error code."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)


class EndTxnRequest(Struct, versions="0-5", flexible="3+"):
    """Request to commit or abort a transaction; from version 5 on, the end of a transaction increments the epoch (KIP-890)."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOL)


class EndTxnResponse(Struct, versions="0-5", flexible="3+"):
    """Response with the producer id and epoch for the next transaction (version 5)."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, "5+", default=-1, ignorable=True)
    producer_epoch: int = field(INT16, "5+", default=-1, ignorable=True)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """Element of ``TxnOffsetCommitRequest.topics``; from version 6 on, an id identifies the topic."""

    name: str = field(STRING, "0-5", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "6+", ignorable=True)
    partitions: Sequence[TxnOffsetCommitRequestPartition] = field(array(TxnOffsetCommitRequestPartition))


class TxnOffsetCommitRequest(Struct, versions="0-6", flexible="3+"):
    """Request to commit offsets of a group as part of a transaction."""

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id_or_member_epoch: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    topics: Sequence[TxnOffsetCommitRequestTopic] = field(array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = field(STRING, "0-5", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "6+", ignorable=True)
    partitions: Sequence[TxnOffsetCommitResponsePartition] = field(array(TxnOffsetCommitResponsePartition))


class TxnOffsetCommitResponse(Struct, versions="0-6", flexible="3+"):
    """Response with an error code for each partition."""

    throttle_time_ms: int = field(INT32)
    topics: Sequence[TxnOffsetCommitResponseTopic] = field(array(TxnOffsetCommitResponseTopic))


class DescribeTransactionsRequest(Struct, versions="0", flexible="0+"):
    """Request to describe transactions by their transactional ids."""

    transactional_ids: Sequence[str] = field(array(STRING))


class DescribedTransactionTopic(Struct):
    topic: str = field(STRING)
    partitions: Sequence[int] = field(array(INT32))


class DescribedTransaction(Struct):
    """Element of ``DescribeTransactionsResponse.transaction_states``; the start time is in milliseconds, or -1."""

    error_code: int = field(INT16)
    transactional_id: str = field(STRING)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: Sequence[DescribedTransactionTopic] = field(array(DescribedTransactionTopic))


class DescribeTransactionsResponse(Struct, versions="0", flexible="0+"):
    """Response with the state of each transactional id."""

    throttle_time_ms: int = field(INT32)
    transaction_states: Sequence[DescribedTransaction] = field(array(DescribedTransaction))


class ListTransactionsRequest(Struct, versions="0-2", flexible="0+"):
    """Request for the transactional ids of a coordinator; empty filters, and a negative duration, match all of them."""

    state_filters: Sequence[str] = field(array(STRING))
    producer_id_filters: Sequence[int] = field(array(INT64))
    duration_filter: int = field(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = field(STRING, "2+", nullable="2+", default=None)


class ListedTransaction(Struct):
    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


class ListTransactionsResponse(Struct, versions="0-2", flexible="0+"):
    """Response with the transactional ids of a coordinator, and the state filters that it does not know."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    unknown_state_filters: Sequence[str] = field(array(STRING))
    transaction_states: Sequence[ListedTransaction] = field(array(ListedTransaction))


class WritableTxnMarkerTopic(Struct):
    name: str = field(STRING)
    partition_indexes: Sequence[int] = field(array(INT32))


class WritableTxnMarker(Struct):
    """Element of ``WriteTxnMarkersRequest.markers``; ``transaction_result`` is true for a commit."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    transaction_result: bool = field(BOOL)
    topics: Sequence[WritableTxnMarkerTopic] = field(array(WritableTxnMarkerTopic))
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, "2+", ignorable=True)


class WriteTxnMarkersRequest(Struct, versions="1-2", flexible="1+"):
    """Request to write markers that end transactions: of coordinators, and of ``kafka-transactions abort``."""

    markers: Sequence[WritableTxnMarker] = field(array(WritableTxnMarker))


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class WritableTxnMarkerTopicResult(Struct):
    name: str = field(STRING)
    partitions: Sequence[WritableTxnMarkerPartitionResult] = field(array(WritableTxnMarkerPartitionResult))


class WritableTxnMarkerResult(Struct):
    producer_id: int = field(INT64)
    topics: Sequence[WritableTxnMarkerTopicResult] = field(array(WritableTxnMarkerTopicResult))


class WriteTxnMarkersResponse(Struct, versions="1-2", flexible="1+"):
    """Response with an error code for each partition of each marker."""

    markers: Sequence[WritableTxnMarkerResult] = field(array(WritableTxnMarkerResult))


class DescribeProducersTopic(Struct):
    name: str = field(STRING)
    partition_indexes: Sequence[int] = field(array(INT32))


class DescribeProducersRequest(Struct, versions="0", flexible="0+"):
    """Request for the idempotent and transactional producers of partitions (KIP-664)."""

    topics: Sequence[DescribeProducersTopic] = field(array(DescribeProducersTopic))


class ActiveProducer(Struct):
    """Element of ``DescribeProducersPartition.active_producers``; without an open transaction, its offset is -1."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, default=-1)


class DescribeProducersPartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    active_producers: Sequence[ActiveProducer] = field(array(ActiveProducer))


class DescribeProducersTopicResult(Struct):
    name: str = field(STRING)
    partitions: Sequence[DescribeProducersPartition] = field(array(DescribeProducersPartition))


class DescribeProducersResponse(Struct, versions="0", flexible="0+"):
    """Response with the producers of each partition."""

    throttle_time_ms: int = field(INT32)
    topics: Sequence[DescribeProducersTopicResult] = field(array(DescribeProducersTopicResult))
