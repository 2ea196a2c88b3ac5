"""Make the data plane equal to the engine's plan, and keep the fetched records that were not delivered yet.

librdkafka moves a partition's position when a message is taken from it, and drops the batch of a ``consume()`` that a signal
handler or a callback interrupts. So the worker keeps the next offset of each reading, and an interrupt causes no gap and no
duplicate: :meth:`Worker.reconcile` compares the plan with the data plane's assignment, and assigns the difference. ``busy`` is
true during a call to the data plane, and remains true if the call is interrupted. The next comparison then reads the assignment
and the positions from the data plane, and assigns each partition with a wrong position again.

A partition that the plan does not fetch is not assigned in the data plane; its fetched records are dropped, and its next offset
goes back to the first dropped record. If a new plan has another serial number for a partition, the partition's records and its
next offset are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer.data_plane import DataPlane
from consumer_coord.consumer.partitions import Partition, Plan, Read, Verdict, judge
from consumer_coord.offsets import OFFSET_INVALID, OffsetAndMetadata, before, partition_of_message
from consumer_coord.topic_partition import TopicPartition

#: Number of messages per call. librdkafka needs 1.2-1.7 us for a call that returns one message, but only 0.4-0.7 us per message
#: if a call returns many.
MOST_READY = 100

Positions = Mapping[TopicPartition, OffsetAndMetadata]

#: Creates a named tuple from its values; a call of the class would take twice as long.
_new = tuple.__new__


@attrs.frozen
class OutOfRange:
    """An event of the data plane: the offset of a reading is not in the log."""

    why: str
    verdict: Verdict
    #: The position at which reading may continue after a truncation, if the data plane reports this position.
    resume_at: OffsetAndMetadata | None = None


class Cursor(NamedTuple):
    """The worker's state of one partition in one reading; replaced once per batch of messages."""

    #: The offset after the last fetched message, transaction marker or aborted record, and its leader epoch; None before the
    #: first.
    next: int | None
    epoch: int
    #: The first fetched offset. While the message with this offset waits in :attr:`Worker.ready`, no record was delivered.
    first: int | None
    read: Read
    #: The position where the data plane's assignment began; None while the partition is not assigned in the data plane.
    began: OffsetAndMetadata | None = None
    #: The reason why the data plane ended the reading.
    ended: OutOfRange | None = None
    #: True if the partition was assigned when a call was interrupted, because the interrupt may have dropped an out-of-range
    #: event. After a wait without a record, the partition is assigned again, so that the data plane repeats the event.
    suspect: bool = False

    @property
    def fetch_position(self) -> OffsetAndMetadata:
        """The position from which the data plane must fetch."""
        if self.next is not None:
            return OffsetAndMetadata(self.next, self.epoch)
        assert self.read.start is not None, "the plan reads the partition, but its start offset is unknown"
        return self.read.start


class Worker:
    """The fetched records of one consumer. Only one caller at a time may use a worker, and must call :meth:`idle` first."""

    def __init__(self, plane: DataPlane, is_out_of_range: Callable[[Any], bool]) -> None:
        """Read with ``plane``; ``is_out_of_range`` returns whether an event's error means that an offset is not in the log."""
        self.plane = plane
        self._is_out_of_range = is_out_of_range
        #: Fetched messages to deliver, in order.
        self.ready: deque[Any] = deque()
        #: The last plan that the data plane was made equal to.
        self.applied: Plan = Plan()
        #: The cursor of every partition in the plan. A change stores a new dictionary; no dictionary is modified.
        self.cursors: dict[TopicPartition, Cursor] = {}
        #: True during a call to the data plane, and after a call that was interrupted.
        self.busy: bool = False
        #: True while no cursor has ended, and no cursor is suspect.
        self._plain = True
        #: True while only a part of the plan is fetched, because the application requested records of certain partitions.
        self._restricted = False

    # -- the plan -----------------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Wait until no call of the data plane is in progress; a call continues even if its caller was cancelled."""
        await self.plane.wait_idle()

    async def reconcile(self, plan: Plan, only: frozenset[TopicPartition] | None = None) -> None:
        """Make the data plane fetch the partitions of ``plan``, or only the partitions ``only``; repeat an interrupted call."""
        if plan is self.applied and only is None and not (self.busy or self._restricted):
            return
        await self.plane.wait_idle()
        await self.catch_up(self._stopping(plan, only))
        unsure, self.busy = self.busy, True
        gone = self._take_over(plan)
        wanted = {
            partition
            for partition, one in self.cursors.items()
            if one.read.on and one.ended is None and (only is None or partition in only)
        }
        if unsure:
            gone, fresh = await self._compared(wanted)
        else:
            gone |= {partition for partition, one in self.cursors.items() if one.began is not None and partition not in wanted}
            fresh = {partition for partition in wanted if self.cursors[partition].began is None}
        await self._assign(gone, fresh)
        self._restricted, self.busy = only is not None, False

    def _stopping(self, plan: Plan, only: frozenset[TopicPartition] | None) -> list[TopicPartition]:
        """Return the partitions whose reading continues later, but that the data plane must stop fetching now."""
        reads = plan.reads
        return [
            one
            for one, cursor in self.cursors.items()
            if cursor.began is not None
            and one in reads
            and reads[one].serial == cursor.read.serial
            and not (reads[one].on and (only is None or one in only))
        ]

    def _take_over(self, plan: Plan) -> set[TopicPartition]:
        """Keep the records and cursors of readings in ``plan``; return the partitions that the data plane must stop reading."""
        former = self.cursors
        same = {one for one, read in plan.reads.items() if one in former and former[one].read.serial == read.serial}
        cursors: dict[Any, Cursor] = {
            one: former[one]._replace(read=read) if one in same else Cursor(None, -1, None, read)
            for one, read in plan.reads.items()
        }
        gone = {one for one, cursor in former.items() if cursor.began is not None and one not in same}
        keep: deque[Any] = deque()
        back: dict[tuple[str, int], Any] = {}
        for message in self.ready:
            key = (message.topic(), message.partition())
            if key[0] is None or (key in same and cursors[key].read.on):
                keep.append(message)
            elif key in same and message.error() is None:
                back.setdefault(key, message)
        for key, message in back.items():
            one, at = cursors[key], before(message)
            # If no record was delivered, the reading begins again at its start.
            none = at.offset == one.first
            cursors[key] = one._replace(next=None, first=None) if none else one._replace(next=at.offset, epoch=at.leader_epoch)
        plain = _is_plain(cursors)
        # No call happens between these assignments, so an interrupt leaves all of them or none.
        self.applied, self.ready, self.cursors, self._plain = plan, keep, cursors, plain
        return gone

    def _note(self, partitions: Iterable[TopicPartition], **changes: Any) -> None:
        """Replace the cursors of these partitions."""
        self._replace({one: self.cursors[one]._replace(**changes) for one in partitions if one in self.cursors})

    def _replace(self, changed: Mapping[TopicPartition, Cursor]) -> None:
        cursors = {**self.cursors, **changed}
        self.cursors, self._plain = cursors, _is_plain(cursors)

    async def _compared(self, wanted: set[TopicPartition]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Compare the cursors with the data plane after an interrupt; return the partitions to unassign and to assign."""
        assigned = await self.plane.assignment()
        there = await self.plane.positions(assigned)
        right = set()
        for partition in assigned & wanted:
            one = self.cursors[partition]
            if one.began is not None and there.get(partition, one.began).offset == one.fetch_position.offset:
                right.add(partition)
        self._note(self.cursors.keys() - right, began=None, suspect=False)
        self._note(right, suspect=True)
        return set(assigned - right), wanted - right

    async def _assign(self, gone: set[TopicPartition], fresh: set[TopicPartition]) -> None:
        positions = {partition: self.cursors[partition].fetch_position for partition in fresh}
        last: dict[TopicPartition, OffsetAndMetadata] = {}
        if fresh and self.plane.held_up(positions):
            # The first Fetch of a topic that the data plane does not know would wait for two Fetch requests of idle partitions.
            last = {one: self.cursors[one].fetch_position for one in self.assigned - gone}
        ending = gone | last.keys()
        if ending:
            self._note(ending, began=None, suspect=False)
            await self.plane.unassign(ending)
        for beginning in (positions, last):
            if beginning:
                await self.plane.assign(beginning)
                self._replace({one: self.cursors[one]._replace(began=at) for one, at in beginning.items()})

    # -- fetching -----------------------------------------------------------------------------------------------------

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that the data plane fetches."""
        return frozenset(partition for partition, one in self.cursors.items() if one.began is not None)

    @property
    def fetches(self) -> bool:
        """Whether the data plane fetches any partition."""
        return _assigned(self.cursors)

    @property
    def out_of_range(self) -> Mapping[TopicPartition, Cursor]:
        """The cursors of the partitions that the data plane has stopped reading (``Cursor.ended`` is set)."""
        return {} if self._plain else {one: cursor for one, cursor in self.cursors.items() if cursor.ended is not None}

    @property
    def fast(self) -> bool:
        """Whether fetched messages may be delivered without calling :meth:`reconcile`."""
        return self._plain and not (self.busy or self._restricted)

    async def fetch(self, most: int, wait_s: float) -> None:
        """Fetch up to ``most`` messages into :attr:`ready`; wait at most ``wait_s`` seconds for the first message."""
        self.busy = True
        await self.plane.fetch(most, wait_s, self.arrived)
        if wait_s > 0 and not self._plain and not self.ready:
            again = {partition for partition, one in self.cursors.items() if one.suspect}
            self.busy = True
            await self._assign(again, again)
            self.busy = False

    def arrived(self, batch: list[Any]) -> None:
        """Add the messages that the data plane fetched to :attr:`ready`."""
        if batch:
            cursors, plain = self.tracked(batch), self._plain
            # Some events name no partition, for example when the group coordinator rejects librdkafka.
            events = [one for one in batch if one.error() is not None and one.topic() and self._is_out_of_range(one.error())]
            if events:
                batch = [one for one in batch if one not in events]
                cursors, plain = {**cursors, **self._judged(events, cursors)}, False
            if not self._plain:
                # A partition from which a message arrived is no longer suspect.
                moved = {one: at for one, at in cursors.items() if at.suspect and at.next != self.cursors[one].next}
                cursors = {**cursors, **{one: at._replace(suspect=False) for one, at in moved.items()}}
                plain = _is_plain(cursors)
            ready = deque(self.ready)
            ready.extend(batch)
            # Call no function between these assignments: an interrupt during the call could cause a delivered message to be
            # delivered again.
            self.ready, self.cursors, self._plain = ready, cursors, plain
        self.busy = False

    def _judged(self, events: Sequence[Any], cursors: Mapping[TopicPartition, Cursor]) -> dict[TopicPartition, Cursor]:
        found = {}
        for event in events:
            partition = partition_of_message(event)
            one = cursors.get(partition)
            if one is None or one.began is None or one.read.start is None:
                continue
            # An event about a look-up that librdkafka made has no offset.
            offset = event.offset()
            verdict = self._verdict(OFFSET_INVALID if offset is None else offset, one)
            why = OutOfRange(event.error().str(), verdict, getattr(event.error(), "resume_at", None))
            found[partition] = one._replace(ended=why)
        return found

    def _verdict(self, offset: int, cursor: Cursor) -> Verdict:
        return judge(offset, cursor.fetch_position.offset)

    def all_records(self, batch: Sequence[Any]) -> bool:
        """Return whether a batch contains no event."""
        return not [one for one in batch if one.error() is not None]

    def take(self, most: int) -> list[Any]:
        """Return up to ``most`` messages of :attr:`ready`, which then count as delivered."""
        ready = self.ready
        if most >= len(ready):
            messages, self.ready = list(ready), deque()
            return messages
        return [ready.popleft() for _ in range(most)]

    def tracked(self, batch: Sequence[Any]) -> dict[TopicPartition, Cursor]:
        """Return :attr:`cursors` with the position after each partition's last message, without reading every message.

        Messages of one partition come in runs. A message ``n`` places before the last message of a run is in that run if it has
        the same partition and an offset lower by ``n`` or more. Doubling ``n`` finds the beginning of the run.
        """
        before: dict[Any, Cursor] = self.cursors
        found: dict[Any, Cursor] = {}
        last = len(batch) - 1
        while last >= 0:
            message = batch[last]
            if message.error() is not None:
                last -= 1
                continue
            offset = message.offset()
            topic, number = key = message.topic(), message.partition()
            if key not in found:
                epoch = message.leader_epoch()
                one = before[key]
                if one.first is None:
                    one = one._replace(first=_first_of(batch, key))
                found[key] = _new(Cursor, (offset + 1, -1 if epoch is None else epoch, *one[2:]))
            begins, step, behind = last, 1, offset - last
            while step:
                candidate = begins - step
                # Inlined, because a function call costs more than these checks.
                if (
                    candidate >= 0
                    and (other := batch[candidate]).partition() == number
                    and other.error() is None
                    and other.offset() <= behind + candidate
                    and other.topic() == topic
                ):
                    begins, step = candidate, step * 2
                else:
                    step //= 2
            last = begins - 1
        return {**before, **found}

    # -- positions ----------------------------------------------------------------------------------------------------

    async def catch_up(self, partitions: Collection[TopicPartition]) -> None:
        """Move the cursors of partitions past transaction markers and aborted records; see :meth:`passed`."""
        if not partitions:
            return
        await self.plane.wait_idle()
        if not self.busy:
            self.passed(await self.plane.positions(partitions))

    def passed(self, positions: Positions) -> None:
        """Move the cursors to the data plane's positions, which a fetch also moves past offsets without a message.

        Such offsets belong to transaction markers and to aborted records. Without this step, a member would never commit the
        position after the last marker. Do not call this method while :attr:`busy` is set: an interrupted call may have dropped
        records, and the data plane's positions are behind these records.
        """
        moved = {}
        for partition, at in positions.items():
            one = self.cursors.get(partition)
            if one is not None and one.began is not None and at.offset > one.fetch_position.offset:
                # If no message has arrived yet, the first offset had none, so no message in ``ready`` can have this offset.
                first = one.fetch_position.offset if one.first is None else one.first
                moved[partition] = one._replace(next=at.offset, epoch=max(at.leader_epoch, one.epoch), first=first)
        if moved:
            self._replace(moved)

    def positions(self, table: Mapping[TopicPartition, Partition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position after each partition's last delivered message; omit partitions without a delivered message.

        After :meth:`catch_up`, a position may lie behind transaction markers and aborted records, too.

        A message that waits in :attr:`ready` counts as not delivered. A message of a reading other than the one in ``table``
        does not count either: until the next :meth:`reconcile`, the worker still has the former reading of a partition that was
        lost and assigned again.  Callable from any thread.
        """
        waiting = self._first_waiting()
        cursors = self.cursors
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, value in table.items():
            one = cursors.get(partition)
            if one is None or one.next is None or one.read.serial != value.serial:
                continue
            message = waiting.get(partition)
            if message is None:
                found[partition] = one.fetch_position
            elif message.offset() != one.first:
                found[partition] = before(message)
        return found

    def reached(self, table: Mapping[TopicPartition, Partition], taken: Positions) -> dict[TopicPartition, int]:
        """Return the offset from which each partition's next message comes; omit partitions whose start is unknown.

        This is the start, or the offset after the last delivered message, or behind the transaction markers and aborted records
        after it. ``taken``: the data plane's positions. On the loop.
        """
        delivered, waiting = self.positions(table), self._first_waiting()
        found: dict[TopicPartition, int] = {}
        for partition, value in table.items():
            at, cursor = delivered.get(partition, value.start), self.cursors.get(partition)
            if at is None:
                continue
            found[partition] = at.offset
            if partition in taken and partition not in waiting and cursor is not None and cursor.read.serial == value.serial:
                found[partition] = max(at.offset, taken[partition].offset)
        return found

    def waits(self, partition: TopicPartition) -> bool:
        """Return whether a fetched message of a partition waits to be delivered."""
        return partition in self._first_waiting()

    def _first_waiting(self) -> dict[tuple[str, int], Any]:
        waiting: dict[tuple[str, int], Any] = {}
        for message in list(self.ready):
            if message.error() is None:
                waiting.setdefault((message.topic(), message.partition()), message)
        return waiting


class FetchWorker(Worker):
    """The worker for this package's own Fetch requests.

    A fetch on the loop loses nothing if it is cancelled, and the serial numbers of readings show which reading an event is
    about.
    """

    async def fetch(self, most: int, wait_s: float) -> None:
        """Take records into :attr:`ready`; wait at most ``wait_s`` seconds for the first ones."""
        await self.plane.fetch(most, wait_s, self.arrived)

    def all_records(self, batch: Sequence[Any]) -> bool:
        """Return whether a batch contains no event; the plane returns each event in a batch of its own."""
        return len(batch) != 1 or batch[0].error() is None

    def _verdict(self, offset: int, cursor: Cursor) -> Verdict:
        return Verdict.CURRENT


def _assigned(cursors: Mapping[TopicPartition, Cursor]) -> bool:
    return any(one.began is not None for one in cursors.values())


def _is_plain(cursors: Mapping[TopicPartition, Cursor]) -> bool:
    return not any(one.suspect or one.ended is not None for one in cursors.values())


def _first_of(batch: Sequence[Any], key: tuple[str, int]) -> int:
    """Return the first offset of a partition in a batch."""
    found: int = next(one.offset() for one in batch if one.error() is None and (one.topic(), one.partition()) == key)
    return found
