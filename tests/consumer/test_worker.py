"""The worker, interrupted at any call of the data plane: every record of an assignment is delivered once, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Coroutine, Iterable, Mapping
from random import Random
from typing import Any

import pytest

from consumer_coord.consumer.data_plane import Sink
from consumer_coord.consumer.deliveries import Span
from consumer_coord.consumer.partitions import Plan, Read
from consumer_coord.consumer.worker import Worker
from consumer_coord.group.apply_changes import run_through
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from tests.support.consumer.interrupts import Interrupt

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
END = 200


def is_marker(offset: int) -> bool:
    """Whether the offset belongs to a transaction marker, which is fetched without a message; the last offset does."""
    return offset % 7 == (END - 1) % 7


def records(begin: int, end: int) -> list[int]:
    return [offset for offset in range(begin, end) if not is_marker(offset)]


class Plane:
    """librdkafka's handle with endless records: an interrupted call may have had its effect, and drops the fetched records."""

    def __init__(self, random: Random) -> None:
        self.random = random
        #: partition -> [the offset where its assignment began, the next offset]
        self.reading: dict[TopicPartition, list[int]] = {}
        self.interrupts = True
        self.assignments = 0

    def _maybe(self) -> None:
        if self.interrupts and self.random.random() < 0.1:
            raise Interrupt

    async def wait_idle(self) -> None:
        """Return at once: every call has ended when it returns."""

    async def fetch(self, most: int, wait_s: float, sink: Sink) -> None:
        self._maybe()
        taken: list[Any] = []
        for partition, at in self.reading.items():
            for _ in range(self.random.randrange(4)):
                if at[1] < END and len(taken) < most:
                    if not is_marker(at[1]):
                        taken.append(Span(partition, at[1]))
                    at[1] += 1
        self._maybe()
        sink(taken)

    def held_up(self, positions: object) -> bool:
        return self.random.random() < 0.2

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._maybe()
        for partition, at in positions.items():
            assert partition not in self.reading, "assigned twice"
            self.reading[partition] = [at.offset, at.offset]
            self.assignments += 1
        self._maybe()

    async def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        self._maybe()
        for partition in tuple(partitions):
            assert partition in self.reading, "unassigned, and was not assigned"
            del self.reading[partition]
        self._maybe()

    async def positions(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self._maybe()
        moved = {one: self.reading[one] for one in partitions if self.reading[one][1] != self.reading[one][0]}
        return {one: OffsetAndMetadata(at[1]) for one, at in moved.items()}

    async def assignment(self) -> frozenset[TopicPartition]:
        self._maybe()
        return frozenset(self.reading)


def _interruptible(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(Interrupt):
        run_through(work)


def _deliver(worker: Worker, count: int, delivered: dict[int, list[int]]) -> None:
    reads = worker.applied.reads
    for message in worker.take(count):
        read = reads[TopicPartition(message.topic(), message.partition())]
        assert read.on, "a record of a partition that the plan does not fetch"
        delivered.setdefault(read.serial, []).append(message.offset())


def _changed(reads: Mapping[TopicPartition, Read], random: Random, serials: Collection[int]) -> dict[TopicPartition, Read]:
    """Return another plan: a partition is paused, resumed, sought, assigned or revoked."""
    changed = dict(reads)
    partition = random.choice(PARTITIONS)
    read = changed.get(partition)
    if read is None or random.random() < 0.3:
        changed[partition] = Read(len(serials), OffsetAndMetadata(random.randrange(END)), on=random.random() < 0.8)
    elif random.random() < 0.3:
        del changed[partition]
    else:
        changed[partition] = Read(read.serial, read.start, on=not read.on)
    return changed


@pytest.mark.parametrize("seed", range(300))
def test_interrupts_lose_and_double_no_record(seed: int) -> None:
    random = Random(seed)
    plane: Any = Plane(random)
    worker, plan = Worker(plane, lambda error: False), Plan()
    starts: dict[int, int] = {}
    delivered: dict[int, list[int]] = {}
    for _ in range(150):
        if random.random() < 0.2:
            plan = Plan(_changed(plan.reads, random, starts))
            starts.update({read.serial: read.start.offset for read in plan.reads.values() if read.start is not None})
        _interruptible(worker.reconcile(plan))
        if worker.applied is plan and not worker.busy:
            _interruptible(worker.fetch(5, random.choice([0.0, 0.1])))
        if worker.applied is plan and not worker.busy:
            _deliver(worker, random.randrange(6), delivered)
        if random.random() < 0.3:
            _interruptible(worker.catch_up(worker.assigned))
    plane.interrupts = False
    plan = Plan({partition: Read(read.serial, read.start, on=True) for partition, read in plan.reads.items()})
    for _ in range(3 * END):
        run_through(worker.reconcile(plan))
        run_through(worker.fetch(5, 0.1))
        _deliver(worker, 5, delivered)
    _deliver(worker, 3 * END, delivered)
    for serial, offsets in delivered.items():
        assert offsets == records(starts[serial], END)[: len(offsets)], f"reading {serial}"
    for read in plan.reads.values():
        assert read.start is not None
        assert delivered.get(read.serial, []) == records(read.start.offset, END)
    run_through(worker.catch_up(worker.assigned))
    assert {cursor.fetch_position.offset for cursor in worker.cursors.values()} <= {END}


def test_a_storm_of_interrupts_does_not_restart_what_delivers_nothing() -> None:
    """A partition without a position in the data plane is at the offset where its assignment began."""
    plane: Any = Plane(Random(1))
    plane.interrupts = False
    worker = Worker(plane, lambda error: False)
    plan = Plan({partition: Read(number, OffsetAndMetadata(END), on=True) for number, partition in enumerate(PARTITIONS)})
    run_through(worker.reconcile(plan))
    begun = plane.assignments
    for _ in range(100):
        worker.busy = True
        run_through(worker.reconcile(plan))
        run_through(worker.fetch(5, 0.0))
    assert plane.assignments == begun
    # Then one repair follows, because the interrupt may have dropped the event of an offset out of range.
    for _ in range(5):
        run_through(worker.fetch(5, 0.1))
    assert plane.assignments == begun + len(PARTITIONS)
