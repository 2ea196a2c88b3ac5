"""Fetch, set and delete the committed offsets of a group without being a member."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from consumer_coord.admin.ask import ask_coordinator, check, refused
from consumer_coord.errors import CoordinatorError, RetriableError, UnknownTopicError
from consumer_coord.lag.log_offsets import not_allowed, topics_metadata
from consumer_coord.lag.partition_lag import Commits
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


async def committed_offsets(
    cluster: ClusterClient, group_id: str, deadline: Deadline, *, partitions: Iterable[TopicPartition] = ()
) -> Commits:
    """Return all committed offsets of the group; empty for a group that does not exist.

    None for those of ``partitions`` that have no commit. A response with all commits of a group cannot show that a row is
    missing, so these partitions are asked for by name. A partition that is refused, or has no row until ``deadline``, costs
    only itself. Raise the error of the group, and a retriable error if the coordinator has told nothing until ``deadline``.
    """
    every = await _ask_commits(cluster, group_id, None, deadline)
    others = frozenset(partitions) - every.found.keys() - every.failed.keys()
    if not others:
        return every
    try:
        named = await _ask_commits(cluster, group_id, others, deadline)
    except RetriableError as error:
        if not every.found:
            raise
        named = Results({}, dict.fromkeys(sorted(others), error))
    return Results(dict(sorted({**every.found, **named.found}.items())), {**every.failed, **named.failed})


async def _ask_commits(
    cluster: ClusterClient, group_id: str, asked: Collection[TopicPartition] | None, deadline: Deadline
) -> Commits:
    """Ask until every partition has an answer, or until ``deadline``: then the answers so far count, if there are any."""
    known: Commits = Results()

    def read(answer: OffsetFetchResponse, sender: Broker) -> Commits:
        nonlocal known
        known = _read_commits(cluster, answer, group_id, sender, asked)
        for error in known.failed.values():
            if isinstance(error, RetriableError):
                raise error
        return known

    try:
        return await ask_coordinator(cluster, group_id, offset_fetch(group_id, asked), deadline, read)
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
        return _outcomes(cluster, "OffsetCommit", answer, sender, offsets, refusal)

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
            cluster, "OffsetDelete", answer, sender, wanted, lambda _, code: refused(code, group_id, "OffsetDelete")
        )

    return await ask_coordinator(cluster, group_id, OffsetDeleteRequest(group_id=group_id, topics=topics), deadline, read)


def _outcomes(
    cluster: ClusterClient,
    request: str,
    answer: OffsetCommitResponse | OffsetDeleteResponse,
    sender: Broker,
    asked: Collection[TopicPartition],
    refusal: Callable[[TopicPartition, int], CoordinatorError],
) -> dict[TopicPartition, CoordinatorError | None]:
    """Return None or the ``refusal`` of each partition; raise a retriable error if a row is missing or has such an error."""
    rows = ((TopicPartition(topic.name, row.partition_index), row) for topic in answer.topics for row in topic.partitions)
    matched = cluster.answers.match(request, sender.address, asked, rows)
    for error in matched.unanswered.values():
        raise error
    outcome: dict[TopicPartition, CoordinatorError | None] = {}
    for partition, row in sorted(matched.rows.items()):
        code = row.error_code
        if codes.is_retriable(code) and code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            raise RetriableError(f"{request} of {partition}: {codes.error_name(code)}", code=code)
        outcome[partition] = None if code == codes.NONE else refusal(partition, code)
    return outcome


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
