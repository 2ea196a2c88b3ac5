"""Which record may be handled next, and which offset may be committed: the state of one ``process``, without I/O.

The drivers (asyncio, threads, processes) report what happens: records were delivered, a handler ended, a partition was given
up. They ask for the next record, and the consumer asks for the offsets to commit. Nothing here waits, reads a clock or calls
the application; a driver with threads calls it under one lock.

* **A lane** is a queue of records that must be handled one after another: those of one key, or of one partition. While a
  handler runs in it, a lane outlives the ownership of its partition. So if the partition comes back, its first record of that
  key waits for this handler. Records without an order share a lane per partition, which may have any number of records in hand.
* **Lanes take turns.** A queue has the lanes with a record that may start, and a lane goes to its end after each call. Lanes of
  retry topics have a queue of their own, because retries take at most a part of the slots while others wait.
* **A call** of a handler has one record, or, if handlers take several, the next few of its lane. Its first record stands for
  it, and has the others in ``rest``. They start, fail and are handled again together.
* **Some things wait for a time**: a retry, a lane for more records, a record of a retry topic until it is due. They are in one
  heap, with the number that they had when they were put there; a changed number says that they no longer wait.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from consumer_coord.finished_offsets_text import Ranges
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.process.offset_to_commit import Holding
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
    JOINED = "joined"  # it shares the call, or the retry, of an earlier record of its lane
    ENDED = "ended"  # finished, failed for good, or given up with its holding


class Record:
    """A delivered record."""

    __slots__ = (
        "attempt",
        "due",
        "earlier",
        "handler",
        "holding",
        "idle_s",
        "lane",
        "message",
        "not_before",
        "offset",
        "reason",
        "rest",
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
        #: Later records of the lane that share this one's call.
        self.rest: Sequence[Record] = ()
        #: The number of the present attempt, from 1 on; and how many attempts the record had in other topics before.
        self.attempt: int = 0
        self.earlier: int = 0
        #: When a record of a retry topic may start; 0 afterwards, and for others.
        self.not_before: float = 0.0
        #: Why the result of the running handler no longer counts; None while it counts.
        self.reason: str | None = None
        #: Whether the running handler has one of the slots for retries.
        self.retries: bool = False
        #: The number in the heap of what waits for a time; 0 if it does not.
        self.due: int = 0
        #: When the first and the present attempt began, and how long the record has waited between attempts, in seconds.
        self.since: float = 0.0
        self.started: float = 0.0
        self.idle_s: float = 0.0
        #: What the driver knows of the running handler.
        self.handler: Any = None


class Lane:
    """Records that are handled one after another, or, if not ``exclusive``, in turn with other lanes."""

    __slots__ = ("busy", "due", "exclusive", "fills_until", "key", "ready", "turns", "waiting")

    def __init__(self, key: Any, turns: deque[Lane], *, exclusive: bool) -> None:
        self.key: Any = key
        self.exclusive: bool = exclusive
        self.waiting: deque[Record] = deque()
        #: The record that later ones wait for.
        self.busy: Record | None = None
        #: The queue in which the lane waits for its turn, and whether it is in the queue.
        self.turns: deque[Lane] = turns
        self.ready: bool = False
        #: Until when the lane waits for more records; None if it has not been looked at. Its number in the heap meanwhile.
        self.fills_until: float | None = None
        self.due: int = 0


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
        most_together: int = 1,
        fill_s: float = 0.0,
    ) -> None:
        """Create it without records.

        ``most_records`` and ``most_bytes`` bound what is unfinished in memory; each partition has an equal share.
        ``metadata_bytes`` bounds the metadata of a commit. ``retry_share``: the part of the slots that retries may take while
        other records wait. A call of a handler gets up to ``most_together`` records; for these, the first one waits up to
        ``fill_s`` seconds.
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
        self._most_together = most_together
        self._fill_s = fill_s
        self._lanes: dict[Any, Lane] = {}
        #: The lanes with a record that may start: of all topics but retry topics, and of these.
        self._ready: deque[Lane] = deque()
        self._ready_again: deque[Lane] = deque()
        #: (due, number, what waits for this time); the number decides between equal times.
        self._later: list[tuple[float, int, Record | Lane | Holding]] = []
        #: Retries that are due and have no slot.
        self._due: dict[Record, None] = {}
        self._numbers = itertools.count(1)
        self._running_retries = 0

    # -- partitions -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        partition: TopicPartition,
        number: int,
        position: int,
        committed: OffsetAndMetadata | None = None,
        *,
        again: bool = False,
    ) -> Holding:
        """Begin a holding at ``position``, after the end of the former one; ``again``: of a retry topic.

        ``committed``: the group's commit, if its metadata may name finished offsets. Then nothing starts, and nothing else is
        committed, before :meth:`know_finished`.
        """
        assert partition not in self.holdings
        holding = self.holdings[partition] = Holding(partition, number, position, again=again)
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
        holding.move(holding.position)

    def end(self, partition: TopicPartition, reason: str) -> Sequence[Record]:
        """End a holding: drop what waits, and disregard what its running handlers will return, for ``reason``.

        Return the records of these handlers.
        """
        holding = self.holdings.pop(partition, None)
        if holding is None:
            return ()
        holding.ended, holding.pending = True, None
        self._wake_all(holding)
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
        lane.due, lane.fills_until = 0, None
        if lane.busy is record:
            lane.busy = None
        record.state, record.due = State.ENDED, 0
        self._due.pop(record, None)
        self._forget(lane)

    @staticmethod
    def _wake_all(holding: Holding) -> None:
        holding.asleep.clear()
        holding.due = 0

    def drain(self, holding: Holding) -> None:
        """Start no further records of a partition that the group revokes; what runs may finish."""
        holding.draining = True
        self._wake_all(holding)
        for record in holding.unfinished.values():
            if record.state in (State.WAITING, State.RETRYING):
                self._drop(record)
                self._part(record)
                record.state = State.WAITING

    @staticmethod
    def _part(record: Record) -> Sequence[Record]:
        """Let the records that share a call be records by themselves again, and return them."""
        rest, record.rest = record.rest, ()
        for one in rest:
            one.state = State.WAITING
        return rest

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

    def deliver(
        self,
        holding: Holding,
        messages: Iterable[Any],
        now: float = 0.0,
        due: Callable[[Any], tuple[float, int]] | None = None,
    ) -> None:
        """Add records of one partition, in the order of their offsets, at the time ``now`` in seconds.

        ``due`` returns when a message of a retry topic may be handled, and how many attempts it has had.
        """
        unfinished, size = holding.unfinished, 0
        by_key, pending, starts = self._order is Order.KEY, holding.pending, not holding.draining
        lane = None if by_key else self._lane(holding, None, exclusive=self._order is Order.PARTITION)
        offset = holding.position - 1
        for message in messages:
            offset = message.offset()
            if holding.finished and self._was_finished(holding, offset):
                continue
            if by_key:
                key = message.key()
                lane = self._lane(holding, key, exclusive=key is not None)
            assert lane is not None
            record = Record(message, offset, _RECORD_BYTES + len(message), holding, lane)
            size += record.size
            unfinished[offset] = record
            if due is not None:
                record.not_before, record.earlier = due(message)
            if pending is not None:
                pending.append(record)
            elif record.not_before:
                self._queue(record)
            elif starts:
                lane.waiting.append(record)
                if not lane.ready and lane.busy is None and (not lane.due or len(lane.waiting) >= self._most_together):
                    lane.ready, lane.due = True, 0
                    lane.turns.append(lane)
        holding.size += size
        holding.note_arrival(offset + 1, now)
        holding.move(offset + 1)

    def _was_finished(self, holding: Holding, offset: int) -> bool:
        found = holding.was_finished(offset)
        self.found_finished += found
        return found

    def _lane(self, holding: Holding, key: Any, *, exclusive: bool) -> Lane:
        name = (holding.partition, key)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, self._ready_again if holding.again else self._ready, exclusive=exclusive)
        return lane

    def _queue(self, record: Record, *, first: bool = False) -> None:
        # While its records were outside it, a lane may have been forgotten, and a new one may have its key.
        lane = record.lane = self._lanes.setdefault(record.lane.key, record.lane)
        record.state = State.WAITING
        holding = record.holding
        if holding.draining:
            pass
        elif record.not_before:
            if not holding.asleep:
                self._wait(record.not_before, holding)
            holding.asleep.append(record)
        elif first:
            lane.waiting.appendleft(record)
        else:
            lane.waiting.append(record)
        self._turn(lane)

    def _turn(self, lane: Lane) -> None:
        """Let a lane wait for its turn if it has a record that may start; forget an empty lane."""
        if lane.busy is None and not lane.ready and lane.waiting and (not lane.due or len(lane.waiting) >= self._most_together):
            lane.ready, lane.due = True, 0
            lane.turns.append(lane)
        self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.busy is None and not lane.waiting and not lane.ready and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def next(self, now: float) -> Record | None:
        """Return a record whose handler must start now, at the time ``now`` in seconds; None if none may start."""
        if self.suspended or self.stopping or len(self.running) >= self.concurrency:
            return None
        while self._later and self._later[0][0] <= now:
            _, number, waiter = heapq.heappop(self._later)
            if waiter.due == number:
                waiter.due = 0
                self._wake(waiter, now)
        if (self._due or self._ready_again) and (record := self._next_retry(now)) is not None:
            return record
        return self._take_turn(self._ready, now)

    def _wait(self, due: float, waiter: Record | Lane | Holding) -> None:
        waiter.due = next(self._numbers)
        heapq.heappush(self._later, (due, waiter.due, waiter))

    def _wake(self, waiter: Record | Lane | Holding, now: float) -> None:
        """Go on with something whose time has come."""
        if isinstance(waiter, Record):
            self._due[waiter] = None
        elif isinstance(waiter, Lane):
            self._turn(waiter)
        else:
            asleep = waiter.asleep
            while asleep and asleep[0].not_before <= now:
                record = asleep.popleft()
                record.not_before = 0.0
                self._queue(record)
            if asleep:
                self._wait(asleep[0].not_before, waiter)

    def _take_turn(self, turns: deque[Lane], now: float) -> Record | None:
        """Start the records of the lane whose turn it is."""
        while turns:
            lane = turns.popleft()
            lane.ready = False
            if not lane.waiting:
                # Its records were dropped while it waited for its turn.
                self._forget(lane)
                continue
            if self._most_together > 1 and self._fills(lane, now):
                continue
            record = lane.waiting.popleft()
            if self._most_together > 1:
                lane.fills_until = None
                record.rest = [lane.waiting.popleft() for _ in range(min(len(lane.waiting), self._most_together - 1))]
                for one in record.rest:
                    one.state = State.JOINED
            if lane.exclusive:
                lane.busy = record
            elif lane.waiting:
                lane.ready = True
                turns.append(lane)
            self._start(record, now)
            return record
        return None

    def _fills(self, lane: Lane, now: float) -> bool:
        """Return whether a lane waits for more records."""
        if len(lane.waiting) >= self._most_together:
            return False
        if lane.fills_until is None:
            lane.fills_until = now + self._fill_s
        if lane.fills_until <= now:
            return False
        self._wait(lane.fills_until, lane)
        return True

    def _next_retry(self, now: float) -> Record | None:
        if self._running_retries >= self._most_retries and any(lane.waiting for lane in self._ready):
            return None
        if self._due:
            record = next(iter(self._due))
            del self._due[record]
            self._start(record, now)
        elif (found := self._take_turn(self._ready_again, now)) is not None:
            record = found
        else:
            return None
        record.retries = True
        self._running_retries += 1
        return record

    def _start(self, record: Record, now: float) -> None:
        record.state = State.RUNNING
        record.started = now
        if not record.attempt:
            record.since = now
        record.attempt += 1
        self.running.add(record)

    def next_due(self) -> float | None:
        """Return when to call :meth:`next` although nothing else has happened, in seconds; None for never."""
        while self._later and self._later[0][2].due != self._later[0][1]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def _stop_running(self, record: Record) -> bool:
        """Free the slot of a call; return whether the result of its handler counts."""
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
            for one in (*reversed(self._part(record)), record):
                self._queue(one, first=True)
        return False

    def finish(self, record: Record) -> bool:
        """Record that a handler has finished its records; return False if the result no longer counts."""
        if not self._stop_running(record):
            return False
        self.handled += self._remove_all(record)
        return True

    def skip(self, record: Record) -> bool:
        """Record that records whose handler failed count as finished; return False if the result no longer counts."""
        if not self._stop_running(record):
            return False
        self.failed += self._remove_all(record)
        return True

    def retry(self, record: Record, due: float) -> bool:
        """Handle the records of a call again at the time ``due``; until then they have no slot, and their lane waits."""
        if not self._stop_running(record):
            return False
        self.retried += 1 + len(record.rest)
        if record.holding.draining:
            self._part(record)
            record.state = State.WAITING
            return True
        record.state = State.RETRYING
        self._wait(due, record)
        return True

    def fail(self, record: Record) -> bool:
        """Record that a call has failed for good: its records stay unfinished, and its lane never goes on."""
        if not self._stop_running(record):
            return False
        record.state = State.ENDED
        self.failed += 1 + len(record.rest)
        return True

    def _remove_all(self, record: Record) -> int:
        """Remove the records of a call, and return their number."""
        rest = record.rest
        for one in rest:
            self._remove(one)
        self._remove(record)
        return 1 + len(rest)

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
            holding.full = too_many or holding.metadata_is_full(self._metadata_bytes, part)
            closed |= holding.full or bool(holding.asleep)
        if not closed:
            return None
        return frozenset(one for one, holding in self.holdings.items() if not holding.full and not holding.asleep)

    @property
    def crowded(self) -> bool:
        """Whether a partition waits for room, by the last :meth:`room`; one whose records are not due yet does not."""
        return any(holding.full for holding in self.holdings.values())

    def until_room(self) -> int:
        """Return how many records must finish, at least, before a partition that waits for room can have it; 0 if unknown."""
        count = int(max(1, self._most_records // max(1, len(self.holdings))) * _RESUMES_AT)
        return max(0, min((len(holding.unfinished) - count for holding in self.holdings.values() if holding.full), default=0))

    def lower_metadata(self, length: int) -> None:
        """Keep the metadata shorter than ``length`` from now on, because a broker has rejected this length."""
        self._metadata_bytes = min(self._metadata_bytes, length // 2)

    # -- offsets --------------------------------------------------------------------------------------------------------

    def held(self, partition: TopicPartition, number: int) -> Holding | None:
        """Return the present holding of a partition if it has this number."""
        holding = self.holdings.get(partition)
        return holding if holding is not None and holding.number == number else None

    def to_commit(self, holding: Holding) -> OffsetAndMetadata | None:
        """See :meth:`Holding.to_commit`."""
        return holding.to_commit(self._metadata_bytes)

    def busy(self, holding: Holding) -> bool:
        """Return whether a handler runs whose result would still count."""
        return any(record.holding is holding and record.reason is None for record in self.running)

    def figures(self, now: float) -> Mapping[str, float]:
        """Return what ``monitoring/process_figures.py`` lists, but for the letters; nearly right in another thread, too."""
        holdings = tuple(self.holdings.values())
        running = sum(1 + len(record.rest) for record in tuple(self.running) if not record.holding.ended)
        tried = [waiter for _, number, waiter in tuple(self._later) if isinstance(waiter, Record) and waiter.due == number]
        retrying = sum(1 + len(record.rest) for record in (*tried, *tuple(self._due)))
        retrying += sum(len(holding.asleep) for holding in holdings)
        unfinished = sum(len(holding.unfinished) for holding in holdings)
        return {
            "process-running": len(self.running),
            "process-waiting": max(0, unfinished - running - retrying),
            "process-retrying": retrying,
            "process-unfinished-seconds": max((holding.age_s(now) for holding in holdings), default=0.0),
            "process-handled-total": self.handled,
            "process-failed-total": self.failed,
            "process-retried-total": self.retried,
        }

    def stuck(self, now: float, limit_s: float) -> Record | None:
        """Return the record that commits or a slot have waited for longest, if that is ``limit_s`` seconds or more."""
        found = [record for record in self.running if now - record.started >= limit_s]
        for holding in self.holdings.values():
            first = next(iter(holding.unfinished.values()), None)
            if first is not None and first.state is State.RETRYING and now - first.since >= limit_s:
                found.append(first)
        return min(found, key=lambda record: (record.since, record.offset), default=None)

    @property
    def lanes(self) -> int:
        """The number of lanes in memory."""
        return len(self._lanes)


def _disregarded(records: Iterable[Record], reason: str) -> Sequence[Record]:
    """Give the records whose result still counted the reason why it no longer does, and return them."""
    found = [record for record in records if record.reason is None]
    for record in found:
        record.reason = reason
    return found
