"""Positions in a log, logical offsets, and the outcome of a commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError
from consumer_coord.topic_partition import TopicPartition

#: librdkafka's logical offsets. The engine looks up their positions; a data plane starts at a number. ``OFFSET_TAIL(n)``, the
#: n-th offset before the end, is ``OFFSET_TAIL_BASE`` minus n.
OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_TAIL_BASE = -2000
#: An unknown position (``RD_KAFKA_OFFSET_INVALID``).
OFFSET_INVALID = -1001

#: The position of the group's commit (``RD_KAFKA_OFFSET_STORED``).
OFFSET_STORED = -1000


@attrs.frozen
class OffsetAndMetadata:
    """A committed position: the next ``offset`` to read, with ``leader_epoch`` and ``metadata``.

    ``leader_epoch`` is the leader epoch of the last record read (KIP-320; -1 if unknown); ``metadata`` is any text of the
    application.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


#: Partition -> None if committed, otherwise the error.
CommitResult = Mapping[TopicPartition, CoordinatorError | None]


class Message(Protocol):
    """A record, or an event if ``error()`` is not None; the methods are those of ``confluent_kafka.Message``."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def leader_epoch(self) -> int | None: ...
    def error(self) -> Any: ...


def partition_of_message(message: Message) -> TopicPartition:
    """Return a message's topic and partition."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return TopicPartition(topic, partition)


def before(message: Message) -> OffsetAndMetadata:
    """Return the position before a message."""
    offset, epoch = message.offset(), message.leader_epoch()
    assert offset is not None
    return OffsetAndMetadata(offset, -1 if epoch is None else epoch)


def after(message: Message) -> OffsetAndMetadata:
    """Return the position after a message."""
    offset, epoch = message.offset(), message.leader_epoch()
    assert offset is not None
    return OffsetAndMetadata(offset + 1, -1 if epoch is None else epoch)
