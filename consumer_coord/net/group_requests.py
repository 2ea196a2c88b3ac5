"""Build FindCoordinator, OffsetCommit and OffsetFetch in any version, for members and for the operators' commands."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.net.answers import AnswerCheck
from consumer_coord.net.connection import Versioned
from consumer_coord.net.metadata import NO_TOPIC_ID, Broker
from consumer_coord.topic_partition import TopicPartition, by_topic
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import decode_response
from consumer_coord.wire.messages.group import FindCoordinatorRequest
from consumer_coord.wire.messages.offsets import (
    OFFSET_COMMIT_BY_NAME,
    OFFSET_FETCH_BY_NAME,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

#: The kinds of coordinators (``CoordinatorType``).
GROUP = 0
TRANSACTION = 1
#: First versions of FindCoordinator with a list of keys (KIP-699), and of OffsetFetch with a list of groups (KIP-709).
_KEYS_FROM = 4
_GROUPS_FROM = 8
#: First version of OffsetFetch that can wait for open transactions (KIP-447).
_REQUIRE_STABLE_FROM = 7


@attrs.frozen
class FetchedOffset:
    """A partition in an OffsetFetch response; ``offset`` is -1 if there is no committed offset."""

    partition: TopicPartition
    error_code: int
    offset: int
    leader_epoch: int
    metadata: str


@attrs.frozen
class WantedOffsets:
    """The partitions and topic ids of an OffsetFetch; callers with equal values share one request."""

    partitions: frozenset[TopicPartition]
    topic_ids: frozenset[tuple[str, uuid.UUID]]
    #: Whether an answer for some of the partitions is enough.
    some: bool


def find_coordinator(key: str, key_type: int = GROUP) -> Versioned:
    """Return the FindCoordinator request for a group, or for a transactional id."""

    def build(version: int) -> FindCoordinatorRequest:
        if version >= _KEYS_FROM:
            return FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        return FindCoordinatorRequest(key=key, key_type=key_type)

    return Versioned(FindCoordinatorRequest, build)


def coordinator_in(answer: Any, key: str, answers: AnswerCheck) -> tuple[int, Broker]:
    """Return the error code and the coordinator in a response to :func:`find_coordinator`.

    Raise :class:`~consumer_coord.errors.IncompleteResponseError` if the response names no coordinator of this key.
    """
    # Up to version 3, the response is about the only key in the request, and has no key.
    rows = [(one.key, one) for one in answer.coordinators] if answer.coordinators else [(key, answer)]
    matched = answers.match("FindCoordinator", "a broker", [key], rows, lambda _, row: _senseless_coordinator(row))
    if matched.unanswered:
        raise matched.unanswered[key]
    found = matched.rows[key]
    return found.error_code, Broker(found.node_id, found.host, found.port)


def _senseless_coordinator(row: Any) -> str | None:
    if row.error_code == codes.NONE and not (row.host and row.port > 0):
        return f"the address {row.host!r}, port {row.port}"
    return None


def offset_fetch(
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool = False,
    member_id: str | None = None,
    member_epoch: int = -1,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
) -> Versioned:
    """Return the request for a group's committed offsets of these partitions (None: of all).

    ``require_stable``: the broker returns an error for partitions with offsets in an open transaction. ``member_id``,
    ``member_epoch``: the requesting member of the consumer protocol, whose request the broker refuses if the epoch is stale
    (KIP-848). ``topic_ids``: the ids of the topics. If all ids are known, brokers from 4.1 on return no offsets of a deleted
    topic that had the same name.
    """
    topics = None if partitions is None else by_topic(partitions)
    ids = topic_ids or {}

    def build(version: int) -> OffsetFetchRequest:
        if version < _GROUPS_FROM:
            rows = None
            if topics is not None:
                rows = [OffsetFetchRequestTopic(name=name, partition_indexes=row) for name, row in topics.items()]
            stable = require_stable and version >= _REQUIRE_STABLE_FROM
            return OffsetFetchRequest(group_id=group_id, topics=rows, require_stable=stable)
        of_group = None
        if topics is not None:
            of_group = [
                OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, NO_TOPIC_ID), partition_indexes=row)
                for name, row in topics.items()
            ]
        groups = [OffsetFetchRequestGroup(group_id=group_id, member_id=member_id, member_epoch=member_epoch, topics=of_group)]
        return OffsetFetchRequest(groups=groups, require_stable=require_stable)

    def read(version: int, frame: bytes) -> OffsetFetchResponse:
        answer = decode_response(OffsetFetchResponse, version, frame)[1]
        if version >= _GROUPS_FROM:
            return answer
        # Older responses are about the only group in the request. In both forms, a topic has a name and partitions.
        topics: Any = answer.topics
        group = OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=answer.error_code)
        return OffsetFetchResponse(groups=[group])

    by_id = topics is not None and all(ids.get(name, NO_TOPIC_ID) != NO_TOPIC_ID for name in topics)
    return Versioned(OffsetFetchRequest, build, None if by_id else OFFSET_FETCH_BY_NAME, decode=read)


def offsets_in(
    answer: OffsetFetchResponse,
    group_id: str,
    answers: AnswerCheck,
    sender: Broker,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
) -> tuple[int, Iterator[FetchedOffset]]:
    """Return the error code and the rows of the response to :func:`offset_fetch`, which was called with ``topic_ids``.

    Raise :class:`~consumer_coord.errors.IncompleteResponseError` if the response is not about the group. The caller must
    compare the rows with the partitions that it asked for (:func:`senseless_offset`), unless it asked for all.
    """
    matched = answers.match("OffsetFetch", sender.address, [group_id], ((group.group_id, group) for group in answer.groups))
    if matched.unanswered:
        raise matched.unanswered[group_id]
    group = matched.rows[group_id]
    names = {topic_id: name for name, topic_id in (topic_ids or {}).items()}
    return group.error_code, (
        FetchedOffset(
            # The topics of a response older than version 10 have no id.
            TopicPartition(topic.name or names.get(topic.topic_id, str(topic.topic_id)), row.partition_index),
            row.error_code,
            row.committed_offset,
            row.committed_leader_epoch,
            row.metadata or "",
        )
        for topic in group.topics
        for row in topic.partitions
    )


def senseless_offset(row: FetchedOffset) -> str | None:
    """Return why the values of a row in an OffsetFetch response have no meaning, or None.

    A negative offset means that there is no commit, as in Java's client (``OffsetFetchResponseHandler``): -1 is the broker's
    word for it, and a group may also have the offset -1001 for good, because brokers store what a client commits.
    """
    if row.error_code != codes.NONE or row.offset < 0:
        return None
    return f"leader epoch {row.leader_epoch}" if row.leader_epoch < -1 else None


def offset_commit(request: OffsetCommitRequest) -> Versioned:
    """Return the OffsetCommit request; its version has topic ids only if all topic ids are known (KIP-848)."""
    by_id = all(topic.topic_id != NO_TOPIC_ID for topic in request.topics)
    return Versioned(OffsetCommitRequest, lambda _: request, None if by_id else OFFSET_COMMIT_BY_NAME)
