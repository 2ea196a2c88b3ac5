"""Fetch, set and delete the committed offsets of a group without being a member; look up the ends of logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from consumer_coord.admin.ask import ask_coordinator, check, refused
from consumer_coord.errors import AuthorizationError, BrokerError, CoordinatorError, FatalError, UnknownTopicError
from consumer_coord.leaders.list_offsets import LATEST, list_offsets
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.group_requests import offset_fetch, offsets_in
from consumer_coord.net.metadata import Broker, Metadata
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.setting_names import did_you_mean
from consumer_coord.topic_partition import TopicPartition, by_topic, listed
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import (
    OFFSET_COMMIT_BY_NAME,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)


async def committed_offsets(
    cluster: ClusterClient, group_id: str, deadline: Deadline
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Return all committed offsets of the group, by partition; empty for a group that does not exist."""

    def read(answer: Any, coordinator: Broker) -> dict[TopicPartition, OffsetAndMetadata]:
        code, offsets = offsets_in(answer, group_id, cluster.answers, coordinator)
        check(code, group_id, "OffsetFetch")
        found = {}
        for row in offsets:
            check(row.error_code, group_id, f"OffsetFetch of {row.partition}")
            if row.offset >= 0:
                found[row.partition] = OffsetAndMetadata(row.offset, row.leader_epoch, row.metadata)
        return dict(sorted(found.items()))

    return await ask_coordinator(cluster, group_id, offset_fetch(group_id, None), deadline, read)


async def commit_offsets(
    cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> Mapping[TopicPartition, CoordinatorError | None]:
    """Set the group's offsets; return for each partition None or an error, because the broker may refuse some offsets.

    The commit carries no generation, so the broker refuses it while the group has active members.
    """
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offsets[TopicPartition(topic, number)]
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(offsets).items()
        ],
    )
    # Identify topics by name, because an operator means the topic that currently has this name.
    by_name = Versioned(OffsetCommitRequest, lambda _: request, newest=OFFSET_COMMIT_BY_NAME)

    def read(answer: OffsetCommitResponse, _: Broker) -> dict[TopicPartition, CoordinatorError | None]:
        outcome: dict[TopicPartition, CoordinatorError | None] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                partition = TopicPartition(topic.name, row.partition_index)
                try:
                    if row.error_code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                        raise UnknownTopicError(f"{partition} does not exist", code=row.error_code)
                    check(row.error_code, group_id, f"OffsetCommit of {partition}")
                    outcome[partition] = None
                except (FatalError, BrokerError, UnknownTopicError) as error:
                    outcome[partition] = error
        return {
            partition: outcome.get(partition, BrokerError(f"the broker's response does not contain the commit of {partition}"))
            for partition in sorted(offsets)
        }

    return await ask_coordinator(cluster, group_id, by_name, deadline, read)


async def delete_offsets(
    cluster: ClusterClient, group_id: str, partitions: Iterable[TopicPartition], deadline: Deadline
) -> Mapping[TopicPartition, CoordinatorError | None]:
    """Delete committed offsets of topics that no member consumes (KIP-496); return for each partition None or its error."""
    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
        )
        for topic, numbers in by_topic(partitions).items()
    ]

    def read(answer: OffsetDeleteResponse, _: Broker) -> dict[TopicPartition, CoordinatorError | None]:
        check(answer.error_code, group_id, "OffsetDelete")
        result: dict[TopicPartition, CoordinatorError | None] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                code = row.error_code
                failure = None if code == codes.NONE else refused(code, group_id, "OffsetDelete")
                result[TopicPartition(topic.name, row.partition_index)] = failure
        return dict(sorted(result.items()))

    return await ask_coordinator(cluster, group_id, OffsetDeleteRequest(group_id=group_id, topics=topics), deadline, read)


async def topics_metadata(cluster: ClusterClient, topics: Iterable[str] | None, deadline: Deadline) -> Metadata:
    """Fetch new metadata of topics, or of all topics (None); topics that do not exist are missing from the metadata."""
    watch = cluster.watch(None if topics is None else frozenset(topics), lambda _: None)
    try:
        return await cluster.refresh(deadline)
    finally:
        cluster.unwatch(watch)


async def all_partitions(cluster: ClusterClient, topics: Iterable[str], deadline: Deadline) -> frozenset[TopicPartition]:
    """Return every partition of these topics.

    Raise :class:`UnknownTopicError` if a topic does not exist, and :class:`AuthorizationError` if this principal may not
    describe a topic.
    """
    wanted = sorted(set(topics))
    metadata = await topics_metadata(cluster, wanted, deadline)
    counts = metadata.partitions(wanted)
    missing = [topic for topic in wanted if topic not in counts]
    hidden = [topic for topic in missing if metadata.errors.get(topic) == codes.TOPIC_AUTHORIZATION_FAILED]
    if hidden:
        raise _not_allowed(hidden)
    if missing:
        names = (await topics_metadata(cluster, None, deadline)).topics
        suggested = ", ".join(f"{topic}{did_you_mean(topic, names)}" for topic in missing)
        raise UnknownTopicError(f"no such topic: {suggested}", code=codes.UNKNOWN_TOPIC_OR_PARTITION)
    return frozenset(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))


def _not_allowed(topics: Iterable[str]) -> AuthorizationError:
    return AuthorizationError(
        f"the principal may not see topic {', '.join(topics)}. To describe a group, the principal needs DESCRIBE on the group's"
        " topics; to reset a group, it needs READ on these topics",
        code=codes.TOPIC_AUTHORIZATION_FAILED,
    )


@attrs.frozen
class Ends:
    """The end offsets of partitions, and the errors of partitions whose end offset is unknown."""

    offsets: Mapping[TopicPartition, int]
    unknown: Mapping[TopicPartition, CoordinatorError]


async def end_offsets(cluster: ClusterClient, partitions: Iterable[TopicPartition], deadline: Deadline) -> Ends:
    """Return the end offset of each partition; a deleted, hidden or leaderless partition does not delay others."""
    wanted = frozenset(partitions)
    if not wanted:
        return Ends({}, {})
    metadata = await topics_metadata(cluster, {partition.topic for partition in wanted}, deadline)
    unknown = {partition: why for partition in sorted(wanted) if (why := _why_unreadable(metadata, partition)) is not None}
    readable = wanted - unknown.keys()
    if not readable:
        return Ends({}, unknown)
    ends = await list_offsets(cluster, dict.fromkeys(readable, LATEST), deadline)
    return Ends({partition: end.offset for partition, end in ends.found.items()}, {**unknown, **ends.failed})


def _why_unreadable(metadata: Metadata, partition: TopicPartition) -> CoordinatorError | None:
    """Return the reason why the end offset of a partition cannot be requested, or None if a request is possible."""
    topic = metadata.topics.get(partition.topic)
    if metadata.errors.get(partition.topic) == codes.TOPIC_AUTHORIZATION_FAILED:
        return _not_allowed([partition.topic])
    if topic is None or not 0 <= partition.partition < topic.partition_count:
        return UnknownTopicError(f"{partition} does not exist", code=codes.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.leaders[partition.partition] not in metadata.brokers:
        return BrokerError(f"{partition} currently has no leader", code=codes.LEADER_NOT_AVAILABLE)
    return None


def require_known(partitions: Iterable[TopicPartition], known: Iterable[TopicPartition]) -> None:
    """Raise :class:`UnknownTopicError` for partitions that are not in ``known``."""
    missing = frozenset(partitions) - frozenset(known)
    if missing:
        raise UnknownTopicError(f"no such partition: {listed(missing)}", code=codes.UNKNOWN_TOPIC_OR_PARTITION)
