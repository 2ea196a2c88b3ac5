"""Handle OffsetCommit, OffsetFetch and OffsetDelete, including older versions, whose fields differ."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import attrs

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.group_offsets import Commit, CommitResult, Committer
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.topic_partition import grouped
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.offsets import (
    OFFSET_COMMIT_BY_NAME,
    OFFSET_FETCH_BY_NAME,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from consumer_coord.wire.offsets_topic import OffsetCommitValue
from consumer_coord.wire.schema import ZERO_UUID

T = TypeVar("T")

_GROUPS_FROM = 8
_GROUP_ERROR_FROM = 2
_NO_OFFSET = -1


async def offset_commit(node: BrokerNode, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Serve OffsetCommit: refuse partitions that do not exist, and pass the other partitions to the coordinator."""
    topics = node.cluster.topics
    commits: list[Commit] = []
    unknown: list[CommitResult] = []
    by_id = context.api_version > OFFSET_COMMIT_BY_NAME
    for topic in request.topics:
        known = topics.by_id.get(topic.topic_id) if by_id else topics.by_name.get(topic.name)
        for partition in topic.partitions:
            commit = Commit(
                topic.name if known is None else known.name,
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata,
                topic.topic_id if known is None else known.topic_id,
            )
            if known is None and by_id:
                unknown.append((commit, error_codes.UNKNOWN_TOPIC_ID))
            elif known is None or not 0 <= partition.partition_index < len(known.partitions):
                unknown.append((commit, error_codes.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                commits.append(commit)
    committer = Committer(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        request.retention_time_ms,
    )
    results: Sequence[CommitResult] = ()
    if commits:
        results = await node.coordinator.offsets.commit(context.api_version, committer, commits)
    found = grouped(((result[0].topic, result[0].topic_id), result) for result in (*results, *unknown))
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic,
                topic_id=topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=commit.partition, error_code=error_code)
                    for commit, error_code in partitions
                ),
            )
            for (topic, topic_id), partitions in found.items()
        )
    )


async def offset_fetch(node: BrokerNode, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Serve OffsetFetch: up to version 7 one group, since version 8 several groups, since version 10 topics by id."""
    offsets = node.coordinator.offsets
    if context.api_version >= _GROUPS_FROM:
        by_id = context.api_version > OFFSET_FETCH_BY_NAME
        groups = (_fetch_group(node, group, request.require_stable, by_id) for group in request.groups)
        return OffsetFetchResponse(groups=tuple(groups))
    wanted = _wanted(request.topics)
    error_code, found = offsets.fetch(request.group_id, wanted, request.require_stable)
    if error_code and wanted is not None and context.api_version < _GROUP_ERROR_FROM:
        # Version 1 has no error code for the whole group, so report the error for each partition.
        found = [(topic, index, error_code) for topic, index in wanted]
        error_code = error_codes.NONE
    return OffsetFetchResponse(
        error_code=error_code, topics=_by_name(found, OffsetFetchResponseTopic, OffsetFetchResponsePartition)
    )


def _fetch_group(
    node: BrokerNode, group: OffsetFetchRequestGroup, require_stable: bool, by_id: bool
) -> OffsetFetchResponseGroup:
    """Fetch the offsets of a group; if ``by_id``, do not fetch the offsets of an older topic with the same name.

    Kafka does this in ``OffsetMetadataManager.isMismatchedTopicId``.
    """
    topics = node.cluster.topics
    requested, unknown = group.topics, []
    if by_id and requested is not None:
        unknown = [
            OffsetFetchResponseTopics(
                topic_id=topic.topic_id,
                partitions=_partitions(
                    (("", index, error_codes.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes),
                    OffsetFetchResponsePartitions,
                ),
            )
            for topic in requested
            if topic.topic_id not in topics.by_id
        ]
        known = (topic for topic in requested if topic.topic_id in topics.by_id)
        requested = [attrs.evolve(topic, name=topics.by_id[topic.topic_id].name) for topic in known]
    error_code, found = node.coordinator.offsets.fetch(
        group.group_id, _wanted(requested), require_stable, group.member_id, group.member_epoch
    )
    if error_code:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error_code)
    ids: dict[str, uuid.UUID] = {}
    if by_id:
        # Omit deleted topics, because their ids are not known any longer.
        ids = {name: topics.by_name[name].topic_id for name, _, _ in found if name in topics.by_name}
        found = [
            (name, index, error_codes.NONE if _is_older(offset, ids[name]) else offset)
            for name, index, offset in found
            if name in ids
        ]
    rows = _by_name(found, OffsetFetchResponseTopics, OffsetFetchResponsePartitions)
    named = [attrs.evolve(topic, topic_id=ids.get(topic.name, ZERO_UUID)) for topic in rows]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=(*named, *unknown))


def _is_older(offset: OffsetCommitValue | int, topic_id: uuid.UUID) -> bool:
    return isinstance(offset, OffsetCommitValue) and offset.topic_id not in (ZERO_UUID, topic_id)


def _wanted(
    topics: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
) -> Sequence[tuple[str, int]] | None:
    """Return the requested (topic, partition) pairs, or None if the request is for all committed offsets."""
    if topics is None:
        return None
    return [(topic.name, index) for topic in topics for index in topic.partition_indexes]


#: (topic, partition, a committed offset or an error code).
_Found = tuple[str, int, OffsetCommitValue | int]


def _by_name(found: Iterable[_Found], topic: Callable[..., T], partition: Callable[..., Any]) -> tuple[T, ...]:
    """Return offsets or error codes in the topic and partition classes of one version of the response."""
    return tuple(
        topic(name=name, partitions=_partitions(partitions, partition))
        for name, partitions in groupby(found, key=lambda entry: entry[0])
    )


def _partitions(found: Iterable[_Found], partition: Callable[..., T]) -> tuple[T, ...]:
    return tuple(
        partition(
            partition_index=index,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
        )
        if isinstance(offset, OffsetCommitValue)
        else partition(partition_index=index, committed_offset=_NO_OFFSET, metadata="", error_code=offset)
        for _, index, offset in found
    )


async def offset_delete(node: BrokerNode, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Serve OffsetDelete."""
    topics = node.cluster.topics
    wanted: list[tuple[str, int]] = []
    results: list[tuple[str, int, int]] = []
    for topic in request.topics:
        for partition in topic.partitions:
            if topics.partition(topic.name, partition.partition_index) is None:
                results.append((topic.name, partition.partition_index, error_codes.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                wanted.append((topic.name, partition.partition_index))
    error_code, deleted = await node.coordinator.offsets.delete(request.group_id, wanted)
    if error_code:
        return OffsetDeleteResponse(error_code=error_code)
    rows = grouped(
        (name, OffsetDeleteResponsePartition(partition_index=index, error_code=partition_error))
        for name, index, partition_error in (*results, *deleted)
    )
    return OffsetDeleteResponse(
        error_code=error_codes.NONE,
        topics=tuple(OffsetDeleteResponseTopic(name=name, partitions=tuple(partitions)) for name, partitions in rows.items()),
    )
