"""Handle the requests about the log of a partition, such as Produce and ListOffsets, but not Fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from consumer_coord.broker.record_batch import BatchHeader, is_transactional, read_header
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.requests.failed import error_response
from consumer_coord.broker.requests.transactions import PRODUCE_VERSIONS, add_or_verify
from consumer_coord.broker.topics import Partition
from consumer_coord.broker.transaction import ProducerEpoch
from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from consumer_coord.wire.messages.transactions import (
    ActiveProducer,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

T = TypeVar("T")

#: The ``isolation_level`` of a consumer that must not read records of open or aborted transactions.
READ_COMMITTED = 1
#: Errors of the transaction coordinator that a producer gets as NOT_ENOUGH_REPLICAS, because old producers retry after it.
_UNVERIFIED = (
    error_codes.NETWORK_EXCEPTION,
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.NOT_COORDINATOR,
)
_LEGAL_ACKS = (-1, 0, 1)
_NO_EPOCH = -1
_CREATE_TIME = -1
#: A negative timestamp in ListOffsets selects an offset, such as the earliest: version -> the lowest one that is served. Lower
#: ones select offsets in tiered storage, which this broker does not have.
_LOWEST_TIMESTAMPS = {7: -3, 8: -4}
_LOWEST_TIMESTAMP = -2
_EARLIEST_LOCAL_TIMESTAMP = -4
_LIST_OFFSETS_EPOCH_FROM = 4


def _find(node: BrokerNode, topic: str, index: int, leader_epoch: int = _NO_EPOCH) -> tuple[int, Partition | None]:
    """Return (0, a partition that this broker leads), or (error code, None)."""
    partition = node.cluster.topics.partition(topic, index)
    if partition is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, None
    if leader_epoch != _NO_EPOCH and leader_epoch < partition.leader_epoch:
        return error_codes.FENCED_LEADER_EPOCH, None
    if leader_epoch > partition.leader_epoch:
        return error_codes.UNKNOWN_LEADER_EPOCH, None
    if partition.leader != node.broker_id:
        return error_codes.NOT_LEADER_OR_FOLLOWER, None
    return error_codes.NONE, partition


def _by_topic(
    kind: Callable[[str, Any], T], asked: Iterable[tuple[str, Iterable[Any]]], row: Callable[[str, Any], object]
) -> tuple[T, ...]:
    """Return for each requested topic a ``kind`` with the rows of the requested partitions."""
    return tuple(kind(topic, tuple(row(topic, wanted) for wanted in partitions)) for topic, partitions in asked)


# -- Produce


async def produce(node: BrokerNode, context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Serve Produce: append batches; return None for acks=0, because this request has no response."""
    code, verdicts = _verify(node, context.api_version, request)
    if code:
        response = error_response(request, context.api_version, code)
        assert isinstance(response, ProduceResponse)
    else:
        asked = ((topic.name, topic.partition_data) for topic in request.topic_data)
        row = partial(_append, node, request, verdicts)
        response = ProduceResponse(responses=_by_topic(TopicProduceResponse, asked, row))
    if request.acks == 0:
        failed = [p for topic in response.responses for p in topic.partition_responses if p.error_code]
        if failed:
            # A producer with acks=0 reads no response. So report the error by ending its connection.
            raise AppendError(failed[0].error_code, "a batch was refused, and its producer expects no response")
        return None
    return response


def _verify(node: BrokerNode, version: int, request: ProduceRequest) -> tuple[int, Mapping[tuple[str, int], int]]:
    """Verify the partitions with transactional batches; return (error code of the request, codes of these partitions)."""
    headers: dict[tuple[str, int], BatchHeader] = {}
    flagged = False
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records and is_transactional(data.records):
                flagged = True
                try:
                    header = read_header(data.records)
                except MalformedMessageError:
                    continue  # The append reports the error.
                if header.transactional:
                    headers[topic.name, data.index] = header
    if flagged and request.transactional_id is None:
        return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {}
    if not headers or request.transactional_id is None:
        return error_codes.NONE, {}
    producers = {ProducerEpoch(header.producer_id, header.producer_epoch) for header in headers.values()}
    if len(producers) > 1:
        return error_codes.INVALID_PRODUCER_ID_MAPPING, {}
    sequences = {one: header.base_sequence for one, header in headers.items()}
    codes = add_or_verify(node, request.transactional_id, producers.pop(), sequences, version, PRODUCE_VERSIONS)
    retriable = _UNVERIFIED if version >= PRODUCE_VERSIONS[1] else (*_UNVERIFIED, error_codes.CONCURRENT_TRANSACTIONS)
    return error_codes.NONE, {
        one: error_codes.NOT_ENOUGH_REPLICAS if code in retriable else code for one, code in codes.items()
    }


def _append(
    node: BrokerNode,
    request: ProduceRequest,
    verdicts: Mapping[tuple[str, int], int],
    topic: str,
    data: PartitionProduceData,
) -> PartitionProduceResponse:
    error_code, partition = _find(node, topic, data.index)
    message = None
    verdict = verdicts.get((topic, data.index))
    if request.acks not in _LEGAL_ACKS:
        error_code = error_codes.INVALID_REQUIRED_ACKS
    elif partition is not None and node.cluster.topics.by_name[topic].internal:
        error_code = error_codes.INVALID_TOPIC_EXCEPTION
    elif error_code == error_codes.NONE:
        error_code = verdict or node.cluster.append_error()
    if error_code == error_codes.NONE and partition is not None:
        try:
            base_offset = partition.log.append(data.records or b"", partition.leader_epoch, verified=verdict is not None)
        except AppendError as error:
            error_code, message = error.code, str(error)
        else:
            return PartitionProduceResponse(
                index=data.index,
                error_code=error_codes.NONE,
                base_offset=base_offset,
                log_append_time_ms=_CREATE_TIME,
                log_start_offset=partition.log.log_start_offset,
            )
    return PartitionProduceResponse(index=data.index, error_code=error_code, base_offset=-1, error_message=message)


# -- offsets and epochs


async def list_offsets(node: BrokerNode, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Serve ListOffsets: offsets for timestamps, or the first and end offsets of logs."""
    asked = ((topic.name, topic.partitions) for topic in request.topics)
    row = partial(_list_offset, node, context.api_version, request.isolation_level)
    return ListOffsetsResponse(topics=_by_topic(ListOffsetsTopicResponse, asked, row))


def _list_offset(
    node: BrokerNode, api_version: int, isolation_level: int, topic: str, wanted: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    error_code, partition = _find(node, topic, wanted.partition_index, wanted.current_leader_epoch)
    if error_code == error_codes.NONE and wanted.timestamp < _LOWEST_TIMESTAMPS.get(api_version, _LOWEST_TIMESTAMP):
        error_code = error_codes.UNSUPPORTED_VERSION
    if error_code or partition is None:
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error_code)
    log = partition.log
    # Without tiered storage, all records are local.
    at = EARLIEST_TIMESTAMP if wanted.timestamp == _EARLIEST_LOCAL_TIMESTAMP else wanted.timestamp
    offset, timestamp_ms, epoch = log.offset_for(at)
    if isolation_level == READ_COMMITTED and offset >= log.last_stable_offset and at != EARLIEST_TIMESTAMP:
        # With read_committed, the log ends before the first record of an open transaction.
        found = at == LATEST_TIMESTAMP
        offset, timestamp_ms, epoch = log.last_stable_offset if found else -1, -1, epoch if found else -1
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=error_codes.NONE,
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=epoch if api_version >= _LIST_OFFSETS_EPOCH_FROM else _NO_EPOCH,
    )


async def offset_for_leader_epoch(
    node: BrokerNode, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return the end offset of a leader epoch, by which a consumer checks whether its position still exists (KIP-320)."""
    asked = ((topic.topic, topic.partitions) for topic in request.topics)
    return OffsetForLeaderEpochResponse(topics=_by_topic(OffsetForLeaderTopicResult, asked, partial(_epoch_end, node)))


def _epoch_end(node: BrokerNode, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    error_code, partition = _find(node, topic, wanted.partition, wanted.current_leader_epoch)
    if error_code or partition is None:
        return EpochEndOffset(error_code=error_code, partition=wanted.partition)
    epoch, end_offset = partition.log.end_offset_for(wanted.leader_epoch, partition.leader_epoch)
    return EpochEndOffset(error_code=error_codes.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


async def delete_records(node: BrokerNode, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Serve DeleteRecords: delete the records before an offset; -1 deletes all records."""
    asked = ((topic.name, topic.partitions) for topic in request.topics)
    return DeleteRecordsResponse(topics=_by_topic(DeleteRecordsTopicResult, asked, partial(_delete_records, node)))


def _delete_records(node: BrokerNode, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    error_code, partition = _find(node, topic, wanted.partition_index)
    low_watermark = -1
    if partition is not None:
        log = partition.log
        before = log.end_offset if wanted.offset == -1 else wanted.offset
        if node.cluster.topics.by_name[topic].internal:
            error_code = error_codes.POLICY_VIOLATION
        elif not 0 <= before <= log.end_offset:
            error_code = error_codes.OFFSET_OUT_OF_RANGE
        else:
            log.delete_before(before)
            low_watermark = log.log_start_offset
    return DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=low_watermark, error_code=error_code
    )


# -- producers of a partition (KIP-664)


async def describe_producers(
    node: BrokerNode, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Serve DescribeProducers: the producers that have written to a partition, with their open transactions."""
    asked = ((topic.name, topic.partition_indexes) for topic in request.topics)
    return DescribeProducersResponse(topics=_by_topic(DescribeProducersTopicResult, asked, partial(_producers_of, node)))


def _producers_of(node: BrokerNode, topic: str, index: int) -> DescribeProducersPartition:
    error_code, partition = _find(node, topic, index)
    if partition is None:
        return DescribeProducersPartition(partition_index=index, error_code=error_code)
    log = partition.log
    return DescribeProducersPartition(
        partition_index=index,
        error_code=error_codes.NONE,
        active_producers=tuple(
            ActiveProducer(
                producer_id=one.producer_id,
                producer_epoch=one.epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_timestamp_ms,
                coordinator_epoch=one.coordinator_epoch,
                current_txn_start_offset=log.transaction_start(one.producer_id),
            )
            for one in log.producers.described()
        ),
    )


async def write_txn_markers(
    node: BrokerNode, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Serve WriteTxnMarkers: end the transactions of producers in partitions, as ``kafka-transactions abort`` asks for it."""
    return WriteTxnMarkersResponse(
        markers=tuple(
            WritableTxnMarkerResult(
                marker.producer_id,
                _by_topic(
                    WritableTxnMarkerTopicResult,
                    ((topic.name, topic.partition_indexes) for topic in marker.topics),
                    partial(_write_marker, node, marker),
                ),
            )
            for marker in request.markers
        )
    )


def _write_marker(node: BrokerNode, marker: WritableTxnMarker, topic: str, index: int) -> WritableTxnMarkerPartitionResult:
    error_code, partition = _find(node, topic, index)
    if partition is not None:
        producer = (marker.producer_id, marker.producer_epoch)
        try:
            partition.log.producers.check_marker(*producer, marker.coordinator_epoch)
            node.cluster.append_marker(partition, *producer, marker.transaction_result, marker.coordinator_epoch)
        except AppendError as error:
            error_code = error.code
    return WritableTxnMarkerPartitionResult(partition_index=index, error_code=error_code)
