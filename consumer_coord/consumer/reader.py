"""What was fetched and not handed out yet, and where each partition stands.

librdkafka moves a partition's position when a message is taken from it, and forgets what it gave to a call that was
interrupted: a signal handler or a callback that raises costs a ``consume()`` its whole batch.  So this keeps the position
behind the last message that arrived, and :meth:`Reader.repair` puts the data plane back to it after an interrupted call.

Messages that wait here count as not handed out: positions lie before them, they go with their partition when it is stopped or
sought, and wait with it while it is paused or about to be revoked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from consumer_coord.consumer.data_plane import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    DataPlane,
    after,
    before,
    partition_of_message,
)
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

#: librdkafka hands out one message in 1.2-1.7 us, and one of many in 0.4-0.7 us: so many more are taken at once.
MOST_AHEAD = 100

Positions = Mapping[TopicPartition, OffsetAndMetadata]


class Reader:
    """The assigned partitions of one consumer.  Used by one caller at a time, who calls :meth:`ready` first."""

    def __init__(self, plane: DataPlane, is_lapsed: Callable[[Any], bool]) -> None:
        """``is_lapsed`` tells events of offsets that are out of range."""
        self.plane = plane
        self._is_lapsed = is_lapsed
        #: To hand out, in order.
        self.ahead: deque[Any] = deque()
        #: What the data plane reads, and where it began (or was sought to).
        self.assigned: dict[TopicPartition, OffsetAndMetadata] = {}
        #: Paused by the application; survives that a partition is stopped and started.
        self.paused: set[TopicPartition] = set()
        #: About to be revoked: nothing of these is handed out.
        self.frozen: set[TopicPartition] = set()
        #: Whose beginning counts as a position to commit, although nothing was read yet.
        self._begun: set[TopicPartition] = set()
        #: What arrived of paused and frozen partitions.
        self._kept: dict[TopicPartition, list[Any]] = {}
        #: partition -> (offset, leader epoch) behind the last message that arrived; replaced, not changed.
        self.behind: dict[tuple[str, int], tuple[int, int]] = {}
        #: Read no more because the offset is not in the log, and what the data plane says of it; replaced, not changed.
        self.lapsed: dict[TopicPartition, str] = {}
        #: Where a partition stood when an event of another offset came, and that offset.
        self._doubted: dict[TopicPartition, tuple[int, int]] = {}
        #: Sought, while the data plane may not know of it.
        self._moving: set[TopicPartition] = set()
        #: True while a call to the data plane is under way, and after one that was interrupted.
        self.unsure = False

    # -- fetching -----------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait for what was begun, and put right what was interrupted; before anything else."""
        await self.plane.wait_idle()
        if self.unsure:
            await self._repair()

    async def fetch(self, most: int, wait_s: float) -> None:
        """Take up to ``most`` messages into :attr:`ahead`, waiting at most ``wait_s`` for the first."""
        self.unsure = True
        await self.plane.fetch(most, wait_s, self.arrived)

    def arrived(self, batch: list[Any]) -> None:
        """The data plane gave these."""
        former = False
        if batch:
            behind, lapsed = self.tracked(batch), self.lapsed
            ahead = deque(self.ahead)
            out = [one for one in batch if one.error() is not None and self._tells_lapsed(one)]
            if out:
                batch = [one for one in batch if one not in out]
                of_now = [one for one in out if self._is_of_now(one, behind)]
                lapsed = {**lapsed, **{partition_of_message(one): one.error().str() for one in of_now}}
                former = len(of_now) < len(out)
            self.unsure = self.unsure or former
            ahead.extend(batch)
            # No call between: a message that is handed out must not come again from a repair.
            self.ahead, self.behind, self.lapsed = ahead, behind, lapsed
            if self._kept or self.paused or self.frozen:
                self._keep_back()
        self.unsure = former

    def _tells_lapsed(self, event: Any) -> bool:
        """Whether an event says that a partition's offset is out of range."""
        # Others may be of no partition: that the group is refused to librdkafka, too.
        return self._is_lapsed(event.error()) and partition_of_message(event) in self.assigned

    def _is_of_now(self, event: Any, behind: Mapping[tuple[str, int], tuple[int, int]]) -> bool:
        """Whether an event of an offset out of range is of where its partition stands.

        librdkafka also hands out events of a former assignment of the partition.  Whether it reads the new one is not known
        then: a repair assigns it again where it stands, and librdkafka tells if that is out of range.
        """
        partition, offset = partition_of_message(event), event.offset()
        arrived = behind.get((partition.topic, partition.partition))
        stands = self.assigned[partition].offset if arrived is None else arrived[0]
        # Without a position it is librdkafka that looks one up, and tells of the one that it found.
        known = stands >= 0 or stands in (OFFSET_BEGINNING, OFFSET_END)
        if not known or offset == stands or (stands < 0 and offset < 0) or self._doubted.get(partition) == (stands, offset):
            return True
        # What is told again after a repair is believed, whatever it says.
        self._doubted = {**self._doubted, partition: (stands, offset)}
        return False

    def all_records(self, batch: Sequence[Any]) -> bool:
        """Whether there is no event among them."""
        return not [one for one in batch if one.error() is not None]

    def take(self, most: int) -> list[Any]:
        """Up to ``most`` messages of :attr:`ahead`, which count as handed out from now on."""
        ahead = self.ahead
        if most >= len(ahead):
            messages, self.ahead = list(ahead), deque()
            return messages
        return [ahead.popleft() for _ in range(most)]

    @property
    def plain(self) -> bool:
        """True when messages that arrive can be handed out as they come: nothing is paused, kept, or to be put right."""
        return not (self.unsure or self.paused or self.frozen or self._kept) and bool(self.assigned)

    def tracked(self, batch: Sequence[Any]) -> dict[tuple[str, int], tuple[int, int]]:
        """:attr:`behind` with the position behind the last message of each partition, without a look at every message.

        Messages of one partition come in runs.  A message ``n`` places before the last one of a run is of the same run if
        it is of the same partition and ``n`` or more offsets before it; the run's beginning is found by doubling ``n``.
        """
        behind: dict[tuple[str, int], tuple[int, int]] = dict(self.behind)
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
                behind[key] = (offset + 1, -1 if epoch is None else epoch)
            first, step = last, 1
            while step:
                candidate = first - step
                if candidate >= 0 and _of_run(batch[candidate], key, offset - (last - candidate)):
                    first, step = candidate, step * 2
                else:
                    step //= 2
            last = first - 1
        return behind

    # An interrupt may come between any two statements, so what belongs together is replaced by one.

    def _keep_back(self) -> None:
        """Take what arrived of paused and frozen partitions out of :attr:`ahead`."""
        stopped = self.paused | self.frozen
        if any(_of(message, stopped) for message in self.ahead):
            kept = {partition: list(messages) for partition, messages in self._kept.items()}
            waiting: deque[Any] = deque()
            for message in self.ahead:
                if _of(message, stopped):
                    kept.setdefault(partition_of_message(message), []).append(message)
                else:
                    waiting.append(message)
            self.ahead, self._kept = waiting, kept

    def _release(self) -> None:
        """Hand out what was kept of partitions that are neither paused nor frozen any more."""
        released = sorted(self._kept.keys() - self.paused - self.frozen)
        if released:
            kept = {partition: messages for partition, messages in self._kept.items() if partition not in released}
            waiting = deque(self.ahead)
            for partition in released:
                waiting.extend(self._kept[partition])
            self.ahead, self._kept = waiting, kept

    def _forget(self, partitions: Collection[TopicPartition], assigned: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Nothing that arrived of these counts any more; ``assigned`` is what is assigned from now on."""
        kept = {partition: messages for partition, messages in self._kept.items() if partition not in partitions}
        behind = {key: at for key, at in self.behind.items() if key not in partitions}
        begun = self._begun - set(partitions)
        lapsed = {partition: why for partition, why in self.lapsed.items() if partition not in partitions}
        ahead = deque(message for message in self.ahead if not _of(message, partitions)) if self.ahead else self.ahead
        self._doubted = {partition: what for partition, what in self._doubted.items() if partition not in partitions}
        self.assigned, self.ahead, self._kept = assigned, ahead, kept
        self.behind, self._begun, self.lapsed = behind, begun, lapsed

    # -- which partitions, from where -----------------------------------------------------------------------------------

    async def start(self, positions: Positions, *, begun: Collection[TopicPartition] = ()) -> None:
        """Fetch these partitions from these positions; paused ones stay paused.

        The group has no commit for those in ``begun``, so where they begin is a position to commit.
        """
        if not positions:
            return
        self.unsure = True
        idle = self._here(self._idle(positions))
        if idle:
            await self.plane.unassign(idle)
        self.assigned.update(positions)
        self._begun.update(partition for partition in begun if positions[partition].offset >= 0)
        await self.plane.assign(positions)
        if idle:
            await self.plane.assign(idle)
        if still_paused := self.paused & positions.keys():
            await self.plane.pause(still_paused)
        self.unsure = False

    async def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these no more, and forget what waits of them."""
        ending = set(partitions)
        self.frozen -= ending
        self.paused -= ending
        known = ending & self.assigned.keys()
        if known:
            self.unsure = True
            self._forget(known, {partition: began for partition, began in self.assigned.items() if partition not in known})
            await self.plane.unassign(known)
            self.unsure = False

    async def seek(self, partition: TopicPartition, position: OffsetAndMetadata) -> None:
        """Go on there; what was fetched before is forgotten."""
        self.unsure = True
        self._moving.add(partition)
        self._forget([partition], {**self.assigned, partition: position})
        if position.offset >= 0:
            self._begun.add(partition)
        await self.plane.seek(partition, position)
        self._moving.discard(partition)
        self.unsure = False

    async def restart(self, positions: Positions, *, begun: Collection[TopicPartition] = ()) -> None:
        """Begin these again elsewhere: their offsets were out of range.  Of ``begun`` that is a position to commit."""
        self.unsure = True
        self._forget(positions.keys(), {**self.assigned, **positions})
        self._begun.update(partition for partition in begun if positions[partition].offset >= 0)
        await self.plane.unassign(positions.keys())
        await self.plane.assign(positions)
        if still_paused := (self.paused | self.frozen) & positions.keys():
            await self.plane.pause(still_paused)
        self.unsure = False

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until :meth:`resume`; they may be on their way to be assigned still."""
        self.paused.update(partitions)
        await self._stand_still(self.paused)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out messages of these again."""
        ending = set(partitions)
        self.paused -= ending
        await self._go_on(ending)

    async def freeze(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of exactly these: they are about to be revoked."""
        thawed = self.frozen - set(partitions)
        self.frozen = set(partitions)
        await self._stand_still(self.frozen)
        await self._go_on(thawed)

    async def _stand_still(self, partitions: set[TopicPartition]) -> None:
        self._keep_back()
        if known := partitions & self.assigned.keys():
            self.unsure = True
            await self.plane.pause(known)
            self.unsure = False

    async def _go_on(self, partitions: set[TopicPartition]) -> None:
        ready = partitions - self.paused - self.frozen
        self._release()
        if known := ready & self.assigned.keys():
            self.unsure = True
            await self.plane.resume(known)
            # The pause dropped what waited in the data plane, and with it the event that tells that one is read no more.
            await self._begin_again(known - self.lapsed.keys())
            self.unsure = False

    async def _begin_again(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these anew from where they stand."""
        here = self._here(partitions)
        await self.plane.unassign(partitions)
        await self.plane.assign(here)

    def _here(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where these stand in the data plane."""
        here = {partition: self.assigned[partition] for partition in partitions}
        here.update({one: OffsetAndMetadata(*self.behind[one]) for one in partitions if one in self.behind})
        return here

    def _idle(self, positions: Positions) -> Collection[TopicPartition]:
        """What the data plane is not to fetch while it hears of new topics, so that these wait for no other fetch."""
        if not self.assigned or not self.plane.held_up(positions):
            return ()
        return self.assigned.keys() - self.paused - self.frozen - self.lapsed.keys()

    async def _repair(self) -> None:
        """Put the data plane where we are, whatever an interrupted call has left."""
        behind = dict(self.behind)
        for messages in (*self._kept.values(), self.ahead):
            for message in messages:
                if message.error() is None:
                    at = after(message)
                    behind[partition_of_message(message)] = (at.offset, at.leader_epoch)
        self.behind = behind
        assigned = await self.plane.assignment()
        there = await self.plane.positions(assigned)
        wrong: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, began in self.assigned.items():
            arrived = behind.get(partition)
            here = began if arrived is None else OffsetAndMetadata(*arrived)
            moved = there.get(partition)
            right = (arrived is None and moved is None) or (moved is not None and moved.offset == here.offset)
            # An interrupted call may have taken the event that tells that a partition is read no more: it comes again.
            if not (right and partition in self.lapsed and partition in assigned and partition not in self._moving):
                wrong[partition] = here
        gone = (assigned - self.assigned.keys()) | (assigned & wrong.keys())
        if gone:
            await self.plane.unassign(gone)
        if wrong:
            await self.plane.assign(wrong)
        stopped = (self.paused | self.frozen) & self.assigned.keys()
        if stopped:
            await self.plane.pause(stopped)
        if going := self.assigned.keys() - stopped:
            await self.plane.resume(going)
        self._moving.clear()
        self.unsure = False

    # -- positions ----------------------------------------------------------------------------------------------------

    async def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the application goes on: behind the last message handed out, or where it begins without a commit.

        Partitions that begin at a committed offset and had no message yet are left out.
        """
        wanted = sorted(self.assigned.keys() & set(partitions))
        waiting = self._first_waiting()
        # What was begun again behind the last message has no position in the data plane before the next one.
        unknown = [partition for partition in wanted if partition not in waiting and partition not in self.behind]
        found = await self.plane.positions(unknown) if unknown else {}
        positions: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition in wanted:
            message = waiting.get(partition)
            began = self.assigned[partition]
            if message is not None:
                at = before(message)
                if at.offset != began.offset or partition in self._begun:
                    positions[partition] = at
            elif partition in self.behind:
                positions[partition] = OffsetAndMetadata(*self.behind[partition])
            elif partition in found:
                positions[partition] = found[partition]
            elif partition in self._begun:
                positions[partition] = began
        return positions

    def finished_at(self, partition: TopicPartition) -> int:
        """Behind the last message handed out, ``OFFSET_INVALID`` before the first; without a look at the data plane."""
        waiting = self._first_waiting().get(partition)
        if waiting is not None:
            offset: int = waiting.offset()
            return offset if offset != self.assigned[partition].offset else OFFSET_INVALID
        return self.behind.get(partition, (OFFSET_INVALID, -1))[0]

    def handed_out(self, partition: TopicPartition) -> bool:
        """Whether the application got a record of a partition since it was begun at the first record; thread-safe."""
        if (partition.topic, partition.partition) not in self.behind:
            return False
        kept = self._kept.get(partition)
        if kept:
            return bool(kept[0].offset() > 0)
        waiting = next((one for one in list(self.ahead) if partition_of_message(one) == partition), None)
        return waiting is None or waiting.offset() > 0

    async def position(self, partition: TopicPartition) -> int:
        """Behind the last message handed out, ``OFFSET_INVALID`` before the first."""
        found = (await self.positions([partition])).get(partition)
        return OFFSET_INVALID if found is None else found.offset

    def _first_waiting(self) -> dict[TopicPartition, Any]:
        first: dict[TopicPartition, Any] = {}
        for messages in (*self._kept.values(), self.ahead):
            for message in messages:
                if message.error() is None:
                    first.setdefault(partition_of_message(message), message)
        return first


def _of(message: Any, partitions: Collection[TopicPartition]) -> bool:
    return (message.topic(), message.partition()) in partitions


def _of_run(message: Any, key: tuple[str, int], offset: int) -> bool:
    """Whether a message may begin the run: of that partition, and not after that offset."""
    return (
        message.error() is None and message.offset() <= offset and message.partition() == key[1] and message.topic() == key[0]
    )
