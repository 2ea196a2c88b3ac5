"""Offsets of logs, and why an offset is unknown: a deleted topic, a missing permission, or a leader that does not answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from consumer_coord.errors import (
    AuthorizationError,
    CoordinatorError,
    IncompleteResponseError,
    RetriableError,
    UnknownTopicError,
)
from consumer_coord.leaders.list_offsets import ListedOffset, list_offsets
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Metadata
from consumer_coord.retry import Deadline, retrying
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes

#: The errors of topics that do not exist, or that this principal may not describe.
_TOLD = frozenset(
    {
        codes.UNKNOWN_TOPIC_OR_PARTITION,
        codes.UNKNOWN_TOPIC_ID,
        codes.INVALID_TOPIC_EXCEPTION,
        codes.TOPIC_AUTHORIZATION_FAILED,
    }
)

#: How long one broker that does not answer may delay what the others have answered, in milliseconds.
PATIENCE_MS = 5_000


async def topics_metadata(cluster: ClusterClient, topics: Iterable[str] | None, deadline: Deadline) -> Metadata:
    """Fetch new metadata of topics, or of all topics (None); topics that do not exist are missing from the metadata."""
    watch = cluster.watch(None if topics is None else frozenset(topics), lambda _: None)
    try:
        return await cluster.refresh(deadline)
    finally:
        cluster.unwatch(watch)


async def told_topics(cluster: ClusterClient, topics: Collection[str], deadline: Deadline) -> Metadata:
    """Fetch new metadata, again and again, until they say of each topic that it exists, or why not.

    Raise :class:`IncompleteResponseError` for a topic of which no broker has said anything until ``deadline``, because without
    a row it is unknown whether the topic exists.
    """
    async for attempt in retrying(cluster.backoff, deadline, what=f"Metadata of {', '.join(sorted(topics))}"):
        with attempt:
            metadata = await topics_metadata(cluster, topics, deadline)
            for topic in sorted(topics):
                if (why := _not_told(metadata, topic, topic)) is not None:
                    raise why
            return metadata
    raise AssertionError("unreachable: the retry loop returns or raises")


def not_allowed(topics: Iterable[str]) -> AuthorizationError:
    """Return the error for topics that this principal may not describe."""
    return AuthorizationError(
        f"the principal may not see topic {', '.join(topics)}. To describe a group, the principal needs DESCRIBE on the group's"
        " topics; to reset a group, it needs READ on these topics",
        code=codes.TOPIC_AUTHORIZATION_FAILED,
    )


async def log_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], deadline: Deadline, *, read_committed: bool = False
) -> Results[ListedOffset]:
    """Return the offset of each partition at its timestamp (LATEST, EARLIEST), or why it is unknown.

    With ``read_committed``, LATEST is the last stable offset.

    A deleted or hidden partition, or one whose leader does not answer, delays the others for at most :data:`PATIENCE_MS`.
    """
    if not wanted:
        return Results()
    metadata = await _metadata_of(cluster, {partition.topic for partition in wanted}, deadline)
    unknown = {partition: why for partition in sorted(wanted) if (why := _why_unreadable(metadata, partition)) is not None}
    readable = {partition: stamp for partition, stamp in wanted.items() if partition not in unknown}
    if not readable:
        return Results({}, unknown)
    result = await list_offsets(cluster, readable, Deadline.after(deadline.within(PATIENCE_MS)), read_committed=read_committed)
    if not result.found and result.retriable and not deadline.passed:
        result = await list_offsets(cluster, readable, deadline, read_committed=read_committed)
    # A topic may have been deleted since its metadata was read.
    failed = {partition: _why_unreadable(cluster.metadata, partition) or why for partition, why in result.failed.items()}
    return Results(result.found, {**unknown, **failed})


async def _metadata_of(cluster: ClusterClient, topics: Collection[str], deadline: Deadline) -> Metadata:
    """Fetch new metadata; a topic of which they do not say whether it exists delays the others for :data:`PATIENCE_MS`."""
    try:
        return await told_topics(cluster, topics, Deadline.after(deadline.within(PATIENCE_MS)))
    except IncompleteResponseError:
        return cluster.metadata
    except RetriableError:
        return await topics_metadata(cluster, topics, deadline)


def _why_unreadable(metadata: Metadata, partition: TopicPartition) -> CoordinatorError | None:
    """Return the reason why an offset of a partition cannot be requested, or None if a request is possible."""
    topic, code = metadata.topics.get(partition.topic), metadata.errors.get(partition.topic)
    if code == codes.TOPIC_AUTHORIZATION_FAILED:
        return not_allowed([partition.topic])
    if (why := _not_told(metadata, partition.topic, partition)) is not None:
        return why
    if topic is None or not 0 <= partition.partition < topic.partition_count:
        return UnknownTopicError(f"{partition} does not exist", code=codes.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.leaders[partition.partition] not in metadata.brokers:
        return RetriableError(f"{partition} currently has no leader", code=codes.LEADER_NOT_AVAILABLE)
    return None


def _not_told(metadata: Metadata, topic: str, what: object) -> IncompleteResponseError | None:
    """Return None if the metadata say whether the topic of ``what`` exists."""
    code = metadata.errors.get(topic)
    if topic in metadata.topics or code in _TOLD:
        return None
    why = "no row" if code is None else codes.error_name(code)
    return IncompleteResponseError(f"it is unknown whether {what} exists: the response to Metadata has {why}")
