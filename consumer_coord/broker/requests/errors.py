"""The answer that a request gets when it fails as a whole, in the shape its API has for that (``getErrorResponse``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from consumer_coord.wire import messages as m
from consumer_coord.wire.schema import Struct


def error_response(request: Struct, version: int, error_code: int) -> Struct:
    """A response to ``request`` in which everything failed with ``error_code``."""
    return _RESPONSES[type(request)](request, version, error_code)


def _produce(request: m.ProduceRequest, version: int, code: int) -> Struct:
    return m.ProduceResponse(
        responses=tuple(
            m.TopicProduceResponse(
                name=topic.name,
                partition_responses=tuple(
                    m.PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1)
                    for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _fetch(request: m.FetchRequest, version: int, code: int) -> Struct:
    return m.FetchResponse(
        responses=tuple(
            m.FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    m.PartitionData(
                        partition_index=partition.partition, error_code=code, high_watermark=-1, records=b""
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _list_offsets(request: m.ListOffsetsRequest, version: int, code: int) -> Struct:
    return m.ListOffsetsResponse(
        topics=tuple(
            m.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    m.ListOffsetsPartitionResponse(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _metadata(request: m.MetadataRequest, version: int, code: int) -> Struct:
    return m.MetadataResponse(
        topics=tuple(
            m.MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ),
        error_code=code,
    )


def _offset_commit(request: m.OffsetCommitRequest, version: int, code: int) -> Struct:
    return m.OffsetCommitResponse(
        topics=tuple(
            m.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    m.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _offset_fetch(request: m.OffsetFetchRequest, version: int, code: int) -> Struct:
    if version >= 8:
        return m.OffsetFetchResponse(
            groups=tuple(
                m.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups
            )
        )
    partitions = tuple(
        m.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=tuple(
                m.OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=code
                )
                for index in topic.partition_indexes
            ),
        )
        for topic in request.topics or ()
    )
    return m.OffsetFetchResponse(topics=partitions, error_code=code)


def _find_coordinator(request: m.FindCoordinatorRequest, version: int, code: int) -> Struct:
    if version >= 4:
        return m.FindCoordinatorResponse(
            coordinators=tuple(
                m.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None)
                for key in request.coordinator_keys
            )
        )
    return m.FindCoordinatorResponse(error_code=code, error_message=None, node_id=-1, host="", port=-1)


def _join_group(request: m.JoinGroupRequest, version: int, code: int) -> Struct:
    return m.JoinGroupResponse(
        error_code=code, member_id=request.member_id, protocol_name=None if version >= 7 else ""
    )


def _leave_group(request: m.LeaveGroupRequest, version: int, code: int) -> Struct:
    return m.LeaveGroupResponse(error_code=code)


def _describe_groups(request: m.DescribeGroupsRequest, version: int, code: int) -> Struct:
    return m.DescribeGroupsResponse(
        groups=tuple(m.DescribedGroup(error_code=code, group_id=group_id) for group_id in request.groups)
    )


def _create_topics(request: m.CreateTopicsRequest, version: int, code: int) -> Struct:
    return m.CreateTopicsResponse(
        topics=tuple(
            m.CreatableTopicResult(name=topic.name, error_code=code, error_message=None, configs=())
            for topic in request.topics
        )
    )


def _delete_topics(request: m.DeleteTopicsRequest, version: int, code: int) -> Struct:
    if version >= 6:
        return m.DeleteTopicsResponse(
            responses=tuple(
                m.DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
                for topic in request.topics
            )
        )
    return m.DeleteTopicsResponse(
        responses=tuple(m.DeletableTopicResult(name=name, error_code=code) for name in request.topic_names)
    )


def _delete_records(request: m.DeleteRecordsRequest, version: int, code: int) -> Struct:
    return m.DeleteRecordsResponse(
        topics=tuple(
            m.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    m.DeleteRecordsPartitionResult(
                        partition_index=partition.partition_index, low_watermark=-1, error_code=code
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _offset_for_leader_epoch(request: m.OffsetForLeaderEpochRequest, version: int, code: int) -> Struct:
    return m.OffsetForLeaderEpochResponse(
        topics=tuple(
            m.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    m.EpochEndOffset(error_code=code, partition=partition.partition) for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _describe_configs(request: m.DescribeConfigsRequest, version: int, code: int) -> Struct:
    return m.DescribeConfigsResponse(
        results=tuple(
            m.DescribeConfigsResult(
                error_code=code,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        )
    )


def _create_partitions(request: m.CreatePartitionsRequest, version: int, code: int) -> Struct:
    return m.CreatePartitionsResponse(
        results=tuple(m.CreatePartitionsTopicResult(name=topic.name, error_code=code) for topic in request.topics)
    )


def _delete_groups(request: m.DeleteGroupsRequest, version: int, code: int) -> Struct:
    return m.DeleteGroupsResponse(
        results=tuple(m.DeletableGroupResult(group_id=group_id, error_code=code) for group_id in request.groups_names)
    )


_RESPONSES: Mapping[type[Struct], Callable[[Any, int, int], Struct]] = {
    m.ProduceRequest: _produce,
    m.FetchRequest: _fetch,
    m.ListOffsetsRequest: _list_offsets,
    m.MetadataRequest: _metadata,
    m.OffsetCommitRequest: _offset_commit,
    m.OffsetFetchRequest: _offset_fetch,
    m.FindCoordinatorRequest: _find_coordinator,
    m.JoinGroupRequest: _join_group,
    m.HeartbeatRequest: lambda request, version, code: m.HeartbeatResponse(error_code=code),
    m.LeaveGroupRequest: _leave_group,
    m.SyncGroupRequest: lambda request, version, code: m.SyncGroupResponse(error_code=code),
    m.DescribeGroupsRequest: _describe_groups,
    m.ListGroupsRequest: lambda request, version, code: m.ListGroupsResponse(error_code=code),
    m.ApiVersionsRequest: lambda request, version, code: m.ApiVersionsResponse(error_code=code),
    m.CreateTopicsRequest: _create_topics,
    m.DeleteTopicsRequest: _delete_topics,
    m.DeleteRecordsRequest: _delete_records,
    m.InitProducerIdRequest: lambda request, version, code: m.InitProducerIdResponse(
        error_code=code, producer_id=-1, producer_epoch=-1
    ),
    m.OffsetForLeaderEpochRequest: _offset_for_leader_epoch,
    m.DescribeConfigsRequest: _describe_configs,
    m.CreatePartitionsRequest: _create_partitions,
    m.DeleteGroupsRequest: _delete_groups,
    m.OffsetDeleteRequest: lambda request, version, code: m.OffsetDeleteResponse(error_code=code),
    m.DescribeClusterRequest: lambda request, version, code: m.DescribeClusterResponse(
        error_code=code, cluster_id="", endpoint_type=1
    ),
}
