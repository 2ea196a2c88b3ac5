"""Read columns for both consumers: collect and decode Fetch responses, and find the end of a bounded read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import ArrowColumns, Columns
from consumer_coord.config import Config
from consumer_coord.confluent.arguments import checked_rows
from consumer_coord.confluent.topic_partitions import GivenRows, distinct_positions_of
from consumer_coord.consumer.arrow_arguments import NO_COLUMNS
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Phase
from consumer_coord.consumer.reading.chunks import Cursor, Decoding
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.errors import ConfigurationError, IllegalStateError
from consumer_coord.group.commits import Entry
from consumer_coord.leaders.list_offsets import LATEST, list_offsets
from consumer_coord.net.metadata import is_other
from consumer_coord.offsets import OFFSET_BEGINNING, OFFSET_END, OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed

#: Interval at which a waiting bounded read checks its partitions, in seconds.
_SLICE_S = 0.1
#: How long a bounded read without assigned partitions waits for an assignment before the read ends, in seconds.
_EMPTY_S = 10.0
#: Interval between two look-ups of the log ends that a bounded read has not reached, in seconds.
_AGAIN_S = 5.0
#: Time limit of one look-up of log ends, in milliseconds. The limit is short, because the member polls only between two
#: look-ups.
_LOOK_UP_MS = 1_000


class Prepared(NamedTuple):
    """A batch of columns, the records that it delivers, and the reader, with its cursors after the delivery."""

    batch: ArrowColumns
    delivered: tuple[Any, ...]
    reader: Reader
    cursors: dict[TopicPartition, Cursor]


class ArrowReads:
    """Reads columns for one consumer, from the queue that also has its messages."""

    def __init__(self, engine: Engine) -> None:
        """Raise :class:`IllegalStateError` if librdkafka fetches, which has no columns."""
        if not engine.reader.has_columns:
            raise IllegalStateError(NO_COLUMNS)
        self._engine = engine
        self.reader: Reader = engine.reader

    async def gather(self, timeout_s: float, bounds: Bounds | None) -> bool:
        """Wait at most ``timeout_s`` seconds for records; return whether the available ones may be delivered."""
        engine, reader = self._engine, self.reader
        if bounds is None:
            ready = await engine.gather(1, 0, timeout_s, columns=True)
        else:
            still_open = await bounds.look(engine)
            if bounds.reached:
                return False
            ready = await engine.gather(1, 0, min(timeout_s, _SLICE_S), only=still_open, columns=True)
        if ready:
            # Also take all other chunks that are available now. Do not wait for more: engine.gather() has checked that this
            # member may deliver records, and a wait would make this check outdated.
            reader.gather_chunks()
        return ready

    def decoding(self, request: Request) -> Decoding:
        """Return a decoder of what was fetched."""
        reader = self.reader
        end = None if request.bounds is None else request.bounds.end
        columns = Columns(request.columns)
        return Decoding(reader.items(), reader.cursors, columns, request.max_records, request.max_bytes, end)

    def nothing(self, request: Request) -> Prepared:
        """Return an empty batch."""
        return Prepared(request.empty, (), self.reader, self.reader.cursors)

    def prepared(self, decoding: Decoding, bounds: Bounds | None) -> Prepared | None:
        """Return a batch that may be delivered now; None if the records may no longer be delivered, or there are none.

        Nothing may happen between this call and the delivery. If no record was decoded, call :meth:`pass_over`.
        """
        batch = self.batch(decoding)
        if not self._engine.deliverable:
            return None
        if len(batch):
            cursors = {**self.reader.cursors, **decoding.cursors}
            return Prepared(batch, tuple(decoding.delivered.values()), self.reader, cursors)
        self.pass_over(decoding, bounds)
        return None

    def batch(self, decoding: Decoding) -> ArrowColumns:
        """Return the decoded columns, with the offset to commit, the ownership number and the topic id of each partition."""
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
        self.reader.cursors = {**self.reader.cursors, **decoding.cursors}
        if decoding.failure is not None and decoding.failed is not None:
            if decoding.failed.at is not None:
                self.reader.fetch_again(decoding.failed.at)
            raise decoding.failure
        if bounds is not None:
            for partition in decoding.beyond:
                bounds.arrived(partition)


@attrs.frozen
class Request:
    """The arguments of a read of columns."""

    columns: tuple[str, ...]
    max_records: int
    max_bytes: int
    bounds: Bounds | None
    #: The batch to return while no record is available.
    empty: ArrowColumns

    @classmethod
    def checked(
        cls,
        columns: Sequence[str],
        max_records: int,
        max_bytes: int,
        bounds: Bounds | None = None,
    ) -> Request:
        """Check and keep the arguments; raise ValueError for limits below 1, and ``ConfigurationError`` for unknown columns."""
        if max_records < 1 or max_bytes < 1:
            raise ValueError(f"max_records and max_bytes must be at least 1, not {max_records} and {max_bytes}")
        empty = Columns(columns).finish()
        return cls(tuple(columns), max_records, max_bytes, bounds, empty)

    def has(self, columns: Sequence[str], max_records: int, max_bytes: int) -> bool:
        """Return whether these arguments are equal to this request's arguments."""
        return max_records == self.max_records and max_bytes == self.max_bytes and tuple(columns or ()) == self.columns


@attrs.define
class Bounds:
    """The end offsets of a bounded read: given offsets, or the log ends when each partition was first seen assigned.

    After a truncation, or after a topic was deleted and created again, a log may never reach its end offset. So the read looks
    up the log ends repeatedly, and uses the lowest offset that it has found for each partition.
    """

    _config: Config
    #: Partition -> the offset that the application gave (OFFSET_END: the end of the log). Other partitions are not read. None:
    #: every partition is read to the end of its log.
    _given: Mapping[TopicPartition, int] | None = None
    #: Whether every partition has been read to its end.
    reached: bool = False
    #: Partition -> the topic id, and the end of the log.
    _found: dict[TopicPartition, tuple[uuid.UUID | None, int]] = attrs.field(factory=dict)
    #: Partition -> the serial number of a reading whose position is greater than the log's end offset, and the loop time until
    #: which the read waits for the fetcher to detect a truncation.
    _behind: dict[TopicPartition, tuple[int, float]] = attrs.field(factory=dict)
    _again_at: float = 0.0
    #: The partitions whose last lookup failed.
    _failed: frozenset[TopicPartition] = frozenset()
    #: The loop time of the next lookup after a failed one.
    _retry_at: float = 0.0
    #: The number of lookups in a row that failed.
    _failures: int = 0
    #: Partition whose end is not yet known -> the loop time at which it was first asked for in this assignment.
    _unknown_since: dict[TopicPartition, float] = attrs.field(factory=dict)
    _empty_since: float | None = None

    @classmethod
    def of(cls, config: Config, until: Literal["now"] | GivenRows) -> Bounds:
        """Check the argument of ``arrow_batches``; raise :class:`ConfigurationError` for a partition without an offset."""
        if until == "now":
            return cls(config)
        given = {one: at.offset for one, at in distinct_positions_of(checked_rows(until), "until").items()}
        if without := [one for one, offset in given.items() if offset < 0 and offset not in (OFFSET_BEGINNING, OFFSET_END)]:
            raise ConfigurationError(f"until: no end offset is given for {listed(without)}")
        return cls(config, given)

    async def look(self, engine: Engine) -> frozenset[TopicPartition]:
        """Look up log ends; return the partitions with a known end that are not yet read to this end."""
        core = engine.core
        if not engine.manual and not core.protocol.subscribed:
            raise IllegalStateError("arrow_batches reads assigned partitions: call subscribe or assign first")
        if engine.attention:
            await engine.attend()
        assigned = frozenset(one for one, value in engine.table.items() if value.phase is not Phase.LOST and not value.declined)
        of_former = [one for one in assigned & self._found.keys() if is_other(self._found[one][0], engine.table[one].topic_id)]
        for partition in of_former:
            del self._found[partition]
        await self.look_up_ends(engine, self.unread(engine, assigned))
        # The assignment may have changed during the look-up.
        left = self.unread(engine, assigned & engine.table.keys())
        moment = core.application.clock()
        known = not core.application.attention and (engine.manual or (core.generation >= 0 and not core.rebalancing))
        if assigned or not known:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = moment
        waited = self._empty_since is not None and moment - self._empty_since >= _EMPTY_S
        self.reached = known and not left and (bool(assigned) or waited)
        return frozenset(one for one in left if self.end_of(one) is not None)

    async def look_up_ends(self, engine: Engine, left: frozenset[TopicPartition]) -> None:
        """Look up the unknown log ends, with back-off after a failure, and every five seconds those that are not reached."""
        clock = engine.core.application.clock
        ids = {one: engine.table[one].topic_id for one in left if self._wanted(one) == OFFSET_END}
        began = clock()
        self._unknown_since = {one: self._unknown_since.get(one, began) for one in ids.keys() - self._found.keys()}
        again = clock() >= self._again_at
        waiting = self._failed if clock() < self._retry_at else frozenset()
        wanted = {one: LATEST for one in ids if (again or one not in self._found) and one not in waiting}
        if not wanted:
            return
        result = await list_offsets(
            engine.core.cluster, wanted, Deadline.after(_LOOK_UP_MS), read_committed=self._config.read_committed
        )
        found = result.found
        self._failed = self._failed - wanted.keys() | result.failed.keys()
        self._failures = self._failures + 1 if result.failed else 0
        if result.failed:
            self._retry_at = clock() + engine.core.cluster.backoff.ms(self._failures - 1) / 1000
        for partition, row in found.items():
            _, before = self._found.get(partition, (None, row.offset))
            self._found[partition] = (ids[partition], min(before, row.offset))
        moment = clock()
        for partition, at in self._positions(engine, found.keys() & engine.table.keys()).items():
            serial = engine.table[partition].serial
            if at.offset > found[partition].offset and self._behind.get(partition, (-1, 0.0))[0] != serial:
                self._behind[partition] = serial, moment + _AGAIN_S
        self._again_at = moment + _AGAIN_S if again else self._again_at
        limit_s = self._config.coordinator.default_api_timeout_ms / 1000
        late = [one for one in result.failed if moment - self._unknown_since.get(one, moment) > limit_s]
        if late:
            raise result.failed[late[0]]

    def unread(self, engine: Engine, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions that this read has not read to their ends."""
        positions = self._positions(engine, partitions)
        moment = engine.core.application.clock()
        left = []
        for partition in partitions:
            end, at = self.end_of(partition), positions.get(partition)
            serial, until = self._behind.get(partition, (-1, 0.0))
            behind = serial == engine.table[partition].serial and moment < until
            if end is None or behind or (end > 0 and (at is None or at.offset < end)):
                left.append(partition)
        return frozenset(left)

    def _positions(self, engine: Engine, partitions: Set[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position of each partition, or its start while no record has arrived.

        Partitions with unknown positions are missing.
        """
        table = {one: engine.table[one] for one in partitions}
        starts = {one: value.start for one, value in table.items() if value.start is not None}
        return {**starts, **engine.reader.positions(table)}

    def arrived(self, partition: TopicPartition) -> None:
        """Record that the log contains the partition's position, because records from this position arrived."""
        if partition in self._behind:
            self._behind[partition] = self._behind[partition][0], 0.0

    def _wanted(self, partition: TopicPartition) -> int:
        return OFFSET_END if self._given is None else self._given.get(partition, 0)

    def end_of(self, partition: TopicPartition) -> int | None:
        """Return the end offset of a partition in this read (exclusive), or None while the offset is unknown."""
        wanted = self._wanted(partition)
        if wanted != OFFSET_END:
            return max(0, wanted)
        return self._found[partition][1] if partition in self._found else None

    def end(self, partition: TopicPartition) -> int:
        """Return the end offset of a partition in this read (exclusive), or 0 while the offset is unknown."""
        return self.end_of(partition) or 0
