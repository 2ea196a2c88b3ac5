"""The answer that a request gets when it fails as a whole, in the shape its API has for that (``getErrorResponse``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from consumer_coord.wire.messages.admin import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from consumer_coord.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from consumer_coord.wire.messages.log import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
    PartitionData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from consumer_coord.wire.schema import Struct


def error_response(request: Struct, version: int, error_code: int) -> Struct:
    """A response to ``request`` in which everything failed with ``error_code``."""
    return _RESPONSES[type(request)](request, version, error_code)


def _produce(request: ProduceRequest, version: int, code: int) -> Struct:
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


def _fetch(request: FetchRequest, version: int, code: int) -> Struct:
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    PartitionData(
                        partition_index=partition.partition, error_code=code, high_watermark=-1, records=b""
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _list_offsets(request: ListOffsetsRequest, version: int, code: int) -> Struct:
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


def _metadata(request: MetadataRequest, version: int, code: int) -> Struct:
    return MetadataResponse(
        topics=tuple(
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ),
        error_code=code,
    )


def _offset_commit(request: OffsetCommitRequest, version: int, code: int) -> Struct:
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _offset_fetch(request: OffsetFetchRequest, version: int, code: int) -> Struct:
    if version >= 8:
        return OffsetFetchResponse(
            groups=tuple(
                OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups
            )
        )
    partitions = tuple(
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=code
                )
                for index in topic.partition_indexes
            ),
        )
        for topic in request.topics or ()
    )
    return OffsetFetchResponse(topics=partitions, error_code=code)


def _find_coordinator(request: FindCoordinatorRequest, version: int, code: int) -> Struct:
    if version >= 4:
        return FindCoordinatorResponse(
            coordinators=tuple(
                Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
                for key in request.coordinator_keys
            )
        )
    return FindCoordinatorResponse(error_code=code, error_message=None, node_id=-1, host="", port=-1)


def _join_group(request: JoinGroupRequest, version: int, code: int) -> Struct:
    return JoinGroupResponse(
        error_code=code, member_id=request.member_id, protocol_name=None if version >= 7 else ""
    )


def _leave_group(request: LeaveGroupRequest, version: int, code: int) -> Struct:
    return LeaveGroupResponse(error_code=code)


def _describe_groups(request: DescribeGroupsRequest, version: int, code: int) -> Struct:
    return DescribeGroupsResponse(
        groups=tuple(DescribedGroup(error_code=code, group_id=group_id) for group_id in request.groups)
    )


def _create_topics(request: CreateTopicsRequest, version: int, code: int) -> Struct:
    return CreateTopicsResponse(
        topics=tuple(
            CreatableTopicResult(name=topic.name, error_code=code, error_message=None, configs=())
            for topic in request.topics
        )
    )


def _delete_topics(request: DeleteTopicsRequest, version: int, code: int) -> Struct:
    if version >= 6:
        return DeleteTopicsResponse(
            responses=tuple(
                DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
                for topic in request.topics
            )
        )
    return DeleteTopicsResponse(
        responses=tuple(DeletableTopicResult(name=name, error_code=code) for name in request.topic_names)
    )


def _delete_records(request: DeleteRecordsRequest, version: int, code: int) -> Struct:
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index, low_watermark=-1, error_code=code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, version: int, code: int) -> Struct:
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


def _describe_configs(request: DescribeConfigsRequest, version: int, code: int) -> Struct:
    return DescribeConfigsResponse(
        results=tuple(
            DescribeConfigsResult(
                error_code=code,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        )
    )


def _create_partitions(request: CreatePartitionsRequest, version: int, code: int) -> Struct:
    return CreatePartitionsResponse(
        results=tuple(CreatePartitionsTopicResult(name=topic.name, error_code=code) for topic in request.topics)
    )


def _delete_groups(request: DeleteGroupsRequest, version: int, code: int) -> Struct:
    return DeleteGroupsResponse(
        results=tuple(DeletableGroupResult(group_id=group_id, error_code=code) for group_id in request.groups_names)
    )


def _consumer_group_describe(request: ConsumerGroupDescribeRequest, version: int, code: int) -> Struct:
    return ConsumerGroupDescribeResponse(
        groups=tuple(ConsumerGroupDescribeGroup(group_id=group_id, error_code=code) for group_id in request.group_ids)
    )


_RESPONSES: Mapping[type[Struct], Callable[[Any, int, int], Struct]] = {
    ProduceRequest: _produce,
    FetchRequest: _fetch,
    ListOffsetsRequest: _list_offsets,
    MetadataRequest: _metadata,
    OffsetCommitRequest: _offset_commit,
    OffsetFetchRequest: _offset_fetch,
    FindCoordinatorRequest: _find_coordinator,
    JoinGroupRequest: _join_group,
    HeartbeatRequest: lambda request, version, code: HeartbeatResponse(error_code=code),
    LeaveGroupRequest: _leave_group,
    SyncGroupRequest: lambda request, version, code: SyncGroupResponse(error_code=code),
    DescribeGroupsRequest: _describe_groups,
    ListGroupsRequest: lambda request, version, code: ListGroupsResponse(error_code=code),
    ApiVersionsRequest: lambda request, version, code: ApiVersionsResponse(error_code=code),
    CreateTopicsRequest: _create_topics,
    DeleteTopicsRequest: _delete_topics,
    DeleteRecordsRequest: _delete_records,
    InitProducerIdRequest: lambda request, version, code: InitProducerIdResponse(
        error_code=code, producer_id=-1, producer_epoch=-1
    ),
    OffsetForLeaderEpochRequest: _offset_for_leader_epoch,
    DescribeConfigsRequest: _describe_configs,
    CreatePartitionsRequest: _create_partitions,
    DeleteGroupsRequest: _delete_groups,
    OffsetDeleteRequest: lambda request, version, code: OffsetDeleteResponse(error_code=code),
    DescribeClusterRequest: lambda request, version, code: DescribeClusterResponse(
        error_code=code, cluster_id="", endpoint_type=1
    ),
    ConsumerGroupHeartbeatRequest: lambda request, version, code: ConsumerGroupHeartbeatResponse(error_code=code),
    ConsumerGroupDescribeRequest: _consumer_group_describe,
}
