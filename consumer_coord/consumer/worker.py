"""Make the data plane equal to the engine's plan, and hold the records that were fetched and not delivered yet.

librdkafka moves a partition's position when a message is taken from it, and drops the batch of a ``consume()`` that a signal
handler or a callback interrupts. So the worker keeps the next offset of each reading. An interrupt loses no order:
:meth:`Worker.reconcile` compares the plan with the data plane's assignment, and assigns the difference. ``busy`` is true
during a call to the data plane, and stays true when the call is interrupted. The next comparison then reads the assignment
and the positions from the data plane, and assigns each partition with a wrong position again.

A partition that the plan does not fetch is not assigned in the data plane; its fetched records are dropped, and its next
offset goes back to the first of them. A partition with another serial loses its records and its next offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from assignors import lazy_attrs as attrs
from consumer_coord.consumer.data_plane import OFFSET_INVALID, DataPlane, before, partition_of_message
from consumer_coord.consumer.partitions import Plan, Verdict, judge
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: Messages taken at once: librdkafka returns a single message in 1.2-1.7 us, and one of many in 0.4-0.7 us.
MOST_READY = 100

Positions = Mapping[TopicPartition, OffsetAndMetadata]


@attrs.frozen
class OutOfRange:
    """An event of the data plane: the offset of a reading is not in the log."""

    serial: int
    why: str
    verdict: Verdict
    #: Where reading may continue after a truncation, if the data plane knows that.
    resume_at: OffsetAndMetadata | None = None


class Worker:
    """The fetched records of one consumer. Used by one caller at a time, who calls :meth:`idle` first."""

    def __init__(self, plane: DataPlane, is_out_of_range: Callable[[Any], bool]) -> None:
        """Read with ``plane``; ``is_out_of_range`` decides whether an event's error says that an offset is not in the log."""
        self.plane = plane
        self._is_out_of_range = is_out_of_range
        #: Fetched messages to deliver, in order.
        self.ready: deque[Any] = deque()
        #: The plan that the data plane equals.
        self.applied = Plan()
        #: True during a call to the data plane, and after a call that was interrupted.
        self.busy = False
        #: (topic, partition) -> (offset, leader epoch) behind the last message fetched in the present reading; replaced, never
        #: changed.
        self.next: dict[tuple[str, int], tuple[int, int]] = {}
        #: The first offset fetched in the present reading: nothing was delivered while it waits in :attr:`ready`.
        self._first: dict[tuple[str, int], int] = {}
        #: The assignment of the data plane: the serial of the reading, and the position where that assignment began.
        self._assigned: dict[TopicPartition, tuple[int, OffsetAndMetadata]] = {}
        #: Readings that the data plane has ended.
        self.out_of_range: dict[TopicPartition, OutOfRange] = {}
        #: Partitions assigned when a call was interrupted; the call may have dropped their out-of-range event. A wait without a
        #: record assigns them again, and then the event comes again.
        self._suspects: frozenset[TopicPartition] = frozenset()
        #: While set, only these partitions are fetched: the application requested records of them alone.
        self._only: frozenset[TopicPartition] | None = None

    # -- the plan -----------------------------------------------------------------------------------------------------

    async def idle(self) -> None:
        """Wait until no call is under way; the call of a cancelled caller continues."""
        await self.plane.wait_idle()

    async def reconcile(self, plan: Plan, only: frozenset[TopicPartition] | None = None) -> None:
        """Make the data plane equal to ``plan``, and fetch only ``only`` if given. Repeat an interrupted call."""
        if plan is self.applied and only == self._only and not self.busy:
            return
        await self.plane.wait_idle()
        unsure, self.busy = self.busy, True
        self._take_over(plan)
        wanted = {
            partition: read.serial
            for partition, read in plan.reads.items()
            if read.on and (only is None or partition in only) and partition not in self.out_of_range
        }
        if unsure:
            gone, fresh = await self._compared(wanted)
        else:
            gone = {partition for partition, (serial, _) in self._assigned.items() if wanted.get(partition) != serial}
            fresh = {partition for partition in wanted if partition not in self._assigned or partition in gone}
        await self._assign(gone, fresh, wanted)
        self._only, self.busy = only, False

    def _take_over(self, plan: Plan) -> None:
        """Keep the records and offsets that belong to a reading of the plan, and drop the rest."""
        reads, former = plan.reads, self.applied.reads
        same = {one for one, read in reads.items() if one in former and former[one].serial == read.serial}
        upcoming: dict[tuple[str, int], tuple[int, int]] = {key: at for key, at in self.next.items() if key in same}
        first: dict[tuple[str, int], int] = {key: offset for key, offset in self._first.items() if key in same}
        keep: deque[Any] = deque()
        back: dict[tuple[str, int], Any] = {}
        for message in self.ready:
            key = (message.topic(), message.partition())
            if key[0] is None or (key in same and reads[TopicPartition(*key)].on):
                keep.append(message)
            elif key in same and message.error() is None:
                back.setdefault(key, message)
        for key, message in back.items():
            if message.offset() == first.get(key):
                # Nothing was delivered: the reading begins again at its start.
                del upcoming[key], first[key]
            else:
                at = before(message)
                upcoming[key] = (at.offset, at.leader_epoch)
        lapsed = {one: what for one, what in self.out_of_range.items() if one in reads and reads[one].serial == what.serial}
        # No call happens between these assignments: an interrupt leaves all of them or none.
        self.applied, self.ready, self.next, self._first, self.out_of_range = plan, keep, upcoming, first, lapsed

    async def _compared(self, wanted: Mapping[TopicPartition, int]) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Compare with the data plane after an interrupted call; return the assignments to end and those to begin."""
        assigned = await self.plane.assignment()
        there = await self.plane.positions(assigned)
        right = set()
        for partition in assigned & wanted.keys():
            serial, began = self._assigned.get(partition, (-1, None))
            stands = there.get(partition, began)
            if serial == wanted[partition] and stands is not None and stands.offset == self._stands(partition).offset:
                right.add(partition)
        self._assigned = {partition: self._assigned[partition] for partition in right}
        self._suspects = frozenset(right)
        return set(assigned - right), set(wanted.keys() - right)

    async def _assign(
        self, gone: set[TopicPartition], fresh: set[TopicPartition], wanted: Mapping[TopicPartition, int]
    ) -> None:
        positions = {partition: self._stands(partition) for partition in fresh}
        last: dict[TopicPartition, OffsetAndMetadata] = {}
        if fresh and self.plane.held_up(positions):
            # The first Fetch of a topic unknown to the data plane would wait behind two Fetches of idle partitions.
            last = {one: self._stands(one) for one in self._assigned.keys() & wanted.keys() - gone}
        ending = gone | last.keys()
        if ending:
            self._assigned = {one: what for one, what in self._assigned.items() if one not in ending}
            await self.plane.unassign(ending)
        for beginning in (positions, last):
            if beginning:
                await self.plane.assign(beginning)
                began = {one: (wanted[one], at) for one, at in beginning.items()}
                self._assigned = {**self._assigned, **began}

    def _stands(self, partition: TopicPartition) -> OffsetAndMetadata:
        """Return the position from which the data plane has to fetch a partition."""
        arrived = self.next.get(partition)
        if arrived is not None:
            return OffsetAndMetadata(*arrived)
        start = self.applied.reads[partition].start
        assert start is not None, f"{partition} is read, and its start is unknown"
        return start

    # -- fetching -----------------------------------------------------------------------------------------------------

    @property
    def assigned(self) -> Collection[TopicPartition]:
        """The partitions that the data plane fetches."""
        return self._assigned.keys()

    @property
    def fast(self) -> bool:
        """Whether messages may be delivered as they arrive."""
        return not (self.busy or self.out_of_range or self._suspects) and self._only is None and bool(self._assigned)

    async def fetch(self, most: int, wait_s: float) -> None:
        """Fetch up to ``most`` messages into :attr:`ready`, waiting at most ``wait_s`` seconds for the first."""
        self.busy = True
        await self.plane.fetch(most, wait_s, self.arrived)
        if wait_s > 0 and self._suspects and not self.ready:
            self.busy = True
            again, self._suspects = set(self._suspects & self._assigned.keys()), frozenset()
            await self._assign(again, again, {one: self._assigned[one][0] for one in again})
            self.busy = False

    def arrived(self, batch: list[Any]) -> None:
        """Add the messages that the data plane fetched to :attr:`ready`."""
        if batch:
            upcoming, first, lapsed = self.tracked(batch), self._first, self.out_of_range
            # Some events name no partition, for instance that the group refuses librdkafka.
            events = [one for one in batch if one.error() is not None and one.topic() and self._is_out_of_range(one.error())]
            if events:
                batch = [one for one in batch if one not in events]
                lapsed = {**lapsed, **self._judged(events, upcoming)}
            begun = upcoming.keys() - self.next.keys()
            if begun:
                found: dict[tuple[str, int], int] = {}
                for one in batch:
                    if one.error() is None and (one.topic(), one.partition()) in begun:
                        found.setdefault((one.topic(), one.partition()), one.offset())
                first = {**first, **found}
            ready = deque(self.ready)
            ready.extend(batch)
            suspects = self._suspects and frozenset(one for one in self._suspects if upcoming.get(one) == self.next.get(one))
            # No call happens between these assignments: a delivered message must not come again after a repair.
            self.ready, self.next, self._first, self.out_of_range = ready, upcoming, first, lapsed
            self._suspects = suspects
        self.busy = False

    def _judged(
        self, events: Sequence[Any], upcoming: Mapping[tuple[str, int], tuple[int, int]]
    ) -> dict[TopicPartition, OutOfRange]:
        found = {}
        for event in events:
            partition = partition_of_message(event)
            read = self.applied.reads.get(partition)
            stands = None
            if read is not None and partition in self._assigned and read.start is not None:
                stands = upcoming.get(partition, (read.start.offset, -1))[0]
            # An event of a look-up by librdkafka has no offset.
            offset = event.offset()
            verdict = judge(OFFSET_INVALID if offset is None else offset, stands)
            if verdict is not Verdict.STALE and read is not None:
                found[partition] = OutOfRange(
                    read.serial, event.error().str(), verdict, getattr(event.error(), "resume_at", None)
                )
        return found

    def all_records(self, batch: Sequence[Any]) -> bool:
        """Whether a batch contains no event."""
        return not [one for one in batch if one.error() is not None]

    def take(self, most: int) -> list[Any]:
        """Return up to ``most`` messages of :attr:`ready`, which then count as delivered."""
        ready = self.ready
        if most >= len(ready):
            messages, self.ready = list(ready), deque()
            return messages
        return [ready.popleft() for _ in range(most)]

    def tracked(self, batch: Sequence[Any]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return :attr:`next` with the position behind the last message of each partition, without reading every message.

        Messages of one partition come in runs. A message ``n`` places before the last one of a run is in that run if it has
        the same partition and an offset lower by ``n`` or more. The beginning of the run is found by doubling ``n``.
        """
        upcoming: dict[tuple[str, int], tuple[int, int]] = dict(self.next)
        seen = set()
        last = len(batch) - 1
        while last >= 0:
            message = batch[last]
            offset = message.offset()
            if message.error() is not None:
                last -= 1
                continue
            key = (message.topic(), message.partition())
            if key not in seen:
                seen.add(key)
                epoch = message.leader_epoch()
                upcoming[key] = (offset + 1, -1 if epoch is None else epoch)
            first, step = last, 1
            while step:
                candidate = first - step
                if candidate >= 0 and _of_run(batch[candidate], key, offset - (last - candidate)):
                    first, step = candidate, step * 2
                else:
                    step //= 2
            last = first - 1
        return upcoming

    # -- positions ----------------------------------------------------------------------------------------------------

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position behind the last delivered message, for partitions with a delivered message.

        A message that waits in :attr:`ready` counts as not delivered.  Callable from any thread.
        """
        waiting = self._first_waiting()
        upcoming, first = self.next, self._first
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition in partitions:
            message = waiting.get(partition)
            if message is not None:
                if message.offset() != first.get(partition):
                    found[partition] = before(message)
            elif partition in upcoming:
                found[partition] = OffsetAndMetadata(*upcoming[partition])
        return found

    def position(self, partition: TopicPartition) -> int:
        """Return the offset behind the last delivered message, ``OFFSET_INVALID`` before the first."""
        at = self.positions([partition]).get(partition)
        return OFFSET_INVALID if at is None else at.offset

    def waits(self, partition: TopicPartition) -> bool:
        """Whether a fetched message of a partition waits to be delivered."""
        return partition in self._first_waiting()

    def _first_waiting(self) -> dict[tuple[str, int], Any]:
        waiting: dict[tuple[str, int], Any] = {}
        for message in list(self.ready):
            if message.error() is None:
                waiting.setdefault((message.topic(), message.partition()), message)
        return waiting


def _of_run(message: Any, key: tuple[str, int], offset: int) -> bool:
    """Whether a message is in a run: same partition, and an offset not above ``offset``."""
    return (
        message.error() is None and message.offset() <= offset and message.partition() == key[1] and message.topic() == key[0]
    )
