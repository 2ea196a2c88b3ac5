"""The data plane of a consumer that reads messages with this package's own Fetch requests.

Responses travel from the loop to the application's thread in one queue of chunks, and become messages there, a step of
:data:`~consumer_coord.columns.rows.STEP_BYTES` at a time. The loop only appends to the queue, and only the thread that takes
removes from it. (That is the application's thread, or the loop while the application waits for a step of the engine.) A chunk
counts only while the serial number of its reading is current, so the end of a reading needs no change of the queue.

The position of a partition is derived from the chunks and rows that are left. So if a signal handler raises in a call of
:meth:`MessagePlane.take`, the worker's next comparison sees which messages were lost on the way.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from consumer_coord.columns import CompletedFetch, UnreadableRecordError
from consumer_coord.columns.rows import Rows, kept_chunks
from consumer_coord.config import Config
from consumer_coord.consumer.chunks import Chunk, PartitionEnded, PartitionEof, PartitionError
from consumer_coord.consumer.data_plane import Sink
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.fetch_plane import ENDED, FetchPlane, PartitionReading
from consumer_coord.consumer.messages import MESSAGES, eof_message, error_message
from consumer_coord.consumer.partitions import Partition
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch import FetchStart
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.settings import as_boolean
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.schema import ZERO_UUID

#: Bytes of record batches in the queue of chunks. What is fetched beyond them waits in the fetcher, which counts it.
_QUEUE_BYTES: Final = 4 << 20
#: How long after the report of an error a partition is fetched again, in seconds (librdkafka: ``fetch.error.backoff.ms``).
_AGAIN_S: Final = 0.5


class MessagePlane(FetchPlane):
    """Messages of Fetch responses. The engine uses it on the loop, and a blocking consumer takes messages on its own thread."""

    rings = True

    def __init__(self, core: ConsumerCoordinator, config: Config, engine_loop: EngineLoop) -> None:
        """Fetch nothing yet. Call :meth:`serve` before the first assignment."""
        refill = weakref.WeakMethod(self._refill)
        super().__init__(
            core.cluster,
            config,
            topic_id=self._id_of_topic,
            wake=core.application.wake,
            on_ready=lambda: None if (method := refill()) is None else method(),
            reports_ends=as_boolean("enable.partition.eof", config.librdkafka.get("enable.partition.eof", False)),
        )
        #: Returns the engine's table.
        self._table: Callable[[], Mapping[TopicPartition, Partition]] = dict
        self._loop = asyncio.get_running_loop()
        #: Called on the loop when :meth:`take` may return something new.
        self._tell = engine_loop.records_arrived
        self._queue: deque[Chunk | PartitionEnded | PartitionEof] = deque()
        #: The decoder of the first chunk, and its messages that were decoded and not taken.
        self._decoder: CompletedFetch | None = None
        self._rows: Rows | None = None
        #: The event that was returned last; it stays in the queue until the next call.
        self._told: PartitionEnded | PartitionEof | None = None
        #: Partition -> the position after the last chunk that left the queue.
        self._behind: dict[TopicPartition, OffsetAndMetadata] = {}
        #: Bytes of batches that were ever added to the queue (on the loop), and removed from it.
        self._added = 0
        self._removed = 0
        #: Whether a refill was requested that has not happened yet.
        self._asked = False
        self._failure: CoordinatorError | None = None
        self._kept = kept_chunks()
        #: Partition -> the text of its last error, until records arrive.
        self._reported: dict[TopicPartition, str] = {}

    def serve(self, engine: Any) -> None:
        """Take topic ids from an engine, without a reference that would keep a consumer alive that is not closed."""
        found = weakref.ref(engine)
        self._table = lambda: {} if (one := found()) is None else one.table

    def _id_of_topic(self, partition: TopicPartition) -> uuid.UUID | None:
        one = self._table().get(partition)
        return None if one is None else one.topic_id

    # -- on the thread that takes -------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` may return something, or the engine must look; readable from any thread.

        False while a refill is on its way, because it rings: a thread that looked again and again would keep the lock that the
        loop needs.
        """
        return bool(self._queue) or self._failure is not None or (not self._asked and super().ready)

    @property
    def dry(self) -> bool:
        """Whether :meth:`take` would return nothing now."""
        return not self._queue

    def take(self, most: int) -> list[Any]:
        """Return at most ``most`` messages that have arrived, or one event, without a wait; one thread at a time."""
        queue = self._queue
        found: list[Any] = []
        while queue and len(found) < most:
            chunk = queue[0]
            reading = self._readings.get(chunk.at)
            if chunk is self._told or reading is None or reading.serial != chunk.serial:
                self._remove(chunk)
                continue
            if not isinstance(chunk, Chunk):
                if found:
                    break
                self._told = chunk
                found = self._event(chunk, reading)
                continue
            rows = self._rows
            if rows is None and (rows := self._decode(chunk)) is None:
                continue
            if len(rows):
                taken = rows.take(most - len(found))
                found = [*found, *taken] if found else taken
            if not len(rows):
                self._advance(chunk, rows)
        if not found:
            self._kept.sweep()
        if not self._asked and super().ready and self._added - self._removed <= _QUEUE_BYTES // 2:
            self._asked = True
            self._on_loop(self._refill)
        return found

    def _decode(self, chunk: Chunk) -> Rows | None:
        """Decode the next rows of the first chunk; if they cannot be read, put an event in the place of the chunk."""
        self._decoder = chunk.decoder()
        try:
            rows = self._rows = MESSAGES.decode(self._decoder, self._kept)
        except UnreadableRecordError as error:
            self._queue[0] = PartitionEnded(chunk.at, chunk.start, PartitionError(error), chunk.serial)
            self._removed += chunk.size
            return None
        return rows

    def _remove(self, chunk: Chunk | PartitionEnded | PartitionEof) -> None:
        """Remove the first item of the queue."""
        self._rows = None
        self._queue.popleft()
        self._told = None
        if isinstance(chunk, Chunk):
            self._removed += chunk.size

    def _advance(self, chunk: Chunk, rows: Rows) -> None:
        """Continue after rows that were taken: with further rows of the chunk, or with the next chunk."""
        assert self._decoder is not None
        if self._reported:
            self._reported.pop(chunk.at, None)
        if self._decoder.exhausted:
            # In this order, so that an interrupt leaves the end known twice rather than never.
            self._behind[chunk.at] = OffsetAndMetadata(chunk.next_offset, chunk.leader_epoch())
            self._fetcher.advance(chunk.at, chunk.serial, chunk.next_offset)
            self._remove(chunk)
        else:
            chunk.start = rows.next_offset
            self._rows = None

    def _event(self, ended: PartitionEnded | PartitionEof, reading: PartitionReading) -> list[Any]:
        """Return the event for the worker, or the message with an error for the application; nothing if it is no news."""
        if isinstance(ended, PartitionEof):
            return [eof_message(ended.at, ended.start)]
        if ended.failure.out_of_range:
            return [ended]
        # No later chunk of this reading counts, because the partition is fetched again from here.
        self._behind[ended.at] = OffsetAndMetadata(ended.start, -1)
        reading.serial = ENDED
        self._on_loop(lambda: self._loop.call_later(_AGAIN_S, self._again, ended.at, reading, ended.start))
        text = str(ended.failure.cause)
        if self._reported.get(ended.at) == text:
            return []
        self._reported[ended.at] = text
        return [error_message(ended.at, ended.start, ended.failure.cause)]

    def wait(self, most: int, wait_s: float) -> list[Any]:
        """See :meth:`take`; ``wait_s`` is 0, because the consumer waits for the bell (:attr:`rings`)."""
        return self.take(most)

    fetch_now = wait

    def positions_now(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions after the last messages taken, also past offsets without a message; on any thread.

        While another thread takes messages, a position may be that of a moment ago.
        """
        waiting: dict[TopicPartition, OffsetAndMetadata] = {}
        # Read once, because the other thread may let go of the rows.
        rows = self._rows
        for chunk in list(self._queue):
            reading = self._readings.get(chunk.at)
            if isinstance(chunk, Chunk) and reading is not None and reading.serial == chunk.serial and chunk.at not in waiting:
                at = chunk.start if rows is None else rows.position
                waiting[chunk.at] = OffsetAndMetadata(at, chunk.leader_epoch())
            rows = None
        behind = {**self._behind, **waiting}
        return {one: behind[one] for one in partitions if one in behind}

    def _on_loop(self, function: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _refill(self) -> None:
        """Move fetched records into the queue, and ring."""
        self._asked = False
        room = _QUEUE_BYTES - (self._added - self._removed)
        if room > 0 and self._failure is None:
            try:
                found = self._take(room)
            except CoordinatorError as error:
                # The engine raises it in the application's next call.
                self._failure = error
                self._wake()
                return
            for one in found:
                self._added += one.size if isinstance(one, Chunk) else 0
            self._queue.extend(found)
        if self._queue:
            self._tell()

    def _refused(self, ended: PartitionEnded) -> None:
        """Keep the partition: it is fetched again after the application has received the error."""

    def _again(self, partition: TopicPartition, reading: PartitionReading, offset: int) -> None:
        """Fetch a partition again from the record that could not be read, because the cause may have gone."""
        if self._readings.get(partition) is not reading:
            return
        self._serial += 1
        reading.serial = self._serial
        start = FetchStart(self._serial, offset, -1, self._topic_id(partition) or ZERO_UUID)
        self._fetcher.assign({partition: start})

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        """Pass available messages to ``sink``, without a wait: what ends a wait is the bell."""
        if not self._queue:
            self._refill()
        if not self._queue and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        sink(self.take(most))
        # Let heartbeats and other tasks of this loop run, even if records arrive fast.
        await asyncio.sleep(0)

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        for partition in positions:
            self._behind.pop(partition, None)
        await super().assign(positions)

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        gone = tuple(partitions)
        for partition in gone:
            self._behind.pop(partition, None)
            self._reported.pop(partition, None)
        await super().unassign(gone)

    def taken(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        return self.positions_now(partitions)

    async def close(self) -> None:
        """Stop fetching, and let go of all chunks that no message needs; idempotent."""
        self._readings.clear()
        await super().close()
        self._queue.clear()
        self._rows = None
        self._kept.close()
