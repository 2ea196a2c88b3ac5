"""Which record may be handled next, and which offset may be committed: the state of one ``process``, without I/O.

The drivers (asyncio, threads, processes) report what happens: records were delivered, a handler ended, a partition was given
up. They ask for the next record, and the consumer asks for the offsets to commit. Nothing here waits, reads a clock or calls
the application; a driver with threads calls it under one lock.

* **A lane** is a queue of records that must be handled one after another: those of one key, or of one partition. While a
  handler runs in it, a lane outlives the ownership of its partition. So if the partition comes back, its first record of that
  key waits for this handler. Records without an order share a lane per partition, which may have any number of records in hand.
* **Lanes take turns.** ``_ready`` has the lanes with a record that may start, and a lane goes to the end after each record.
* **A holding** is one uninterrupted reading of a partition; its number comes from the consumer. A record belongs to the holding
  in which it was delivered, and what a handler does after the end of its holding changes no offset.
* **Unfinished** is what was delivered and is not finished. An offset that no record was delivered for (a transaction marker, a
  compacted record, the part before the log's start) is never waited for.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from consumer_coord.offsets import OffsetAndMetadata, before
from consumer_coord.process.finished_offsets import Ranges, capacity, encode
from consumer_coord.topic_partition import TopicPartition

#: Bytes that a record takes in memory, beside its key and value.
_RECORD_BYTES: Final = 500
#: Part of the memory up to which a partition that was paused must shrink before it is read again.
_RESUMES_AT: Final = 0.5


class Order(enum.Enum):
    """Which records are handled one after another, in the order of their offsets."""

    KEY = "key"
    PARTITION = "partition"
    NONE = "none"


class State(enum.Enum):
    """What happens to a record between its delivery and its end."""

    WAITING = "waiting"  # in its lane
    RUNNING = "running"  # a handler has it
    RETRYING = "retrying"  # its next attempt is not due yet, or has no slot
    ENDED = "ended"  # finished, failed for good, or given up with its holding


class Record:
    """A delivered record."""

    __slots__ = (
        "attempt",
        "due",
        "handler",
        "holding",
        "idle_s",
        "lane",
        "message",
        "offset",
        "reason",
        "retries",
        "since",
        "size",
        "started",
        "state",
    )

    def __init__(self, message: Any, offset: int, size: int, holding: Holding, lane: Lane) -> None:
        self.message: Any = message
        self.offset: int = offset
        self.size: int = size
        self.holding: Holding = holding
        self.lane: Lane = lane
        self.state: State = State.WAITING
        #: The number of the present attempt, from 1 on.
        self.attempt: int = 0
        #: Why the result of the running handler no longer counts; None while it counts.
        self.reason: str | None = None
        #: Whether the running handler has one of the slots for retries.
        self.retries: bool = False
        #: The number of the retry that is due later.
        self.due: int = 0
        #: When the first and the present attempt began, and how long the record has waited between attempts, in seconds.
        self.since: float = 0.0
        self.started: float = 0.0
        self.idle_s: float = 0.0
        #: What the driver knows of the running handler.
        self.handler: Any = None


class Lane:
    """Records that are handled one after another, or, if not ``exclusive``, in turn with other lanes."""

    __slots__ = ("busy", "exclusive", "key", "ready", "waiting")

    def __init__(self, key: Any, *, exclusive: bool) -> None:
        self.key: Any = key
        self.exclusive: bool = exclusive
        self.waiting: deque[Record] = deque()
        #: The record that later ones wait for.
        self.busy: Record | None = None
        #: Whether the lane waits for its turn.
        self.ready: bool = False


class Holding:
    """The records of one partition, from the beginning of a reading to its end."""

    __slots__ = (
        "committed",
        "draining",
        "ended",
        "finished",
        "full",
        "number",
        "partition",
        "pending",
        "position",
        "size",
        "unfinished",
    )

    def __init__(self, partition: TopicPartition, number: int, position: int) -> None:
        self.partition: TopicPartition = partition
        #: The group's commit, while it is not known which offsets its metadata names.
        self.committed: OffsetAndMetadata | None = None
        #: The serial number of the reading.
        self.number: int = number
        #: The offset after the last delivered record.
        self.position: int = position
        #: Offset -> record, in the order of offsets.
        self.unfinished: dict[int, Record] = {}
        #: Offsets that a former owner has finished, at or after :attr:`position`.
        self.finished: deque[tuple[int, int]] = deque()
        #: Records that were delivered before the finished offsets were known; None once they are known.
        self.pending: list[Record] | None = None
        #: Bytes of the unfinished records.
        self.size: int = 0
        #: Whether the bounds are exceeded, so that the partition must not be read.
        self.full: bool = False
        #: Whether no record may start, because the group revokes the partition.
        self.draining: bool = False
        self.ended: bool = False

    def start(self) -> int:
        """Return the lowest unfinished offset, or the offset after everything that is known to be finished."""
        position, finished = self.position, self.finished
        return next(iter(self.unfinished), finished[0][1] if finished and finished[0][0] <= position else position)

    def ranges(self) -> Ranges:
        """Return what is finished above the lowest unfinished offset. Offsets without a record count as finished."""
        found: list[tuple[int, int]] = []
        at = self.start()
        for offset in self.unfinished:
            if offset > at:
                found.append((at, offset))
            at = offset + 1
        if self.position > at:
            found.append((at, self.position))
        for first, end in self.finished:
            if end <= at:
                continue
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], end
            else:
                found.append((first, end))
        return found


class Work:
    """The records of one ``process``: delivered, running, finished. See the module's docstring."""

    def __init__(
        self,
        order: Order,
        *,
        concurrency: int,
        most_records: int,
        most_bytes: int,
        metadata_bytes: int,
        retry_share: float,
    ) -> None:
        """Create it without records.

        ``most_records`` and ``most_bytes`` bound what is unfinished in memory; each partition has an equal share.
        ``metadata_bytes`` bounds the metadata of a commit. ``retry_share``: the part of the slots that retries may take while
        other records wait.
        """
        self.concurrency: int = concurrency
        #: The holding of each partition that is read now.
        self.holdings: dict[TopicPartition, Holding] = {}
        #: Records whose handler runs.
        self.running: set[Record] = set()
        #: Whether no record may start: the lease has ended, or the work is stopping.
        self.suspended: bool = False
        self.stopping: bool = False
        #: Counts of records: see :class:`~consumer_coord.process.processing.Counts`.
        self.handled: int = 0
        self.failed: int = 0
        self.retried: int = 0
        self.given_up: int = 0
        self.found_finished: int = 0
        self._order = order
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._metadata_bytes = metadata_bytes
        self._most_retries = max(1, int(concurrency * retry_share))
        self._lanes: dict[Any, Lane] = {}
        self._ready: deque[Lane] = deque()
        #: (due, number, record): retries that are not due yet; the number decides between equal times.
        self._later: list[tuple[float, int, Record]] = []
        self._due: deque[Record] = deque()
        self._numbers = itertools.count()
        self._running_retries = 0

    # -- partitions -----------------------------------------------------------------------------------------------------

    def begin(
        self, partition: TopicPartition, number: int, position: int, committed: OffsetAndMetadata | None = None
    ) -> Holding:
        """Begin a holding at ``position``, after the end of the former one.

        ``committed``: the group's commit, if its metadata may name finished offsets. Then nothing starts, and nothing else is
        committed, before :meth:`know_finished`.
        """
        assert partition not in self.holdings
        holding = self.holdings[partition] = Holding(partition, number, position)
        if committed is not None:
            holding.committed, holding.pending = committed, []
        return holding

    def know_finished(self, holding: Holding, ranges: Ranges) -> None:
        """Take over the offsets that a former owner has finished, and let the others start."""
        pending, holding.pending, holding.committed = holding.pending or [], None, None
        if holding.ended:
            return
        holding.finished = deque(ranges)
        for record in pending:
            if self._was_finished(holding, record.offset):
                self._remove(record)
            else:
                self._queue(record)
        self._pass(holding, holding.position)

    def end(self, partition: TopicPartition, reason: str) -> Sequence[Record]:
        """End a holding: drop what waits, and disregard what its running handlers will return, for ``reason``.

        Return the records of these handlers.
        """
        holding = self.holdings.pop(partition, None)
        if holding is None:
            return ()
        holding.ended, holding.pending = True, None
        records = list(holding.unfinished.values())
        for record in records:
            if record.state is not State.RUNNING:
                self._drop(record)
        self.given_up += len(records)
        holding.unfinished.clear()
        return _disregarded([record for record in records if record.state is State.RUNNING], reason)

    def _drop(self, record: Record) -> None:
        """Remove a record that no handler has."""
        lane = record.lane
        lane.waiting.clear()  # All waiting records of a lane belong to the present holding.
        if lane.busy is record:
            lane.busy = None
        record.state = State.ENDED
        self._forget(lane)

    def drain(self, holding: Holding) -> None:
        """Start no further records of a partition that the group revokes; what runs may finish."""
        holding.draining = True
        for record in holding.unfinished.values():
            if record.state in (State.WAITING, State.RETRYING):
                self._drop(record)
                record.state = State.WAITING

    def resume(self, holding: Holding) -> None:
        """Let the records of a partition start again, because the group did not take it after all."""
        holding.draining = False
        if holding.pending is None:
            for record in holding.unfinished.values():
                if record.state is State.WAITING:
                    self._queue(record)

    def expire(self, holding: Holding, reason: str) -> Sequence[Record]:
        """Disregard what the running handlers of one partition will return, and return their records."""
        return _disregarded([record for record in self.running if record.holding is holding], reason)

    def disregard(self, reason: str) -> Sequence[Record]:
        """Disregard what the running handlers will return, and return their records.

        If this member keeps the partition, the record is handled again when its handler has ended.
        """
        return _disregarded(self.running, reason)

    # -- records --------------------------------------------------------------------------------------------------------

    def deliver(self, holding: Holding, messages: Iterable[Any]) -> None:
        """Add records of one partition, in the order of their offsets."""
        partition, unfinished, size = holding.partition, holding.unfinished, 0
        by_key, pending, starts = self._order is Order.KEY, holding.pending, not holding.draining
        lane = None if by_key else self._lane(partition, None, exclusive=self._order is Order.PARTITION)
        offset = holding.position - 1
        for message in messages:
            offset = message.offset()
            if holding.finished and self._was_finished(holding, offset):
                continue
            if by_key:
                key = message.key()
                lane = self._lane(partition, key, exclusive=key is not None)
            assert lane is not None
            record = Record(message, offset, _RECORD_BYTES + len(message), holding, lane)
            size += record.size
            unfinished[offset] = record
            if pending is not None:
                pending.append(record)
            elif starts:
                lane.waiting.append(record)
                if not lane.ready and lane.busy is None:
                    lane.ready = True
                    self._ready.append(lane)
        holding.size += size
        self._pass(holding, offset + 1)

    def _pass(self, holding: Holding, position: int) -> None:
        """Move the position, and forget what was finished before it."""
        holding.position = max(holding.position, position)
        finished = holding.finished
        while finished and finished[0][1] <= holding.position:
            finished.popleft()
        if finished and finished[0][0] < holding.position:
            finished[0] = holding.position, finished[0][1]

    def _was_finished(self, holding: Holding, offset: int) -> bool:
        finished = holding.finished
        while finished and finished[0][1] <= offset:
            finished.popleft()
        if finished and finished[0][0] <= offset:
            self.found_finished += 1
            return True
        return False

    def _lane(self, partition: TopicPartition, key: Any, *, exclusive: bool) -> Lane:
        name = (partition, key)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, exclusive=exclusive)
        return lane

    def _queue(self, record: Record, *, first: bool = False) -> None:
        # While its records were outside it, a lane may have been forgotten, and a new one may have its key.
        lane = record.lane = self._lanes.setdefault(record.lane.key, record.lane)
        record.state = State.WAITING
        if record.holding.draining:
            self._turn(lane)
            return
        if first:
            lane.waiting.appendleft(record)
        else:
            lane.waiting.append(record)
        self._turn(lane)

    def _turn(self, lane: Lane) -> None:
        """Let a lane wait for its turn if it has a record that may start; forget an empty lane."""
        if lane.busy is None and lane.waiting and not lane.ready:
            lane.ready = True
            self._ready.append(lane)
        self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.busy is None and not lane.waiting and not lane.ready and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def next(self, now: float) -> Record | None:
        """Return a record whose handler must start now, at the time ``now`` in seconds; None if none may start."""
        if self.suspended or self.stopping or len(self.running) >= self.concurrency:
            return None
        if (self._later or self._due) and (record := self._next_retry(now)) is not None:
            return record
        ready = self._ready
        while ready:
            lane = ready.popleft()
            if not lane.waiting:
                # Its records were dropped while it waited for its turn.
                lane.ready = False
                self._forget(lane)
                continue
            record = lane.waiting.popleft()
            if lane.exclusive:
                lane.busy = record
                lane.ready = False
            elif lane.waiting:
                ready.append(lane)
            else:
                lane.ready = False
            self._start(record, now)
            return record
        return None

    def _next_retry(self, now: float) -> Record | None:
        while self._later and self._later[0][0] <= now:
            first = heapq.heappop(self._later)
            if _is_due(*first):
                self._due.append(first[2])
        while self._due and self._due[0].state is not State.RETRYING:
            self._due.popleft()
        if not self._due or (self._running_retries >= self._most_retries and any(lane.waiting for lane in self._ready)):
            return None
        record = self._due.popleft()
        record.retries = True
        self._running_retries += 1
        self._start(record, now)
        return record

    def _start(self, record: Record, now: float) -> None:
        record.state = State.RUNNING
        record.started = now
        if not record.attempt:
            record.since = now
        record.attempt += 1
        self.running.add(record)

    def retry_due(self) -> float | None:
        """Return the time of the next retry, in seconds; None if none waits for its time."""
        while self._later and not _is_due(*self._later[0]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def _stop_running(self, record: Record) -> bool:
        """Free the slot of a record; return whether the result of its handler counts."""
        self.running.discard(record)
        if record.retries:
            record.retries = False
            self._running_retries -= 1
        if record.reason is None:
            return True
        lane = record.lane
        if lane.busy is record:
            lane.busy = None
        if record.holding.ended:
            record.state = State.ENDED
            self._turn(lane)
        else:
            # The lease ended in the meantime, and this member has the partition still: handle the record again, before others.
            record.reason = None
            record.attempt, record.idle_s = 0, 0.0
            self._queue(record, first=True)
        return False

    def finish(self, record: Record) -> bool:
        """Record that a handler has finished its record; return False if the result no longer counts."""
        if not self._stop_running(record):
            return False
        self.handled += 1
        self._remove(record)
        return True

    def skip(self, record: Record) -> bool:
        """Record that a failed record counts as finished; return False if the result no longer counts."""
        if not self._stop_running(record):
            return False
        self.failed += 1
        self._remove(record)
        return True

    def retry(self, record: Record, due: float) -> bool:
        """Handle a record again at the time ``due``; until then it has no slot, and its lane waits."""
        if not self._stop_running(record):
            return False
        self.retried += 1
        if record.holding.draining:
            record.state = State.WAITING
            return True
        record.state, record.due = State.RETRYING, next(self._numbers)
        heapq.heappush(self._later, (due, record.due, record))
        return True

    def fail(self, record: Record) -> bool:
        """Record that a record has failed for good: it stays unfinished, and its lane never goes on."""
        if not self._stop_running(record):
            return False
        record.state = State.ENDED
        self.failed += 1
        return True

    def _remove(self, record: Record) -> None:
        record.state = State.ENDED
        holding, lane = record.holding, record.lane
        holding.unfinished.pop(record.offset, None)
        holding.size -= record.size
        if lane.busy is record:
            lane.busy = None
            self._turn(lane)
        else:
            self._forget(lane)

    # -- bounds ---------------------------------------------------------------------------------------------------------

    def room(self) -> frozenset[TopicPartition] | None:
        """Return the partitions that may be read; None if all of them may."""
        closed = False
        count = max(1, len(self.holdings))
        records, size = max(1, self._most_records // count), max(1, self._most_bytes // count)
        for holding in self.holdings.values():
            part = _RESUMES_AT if holding.full else 1.0
            too_many = len(holding.unfinished) >= records * part or holding.size >= size * part
            holding.full = too_many or self._metadata_is_full(holding, part)
            closed |= holding.full
        return frozenset(one for one, holding in self.holdings.items() if not holding.full) if closed else None

    def _metadata_is_full(self, holding: Holding, part: float) -> bool:
        """Return whether the finished offsets might, in the worst case, soon not fit into the metadata of a commit.

        Either form has a bound: a bit for each offset since the lowest unfinished one, or two varints for each unfinished
        record. Handlers that finish can only shorten both.
        """
        room, span = capacity(self._metadata_bytes) * part, holding.position - holding.start()
        if room <= 0 or span <= 8 * room:
            return False
        varint = max(1, (span.bit_length() + 6) // 7)
        return (len(holding.unfinished) + len(holding.finished)) * 2 * varint > room

    def lower_metadata(self, length: int) -> None:
        """Keep the metadata shorter than ``length`` from now on, because a broker has rejected this length."""
        self._metadata_bytes = min(self._metadata_bytes, length // 2)

    # -- offsets --------------------------------------------------------------------------------------------------------

    def held(self, partition: TopicPartition, number: int) -> Holding | None:
        """Return the present holding of a partition if it has this number."""
        holding = self.holdings.get(partition)
        return holding if holding is not None and holding.number == number else None

    def unfinished(self, holding: Holding) -> OffsetAndMetadata | None:
        """Return the position to commit, with what is finished above it; None if everything delivered is finished."""
        if holding.committed is not None:
            return holding.committed
        first = next(iter(holding.unfinished.values()), None)
        if first is None and not holding.finished:
            return None
        start = holding.start()
        epoch = -1 if first is None else before(first.message).leader_epoch
        return OffsetAndMetadata(start, epoch, encode(start, holding.ranges(), self._metadata_bytes))

    def busy(self, holding: Holding) -> bool:
        """Return whether a handler runs whose result would still count."""
        return any(record.holding is holding and record.reason is None for record in self.running)

    @property
    def lanes(self) -> int:
        """The number of lanes in memory."""
        return len(self._lanes)


def _is_due(due: float, number: int, record: Record) -> bool:
    """Return whether a retry is still wanted."""
    return record.state is State.RETRYING and record.due == number


def _disregarded(records: Iterable[Record], reason: str) -> Sequence[Record]:
    """Give the records whose result still counted the reason why it no longer does, and return them."""
    found = [record for record in records if record.reason is None]
    for record in found:
        record.reason = reason
    return found
