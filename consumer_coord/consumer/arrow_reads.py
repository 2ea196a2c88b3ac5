"""Read columns, for both consumers: gather and decode chunks, and find the end of a bounded read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from consumer_coord.columns import ArrowColumns, Columns
from consumer_coord.config import Config
from consumer_coord.consumer.arrow_arguments import MIXED_AFTER_MESSAGES
from consumer_coord.consumer.chunks import MOST_CHUNKS, ChunkWorker, Decoding
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.fetch_plane import FetchPlane
from consumer_coord.consumer.partitions import Phase
from consumer_coord.errors import IllegalStateError
from consumer_coord.group.commits import Entry
from consumer_coord.leaders.list_offsets import LATEST, list_offsets
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

#: Interval between two checks of the partitions of a waiting bounded read, in seconds.
_SLICE_S = 0.1
#: How long a member without partitions waits for a first one before its bounded read ends, in seconds.
_EMPTY_S = 10.0


class ArrowReads:
    """The columns of one consumer, and its data plane after the first read."""

    def __init__(self, engine: Engine, plane: FetchPlane, worker: ChunkWorker) -> None:
        self._engine = engine
        self.plane = plane
        self._worker = worker

    @classmethod
    async def begin(cls, engine: Engine, config: Config, consumer: object) -> ArrowReads:
        """Read with the fetcher from now on; raise :class:`IllegalStateError` if messages were fetched before."""
        if engine.worker.ready or any(one.next is not None for one in engine.worker.cursors.values()):
            raise IllegalStateError(MIXED_AFTER_MESSAGES)
        made: list[ArrowReads] = []

        def make() -> ChunkWorker:
            plane = FetchPlane(
                engine.core.cluster,
                config,
                topic_id=lambda one: engine.table[one].topic_id if one in engine.table else None,
                wake=engine.core.application.wake,
            )
            plane.close_with(consumer)
            worker = ChunkWorker(plane)
            made.append(cls(engine, plane, worker))
            return worker

        await engine.read_with(make)
        return made[0]

    async def gather(self, timeout_s: float, bounds: Bounds | None) -> bool:
        """Wait for chunks, at most ``timeout_s`` seconds; return False if delivery is not allowed."""
        engine, worker = self._engine, self._worker
        self.plane.free(worker.ready)
        if bounds is None:
            ready = await engine.gather(1, MOST_CHUNKS, timeout_s)
        else:
            still_open = await bounds.look(engine)
            if bounds.reached:
                return False
            ready = await engine.gather(1, MOST_CHUNKS, min(timeout_s, _SLICE_S), only=still_open)
        if ready:
            # Take the other available chunks without a wait, so that the checks remain valid.
            await worker.fetch(MOST_CHUNKS, 0.0)
        return ready

    def batch(self, decoding: Decoding) -> ArrowColumns:
        """Return the columns with the ownerships under which they were fetched; called before the last check."""
        batch = decoding.columns.finish()
        table = self._engine.table
        entries: dict[TopicPartition, Entry] = {}
        for partition, one in decoding.delivered.items():
            value = table.get(partition)
            position = OffsetAndMetadata(one.next_offset, one.epoch)
            entries[partition] = Entry(position, *((value.ownership, value.topic_id) if value is not None else ()))
        batch.fetched_under = entries
        return batch

    def pass_over(self, decoding: Decoding, bounds: Bounds | None) -> None:
        """Continue after chunks without a record to deliver; raise the error that stopped the decoding."""
        self._worker.ready = decoding.rest
        if decoding.failure is not None and decoding.failed_at is not None:
            # Fetched again from its position when it is read again.
            self._worker.put_back(decoding.failed_at)
            raise decoding.failure
        if bounds is not None:
            for partition in {TopicPartition(one.topic(), one.partition()) for one in decoding.rest}:
                self._worker.put_back(partition)


@attrs.frozen
class Request:
    """The arguments of a read of columns."""

    columns: Sequence[str]
    max_records: int
    max_bytes: int
    timeout_s: float
    bounds: Bounds | None

    @classmethod
    def checked(
        cls, columns: Sequence[str], max_records: int, max_bytes: int, timeout_s: float, bounds: Bounds | None
    ) -> Request:
        """Check and keep the arguments; raise ValueError for limits below 1, and ``ConfigurationError`` for unknown columns."""
        if max_records < 1 or max_bytes < 1:
            raise ValueError(f"max_records and max_bytes must be at least 1, not {max_records} and {max_bytes}")
        # Created only to check the names.
        Columns(columns)
        return cls(columns, max_records, max_bytes, timeout_s, bounds)

    def decoding(self, chunks: Iterable[Any]) -> Decoding:
        """Return a new decoder of these chunks with new columns, so an interrupted decoding has no effect on the next one."""
        end = None if self.bounds is None else self.bounds.end
        return Decoding(chunks, Columns(self.columns), self.max_records, self.max_bytes, end)


@attrs.define
class Bounds:
    """The end of a bounded read: partition -> offset. Without ``given``, the partition's end when it was first assigned."""

    config: Config
    #: Whether the application gave the ends; if so, partitions without an end are not read.
    given: bool = False
    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)
    #: Whether every partition was read to its end.
    reached: bool = False
    _empty_since: float | None = None

    async def look(self, engine: Engine) -> frozenset[TopicPartition]:
        """Look up the ends of new partitions; return the partitions that are not read to their ends."""
        core = engine.core
        if not engine.manual and not core.protocol.subscribed:
            raise IllegalStateError("arrow_batches reads assigned partitions: call subscribe or assign first")
        if engine.attention:
            await engine.attend()
        assigned = frozenset(one for one, value in engine.table.items() if value.phase is not Phase.LOST and not value.declined)
        await self._look_up(engine, assigned)
        # During the look-up the assignment may have changed.
        still_open = frozenset(one for one in assigned & engine.table.keys() if not self._at_end(engine, one))
        moment = core.application.clock()
        known = not core.application.attention and (engine.manual or (core.generation >= 0 and not core.rebalancing))
        if assigned or not known:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = moment
        waited = self._empty_since is not None and moment - self._empty_since >= _EMPTY_S
        self.reached = known and not still_open and (bool(assigned) or waited)
        return still_open

    async def _look_up(self, engine: Engine, assigned: frozenset[TopicPartition]) -> None:
        if not self.given and (unknown := assigned - self.ends.keys()):
            found = await list_offsets(
                engine.core.cluster,
                dict.fromkeys(unknown, LATEST),
                Deadline.after(self.config.coordinator.default_api_timeout_ms),
                read_committed=self.config.isolation_level == "read_committed",
            )
            self.ends = {**self.ends, **{one: row.offset for one, row in found.items()}}

    def _at_end(self, engine: Engine, partition: TopicPartition) -> bool:
        value = engine.table[partition]
        at = engine.worker.positions([partition]).get(partition, value.start)
        end = self.end(partition)
        return end is not None and (end == 0 or (at is not None and at.offset >= end))

    def end(self, partition: TopicPartition) -> int | None:
        """Return the offset at which reading of a partition ends, or None while the end is unknown."""
        return self.ends.get(partition, 0 if self.given else None)
