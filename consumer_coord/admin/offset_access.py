"""Fetch, set and delete the committed offsets of a group without being a member."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from consumer_coord.admin.ask import ask_coordinator, check, refused, row_of
from consumer_coord.errors import CoordinatorError, RetriableError, UnknownTopicError
from consumer_coord.lag.log_offsets import not_allowed, told_topics, topics_metadata
from consumer_coord.lag.partition_lag import Commits, ShareStart
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.group_requests import offset_fetch, offsets_in, senseless_offset
from consumer_coord.net.metadata import Broker
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
    OffsetFetchResponse,
)
from consumer_coord.wire.messages.share_group import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
)

K = TypeVar("K", TopicPartition, str)


async def committed_offsets(
    cluster: ClusterClient,
    group_id: str,
    deadline: Deadline,
    *,
    partitions: Iterable[TopicPartition] = (),
    share: bool = False,
) -> Commits:
    """Return all committed offsets of the group, or the start offsets of a share group; empty for a group that does not exist.

    None for those of ``partitions`` that have no commit. A response with all commits of a group cannot show that a row is
    missing, so these partitions are asked for by name. A partition that is refused, or has no row by ``deadline``, has an
    error in the result. Raise the error of the group, and a retriable error if the coordinator did not answer by ``deadline``.
    """
    ask = _ask_starts if share else _ask_commits
    every = await ask(cluster, group_id, None, deadline)
    others = frozenset(partitions) - every.found.keys() - every.failed.keys()
    if not others:
        return every
    try:
        named = await ask(cluster, group_id, others, deadline)
    except RetriableError as error:
        if not every.found:
            raise
        named = Results({}, dict.fromkeys(sorted(others), error))
    return Results(dict(sorted({**every.found, **named.found}.items())), {**every.failed, **named.failed})


async def _ask_commits(
    cluster: ClusterClient, group_id: str, asked: Collection[TopicPartition] | None, deadline: Deadline
) -> Commits:
    """Ask for committed offsets; see :func:`_ask`."""

    def read(answer: OffsetFetchResponse, sender: Broker) -> Commits:
        return _read_commits(cluster, answer, group_id, sender, asked)

    return await _ask(cluster, group_id, offset_fetch(group_id, asked), deadline, read)


async def _ask_starts(
    cluster: ClusterClient, group_id: str, asked: Collection[TopicPartition] | None, deadline: Deadline
) -> Commits:
    """Ask for a share group's start offsets; see :func:`_ask`."""
    topics = None
    if asked is not None:
        topics = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=numbers)
            for topic, numbers in by_topic(asked).items()
        ]
    group = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)

    def read(answer: DescribeShareGroupOffsetsResponse, sender: Broker) -> Commits:
        return _read_starts(cluster, answer, group_id, sender, asked)

    return await _ask(cluster, group_id, DescribeShareGroupOffsetsRequest(groups=[group]), deadline, read)


async def _ask(
    cluster: ClusterClient, group_id: str, request: Any, deadline: Deadline, read: Callable[[Any, Broker], Commits]
) -> Commits:
    """Ask until every partition has an answer, or until ``deadline``: then the answers so far count, if there are any."""
    known: Commits = Results()

    def complete(answer: Any, sender: Broker) -> Commits:
        nonlocal known
        known = read(answer, sender)
        for error in known.failed.values():
            if isinstance(error, RetriableError):
                raise error
        return known

    try:
        return await ask_coordinator(cluster, group_id, request, deadline, complete)
    except RetriableError:
        if not known.found:
            raise
        return known


def _read_commits(
    cluster: ClusterClient, answer: OffsetFetchResponse, group_id: str, sender: Broker, asked: Collection[TopicPartition] | None
) -> Commits:
    code, offsets = offsets_in(answer, group_id, cluster.answers, sender)
    check(code, group_id, "OffsetFetch")
    rows = [(row.partition, row) for row in offsets]
    matched = cluster.answers.match(
        "OffsetFetch", sender.address, dict(rows) if asked is None else asked, rows, lambda _, row: senseless_offset(row)
    )
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failed: dict[TopicPartition, CoordinatorError] = dict(matched.unanswered)
    for partition, row in sorted(matched.rows.items()):
        try:
            check(row.error_code, group_id, f"OffsetFetch of {partition}")
        except CoordinatorError as error:
            failed[partition] = error
        else:
            if row.offset >= 0:
                found[partition] = OffsetAndMetadata(row.offset, row.leader_epoch, row.metadata)
            elif asked is not None:
                found[partition] = None
    return Results(found, failed)


def _read_starts(
    cluster: ClusterClient,
    answer: DescribeShareGroupOffsetsResponse,
    group_id: str,
    sender: Broker,
    asked: Collection[TopicPartition] | None,
) -> Commits:
    name = "DescribeShareGroupOffsets"
    group = row_of(cluster, name, sender, group_id, answer.groups, lambda row: row.group_id)
    check(group.error_code, group_id, name)
    rows = [(TopicPartition(topic.topic_name, row.partition_index), row) for topic in group.topics for row in topic.partitions]
    matched = cluster.answers.match(name, sender.address, dict(rows) if asked is None else asked, rows)
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    failed: dict[TopicPartition, CoordinatorError] = dict(matched.unanswered)
    for partition, row in sorted(matched.rows.items()):
        try:
            check(row.error_code, group_id, f"{name} of {partition}")
        except CoordinatorError as error:
            failed[partition] = error
        else:
            lag = row.lag if row.lag >= 0 else None
            found[partition] = ShareStart(row.start_offset, row.leader_epoch, "", lag) if row.start_offset >= 0 else None
    return Results(found, failed)


async def set_start_offsets(
    cluster: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> Mapping[TopicPartition, CoordinatorError | None]:
    """Set the start offsets of a share group without members; return for each partition None or its error."""
    name = "AlterShareGroupOffsets"
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(
                    partition_index=number, start_offset=offsets[TopicPartition(topic, number)]
                )
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(offsets).items()
    ]

    def refusal(partition: TopicPartition, code: int) -> CoordinatorError:
        return refused(code, group_id, f"{name} of {partition}")

    def read(answer: AlterShareGroupOffsetsResponse, sender: Broker) -> dict[TopicPartition, CoordinatorError | None]:
        check(answer.error_code, group_id, name)
        rows = (
            (TopicPartition(topic.topic_name, row.partition_index), row)
            for topic in answer.responses
            for row in topic.partitions
        )
        return _outcomes(cluster, name, rows, sender, offsets, refusal)

    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
    return await ask_coordinator(cluster, group_id, request, deadline, read)


async def delete_start_offsets(
    cluster: ClusterClient, group_id: str, topics: Collection[str], deadline: Deadline
) -> Mapping[str, CoordinatorError | None]:
    """Delete a share group's offsets of whole topics; return for each topic None or its error."""
    name = "DeleteShareGroupOffsets"

    def read(answer: DeleteShareGroupOffsetsResponse, sender: Broker) -> dict[str, CoordinatorError | None]:
        check(answer.error_code, group_id, name)
        rows = ((row.topic_name, row) for row in answer.responses)
        return _outcomes(cluster, name, rows, sender, topics, lambda topic, code: refused(code, group_id, f"{name} of {topic}"))

    rows = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in sorted(topics)]
    request = DeleteShareGroupOffsetsRequest(group_id=group_id, topics=rows)
    return await ask_coordinator(cluster, group_id, request, deadline, read)


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

    def refusal(partition: TopicPartition, code: int) -> CoordinatorError:
        if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            return UnknownTopicError(f"{partition} does not exist", code=code)
        return refused(code, group_id, f"OffsetCommit of {partition}")

    def read(answer: OffsetCommitResponse, sender: Broker) -> dict[TopicPartition, CoordinatorError | None]:
        return _outcomes(cluster, "OffsetCommit", _rows(answer), sender, offsets, refusal)

    return await ask_coordinator(cluster, group_id, by_name, deadline, read)


async def delete_offsets(
    cluster: ClusterClient, group_id: str, partitions: Iterable[TopicPartition], deadline: Deadline
) -> Mapping[TopicPartition, CoordinatorError | None]:
    """Delete committed offsets of topics that no member consumes (KIP-496); return for each partition None or its error."""
    wanted = frozenset(partitions)
    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
        )
        for topic, numbers in by_topic(wanted).items()
    ]

    def read(answer: OffsetDeleteResponse, sender: Broker) -> dict[TopicPartition, CoordinatorError | None]:
        check(answer.error_code, group_id, "OffsetDelete")
        return _outcomes(
            cluster, "OffsetDelete", _rows(answer), sender, wanted, lambda _, code: refused(code, group_id, "OffsetDelete")
        )

    return await ask_coordinator(cluster, group_id, OffsetDeleteRequest(group_id=group_id, topics=topics), deadline, read)


def _rows(answer: OffsetCommitResponse | OffsetDeleteResponse) -> Iterator[tuple[TopicPartition, Any]]:
    return ((TopicPartition(topic.name, row.partition_index), row) for topic in answer.topics for row in topic.partitions)


def _outcomes(
    cluster: ClusterClient,
    request: str,
    rows: Iterable[tuple[K, Any]],
    sender: Broker,
    asked: Collection[K],
    refusal: Callable[[K, int], CoordinatorError],
) -> dict[K, CoordinatorError | None]:
    """Return None or the ``refusal`` of each partition (or topic).

    Raise a retriable error if a row is missing or has such an error.
    """
    matched = cluster.answers.match(request, sender.address, asked, rows)
    for error in matched.unanswered.values():
        raise error
    outcome: dict[K, CoordinatorError | None] = {}
    for key, row in sorted(matched.rows.items()):
        code = row.error_code
        if codes.is_retriable(code) and code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            raise RetriableError(f"{request} of {key}: {codes.error_name(code)}", code=code)
        outcome[key] = None if code == codes.NONE else refusal(key, code)
    return outcome


async def all_partitions(cluster: ClusterClient, topics: Iterable[str], deadline: Deadline) -> frozenset[TopicPartition]:
    """Return every partition of these topics.

    Raise :class:`UnknownTopicError` if a topic does not exist, and :class:`AuthorizationError` if this principal may not
    describe a topic.
    """
    wanted = sorted(set(topics))
    metadata = await told_topics(cluster, wanted, deadline)
    counts = metadata.partitions(wanted)
    missing = [topic for topic in wanted if topic not in counts]
    hidden = [topic for topic in missing if metadata.errors.get(topic) == codes.TOPIC_AUTHORIZATION_FAILED]
    if hidden:
        raise not_allowed(hidden)
    if missing:
        names = (await topics_metadata(cluster, None, deadline)).topics
        suggested = ", ".join(f"{topic}{did_you_mean(topic, names)}" for topic in missing)
        raise UnknownTopicError(f"no such topic: {suggested}", code=codes.UNKNOWN_TOPIC_OR_PARTITION)
    return frozenset(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))


def require_known(partitions: Iterable[TopicPartition], known: Iterable[TopicPartition]) -> None:
    """Raise :class:`UnknownTopicError` for partitions that are not in ``known``."""
    missing = frozenset(partitions) - frozenset(known)
    if missing:
        raise UnknownTopicError(f"no such partition: {listed(missing)}", code=codes.UNKNOWN_TOPIC_OR_PARTITION)
