"""The data plane of a consumer that reads columns: this package's own Fetch requests.

Each assignment of a partition has a serial number, so a response to an earlier assignment is never used for the current
assignment.
"""

from __future__ import annotations

import asyncio
import os
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import UnreadableRecordError
from consumer_coord.config import Config
from consumer_coord.consumer.chunks import Chunk, PartitionEnded, PartitionEof, PartitionError
from consumer_coord.consumer.data_plane import Sink
from consumer_coord.fetch import FetchConfig, Fetcher, FetchStart, LogEnd, Stopped, StopReason
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.schema import ZERO_UUID

logger: Final = get_logger(__name__)

#: Maximum number of bytes of record batches taken from the fetcher in one call.
_TAKE_BYTES = 16 << 20


#: The serial number of a reading that an event has ended.
ENDED: Final = 0


@attrs.define(eq=False)
class PartitionReading:
    """One assignment of a partition."""

    #: The number of its present Fetches; 0 before them.
    serial: int
    #: The position after the last chunk taken; None before the first chunk.
    position: OffsetAndMetadata | None = None
    #: The end offsets of the responses taken, in order. The fetcher counts the bytes of a response until
    #: :meth:`FetchPlane.free` releases the response.
    taken: deque[int] = attrs.field(factory=deque)


class FetchPlane:
    """A :class:`~consumer_coord.consumer.data_plane.DataPlane` over a fetcher; created and used on the coordinator's loop."""

    rings = False

    def __init__(
        self,
        cluster: ClusterClient,
        config: Config,
        *,
        topic_id: Callable[[TopicPartition], uuid.UUID | None],
        wake: Callable[[], object],
        on_ready: Callable[[], object],
        reports_ends: bool = False,
    ) -> None:
        """Create the data plane.

        ``topic_id`` returns a partition's topic id, ``wake`` makes the engine check again, and ``on_ready`` is called on the
        loop when there is something new to fetch. ``reports_ends``: whether a fetch also returns :class:`PartitionEof`.
        """
        self._read_committed = config.read_committed
        self._check_crcs = config.check_crcs
        self._fetcher = Fetcher(cluster, FetchConfig.of(config), on_ready=on_ready, reports_ends=reports_ends)
        self._topic_id = topic_id
        self._wake = wake
        self._serial = 0
        self._readings: dict[TopicPartition, PartitionReading] = {}
        self._last_queues: dict[TopicPartition, Mapping[str, int]] = {}

    def close_with(self, consumer: object) -> None:
        """Stop fetching when a consumer that was not closed is garbage-collected."""
        finalizer = weakref.finalize(consumer, _dropped, asyncio.get_running_loop(), self._fetcher, os.getpid())
        finalizer.atexit = False

    # -- the data plane -----------------------------------------------------------------------------------------------

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        """Wait at most ``wait_s`` seconds for records, then pass the available chunks to ``sink``; ``most`` is ignored."""
        if wait_s > 0:
            await self._fetcher.wait(Deadline.after(wait_s * 1000))
        found = self._take(_TAKE_BYTES)
        for one in found:
            if isinstance(one, Chunk):
                self._readings[one.at].taken.append(one.next_offset)
        sink(found)

    @property
    def ready(self) -> bool:
        """Whether a fetch would return something at once; readable from any thread."""
        return self._fetcher.ready

    async def wait_idle(self) -> None:
        """Return at once, because no operation of this data plane continues after its caller was cancelled."""

    async def learn(self, topics: Collection[str], limit_s: float) -> bool:
        """Return True, because the member's own metadata has the topics."""
        return True

    def held_up(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Return False, because the first records never wait for an idle partition."""
        return False

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Also read these partitions, which are not assigned yet, from these positions."""
        starts: dict[TopicPartition, FetchStart] = {}
        # Sorted, so that the same history sends the same requests.
        for partition, at in sorted(positions.items()):
            self._serial += 1
            self._readings[partition] = PartitionReading(self._serial)
            topic_id = self._topic_id(partition) or ZERO_UUID
            starts[partition] = FetchStart(self._serial, at.offset, at.leader_epoch, topic_id)
        self._fetcher.assign(starts)

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = tuple(partitions)
        for partition in gone:
            if self._readings.pop(partition, None) is not None:
                self._last_queues[partition] = {**self._fetcher.queues(partition), "fetchq_cnt": 0, "fetchq_size": 0}
        self._fetcher.unassign(gone)

    async def positions(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the positions after the last chunks taken."""
        return self.taken(partitions)

    def taken(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        found = {one: self._readings[one].position for one in partitions if one in self._readings}
        return {one: at for one, at in found.items() if at is not None}

    def log_ends(self) -> Mapping[TopicPartition, LogEnd]:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        return self._fetcher.log_ends()

    def fetch_metrics(self) -> Mapping[str, float]:
        """See :class:`~consumer_coord.consumer.data_plane.DataPlane`."""
        return self._fetcher.metrics.snapshot()

    async def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions being read, without the partitions that ended with an error."""
        return frozenset(self._readings)

    async def close(self) -> None:
        """Stop fetching; idempotent."""
        await self._fetcher.close()

    def watermarks(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the high watermark in a partition's last response; None if there was no response."""
        return self._fetcher.watermarks(partition)

    def queues(self, partition: TopicPartition) -> Mapping[str, int]:
        """Return figures of a partition for the statistics; see :meth:`~consumer_coord.fetch.Fetcher.queues`.

        Of a partition that is not fetched now, such as a paused one, these are the last figures.
        """
        return self._fetcher.queues(partition) or self._last_queues.get(partition, {})

    # -- memory -------------------------------------------------------------------------------------------------------

    def free(self, waiting: Iterable[Any]) -> None:
        """Make the fetcher free the responses that have no chunk in ``waiting``."""
        first: dict[tuple[str, int], int] = {}
        for one in waiting:
            first.setdefault((one.topic(), one.partition()), one.offset())
        for partition, reading in self._readings.items():
            at, end = first.get(partition), None
            while reading.taken and (at is None or reading.taken[0] <= at):
                end = reading.taken.popleft()
            if end is not None:
                self._fetcher.advance(partition, reading.serial, end)

    # -- responses ----------------------------------------------------------------------------------------------------

    def _take(self, max_bytes: int) -> list[Any]:
        """Return chunks and events of the current readings, in order of arrival."""
        found: list[Any] = []
        for item in self._fetcher.take(max_bytes):
            reading = self._readings.get(item.partition)
            if reading is None or reading.serial != item.serial:
                continue
            if isinstance(item, Stopped):
                found.extend(self._ended(item))
                continue
            if not item.records:
                found.append(PartitionEof(item.partition, item.offset, item.serial))
                continue
            reading.position = OffsetAndMetadata(item.next_offset, item.leader_epoch)
            found.append(Chunk(item.partition, item.offset, item, self._check_crcs, self._read_committed))
        return found

    def _ended(self, stopped: Stopped) -> list[PartitionEnded]:
        if stopped.reason is StopReason.RECREATED:
            # The engine finds the new topic in the same metadata as the fetcher, and assigns the partition again.
            self._wake()
            return []
        if stopped.reason in (StopReason.OUT_OF_RANGE, StopReason.TRUNCATED):
            known = stopped.reason is StopReason.TRUNCATED and stopped.end_offset >= 0
            # A position inside a response has the epoch of the response's last batch. This epoch may end after the position, so
            # continue at the smaller of the two offsets.
            resume_at = OffsetAndMetadata(min(stopped.end_offset, stopped.offset), stopped.end_epoch) if known else None
            failure = PartitionError(stopped.error, True, resume_at)
            return [PartitionEnded(stopped.partition, stopped.offset, failure, stopped.serial)]
        error = stopped.error
        if stopped.reason is StopReason.UNREADABLE:
            error = UnreadableRecordError(*stopped.partition, stopped.offset, str(stopped.error))
            error.__cause__ = stopped.error
        ended = PartitionEnded(stopped.partition, stopped.offset, PartitionError(error), stopped.serial)
        self._refused(ended)
        return [ended]

    def _refused(self, ended: PartitionEnded) -> None:
        """Forget a partition that cannot be read. The consumer assigns it again after it has raised the error."""
        del self._readings[ended.at]
        self._fetcher.unassign([ended.at])


def _dropped(loop: asyncio.AbstractEventLoop, fetcher: Fetcher, pid: int) -> None:
    """Close the fetcher of a consumer that was garbage-collected; runs on whichever thread collects it."""
    if pid == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(fetcher.close()))
