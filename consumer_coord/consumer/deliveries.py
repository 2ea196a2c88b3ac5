"""The delivered records that the application has not finished yet.

The rule of automatic commits: a record is finished when the thread or task that received it requests the next one, when the
consumer is closed without an exception, or when the application commits a later offset. So a record is not committed if its
processing raised or was cancelled, or if another thread or task still works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.partitions import Positions
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OffsetAndMetadata, before, partition_of_message
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)

W = TypeVar("W")


@attrs.define(eq=False)
class Span:
    """Records or an event of one partition, with the methods of a message. ``start`` is the first offset."""

    at: TopicPartition
    start: int

    def topic(self) -> str:
        """Return the topic. The methods below also behave like those of ``confluent_kafka.Message``."""
        return self.at.topic

    def partition(self) -> int:
        """Return the number of the partition."""
        return self.at.partition

    def offset(self) -> int:
        """Return the first offset."""
        return self.start

    def leader_epoch(self) -> int | None:
        """Return None, because the leader epoch is unknown."""
        return None

    def error(self) -> Any:
        """Return the error that an event reports; None for records."""
        return None


@attrs.frozen(eq=False)
class Delivered(Span):
    """Records of one partition in a batch: from ``start`` up to, not including, ``next_offset``."""

    epoch_before: int
    next_offset: int
    epoch: int

    def leader_epoch(self) -> int:
        """Return the leader epoch of the position before the records."""
        return self.epoch_before


class Deliveries(Generic[W]):
    """The last delivery to each receiver (a thread, a task)."""

    def __init__(self, ended: Callable[[W], bool], failed: Callable[[W], bool]) -> None:
        """Create the object without deliveries.

        ``ended`` returns whether a receiver makes no further requests, ``failed`` whether a receiver raised or was cancelled.
        """
        #: Receiver -> the message or the messages that it received last. Consumers set items directly, because an interrupt
        #: could occur in a method call.
        self.last: dict[W, Any] = {}
        #: Unfinished records of failed receivers, until another receiver finishes these records: partition -> offset ->
        #: position, and the offset after the records.
        self.left: dict[TopicPartition, dict[int, tuple[OffsetAndMetadata, int]]] = {}
        self._ended = ended
        self._failed = failed

    def finish(self, receiver: W) -> None:
        """Finish the records of ``receiver``, which requests more records or closes, and of receivers that ended normally."""
        for one in tuple(self.last):
            if one == receiver or (self._ended(one) and not self._failed(one)):
                messages = self.last.pop(one, ())
                if self.left:
                    self._read_again(messages)
            elif self._ended(one):
                # Drop the failed receiver, because the receiver's exception keeps all frames of its stack in memory.
                left = list(_positions(self.last.pop(one)))
                for partition, at, end in left:
                    self.left.setdefault(partition, {})[at.offset] = at, end
                logger.warning(
                    "a task failed or was cancelled before it finished its records of %s: automatic commits stay before these"
                    " records until a task reads the records again, seeks past them, or commits a later offset",
                    listed({partition for partition, *_ in left}),
                )

    def _read_again(self, messages: Any) -> None:
        """Remove these records from the unfinished records of failed receivers."""
        for message in messages if isinstance(messages, Sequence) else (messages,):
            if message.error() is None:
                partition, first, end = partition_of_message(message), message.offset(), _end(message)
                records = self.left.pop(partition, {})
                if left := {offset: one for offset, one in records.items() if not first <= offset < end}:
                    self.left[partition] = left

    def unfinished(self, committed: Mapping[TopicPartition, int]) -> Positions:
        """Return the position of the first unfinished record of each partition.

        ``committed`` has the offsets that the application committed. The records before these offsets are finished.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        left = ((partition, at, end) for partition, records in self.left.items() for at, end in records.values())
        for partition, at, end in chain(left, *map(_positions, tuple(self.last.values()))):
            begin = committed.get(partition, 0)
            if begin >= end:
                continue
            first = at if at.offset >= begin else OffsetAndMetadata(begin)
            if partition not in found or first.offset < found[partition].offset:
                found[partition] = first
        return found


def _positions(messages: Any) -> Iterable[tuple[TopicPartition, OffsetAndMetadata, int]]:
    """Yield the position before each delivery of a partition, and the offset after it; ``messages`` is one or a sequence."""
    for message in messages if isinstance(messages, Sequence) else (messages,):
        if message.error() is None:
            yield partition_of_message(message), before(message), _end(message)


def _end(message: Any) -> int:
    """Return the offset after a message. In a batch of columns, one object represents all records of a partition."""
    return message.next_offset if isinstance(message, Delivered) else int(message.offset()) + 1
