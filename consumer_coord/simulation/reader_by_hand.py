"""Readers that assign partitions by hand (``assign``, ``incremental_assign``, ``unassign``), beside the group that subscribes.

A :class:`ReaderByHand` is a program with several lives: a process is killed or closes, and the next one continues at the
commits. Its group has no members, so the rules for members do not apply. These do:

* ``callbacks``: only assigned partitions deliver records;
* ``identity``, ``records``: a record is the one that the log of its partition has at its offset, in order;
* ``skipped``, ``again``: a partition begins where it was assigned (at an offset, at the first record, at the end of the log, or
  at the group's commit), and continues with the next record, after each seek with the record of its offset;
* ``durability``: ``committed`` returns a commit that was made, and the confirmed one if no fault interferes;
* ``answered``: see :mod:`consumer_coord.simulation.odd_commits`; and those of the calls: ``late``, ``raised`` and ``reported``.

After a topic was created again, or its log was truncated, a reader may begin anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import attrs

from consumer_coord.confluent.topic_partitions import committed_rows, native, partition_of
from consumer_coord.confluent.types import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.group.commits import Ticket
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.simulation.calls import Calls
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.columns import rows_of
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.member_spec import API_TIMEOUT_S, COMMIT_TIMEOUT_S, MemberSpec, settings_of
from consumer_coord.simulation.odd_commits import ANSWERED_S, codes_in, codes_of, is_absent, must_be_answered, with_absent
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.record_log import RecordedLog, Row
from consumer_coord.simulation.scenario import Fetching
from consumer_coord.simulation.stage import Stage
from consumer_coord.topic_partition import TopicPartition

#: The most partitions of one reader.
_MOST: Final = 4
_POLL_S: Final = 0.5
#: Time limits of an undisturbed close, and of a question for offsets, in seconds.
_CLOSE_S: Final = 2.0
_ASK_S: Final = 2.0
#: What a reader may do after a poll, and how often it does something else than poll, of a hundred polls.
_ACTS: Final = ("commit", "commit", "commit_later", "change", "change", "seek", "pause", "ask")
_OFTEN: Final = 40
#: What it does after the last fault, when it must read to the end of each partition: it begins nowhere anew.
_CALM_ACTS: Final = ("commit", "commit", "commit_later", "pause", "ask")


@attrs.define(eq=False)
class _Reading:
    """An assigned partition: the log at the time of the assignment, and where the next record must be."""

    log: object
    began: float
    #: No record below the first, and no later first record than the next one of the second; None: no limit.
    lowest: int
    latest: int | None
    paused: bool = False

    def goes_to(self, offset: int) -> None:
        """Record that exactly this offset is the next one."""
        self.lowest = self.latest = offset


class ReaderByHand:
    """A program that reads by hand: its present process, and what earlier ones have committed."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.name: str = f"by-hand-{number}"
        self._stage = stage
        self._random = Random(f"{stage.scenario.seed}-{self.name}")
        #: Partition -> each offset that may be committed; -1 for none. Of a log, by which a recreated topic differs.
        self._committed: dict[tuple[TopicPartition, object], set[int]] = {}
        self._lives = 0
        self._life: _Life | None = None

    @property
    def finished(self) -> bool:
        """Whether no process of the program runs."""
        return self._life is None or self._life.finished or self._life.process.dead

    def start(self) -> None:
        """Start the next process."""
        self._lives += 1
        self._life = _Life(self._stage, f"{self.name}.{self._lives}", self.name, self._random, self._committed)
        self._life.start()

    def start_again(self, how: int) -> None:
        """Kill the process (odd), or let it close; then the next one starts."""
        former = self._life
        if former is None or former.finished or how % 2:
            self.kill()
            self.start()
        else:
            former.then = self.start
            former.closing = True

    def stop(self) -> None:
        """Close the consumer after the present turn of the program's loop."""
        if self._life is not None:
            self._life.then = None
            self._life.closing = True

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        if self._life is not None and not self._life.finished:
            self._stage.kafka.kill(self._life.process)
            self._stage.history.note(self._life.name, "killed")

    def unread(self) -> str | None:
        """Return why an assigned partition was not read to its end, or None."""
        life = self._life
        return None if life is None or life.finished else life.unread()


class _Life:
    """One process of a :class:`ReaderByHand`."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        group_id: str,
        random: Random,
        committed: dict[tuple[TopicPartition, object], set[int]],
    ) -> None:
        self.name = name
        self.process: Process = Process.on(stage.loop, name)
        self.closing: bool = False
        self.finished: bool = False
        self.then: Any = None
        self._stage = stage
        self._random = random
        self._group_id = group_id
        self._committed = committed
        self._calls = Calls(name, self.process, stage.fail)
        self._readings: dict[TopicPartition, _Reading] = {}
        self._settings = settings_of(MemberSpec(name=name, commit="sync"), group_id, stage.cluster.bootstrap, name)
        self._consumer: SimulatedConsumer | None = None

    def start(self) -> None:
        """Start the process."""
        self._stage.history.note(self.name, "starts")
        self.process.create_task(self._stage.guarded(self.name, self._run()), name=self.name)

    async def _run(self) -> None:
        stage = self._stage
        self.process.consumer_coord_environment = stage.kafka.environment(self.process, self._random)
        settings = self._settings | dict((stage.scenario.fetching or Fetching()).settings)
        self._consumer = consumer = SimulatedConsumer(settings, None, report=self._outcome, events=self._nothing)
        await self._assign_anew(consumer)
        while not self.closing:
            await self._turn(consumer)
        stage.history.note(self.name, "closes")
        undisturbed = stage.loop.time() > stage.troubled_until
        limit_s = API_TIMEOUT_S if stage.calm else 5.0
        try:
            call = consumer.close(None if stage.calm else limit_s)
            await self._calls.timed(call, min(limit_s, _CLOSE_S) if undisturbed else limit_s, "close", prompt=True)
        except CoordinatorError as error:
            self._raised("close", error)
        self._calls.all_commits_answered()
        self.finished = True
        if self.then is not None:
            stage.loop.call_soon(self.then)

    async def _nothing(self) -> None:
        """Have no callback."""

    async def _turn(self, consumer: SimulatedConsumer) -> None:
        messages: Sequence[Any] = ()
        try:
            messages = await self._calls.timed(consumer.consume_some(50, _POLL_S), _POLL_S, "consume")
        except CoordinatorError as error:
            self._raised("consume", error)
        for partition, rows in rows_of(messages):
            self._delivered(partition, rows)
        await asyncio.sleep(self._random.uniform(0.05, 0.4))
        if self._random.randrange(100) < _OFTEN:
            act = self._random.choice(_CALM_ACTS if self._stage.calm else _ACTS)
            try:
                await getattr(self, "_" + act)(consumer)
            except CoordinatorError as error:
                self._raised(act, error)

    @property
    def _calm(self) -> bool:
        """Whether no fault delays or falsifies anything, so that every call must succeed at once."""
        return self._stage.calm and self._stage.loop.time() > self._stage.troubled_until and not self._stage.cluster.errs

    def _raised(self, what: str, error: CoordinatorError) -> None:
        self._stage.history.note(self.name, f"{what} raised {type(error).__name__}: {error}")
        gone = any(self._log(partition) is not one.log for partition, one in self._readings.items())
        self._calls.judge(error, None if self._calm and not gone else "a fault, or a topic is gone")

    def _log(self, partition: TopicPartition) -> object:
        return self._stage.cluster.log(partition)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _delivered(self, partition: TopicPartition, rows: Sequence[Row]) -> None:
        reading, first = self._readings.get(partition), rows[0][0]
        what = f"{self.name} received offset {first} of {partition}"
        if reading is None or reading.paused:
            raise Violation("callbacks", f"{what}, which is {'not assigned' if reading is None else 'paused'}")
        log = self._stage.cluster.logs[int(rows[0][1].partition(b":")[0])]
        if log.partition != partition or log.replaced_at < reading.began:
            raise Violation("identity", f"{what}, but its record is of {log.partition}, replaced at {log.replaced_at:.1f} s")
        if log.version_of(rows) is None:
            raise Violation("records", f"{what}, but no log has exactly these records up to {rows[-1][0]}")
        if self._is_same(partition, reading) and log is reading.log:
            if first < reading.lowest:
                raise Violation("again", f"{what}, but must begin at {reading.lowest}")
            if reading.latest is not None and first > log.first_record(max(reading.latest, log.log_start_offset)):
                raise Violation("skipped", f"{what}, but must continue at {reading.latest}")
        reading.goes_to(rows[-1][0] + 1)

    def _is_same(self, partition: TopicPartition, reading: _Reading) -> bool:
        """Return whether the log is that of the assignment, and was never truncated."""
        log = self._log(partition)
        return log is reading.log and isinstance(log, RecordedLog) and not log.truncations

    def unread(self) -> str | None:
        """Return why an assigned partition was not read to its end, or None."""
        for partition, reading in sorted(self._readings.items()):
            if reading.paused or reading.latest is None or not self._is_same(partition, reading):
                continue
            end = self._stage.cluster.end_offset(partition)
            # Before the first delivery, the reader may have begun at the latest of several commits that may have been the last.
            if self._stage.cluster.first_record(partition, reading.latest) != end:
                return f"{self.name} has read {partition} only up to {reading.latest} of {end}"
        return None

    # -- assigning ----------------------------------------------------------------------------------------------------

    def _begin(self, partition: TopicPartition) -> Any:
        """Choose where a partition begins; return the row to assign."""
        cluster, log = self._stage.cluster, self._log(partition)
        first, end = cluster.log_start(partition), cluster.end_offset(partition) or 0
        kind = self._random.choice((OFFSET_STORED, OFFSET_STORED, OFFSET_INVALID, OFFSET_BEGINNING, OFFSET_END, 0))
        reading = _Reading(log, self._stage.loop.time(), 0, None)
        if kind in (OFFSET_STORED, OFFSET_INVALID):
            offsets = [first if one < 0 else one for one in self._committed.get((partition, log), (-1,))]
            reading.lowest, reading.latest = min(offsets), max(offsets)
        elif kind == OFFSET_BEGINNING:
            reading.goes_to(first)
        elif kind == OFFSET_END:
            # For a reader of committed records, the log ends before the first open transaction.
            reading.lowest = log.last_stable_offset if isinstance(log, RecordedLog) else 0
        else:
            kind = self._random.randint(first, end)
            reading.goes_to(kind)
        self._readings[partition] = reading
        return native(partition, OffsetAndMetadata(kind))

    def _others(self) -> list[TopicPartition]:
        free = sorted(one for one in self._stage.cluster.partitions() if one not in self._readings)
        return self._random.sample(free, min(len(free), self._random.randint(1, _MOST)))

    async def _assign_anew(self, consumer: SimulatedConsumer) -> None:
        self._readings.clear()
        rows = [self._begin(partition) for partition in sorted(self._others())]
        self._stage.history.note(self.name, f"assigns {rows}")
        await self._calls.timed(consumer.assign(rows), API_TIMEOUT_S, "assign")
        await self._must_be_assigned(consumer)

    async def _change(self, consumer: SimulatedConsumer) -> None:
        """Assign other partitions, or some more, or end some."""
        how, timed = self._random.randrange(5), partial(self._calls.timed, limit_s=API_TIMEOUT_S, what="a change of assignment")
        if how == 0 or not self._readings:
            await self._assign_anew(consumer)
            return
        if how == 1:
            rows = [self._begin(partition) for partition in self._others()[: max(0, _MOST - len(self._readings))]]
            await timed(consumer.incremental_assign(rows))
        elif how == 2:
            gone = self._random.sample(sorted(self._readings), self._random.randint(1, len(self._readings)))
            await timed(consumer.incremental_unassign([native(one) for one in gone]))
            for one in gone:
                del self._readings[one]
        elif how == 3:
            await timed(consumer.unassign())
            self._readings.clear()
        else:
            await self._assign_wrongly(consumer)
        await self._must_be_assigned(consumer)

    async def _assign_wrongly(self, consumer: SimulatedConsumer) -> None:
        """Assign a partition twice, or one with a negative number: the call must fail, and change nothing."""
        partition = min(self._readings)
        for wrong in ([native(partition), native(partition)], [native(TopicPartition(partition.topic, -1))]):
            try:
                await consumer.assign(wrong)
            except ConfigurationError:
                continue
            raise Violation("callbacks", f"{self.name} assigned {wrong}, without an error")

    async def _must_be_assigned(self, consumer: SimulatedConsumer) -> None:
        said = set(map(partition_of, await consumer.assignment()))
        if said != self._readings.keys():
            raise Violation("callbacks", f"{self.name} assigned {sorted(self._readings)}, but assignment() is {sorted(said)}")

    async def _seek(self, consumer: SimulatedConsumer) -> None:
        for partition, reading in sorted(self._readings.items())[:1]:
            first, end = self._stage.cluster.log_start(partition), self._stage.cluster.end_offset(partition)
            if end is not None and self._log(partition) is reading.log:
                offset = self._random.randint(first, end)
                await self._calls.timed(consumer.seek(native(partition, OffsetAndMetadata(offset))), 1.0, "seek")
                reading.goes_to(offset)

    async def _pause(self, consumer: SimulatedConsumer) -> None:
        """Pause one partition, or resume all."""
        paused = [partition for partition, reading in sorted(self._readings.items()) if reading.paused]
        if paused:
            await consumer.resume([native(one) for one in paused])
        elif self._readings and not self._stage.calm:
            paused = sorted(self._readings)[:1]
            await consumer.pause([native(one) for one in paused])
        for one in paused:
            self._readings[one].paused = not self._readings[one].paused

    # -- commits ------------------------------------------------------------------------------------------------------

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions, sometimes also of a partition that is not assigned, or of some that do not exist."""
        positions = {
            partition: OffsetAndMetadata(reading.lowest)
            for partition, reading in sorted(self._readings.items())
            if reading.latest is not None and self._is_same(partition, reading)
        }
        if self._random.random() < 0.2:
            positions |= {one: OffsetAndMetadata(self._stage.cluster.log_start(one)) for one in self._others()[:1]}
        return with_absent(positions) if positions and self._random.random() < 0.4 else positions

    def _may_be_committed(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for partition, at in positions.items():
            self._committed.setdefault((partition, self._log(partition)), {-1}).add(at.offset)

    def _is_committed(self, partition: TopicPartition, offset: int) -> None:
        if self._calm:
            # No earlier commit is on its way.
            self._committed[partition, self._log(partition)] = {offset}
        else:
            self._committed.setdefault((partition, self._log(partition)), set()).discard(-1)

    async def _commit(self, consumer: SimulatedConsumer) -> None:
        positions = self._positions()
        if not positions:
            return
        calm, limit_s = self._calm, COMMIT_TIMEOUT_S
        self._may_be_committed(positions)
        given = committed_rows(positions)
        if self._random.random() < 0.2:
            # Of two offsets of a partition, the last one counts, as in librdkafka.
            given.insert(0, native(partition_of(given[0]), OffsetAndMetadata(max(0, given[0].offset - 1))))
        call = consumer.commit(None, given, asynchronous=False, timeout=limit_s)
        rows = await self._calls.timed(call, ANSWERED_S if calm else limit_s, "commit") or ()
        codes = codes_in(rows)
        exist = all(is_absent(one) or self._log(one) is not None for one in codes)
        must_be_answered(self.name, codes, undisturbed=calm and self._calm and exist)
        if codes.keys() != positions.keys():
            raise Violation("answered", f"{self.name} committed {sorted(positions)}, and was told about {sorted(codes)}")
        for partition, code in codes.items():
            if code == 0:
                self._is_committed(partition, positions[partition].offset)

    async def _commit_later(self, consumer: SimulatedConsumer) -> None:
        positions = self._positions()
        self._may_be_committed(positions)
        ticket = await self._calls.timed(consumer.commit_later(positions), COMMIT_TIMEOUT_S, "commit_later")
        if ticket is not None:
            self._calls.began_commit(ticket, {})

    def _outcome(self, ticket: Ticket) -> None:
        self._calls.answered_commit(ticket)
        codes = codes_of(ticket)
        must_be_answered(self.name, codes, undisturbed=False)
        for partition, code in codes.items():
            if code == 0 and not self._calm:
                self._is_committed(partition, ticket.entries[partition].position.offset)

    async def _ask(self, consumer: SimulatedConsumer) -> None:
        """Compare positions and commits with what this program knows."""
        wanted = [native(one) for one in sorted(self._readings)]
        for row in await self._calls.timed(consumer.position(wanted), API_TIMEOUT_S, "position"):
            reading = self._readings[partition_of(row)]
            same = self._is_same(partition_of(row), reading)
            if same and row.offset >= 0 and row.offset < reading.lowest:
                what = f"{self.name} is at {reading.lowest} of {partition_of(row)}, but position() is {row.offset}"
                raise Violation("again", what)
        for row in await self._calls.timed(consumer.committed(wanted, timeout=_ASK_S), _ASK_S, "committed"):
            partition, log = partition_of(row), self._log(partition_of(row))
            offsets = self._committed.get((partition, log), {-1})
            said = row.offset if row.offset >= 0 else -1
            if self._is_same(partition, self._readings[partition]) and said not in offsets:
                raise Violation("durability", f"{self.name}: committed() of {partition} is {said}, committed {sorted(offsets)}")
