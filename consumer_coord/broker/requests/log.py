"""Produce, Fetch, ListOffsets and the other requests about the log of a partition."""

from __future__ import annotations

import asyncio
import itertools

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.joining import RequestContext
from consumer_coord.broker.topics import Partition
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.log import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
    PartitionData,
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

_LEGAL_ACKS = (-1, 0, 1)
_NO_EPOCH = -1
_CREATE_TIME = -1
#: ListOffsets' timestamps below -3 ask for tiers that are not here.
_LOWEST_TIMESTAMP = -3
_LIST_OFFSETS_EPOCH_FROM = 4
_waiters = itertools.count()


def _find(node: BrokerNode, topic: str, index: int, leader_epoch: int = _NO_EPOCH) -> tuple[int, Partition | None]:
    """(0, a partition that this broker leads), or the error that sends the client elsewhere."""
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


# -- Produce


async def produce(node: BrokerNode, context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append batches; no answer when the producer wants none."""
    response = ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(_append(node, request, topic.name, partition) for partition in topic.partition_data),
            )
            for topic in request.topic_data
        )
    )
    if request.acks == 0:
        failed = [p for topic in response.responses for p in topic.partition_responses if p.error_code]
        if failed:
            # Such a producer reads no answer; that its connection ends is how it learns of the error.
            raise AppendError(failed[0].error_code, "a batch was refused, and its producer wants no answer")
        return None
    return response


def produce_failed(request: ProduceRequest, version: int, code: int) -> ProduceResponse:
    """All of it failed with ``code``."""
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1)
                    for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _append(node: BrokerNode, request: ProduceRequest, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
    error_code, partition = _find(node, topic, data.index)
    message = None
    if request.acks not in _LEGAL_ACKS:
        error_code = error_codes.INVALID_REQUIRED_ACKS
    elif partition is not None and node.cluster.topics.by_name[topic].internal:
        error_code = error_codes.INVALID_TOPIC_EXCEPTION
    elif request.transactional_id is not None:
        error_code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif error_code == error_codes.NONE:
        error_code = node.cluster.append_error()
    if error_code == error_codes.NONE and partition is not None:
        try:
            result = partition.log.append(data.records or b"", partition.leader_epoch)
        except AppendError as error:
            error_code, message = error.code, str(error)
        else:
            return PartitionProduceResponse(
                index=data.index,
                error_code=error_codes.NONE,
                base_offset=result.base_offset,
                log_append_time_ms=_CREATE_TIME,
                log_start_offset=result.log_start_offset,
            )
    return PartitionProduceResponse(index=data.index, error_code=error_code, base_offset=-1, error_message=message)


async def init_producer_id(node: BrokerNode, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """A new id for an idempotent producer; transactional ones are refused."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
    return InitProducerIdResponse(error_code=error_codes.NONE, producer_id=node.cluster.next_producer_id(), producer_epoch=0)


def init_producer_id_failed(request: InitProducerIdRequest, version: int, code: int) -> InitProducerIdResponse:
    """All of it failed with ``code``."""
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


# -- Fetch


async def fetch(node: BrokerNode, context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Read batches; with nothing to read, wait for ``min_bytes`` or ``max_wait_ms``, whichever comes first.

    There are no fetch sessions: the answer's session id 0 makes every client name all partitions each time.
    """
    if request.max_wait_ms > 0 and request.min_bytes > 0:
        await _wait_for_records(node, request)
    budget = min(request.max_bytes, node.cluster.config.fetch_max_bytes)
    responses = []
    empty_so_far = True
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            data = _read(node, topic.topic, wanted, budget, empty_so_far)
            size = len(data.records or b"")
            budget = max(budget - size, 0)
            empty_so_far = empty_so_far and not size
            partitions.append(data)
        responses.append(FetchableTopicResponse(topic=topic.topic, partitions=tuple(partitions)))
    return FetchResponse(session_id=0, error_code=error_codes.NONE, responses=tuple(responses))


def fetch_failed(request: FetchRequest, version: int, code: int) -> FetchResponse:
    """All of it failed with ``code``."""
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    PartitionData(partition_index=partition.partition, error_code=code, high_watermark=-1, records=b"")
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def _wait_for_records(node: BrokerNode, request: FetchRequest) -> None:
    partitions = []
    ready = 0
    for topic in request.topics:
        for wanted in topic.partitions:
            error_code, partition = _find(node, topic.topic, wanted.partition, wanted.current_leader_epoch)
            if error_code or partition is None:
                return  # an error is answered at once
            log = partition.log
            if not log.log_start_offset <= wanted.fetch_offset <= log.end_offset:
                return
            if wanted.fetch_offset < log.end_offset:
                ready += log.available(wanted.fetch_offset, min(request.min_bytes, wanted.partition_max_bytes))
            partitions.append(partition)
    if ready >= request.min_bytes:
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    def appended(size: int) -> None:
        nonlocal ready
        ready += size
        if not size or ready >= request.min_bytes:  # no bytes: the leader changed, or the topic is gone
            wake()

    number = next(_waiters)
    for partition in partitions:
        partition.log.on_append[number] = appended
    node.waiting[number] = wake
    timer = node.purgatory.schedule(request.max_wait_ms, wake)
    try:
        await done
    finally:
        node.purgatory.cancel(timer)
        node.waiting.pop(number, None)
        for partition in partitions:
            partition.log.on_append.pop(number, None)


def _read(node: BrokerNode, topic: str, wanted: FetchPartition, budget: int, at_least_one: bool) -> PartitionData:
    error_code, partition = _find(node, topic, wanted.partition, wanted.current_leader_epoch)
    if partition is None:
        return PartitionData(partition_index=wanted.partition, error_code=error_code, high_watermark=-1, records=b"")
    log = partition.log
    if not log.log_start_offset <= wanted.fetch_offset <= log.end_offset:
        error_code = error_codes.OFFSET_OUT_OF_RANGE
        records = b""
    else:
        records = log.read(wanted.fetch_offset, min(budget, wanted.partition_max_bytes), at_least_one)
    return PartitionData(
        partition_index=wanted.partition,
        error_code=error_code,
        high_watermark=log.end_offset,
        last_stable_offset=log.end_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=None,
        records=records,
    )


# -- offsets and epochs


async def list_offsets(node: BrokerNode, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Offsets by timestamp, or of the ends of the logs."""
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(_list_offset(node, context.api_version, topic.name, wanted) for wanted in topic.partitions),
            )
            for topic in request.topics
        )
    )


def list_offsets_failed(request: ListOffsetsRequest, version: int, code: int) -> ListOffsetsResponse:
    """All of it failed with ``code``."""
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _list_offset(node: BrokerNode, api_version: int, topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    error_code, partition = _find(node, topic, wanted.partition_index, wanted.current_leader_epoch)
    if error_code == error_codes.NONE and wanted.timestamp < _LOWEST_TIMESTAMP:
        error_code = error_codes.UNSUPPORTED_VERSION
    if error_code or partition is None:
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error_code)
    offset, timestamp_ms, epoch = partition.log.offset_for(wanted.timestamp)
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
    """Where an epoch ended, so that a consumer can tell whether its position still exists (KIP-320)."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(_epoch_end(node, topic.topic, wanted) for wanted in topic.partitions),
            )
            for topic in request.topics
        )
    )


def offset_for_leader_epoch_failed(
    request: OffsetForLeaderEpochRequest, version: int, code: int
) -> OffsetForLeaderEpochResponse:
    """All of it failed with ``code``."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    EpochEndOffset(error_code=code, partition=partition.partition) for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _epoch_end(node: BrokerNode, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    error_code, partition = _find(node, topic, wanted.partition, wanted.current_leader_epoch)
    if error_code or partition is None:
        return EpochEndOffset(error_code=error_code, partition=wanted.partition)
    epoch, end_offset = partition.log.end_offset_for(wanted.leader_epoch)
    return EpochEndOffset(error_code=error_codes.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


async def delete_records(node: BrokerNode, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Forget the records before an offset; -1 means all of them."""
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    _delete_records(node, topic.name, wanted.partition_index, wanted.offset) for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def delete_records_failed(request: DeleteRecordsRequest, version: int, code: int) -> DeleteRecordsResponse:
    """All of it failed with ``code``."""
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    DeleteRecordsPartitionResult(partition_index=partition.partition_index, low_watermark=-1, error_code=code)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _delete_records(node: BrokerNode, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    error_code, partition = _find(node, topic, index)
    low_watermark = -1
    if partition is not None:
        log = partition.log
        before = log.end_offset if offset == -1 else offset
        if node.cluster.topics.by_name[topic].internal:
            error_code = error_codes.POLICY_VIOLATION
        elif not 0 <= before <= log.end_offset:
            error_code = error_codes.OFFSET_OUT_OF_RANGE
        else:
            log.delete_before(before)
            low_watermark = log.log_start_offset
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=error_code)
