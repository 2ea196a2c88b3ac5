"""Look up the ends of leader epochs (OffsetForLeaderEpoch, KIP-320), to detect that a log was truncated below a position."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError
from consumer_coord.log_text import get_logger
from consumer_coord.net.answers import AnswerCheck, Matched
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, by_leader
from consumer_coord.topic_partition import TopicPartition, grouped
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

logger: Final = get_logger(__name__)

#: The replica id that a consumer sends.
_CONSUMER = -1


@attrs.frozen
class EpochEnd:
    """The newest leader epoch in the log that is not newer than the requested epoch, and its end offset; -1 if none exists."""

    leader_epoch: int
    offset: int


async def epoch_ends(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], timeout_ms: float
) -> dict[TopicPartition, EpochEnd]:
    """Return where the leader epochs of ``wanted`` (partition -> epoch) end in the logs of the current leaders.

    Partitions without a result within ``timeout_ms`` are omitted. In this case the leader is unknown, does not respond, has
    just changed, runs a Kafka before 2.1, or refuses the request. There is only one attempt, because a consumer waits for the
    result.
    """
    leaders, _ = by_leader(cluster.metadata, wanted)
    found: dict[TopicPartition, EpochEnd] = {}

    async def ask(leader: Broker, partitions: Sequence[TopicPartition]) -> None:
        topics = cluster.metadata.topics
        request = epochs_request({one: (topics[one.topic].leader_epochs[one.partition], wanted[one]) for one in partitions})
        try:
            answer = await cluster.request(
                leader, request, timeout_ms=cluster.config.request_timeout_ms, patience_ms=max(1.0, timeout_ms)
            )
        except CoordinatorError as error:
            logger.debug("leader epochs could not be checked: %s", error)
            return
        for partition, row in match_epochs(cluster.answers, leader, partitions, answer).rows.items():
            if row.error_code == codes.NONE:
                found[partition] = EpochEnd(row.leader_epoch, row.end_offset)

    tasks = [asyncio.ensure_future(ask(leader, partitions)) for leader, partitions in leaders.items()]
    if tasks:
        try:
            await asyncio.wait(tasks, timeout=timeout_ms / 1000)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def match_epochs(
    answers: AnswerCheck, leader: Broker, asked: Collection[TopicPartition], answer: OffsetForLeaderEpochResponse
) -> Matched[TopicPartition, EpochEndOffset]:
    """Return the rows of the partitions that the leader was asked for, and errors for partitions without a usable row."""
    rows = ((TopicPartition(topic.topic, row.partition), row) for topic in answer.topics for row in topic.partitions)
    return answers.match("OffsetForLeaderEpoch", leader.address, asked, rows, lambda _, row: _senseless(row))


def _senseless(row: EpochEndOffset) -> str | None:
    """Return why a row names no end of an epoch, or None; -1 and -1 mean that no such epoch is known."""
    if row.error_code == codes.NONE and (min(row.leader_epoch, row.end_offset) < -1 or row.leader_epoch >= 0 > row.end_offset):
        return f"end offset {row.end_offset} of leader epoch {row.leader_epoch}"
    return None


def epochs_request(wanted: Mapping[TopicPartition, tuple[int, int]]) -> OffsetForLeaderEpochRequest:
    """Return the request for the ends of leader epochs; ``wanted`` is partition -> (the leader's epoch, the wanted epoch)."""
    topics = grouped(
        (topic, OffsetForLeaderPartition(partition=number, current_leader_epoch=current, leader_epoch=epoch))
        for (topic, number), (current, epoch) in wanted.items()
    )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[OffsetForLeaderTopic(topic=topic, partitions=rows) for topic, rows in topics.items()]
    )
