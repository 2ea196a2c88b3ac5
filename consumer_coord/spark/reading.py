"""The common part of both readers of ranges: positions that are kept from task to task, and the handling of data loss.

A reader stops in each partition at a *position*. Records that arrived beyond the end of a range stay in a small *stash* for the
next range. The next range usually begins there, so no seek is needed.
"""

from __future__ import annotations

import abc
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from consumer_coord.printable import get_logger
from consumer_coord.spark.errors import DataLossError, ReadStalledError
from consumer_coord.spark.packing import NO_TOPIC_ID, Range
from consumer_coord.topic_partition import TopicPartition

logger: Final = get_logger(__name__)

#: A gap of at most this many offsets is read and skipped; a wider gap needs a seek.
SKIP = 1_000
#: A task of this many records drops all other partitions, which would compete for memory and fetches.
BIG_TASK = 20_000
#: Partitions that are unread for this time, in seconds, are no longer fetched.
IDLE_S = 60.0


class Position(Protocol):
    """The state of one partition. The stash has every existing record of the offsets in [low, next)."""

    #: The id of the topic to which the records belong.
    topic_id: uuid.UUID
    next: int
    used_s: float

    @property
    def low(self) -> int:
        """The first offset of the stash."""


P = TypeVar("P", bound=Position)


class RangesReader(abc.ABC, Generic[P]):
    """A reader of ranges, each of a different partition. Only one thread may use a reader."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, P] = {}
        self.used_s: float = 0.0
        # The ranges that the current task still has to read, and the ids of the planned topics.
        self._pending: dict[TopicPartition, Range] = {}
        self._planned_ids: dict[str, uuid.UUID] = {}
        self._fail_on_data_loss = True
        self._timeout_ms = 0

    @abc.abstractmethod
    def read(
        self, ranges: Sequence[Range], schema: pa.Schema, *, fail_on_data_loss: bool, timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield all records of ``ranges``, each of a different partition, in the order of offsets within a partition.

        Raise :class:`~consumer_coord.spark.errors.DataLossError`, ``ReadStalledError`` after ``timeout_ms`` without a record,
        and connection errors that no retry resolves.
        """

    @abc.abstractmethod
    def forget(self) -> None:
        """Stop reading all partitions. The connections stay open."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abc.abstractmethod
    def _assign(self, key: TopicPartition, wanted: Range, start: int) -> P:
        """Begin to read a partition at ``start``."""

    @abc.abstractmethod
    def _unassign(self, keys: Sequence[TopicPartition]) -> None:
        """Stop reading partitions."""

    @abc.abstractmethod
    def _watermarks(self, key: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the end of a pending partition. If they are unknown, log the reason and return None."""

    def _start_task(self, ranges: Sequence[Range], *, fail_on_data_loss: bool, timeout_ms: int) -> dict[TopicPartition, Range]:
        """Begin a task; return the pending ranges of the task.

        Stop reading other partitions that were long unused, or all other partitions if the task is big.
        """
        self.used_s = time.monotonic()
        self._fail_on_data_loss, self._timeout_ms = fail_on_data_loss, timeout_ms
        self._planned_ids = {each.topic: each.topic_id for each in ranges if each.topic_id != NO_TOPIC_ID}
        self._pending = {each.topic_partition: each for each in ranges if each.size}
        is_big = sum(each.size for each in ranges) >= BIG_TASK
        others = [(key, position) for key, position in self._positions.items() if key not in self._pending]
        self._unassign([key for key, position in others if is_big or self.used_s - position.used_s > IDLE_S])
        return self._pending

    def _kept(self, key: TopicPartition, wanted: Range) -> P | None:
        """Return the position from which the reader can continue the range; None if the partition must be assigned."""
        position = self._positions.get(key)
        if position is None or position.topic_id != wanted.topic_id or not position.low <= wanted.start <= position.next + SKIP:
            return None
        position.used_s = self.used_s
        return position

    def _drop(self, keys: Iterable[TopicPartition]) -> None:
        """Stop reading the pending ranges of partitions."""
        gone = list(keys)
        for key in gone:
            self._pending.pop(key, None)
        self._unassign([key for key in gone if key in self._positions])

    def _drop_topic(self, topic: str, now: uuid.UUID) -> None:
        """Drop the ranges of a topic that was deleted and created again since the batch was planned."""
        planned = self._planned_ids.pop(topic)
        self._drop(key for key in {**self._positions, **self._pending} if key[0] == topic)
        self._lose(
            f"topic {topic!r}: the batch was planned from topic id {planned}, and the topic was deleted and created again"
            f" as {now}"
        )

    def _on_gone(self, key: TopicPartition, wanted: Range) -> None:
        """Continue a range whose next offset is out of range at the first remaining record.

        Drop the range if no record remains.
        """
        at = max(self._positions[key].next, wanted.start)
        there = self._watermarks(key)
        if there is None or there[0] <= at <= there[1]:
            # A new leader may not know this offset yet. If the offset is really out of range, the next read has the same error.
            self._assign(key, wanted, at)
            return
        low, high = there
        self._lose(f"{named(wanted)}: the partition holds offsets {low} to {high} now, so {max(at, 0)} cannot be read")
        if at < low < wanted.end:
            self._assign(key, wanted, low)
        else:
            self._drop([key])

    def _drop_cut_back(self) -> None:
        """Drop the offsets beyond the end of a log that was truncated after the batch was planned.

        These offsets have no records.
        """
        for key, wanted in list(self._pending.items()):
            there = self._watermarks(key)
            if there is not None and there[1] < wanted.end and self._positions[key].next >= there[1]:
                self._lose(f"{named(wanted)}: out of range, because the log was truncated at offset {there[1]}")
                self._drop([key])

    def _lose(self, what: str) -> None:
        lose(what, fail=self._fail_on_data_loss)

    def _stalled(self) -> ReadStalledError:
        """Return the error for a task whose records do not arrive."""
        waiting = "; ".join(
            f"{named(wanted)} (read up to {self._positions[key].next})" for key, wanted in sorted(self._pending.items())
        )
        return ReadStalledError(
            f"no record arrived for {self._timeout_ms} ms, although the broker had reported them: {waiting}."
            " Are all brokers up? kafkaConsumer.pollTimeoutMs sets how long a task waits"
        )


def named(wanted: Range) -> str:
    """Return a range's name for messages."""
    return f"topic {wanted.topic!r}, partition {wanted.partition}, offsets {wanted.start} to {wanted.end}"


def lose(what: str, *, fail: bool) -> None:
    """Raise :class:`~consumer_coord.spark.errors.DataLossError`, or log a warning without ``fail``."""
    message = f"data loss in {what}"
    if fail:
        raise DataLossError(
            f"{message}. Records were deleted (retention, or the topic was deleted) before the group read them."
            " To continue with the remaining records, set failOnDataLoss=false; keep records longer than the lag"
        )
    logger.warning("%s; continuing, because failOnDataLoss=false", message)
