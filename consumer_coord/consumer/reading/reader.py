"""The fetched records of one consumer, by Fetch requests or by librdkafka: one queue, read as messages or as columns.

Theory of operation
-------------------

*Responses* travel from the loop to the application's thread in one queue of chunks. The loop appends to the queue; the thread
that has the consumer's turn removes from it. (That is the application's thread, or the loop while the application waits for a
step of the engine.) A chunk leaves the queue only when everything in it was delivered.

*Cursors.* A cursor says how far a reading was decoded. Messages are decoded ahead, a few at a time, into :attr:`Reader.ready`;
the position of a partition is its first message there, and otherwise its cursor. Columns are decoded beside the cursors
(``Decoding`` of ``chunks.py``), which advance when the columns are delivered. If both kinds of calls are mixed,
:meth:`Reader.put_back` returns messages that were not delivered to their chunks.

*Plans.* :meth:`Reader.apply` makes the reader equal to the engine's plan. It is a plain function of the loop, so nothing
interrupts it. Each start of Fetches has a number of its own, so a late response is never taken for a current one. A partition
that the plan does not fetch, for instance a paused one, keeps what was fetched, within a limit, and delivers nothing.

*Interrupts.* A signal handler may raise in any call on the application's thread. So the reader decodes first and stores then,
without a call between the stores. Decoded rows that were lost on the way are not at the cursor, and are decoded again.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns import UnreadableRecordError, kernel
from consumer_coord.columns.decode_messages import Rows, first_messages, kept_chunks
from consumer_coord.config import Config
from consumer_coord.consumer.engine_loop import EngineLoop, weakly
from consumer_coord.consumer.message_type import eof_message, error_message
from consumer_coord.consumer.partitions import Partition, Plan, Read
from consumer_coord.consumer.reading.chunks import Chunk, Cursor, Item, MessageChunk, OutOfRange, ReadingEvent
from consumer_coord.consumer.reading.source import MessageSource
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch import FetchConfig, FetchedRecords, Fetcher, FetchStart, LogEnd, Stopped, StopReason
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.offsets import OffsetAndMetadata, before
from consumer_coord.settings import as_boolean
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.schema import ZERO_UUID

#: Bytes of record batches in the queue. What is fetched beyond them waits in the fetcher, which counts it. A call for columns
#: takes more at once.
_QUEUE_BYTES: Final = 4 << 20
_TAKE_BYTES: Final = 16 << 20
#: How long after the report of an error a partition is fetched again, in seconds (librdkafka: ``fetch.error.backoff.ms``).
_AGAIN_S: Final = 0.5
#: A partition that the plan no longer fetches, such as a paused one, is fetched for this long all the same, in seconds; and how
#: many bytes of such partitions are kept.
_EXCLUDED_S: Final = 1.0
_EXCLUDED_BYTES: Final = 2 << 20


@attrs.define(eq=False)
class PartitionReading:
    """One reading of a partition, as the plan has it."""

    read: Read
    #: The number of its present Fetches; 0 while there are none.
    serial: int = 0
    #: Whether its records are delivered.
    on: bool = False
    #: Whether the fetcher was told to pause.
    paused: bool = False
    #: The reason why the reading ended.
    ended: OutOfRange | None = None
    #: Whether a timer will begin to fetch again, because an error was reported.
    retries: bool = False
    #: While ``on`` is false: the chunks and events that were fetched.
    items: deque[Item] = attrs.field(factory=deque)
    size: int = 0

    @property
    def begins(self) -> bool:
        """Whether its Fetches must begin now."""
        return not self.serial and not self.retries


class Reader:
    """What one consumer has fetched. Create it on the coordinator's loop; methods say if they run elsewhere.

    Only one caller at a time may use it, but for what its docstring allows to any thread.
    """

    def __init__(
        self,
        core: ConsumerCoordinator,
        config: Config,
        engine_loop: EngineLoop,
        source: Callable[[Callable[[], None]], MessageSource] | None = None,
    ) -> None:
        """Create a reader that fetches nothing yet. Call :meth:`serve` before the first plan.

        ``source`` creates what fetches instead of this package's Fetch requests. It is called with a function, to be called on
        the loop when there is something to take.
        """
        self._read_committed = config.read_committed
        self._check_crcs = config.check_crcs
        on_ready = weakly(self._refill)
        #: Only a Fetcher has columns.
        self._fetcher: Fetcher | MessageSource
        if source is not None:
            self._fetcher = source(on_ready)
        else:
            reports_ends = as_boolean("enable.partition.eof", config.librdkafka.get("enable.partition.eof", False))
            self._fetcher = Fetcher(core.cluster, FetchConfig.of(config), on_ready=on_ready, reports_ends=reports_ends)
        #: Returns the engine's table.
        self._table: Callable[[], Mapping[TopicPartition, Partition]] = dict
        self._loop = asyncio.get_running_loop()
        self._wake = core.application.wake
        #: Called on the loop when there is something new.
        self._tell = engine_loop.records_arrived
        #: The last plan that was applied, and the partitions to which the call that applied it was restricted.
        self.applied: Plan = Plan()
        self._only: frozenset[TopicPartition] | None = None
        self._readings: dict[TopicPartition, PartitionReading] = {}
        #: The cursor of every reading whose start is known.
        self.cursors: dict[TopicPartition, Cursor] = {}
        #: The decoded messages of partitions that are not delivered now.
        self._aside: dict[TopicPartition, Sequence[Any]] = {}
        #: Has :attr:`ready`, which thread has the turn, and whether a poll may take messages without a look.
        self.at_hand: Any = kernel.kernel.AtHand(core.lease.clock, _clock_id(core.lease.clock))
        self.at_hand.ready = deque()
        self._queue: deque[Item] = deque()
        #: Number of items at the front of the queue that have nothing left to decode.
        self._decoded = 0
        #: Bytes that were ever added to the queue, and removed from it.
        self._added = 0
        self._removed = 0
        #: Whether a refill was requested that has not happened yet.
        self._asked = False
        self._serial = 0
        #: Whether something ended the Fetches, which is raised after what is in the queue.
        self._failed = False
        self._kept = kept_chunks()
        #: Lets go of finished chunks; called when a poll has no result.
        self.sweep: Callable[[], None] = self._kept.sweep
        #: Partition -> the text of its last error, until records arrive.
        self._reported: dict[TopicPartition, str] = {}
        #: Whether a timer will pause the Fetches of partitions that the plan does not fetch.
        self._pausing = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def serve(self, engine: Any) -> None:
        """Take topic ids from an engine, without a reference that would keep a consumer alive that is not closed."""
        found = weakref.ref(engine)
        self._table = lambda: {} if (one := found()) is None else one.table

    def close_with(self, consumer: object) -> None:
        """Stop fetching when a consumer that was not closed is garbage-collected."""
        self._finalizer = weakref.finalize(consumer, _dropped, self._loop, self._fetcher, os.getpid())
        self._finalizer.atexit = False

    # -- the plan -----------------------------------------------------------------------------------------------------

    def apply(self, plan: Plan, only: frozenset[TopicPartition] | None = None) -> None:
        """Read what ``plan`` says, or only the partitions ``only`` of it; on the loop, in the turn of the caller."""
        if plan is self.applied and only == self._only:
            return
        reads = plan.reads
        gone = {one for one, reading in self._readings.items() if one not in reads or reads[one].serial != reading.read.serial}
        if gone:
            self._end(gone)
        for partition, read in reads.items():
            self._readings.setdefault(partition, PartitionReading(read)).read = read
            if partition not in self.cursors and read.start is not None:
                self.cursors[partition] = Cursor(read.start.offset, read.start.leader_epoch)
        on = {one for one, read in reads.items() if read.on and (only is None or one in only)}
        excluded = [one for one, reading in self._readings.items() if reading.on and one not in on]
        if excluded:
            self._exclude(excluded)
        # Sorted, so that the same history sends the same requests.
        for partition in sorted(one for one in on if not self._readings[one].on):
            self._include(partition, self._readings[partition])
        starts = {one: self._start(one, self._readings[one]) for one in sorted(on) if self._readings[one].begins}
        if starts:
            self._fetcher.assign(starts)
        self.applied, self._only = plan, only

    def _start(self, partition: TopicPartition, reading: PartitionReading) -> FetchStart:
        self._serial += 1
        reading.serial, reading.paused = self._serial, False
        one = self._table().get(partition)
        topic_id = ZERO_UUID if one is None or one.topic_id is None else one.topic_id
        at = self.cursors[partition]
        return FetchStart(self._serial, at.next, at.epoch, topic_id)

    def _end(self, gone: Collection[TopicPartition]) -> None:
        """Forget readings, with all that was fetched for them."""
        self._fetcher.unassign(gone)
        for partition in gone:
            del self._readings[partition]
            self.cursors.pop(partition, None)
            self._aside.pop(partition, None)
            self._reported.pop(partition, None)
        self.at_hand.ready = deque(one for one in self.at_hand.ready if _key(one) not in gone)
        self._keep_in_queue(lambda one: one.at not in gone)

    def _exclude(self, partitions: Collection[TopicPartition]) -> None:
        """Set aside what was fetched of partitions that are not delivered now."""
        for one in partitions:
            self._readings[one].on = False
        ready: deque[Any] = deque()
        aside: dict[tuple[str, int], list[Any]] = {one: [] for one in partitions}
        for message in self.at_hand.ready:
            aside.get(_key(message), ready).append(message)
        self._aside.update((one, aside[one]) for one in partitions if aside[one])
        self.at_hand.ready = ready
        for item in self._queue:
            if item.at is not None and item.at in partitions:
                self._set_aside(item.at, item)
        self._keep_in_queue(lambda one: one.at not in partitions)
        if not self._pausing:
            self._pausing = True
            self._loop.call_later(_EXCLUDED_S, weakly(self._pause_excluded))

    def _set_aside(self, partition: TopicPartition, item: Item) -> None:
        reading = self._readings[partition]
        reading.items.append(item)
        reading.size += item.size
        # From here on, these bytes do not count as the fetcher's: they must not hold up the other partitions of a broker.
        self._fetcher.advance(partition, item.serial, item.end)

    def _pause_excluded(self) -> None:
        self._pausing = False
        excluded = {one: each for one, each in self._readings.items() if not each.on and each.serial and not each.paused}
        for reading in excluded.values():
            reading.paused = True
        self._fetcher.pause(excluded)

    def _include(self, partition: TopicPartition, reading: PartitionReading) -> None:
        """Deliver a partition again, beginning with what was set aside."""
        reading.on = True
        self.at_hand.ready.extend(self._aside.pop(partition, ()))
        self._queue.extend(reading.items)
        self._added += reading.size
        reading.items, reading.size = deque(), 0
        if reading.paused:
            reading.paused = False
            self._fetcher.resume([partition])

    def _keep_in_queue(self, keep: Callable[[Item], bool]) -> None:
        kept = deque(filter(keep, self._queue))
        self._removed = self._added - sum(one.size for one in kept)
        self._queue, self._decoded = kept, 0

    @property
    def ready(self) -> deque[Any]:
        """The decoded messages to deliver, in order. Replace them in :attr:`at_hand`, so that no poll takes former ones."""
        ready: deque[Any] = self.at_hand.ready
        return ready

    # -- on the thread that has the turn -------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is something to decode or to look at; readable from any thread.

        False while a refill is on its way, because it rings: a thread that looked again and again would keep the lock that the
        loop needs.
        """
        return len(self._queue) > self._decoded or self._failed or (not self._asked and self._fetcher.ready)

    def pull(self, most: int) -> None:
        """Decode records that have arrived until ``most`` messages or events are ready; without a wait."""
        ready = self.at_hand.ready
        if not ready or self._added - self._removed > _QUEUE_BYTES // 2:
            self._free()
        queue, index = self._queue, self._decoded
        while index < len(queue):
            item = queue[index]
            if not self._is_current(item):
                index += 1
            elif len(ready) >= most:
                break
            elif isinstance(item, ReadingEvent):
                self._report(item)
            else:
                self._decode(item, index, most - len(ready))
        self._decoded = index
        if not ready:
            self.sweep()
        if not self._asked and self._fetcher.ready and self._added - self._removed <= _QUEUE_BYTES // 2:
            self._asked = True
            self._on_loop(self._refill)

    def exceed(self) -> None:
        """Make room for more than the queue may hold, because the caller waits for more messages than that.

        Call this before such a wait: what is ready leaves the queue only with the call's result.
        """
        queue = self._queue
        held = self._added - self._removed
        if self._asked or self._decoded < len(queue):
            return
        # The fetcher must not count what is ready either, because its limit would end the fetching for good. (Copy the queue,
        # because the loop may append to it meanwhile.)
        for item in tuple(queue):
            if item.at is not None:
                self._fetcher.advance(item.at, item.serial, item.end)
        if self._fetcher.ready and held > _QUEUE_BYTES // 2:
            self._asked = True
            self._on_loop(functools.partial(self._refill, held + _QUEUE_BYTES))

    def _is_current(self, item: Item) -> bool:
        """Return whether an item of the queue has something to decode."""
        if isinstance(item, ReadingEvent) and (item.told or item.at is None):
            return not item.told
        reading = None if item.at is None else self._readings.get(item.at)
        if item.at is None or reading is None or reading.serial != item.serial:
            return False
        return isinstance(item, ReadingEvent) or item.end > self.cursors[item.at].next

    def _decode(self, chunk: Chunk | MessageChunk, index: int, most: int) -> None:
        """Decode messages of a chunk; if the chunk cannot be read, replace it by an event."""
        at, ready = chunk.at, self.at_hand.ready
        cursor = self.cursors[at]
        rows: Rows | None = chunk.rows
        if rows is None or rows.position != cursor.next:
            try:
                rows = chunk.rows = chunk.decode(cursor.next, self._kept)
            except UnreadableRecordError as error:
                self._removed += chunk.size
                self._queue[index] = ReadingEvent(at, cursor.next, chunk.serial, error)
                return
        taken = rows.take(most) if len(rows) else []
        to = rows.position
        if not len(rows):
            chunk.rows = None
            if chunk.ends_with(rows):
                to = chunk.end
        cursor = cursor.moved(to, chunk.epoch, taken[0].offset() if taken else None)
        if taken and self._reported:
            self._reported.pop(at, None)
        extend = ready.extend
        # No signal handler runs between these two statements: the first one calls nothing, and the second one is a call in C.
        self.cursors[at] = cursor
        extend(taken)

    def _report(self, event: ReadingEvent) -> None:
        """Make an event ready as a message; nothing if it is no news."""
        append = self.at_hand.ready.append
        if event.at is None or event.failure is None:
            message = eof_message(event.at, event.start) if event.at is not None and event.message is None else event.message
            event.told = True
            append(message)
            return
        text = str(event.failure)
        message = error_message(event.at, event.start, event.failure)
        self.fetch_again(event.at)
        if self._reported.get(event.at) != text:
            append(message)
            self._reported[event.at] = text

    def fetch_again(self, partition: TopicPartition) -> None:
        """Fetch a partition again from its cursor, after a while, because the cause of its error may have gone."""
        reading = self._readings[partition]
        self._on_loop(lambda: self._loop.call_later(_AGAIN_S, self._again, partition, reading))
        reading.serial, reading.retries = 0, True

    def _free(self) -> None:
        """Remove what was delivered, and what is no longer current, from the front of the queue."""
        queue = self._queue
        waiting = self._first_waiting() if self.at_hand.ready else {}
        while queue:
            item = queue[0]
            first = None if isinstance(item, ReadingEvent) else waiting.get(item.at)
            if self._is_current(item) or (first is not None and first.offset() < item.end):
                break
            # In this order, so that an interrupt leaves the end known twice rather than never.
            if item.at is not None:
                self._fetcher.advance(item.at, item.serial, item.end)
            self._removed += item.size
            del queue[0]
            if self._decoded:
                self._decoded -= 1

    def take(self, most: int) -> list[Any]:
        """Return up to ``most`` messages of :attr:`ready`, which then count as delivered; on the loop."""
        ready = self.at_hand.ready
        if most >= len(ready):
            messages, self.at_hand.ready = list(ready), deque()
            return messages
        return [ready.popleft() for _ in range(most)]

    def take_of(self, partitions: frozenset[TopicPartition], most: int) -> list[Any]:
        """Return up to ``most`` messages of these partitions (if empty: of all), and mark them as delivered.

        Stop before an error; if the first message is an error, return only this error.
        """
        picked: list[Any] = []
        rest: deque[Any] = deque()
        ended = False
        for message in self.ready:
            failed = message.error() is not None
            ended = ended or len(picked) == most or (failed and bool(picked))
            # An error about a broker has no partition.
            if not ended and (not partitions or message.topic() is None or _key(message) in partitions):
                picked.append(message)
                ended = failed
            else:
                rest.append(message)
        self.at_hand.ready = rest
        return picked

    # -- columns --------------------------------------------------------------------------------------------------------

    @property
    def has_columns(self) -> bool:
        """Whether what is fetched can be decoded into columns."""
        return isinstance(self._fetcher, Fetcher)

    def put_back(self) -> None:
        """Return messages that were decoded and not delivered to their chunks."""
        if not self.at_hand.ready and not self._aside:
            return
        waiting = self._first_waiting()
        cursors: dict[Any, Cursor] = {**self.cursors}
        for partition, message in waiting.items():
            one, at = cursors[partition], before(message)
            first = None if at.offset == one.first else one.first
            cursors[partition] = Cursor(at.offset, at.leader_epoch, first, None if at.offset == one.record else one.record)
        # No signal handler runs between these stores.
        self.at_hand.ready, self._aside, self.cursors, self._decoded = deque(), {}, cursors, 0

    def found(self, least: int, *, columns: bool) -> bool:
        """Whether ``least`` messages are ready; for ``columns``, whether there is anything to decode or to look at."""
        if not columns:
            return len(self.at_hand.ready) >= least
        self.put_back()
        return self.pending

    def items(self) -> list[Chunk | ReadingEvent]:
        """Return what may be decoded into columns, in order; drop reports that a log ended, because no column has them."""
        # A copy, because the loop may append to the queue meanwhile.
        queue = tuple(self._queue)
        for one in queue:
            if isinstance(one, ReadingEvent) and one.failure is None:
                one.told = True
        return [one for one in queue if self._is_current(one) and not isinstance(one, MessageChunk)]

    # -- positions ----------------------------------------------------------------------------------------------------

    def positions(self, table: Mapping[TopicPartition, Partition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position after each partition's last delivered record; omit partitions without one. Any thread.

        A position may lie behind transaction markers and aborted records, too. If a partition was
        lost and assigned again, the reader has its former reading until the next :meth:`apply`; that one does not count.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, cursor, message in self._moved(table):
            if message is None:
                found[partition] = cursor.position
            elif message.offset() != cursor.first:
                found[partition] = before(message)
        return found

    def heard(self, table: Mapping[TopicPartition, Partition]) -> frozenset[TopicPartition]:
        """Return the partitions of which a record was delivered in the present reading, as in :meth:`positions`. Any thread."""
        return frozenset(
            partition
            for partition, cursor, message in self._moved(table)
            if cursor.record is not None and (message is None or message.offset() != cursor.record)
        )

    def _moved(self, table: Mapping[TopicPartition, Partition]) -> Iterator[tuple[TopicPartition, Cursor, Any]]:
        """Iterate over partitions whose present reading has moved: the cursor, and the first message that waits, or None."""
        waiting = self._first_waiting() if table else {}
        for partition, value in table.items():
            reading, cursor = self._readings.get(partition), self.cursors.get(partition)
            if reading is not None and cursor is not None and cursor.first is not None and reading.read.serial == value.serial:
                yield partition, cursor, waiting.get(partition)

    def reached(self, table: Mapping[TopicPartition, Partition]) -> dict[TopicPartition, int]:
        """Return the offset from which each partition's next record comes; omit partitions whose start is unknown.

        This is the start, or the offset after the last delivered record, or behind the transaction markers and aborted records
        after it.
        """
        delivered = self.positions(table)
        starts = {one: value.start for one, value in table.items()}
        return {one: at.offset for one, start in starts.items() if (at := delivered.get(one, start)) is not None}

    def began(self, partition: TopicPartition, serial: int) -> int | None:
        """Return the first offset that a reading has reached; None before it, and for another reading."""
        reading, cursor = self._readings.get(partition), self.cursors.get(partition)
        return None if reading is None or cursor is None or reading.read.serial != serial else cursor.first

    def waits(self, partition: TopicPartition) -> bool:
        """Return whether a fetched record of a partition waits to be delivered."""
        reading = self._readings.get(partition)
        items = () if reading is None else (*reading.items, *self._queue)
        return partition in self._first_waiting() or any(one.at == partition and self._is_current(one) for one in items)

    def _first_waiting(self) -> dict[tuple[str, int], Any]:
        return first_messages([*self.at_hand.ready.copy(), *chain(*tuple(self._aside.values()))])

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are fetched and delivered."""
        return frozenset(partition for partition, one in self._readings.items() if one.on)

    @property
    def out_of_range(self) -> Mapping[TopicPartition, tuple[OutOfRange, int]]:
        """The partitions whose reading has ended, with the reason and the serial number of the reading."""
        return {at: (one.ended, one.read.serial) for at, one in self._readings.items() if one.ended is not None}

    def selects(self, partition: TopicPartition) -> bool:
        """Return whether the last call was not restricted to other partitions; any thread."""
        only = self._only
        return only is None or partition in only

    @property
    def fast(self) -> bool:
        """Whether records may be delivered without applying the plan again."""
        return self._only is None

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _on_loop(self, function: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _refill(self, most: int = _QUEUE_BYTES) -> None:
        """Move fetched records into the queue, and ring."""
        self._asked = False
        room = most - (self._added - self._removed)
        if room > 0 and not self._failed:
            try:
                found = self._fetcher.take(room)
            except CoordinatorError:
                # The engine raises it in the application's next call.
                self._failed = True
                self._wake()
                return
            for item in found:
                self._add(item)
        if self._queue:
            self._tell()

    def _add(self, item: FetchedRecords | Stopped | MessageChunk | ReadingEvent) -> None:
        """Add what the fetcher returned to the queue, if it is about the current reading."""
        partition = item.at if isinstance(item, (MessageChunk, ReadingEvent)) else item.partition
        if partition is None:
            assert isinstance(item, ReadingEvent)
            self._queue.append(item)
            return
        reading = self._readings.get(partition)
        if reading is None or reading.serial != item.serial:
            return
        found = self._stopped(reading, item) if isinstance(item, Stopped) else self._item(item)
        if found is None:
            self._wake()
        elif reading.on:
            self._added += found.size
            self._queue.append(found)
        else:
            self._set_aside(partition, found)
            if sum(one.size for one in self._readings.values()) > _EXCLUDED_BYTES:
                self._pause_excluded()

    def _item(self, item: FetchedRecords | MessageChunk | ReadingEvent) -> Item:
        if not isinstance(item, FetchedRecords):
            return item
        if not item.records:
            return ReadingEvent(item.partition, item.offset, item.serial)
        return Chunk(item, self._check_crcs, self._read_committed)

    def _stopped(self, reading: PartitionReading, stopped: Stopped) -> ReadingEvent | None:
        """Return the error for the application; None if the engine must look."""
        if stopped.reason is StopReason.RECREATED:
            # The engine finds the new topic in the same metadata as the fetcher, and begins another reading.
            return None
        if stopped.reason in (StopReason.OUT_OF_RANGE, StopReason.TRUNCATED):
            reading.ended = _out_of_range(stopped)
            return None
        error = stopped.error
        if stopped.reason is StopReason.UNREADABLE:
            error = UnreadableRecordError(*stopped.partition, stopped.offset, str(stopped.error))
            error.__cause__ = stopped.error
        return ReadingEvent(stopped.partition, stopped.offset, stopped.serial, error)

    def _again(self, partition: TopicPartition, reading: PartitionReading) -> None:
        if self._readings.get(partition) is reading and reading.retries:
            reading.retries = False
            if reading.on:
                self._fetcher.assign({partition: self._start(partition, reading)})

    async def fetch(self, most: int) -> None:
        """Decode available messages, without a wait: what ends a wait is the bell."""
        if not self._queue:
            self._refill()
        self._raise_failure()
        self.pull(most)
        # Let heartbeats and other tasks of this loop run, even if records arrive fast.
        await asyncio.sleep(0)

    def gather_chunks(self) -> None:
        """Move all fetched records into the queue, for columns."""
        self.pull(0)
        self._refill(_TAKE_BYTES)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if not self._queue and self._failed:
            # While the application took what was in the queue, the broker may have answered again.
            failure, self._failed = self._fetcher.failure(), False
            if failure is not None:
                raise failure

    def log_ends(self) -> Mapping[TopicPartition, LogEnd] | None:
        """Return what is known about the ends of the logs of the assigned partitions; None if librdkafka fetches."""
        return self._fetcher.log_ends()

    def fetch_metrics(self) -> Mapping[str, float]:
        """Return what was fetched, by Java's names of metrics; nothing if librdkafka fetches, which counts by itself."""
        return self._fetcher.metrics.snapshot() if isinstance(self._fetcher, Fetcher) else {}

    def watermarks(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Return the first offset and the high watermark in a partition's last response; None if there was no response."""
        return self._fetcher.watermarks(partition)

    def queues(self, partition: TopicPartition) -> Mapping[str, int]:
        """Return figures of a partition for the statistics; see :meth:`~consumer_coord.fetch.Fetcher.queues`."""
        return self._fetcher.queues(partition)

    def use_credentials(self, username: str, password: str) -> None:
        """Set the SASL user name and password of librdkafka's new connections, if it fetches."""
        if not isinstance(self._fetcher, Fetcher):
            self._fetcher.set_sasl_credentials(username, password)

    async def close(self) -> None:
        """Stop fetching, and let go of all chunks that no message needs; idempotent."""
        self._readings.clear()
        await self._fetcher.close()
        self._queue.clear()
        self._kept.close()
        if self._finalizer is not None:
            self._finalizer.detach()


def _key(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()


def _clock_id(clock: Any) -> int:
    """Return the system clock that a function reads, which C may read directly; -1 for another function."""
    if isinstance(clock, functools.partial) and clock.func is time.clock_gettime:
        return int(clock.args[0])
    return -1


def _out_of_range(stopped: Stopped) -> OutOfRange:
    known = stopped.reason is StopReason.TRUNCATED and stopped.end_offset >= 0
    # A position inside a response has the epoch of the response's last batch. This epoch may end after the position, so
    # continue at the smaller of the two offsets.
    resume_at = OffsetAndMetadata(min(stopped.end_offset, stopped.offset), stopped.end_epoch) if known else None
    return OutOfRange(str(stopped.error), stopped.offset, resume_at)


def _dropped(loop: asyncio.AbstractEventLoop, fetcher: Fetcher | MessageSource, pid: int) -> None:
    """Close the fetcher of a consumer that was garbage-collected; runs on whichever thread collects it."""
    if pid == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(fetcher.close()))
