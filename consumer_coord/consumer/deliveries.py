"""Which delivered records the application has not finished yet.

The rule of automatic commits: a record is finished when the thread or task that received it asks for the next one, or when
the consumer is closed without an exception.  So a record whose processing raised, or was cancelled, is not committed, and
neither is one that another thread or task still works on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from consumer_coord.consumer.data_plane import before, partition_of_message
from consumer_coord.consumer.worker import Positions
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

W = TypeVar("W")


class Deliveries(Generic[W]):
    """What each receiver (a thread, a task) received last."""

    def __init__(self, ended: Callable[[W], bool], failed: Callable[[W], bool]) -> None:
        """``ended``: the receiver will not ask again; ``failed``: it ended by an exception or a cancellation."""
        #: A message, or a sequence of them; consumers store here without a call, so that no interrupt comes between.
        self.last: dict[W, Any] = {}
        self._ended = ended
        self._failed = failed

    def asked(self, receiver: W) -> None:
        """Note that a receiver asks for more: finish its records, and those of receivers that ended well."""
        self._finish(receiver)

    def closed(self, receiver: W) -> None:
        """Note that a receiver closes the consumer without an exception: finish the same records."""
        self._finish(receiver)

    def _finish(self, receiver: W) -> None:
        for one in tuple(self.last):
            if one == receiver or (self._ended(one) and not self._failed(one)):
                self.last.pop(one, None)

    def unfinished(self) -> Positions:
        """Return the position of the first unfinished record of each partition."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for messages in tuple(self.last.values()):
            for message in _each(messages):
                if message.error() is None:
                    partition, at = partition_of_message(message), before(message)
                    if partition not in found or at.offset < found[partition].offset:
                        found[partition] = at
        return found


def _each(messages: Any) -> Iterable[Any]:
    return messages if isinstance(messages, Sequence) else (messages,)
