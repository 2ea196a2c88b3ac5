"""What reads the records, as the engine sees it: librdkafka in production, a model of it in simulation.

Every method is a coroutine.  On the application's own thread none of them suspends; behind a thread or in virtual time they
do, and an operation that was begun goes on when the one who awaits it is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: librdkafka's logical offsets.
OFFSET_BEGINNING = -2
OFFSET_END = -1
#: A position that is not known (``RD_KAFKA_OFFSET_INVALID``).
OFFSET_INVALID = -1001

#: Where the group's commit is (``RD_KAFKA_OFFSET_STORED``).
OFFSET_STORED = -1000

EARLIEST = OffsetAndMetadata(OFFSET_BEGINNING)
LATEST = OffsetAndMetadata(OFFSET_END)


class Message(Protocol):
    """A record, or an event (``error()`` is not None): what ``confluent_kafka.Message`` says of itself."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def leader_epoch(self) -> int | None: ...
    def error(self) -> Any: ...


#: Takes what a fetch brought, at once and whole; called even when it brought nothing.
Sink = Callable[[list[Any]], None]


class DataPlane(Protocol):
    """Fetches assigned partitions into a queue of its own; a partition's position moves when a message is taken."""

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        """Wait at most ``wait_s`` for a message, then hand up to ``most`` that are there to ``sink``.

        A caller that is cancelled loses nothing: what was taken reaches ``sink`` all the same.
        """

    async def wait_idle(self) -> None:
        """Returns when no operation that was begun is still under way."""

    async def learn(self, topics: Collection[str], limit_s: float) -> bool:
        """Hear of topics that will be assigned, within ``limit_s``; False when no broker answered."""

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Whether the first records of these partitions would wait for fetches of idle ones, which wait for records."""

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Read these too, from these positions; none of them is assigned now."""

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions, which are assigned now; no message of them comes afterwards."""

    async def positions(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the position behind the last message taken, for those that had one since their assignment."""

    async def assignment(self) -> frozenset[TopicPartition]:
        """What is assigned."""

    async def close(self) -> None:
        """Give everything back; idempotent."""


def partition_of_message(message: Message) -> TopicPartition:
    """A message's topic and partition."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return TopicPartition(topic, partition)


def before(message: Message) -> OffsetAndMetadata:
    """The position at a message."""
    offset, epoch = message.offset(), message.leader_epoch()
    assert offset is not None
    return OffsetAndMetadata(offset, -1 if epoch is None else epoch)


def after(message: Message) -> OffsetAndMetadata:
    """The position behind a message."""
    offset, epoch = message.offset(), message.leader_epoch()
    assert offset is not None
    return OffsetAndMetadata(offset + 1, -1 if epoch is None else epoch)
