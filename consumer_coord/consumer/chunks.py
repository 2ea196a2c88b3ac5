"""The worker's queue of a consumer that delivers columns: it contains Fetch responses instead of messages.

A :class:`Chunk` is the part of one partition's Fetch response that was not delivered yet. The worker treats a chunk as a
message whose offset is the next position to deliver. A :class:`Decoding` turns the waiting chunks into columns without changing
the chunks. The consumer delivers the result by replacing the worker's queue with :attr:`Decoding.rest`. So an interrupt or the
loss of a partition during the decoding neither loses nor repeats records. If the decoder of a chunk is not at the chunk's
position, the chunk creates a new decoder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import Columns, CompletedFetch, UnreadableRecordError
from consumer_coord.consumer.data_plane import DataPlane
from consumer_coord.consumer.deliveries import Delivered, Span
from consumer_coord.consumer.worker import Cursor, FetchWorker
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch import FetchedRecords
from consumer_coord.offsets import OffsetAndMetadata, before, partition_of_message
from consumer_coord.topic_partition import TopicPartition

#: Maximum number of chunks to take in one call. (``queued.max.messages.kbytes`` limits the bytes of chunks.)
MOST_CHUNKS = 10_000
#: Number of bytes, after decompression, that one step decodes. A step takes about a millisecond, and no heartbeat is sent
#: during a step.
_STEP_BYTES = 1 << 20
#: The end offset that :meth:`~consumer_coord.columns.Columns.append` receives if there is no end.
_NO_END = 2**63 - 1


@attrs.frozen
class PartitionError:
    """The ``error()`` of an event: why the data plane stopped reading a partition."""

    cause: CoordinatorError
    #: True if the offset is not in the log. In this case, ``auto.offset.reset`` determines a new position, and the application
    #: does not receive the error.
    out_of_range: bool = False
    #: The position at which reading may continue after a truncation (KIP-320).
    resume_at: OffsetAndMetadata | None = None

    def str(self) -> str:
        """Return the text, as a ``KafkaError`` does."""
        return f"{self.cause}"


def is_out_of_range(error: Any) -> bool:
    """Return whether an event's error means that an offset is not in the log."""
    return isinstance(error, PartitionError) and error.out_of_range


@attrs.frozen(eq=False)
class PartitionEnded(Span):
    """An event that the data plane returns instead of records after it has stopped reading a partition at ``start``."""

    failure: PartitionError
    #: The serial number of the reading in the data plane.
    serial: int = 0

    def error(self) -> PartitionError:
        """Return the reason why reading stopped."""
        return self.failure


@attrs.frozen(eq=False)
class PartitionEof(Span):
    """An event between the chunks: the log ended at ``start`` when the last Fetch was answered."""

    serial: int


@attrs.define(eq=False)
class Chunk(Span):
    """Records of one partition in one Fetch response. ``start`` is the position of the next record to deliver."""

    records: FetchedRecords
    _check_crcs: bool
    _read_committed: bool
    _decoder: CompletedFetch | None = None

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.records.next_offset

    @property
    def serial(self) -> int:
        """The serial number of the reading in the data plane."""
        return self.records.serial

    @property
    def size(self) -> int:
        """Size of the record batches, in bytes."""
        return len(self.records.records)

    def leader_epoch(self) -> int:
        """Return the leader epoch of the last batch."""
        return self.records.leader_epoch

    def decoder(self) -> CompletedFetch:
        """Return a decoder at this chunk's position."""
        if self._decoder is None or self._decoder.interrupted or self._decoder.next_offset != self.start:
            self._decoder = CompletedFetch(
                self.records.records,
                topic=self.at.topic,
                partition=self.at.partition,
                offset=self.start,
                aborted=self.records.aborted,
                read_committed=self._read_committed,
                check_crcs=self._check_crcs,
            )
        return self._decoder

    def behind(self, position: int) -> Chunk:
        """Return a chunk of the same records that starts at ``position``."""
        return attrs.evolve(self, start=position)


class Decoding:
    """Decodes chunks in their order, step by step."""

    def __init__(
        self,
        chunks: Iterable[Any],
        columns: Columns,
        max_records: int,
        max_bytes: int,
        end: Callable[[TopicPartition], int] | None = None,
    ) -> None:
        """Decode at most ``max_records`` records and, after decompression, about ``max_bytes`` bytes.

        ``end`` returns the offset at which the decoding of a partition stops; later records stay in the chunk.
        """
        self.columns = columns
        self.records: int = 0
        #: The chunks that remain after the result is delivered.
        self.rest: deque[Any] = deque()
        self.delivered: dict[TopicPartition, Delivered] = {}
        #: The reason why decoding stopped before the next records, and the partition of these records.
        self.failure: CoordinatorError | None = None
        self.failed_at: TopicPartition | None = None
        self._left = deque(chunks)
        self._max_records = max_records
        self._bytes_left = max_bytes
        self._end = end or (lambda _: _NO_END)

    def step(self) -> bool:
        """Decode up to a megabyte; return False when decoding has ended."""
        if not self._left or self.records >= self._max_records or self._bytes_left <= 0 or self.failure is not None:
            self.rest.extend(self._left)
            self._left.clear()
            return False
        chunk = self._left[0]
        at = partition_of_message(chunk)
        if chunk.error() is not None:
            if not self.records:
                # The caller raises this error, so remove it from the remaining chunks.
                self._left.popleft()
            self.failure, self.failed_at = chunk.error().cause, at
            return True
        end = self._end(at)
        if chunk.offset() >= end:
            self.rest.append(self._left.popleft())
        else:
            self._decode(chunk, at, end)
        return True

    def _decode(self, chunk: Chunk, at: TopicPartition, end: int) -> None:
        fetch = chunk.decoder()
        most, most_bytes = self._max_records - self.records, min(self._bytes_left, _STEP_BYTES)
        try:
            appended = self.columns.append(fetch, max_records=most, max_bytes=most_bytes, end_offset=end)
        except UnreadableRecordError as error:
            self.failure, self.failed_at = error, at
            appended = None
        position = chunk.next_offset if fetch.exhausted else fetch.next_offset
        if position > chunk.offset():
            first = self.delivered.get(at)
            self.delivered[at] = Delivered(
                at,
                chunk.offset() if first is None else first.start,
                chunk.leader_epoch() if first is None else first.epoch_before,
                position,
                chunk.leader_epoch(),
            )
        if fetch.exhausted:
            self._left.popleft()
        else:
            self._left[0] = chunk.behind(position)
        if appended is not None:
            self.records += appended.records
            self._bytes_left -= appended.bytes


class ChunkWorker(FetchWorker):
    """The worker for a data plane that returns chunks."""

    def __init__(self, plane: DataPlane) -> None:
        super().__init__(plane, is_out_of_range)

    def tracked(self, batch: Sequence[Any]) -> dict[TopicPartition, Cursor]:
        """Return :attr:`cursors` with the position after each partition's last chunk."""
        cursors = dict(self.cursors)
        for chunk in batch:
            if chunk.error() is None:
                partition = partition_of_message(chunk)
                one = cursors[partition]
                first = chunk.offset() if one.first is None else one.first
                cursors[partition] = one._replace(next=chunk.next_offset, epoch=chunk.leader_epoch(), first=first)
        return cursors

    def put_back(self, partition: TopicPartition) -> None:
        """Drop the waiting records of a partition, so that the data plane fetches them again from the current position.

        This method is called after an error was raised, because the cause of the error may no longer exist. The method is also
        called for records after the end of a bounded read, because these records belong to a later call.
        """
        rest: deque[Any] = deque()
        cursors = dict(self.cursors)
        found = False
        for chunk in self.ready:
            if partition_of_message(chunk) != partition:
                rest.append(chunk)
            elif chunk.error() is None and not found:
                found = True
                at = before(chunk)
                cursors[partition] = cursors[partition]._replace(next=at.offset, epoch=at.leader_epoch)
        # With ``busy`` set, the next reconcile() reads each position from the plane, and assigns this partition again.
        self.ready, self.cursors, self.busy = rest, cursors, True
