"""The world of one run: simulated brokers, the processes of the program, and what became of each record."""

from __future__ import annotations

import asyncio
import functools
import pkgutil
import sys
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.record_batch import Record
from consumer_coord.errors import MalformedMessageError
from consumer_coord.simulation.history import History
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.producer import Headers
from consumer_coord.simulation.programs.external import External
from consumer_coord.simulation.programs.faults import ProgramFaults
from consumer_coord.simulation.programs.guard import Patches, current_process
from consumer_coord.simulation.programs.handled import Commit, HandledRecords, LostRecord, RepeatedRecord
from consumer_coord.simulation.programs.lives import Lives
from consumer_coord.simulation.programs.producer import AsyncProgramProducer, ProgramProducer
from consumer_coord.simulation.programs.spec import WRITTEN_MS, ProgramSpec
from consumer_coord.simulation.programs.transactional_offsets import TransactionalOffsets
from consumer_coord.simulation.virtual_kafka import VirtualKafka
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import offsets_topic

#: Partitions of a topic that nobody declared.
_PARTITIONS: Final = 4
#: The process of the test itself.
_TEST: Final = "test"
#: The number of keys of drawn records.
_KEYS: Final = 20
#: The test waits for the processes in these steps, in seconds.
_STEP_S: Final = 0.5
#: A run has settled when nothing was handled or committed for this time, in seconds.
_QUIET_S: Final = 5.0
#: A run is stuck after this time without a record handled or committed for the first time, in seconds: longer than a session
#: and a rebalance together.
_STUCK_S: Final = 180.0


class StuckError(AssertionError):
    """Records stay unread although all faults are over; the text says which ones, and what each process does."""


class SimulatedWorld:
    """What a test of :func:`~consumer_coord.testing.simulated` receives. All times are seconds of virtual time."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        spec: ProgramSpec,
        *,
        topics: Mapping[str, int],
        brokers: int,
        patches: Patches,
        handled: str | None,
    ) -> None:
        """Create the world of ``spec`` on ``loop``; ``patches`` are undone after the run."""
        self._loop = loop
        self._spec = spec
        self._patches = patches
        self._history = History(loop.time)
        self._story: list[str] = []
        #: The lines about single records of the last call of :meth:`lost` or :meth:`repeated`.
        self._found: list[str] = []
        self._random = Random(f"{spec.seed}-world")
        self._produced = 0
        #: Topics that the test has written to, and the number of their records that are not written yet.
        self._written: dict[str, int] = {}
        #: Retry topics of ``process``, which must be read to their ends, too.
        self._retries: dict[str, None] = {}
        self._failure: asyncio.Future[None] = loop.create_future()
        self._began_at: float | None = None
        #: The test has ended; what the processes do while they are closed is no part of the story.
        self._over = False
        self._records = HandledRecords(
            loop.time,
            lambda moment, process: self._faults.event(moment, process),
        )
        self._counts_handled = handled is not None
        config = BrokerConfig(
            num_partitions=_PARTITIONS,
            offsets_topic_num_partitions=3,
            transaction_state_log_num_partitions=3,
            group_initial_rebalance_delay_ms=500,
        )
        self._kafka = VirtualKafka(
            loop,
            spec.seed,
            config=config,
            topics=topics,
            brokers=brokers,
            on_record=lambda key, value, offset: self._on_offsets_record(key, value, self._kafka.network.serving),
            offsets_observer=TransactionalOffsets(lambda: self._kafka.network.serving, self._on_offsets_record),
            new_log=lambda topic, partition, settings: PartitionLog(settings),
        )
        self._lives = Lives(self._kafka, spec.seed, self._note, self._records.troubles.append, self._fail)
        self._faults = ProgramFaults(self._kafka, self._lives, self._note, self._records.troubles.append)
        producers: Mapping[tuple[str, str], object] = {
            ("confluent_kafka", "Producer"): functools.partial(ProgramProducer, self),
            ("confluent_kafka.aio", "AIOProducer"): functools.partial(AsyncProgramProducer, self),
        }
        for (module, name), producer in producers.items():
            if module in sys.modules:
                patches.everywhere(sys.modules[module], name, producer)
        if handled is not None:
            owner, name, function = _named(handled)
            patches.set(owner, name, self._records.observed(function, self._who))

    # -- what a test calls --------------------------------------------------------------------------------------------

    async def produce(
        self, topic: str, records: int | Iterable[tuple[bytes | str | None, bytes | str | None]], *, at_once: bool = False
    ) -> None:
        """Write records to a topic: a third now, the others at random times in the next 40 s.

        ``records`` is a number, for drawn keys and distinct values, or a list of (key, value). ``at_once``: write all of them
        now. Records of one key are in one partition. A topic that does not exist gets 4 partitions.
        """
        self.ensure(topic)
        rows = [(_encoded(key), _encoded(value)) for key, value in self._drawn(topic, records)]
        count = len(rows) if at_once else len(rows) // 3
        self._written[topic] = self._written.get(topic, 0) + len(rows) - count
        for row in rows[:count]:
            self._append(topic, row)
        until_s = WRITTEN_MS / 1000
        moments = sorted(self._random.uniform(0.0, until_s) for _ in rows[count:])
        for moment, row in zip(moments, rows[count:], strict=True):
            self._loop.call_later(moment, self._append_later, topic, row)

    async def run(self, main: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Start ``main(*args)``, the program's coroutine function, in each process, and begin the faults.

        A process that is killed, or whose ``main`` raises, is started again; one whose ``main`` returns has ended. Call this
        only once.
        """
        if self._began_at is not None:
            raise RuntimeError("world.run(...) may be called once; run one coroutine function that starts the others")
        self._began_at = self._loop.time()
        self._lives.begin(main, args, self._spec.processes)
        self._faults.begin(self._spec.faults)

    async def settled(self) -> None:
        """Wait until all faults are over, every record is committed, and for 5 s no process has handled or committed one.

        Raise :class:`StuckError`, an AssertionError, if nothing is handled or committed any more before that, or if a process
        ends with an exception each time.
        """
        __tracebackhide__ = True
        if self._began_at is None:
            raise RuntimeError("await world.run(main) before world.settled()")
        await self._pass(self._until_faults_end())
        self._faults.heal()
        self._lives.start_missing()
        healed = seen_at = self._loop.time()
        seen = -1
        while (left := self._unread() or self._in_progress()) is not None or self._loop.time() - seen_at < _QUIET_S:
            progress = sum(map(len, self._records.handlings.values())) + sum(
                one.offset for held in self._records.commits if (one := self._records.committed(held)) is not None
            )
            if progress > seen:
                seen, seen_at = progress, self._loop.time()
            crashed = self._lives.crash_loop(healed)
            if crashed is not None and self._loop.time() > seen_at:
                raise StuckError(f"{crashed.name} has ended again and again since the last fault: {left}") from crashed.error
            if self._loop.time() - seen_at > _STUCK_S:
                lines = "\n".join(f"  {line}" for line in self._lives.describe())
                raise StuckError(f"no progress for {_STUCK_S:.0f} s after the last fault: {left}\n{lines}")
            await self._pass(_STEP_S)
        self._note("world", "every record is committed")

    def lost(self) -> list[LostRecord]:
        """Return the records that a commit has passed and that the function ``handled`` has never handled to its end.

        A record whose dead letter was produced counts as handled.
        """
        self._check_handled("lost")
        found = self._records.lost(self._of_test())
        self._found = [str(one) for one in found]
        return found

    def repeated(self) -> list[RepeatedRecord]:
        """Return the records that the function ``handled`` has handled more than once, each with the reason."""
        self._check_handled("repeated")
        found = self._records.repeated(self._of_test())
        self._found = [str(one) for one in found]
        return found

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return (key, value) of each record of a topic, partition by partition, without those of aborted transactions."""
        return [
            (record.key, record.value)
            for partition, held in self._logs().items()
            if partition.topic == topic
            for record in held
        ]

    def external(
        self,
        target: str,
        answer: Callable[..., Any] = lambda *args, **kwargs: None,
        *,
        delay_s: tuple[float, float] = (0.001, 0.1),
        failures: float = 0.0,
        error: type[Exception] = ConnectionError,
    ) -> External:
        """Replace a coroutine function that calls a database or a service, named as ``unittest.mock.patch`` names it.

        A call takes a random time between the two of ``delay_s``, and returns what ``answer`` returns for its arguments; a
        process may be killed meanwhile, before or after the call has an effect. The share ``failures`` of the calls raises
        ``error``, half of them after ``answer`` was called. The result has all ``calls``.
        """
        owner, name, _ = _named(target)
        service = External(answer, delay_s, failures, error, Random(f"{self._spec.seed}-{target}"), self._who)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await service(*args, **kwargs)

        self._patches.set(owner, name, call)
        return service

    def producer(self, settings: Mapping[str, Any] | None = None) -> AsyncProgramProducer:
        """Return a producer for the test itself, with the methods of ``confluent_kafka.aio.AIOProducer``.

        ``settings`` are confluent-kafka's; addresses need not be given. The program's own producers are simulated, too.
        """
        return AsyncProgramProducer(self, {"bootstrap.servers": "simulated:9092", **(settings or {})})

    # -- what producers call ------------------------------------------------------------------------------------------

    def ensure(self, topic: str) -> None:
        """Create a topic that does not exist."""
        kafka = self._kafka.cluster.kafka
        if topic not in kafka.topics.by_name:
            kafka.create_topic(topic)

    def produced(self, topic: str, headers: Headers) -> None:
        """Note whether a produced record, by its headers, is one to retry: its topic must then be read to the end, too."""
        if self._records.produced(headers):
            self._retries[topic] = None

    # -- what the decorator calls -------------------------------------------------------------------------------------

    async def play(self, test: Callable[[SimulatedWorld], Coroutine[Any, Any, None]]) -> None:
        """Run a test to its end; raise what it raises."""
        spec = self._spec
        self._note("world", f"{spec.processes} processes, {len(spec.faults)} faults")
        self._kafka.cluster.start()
        process = self._lives.new_process(_TEST)
        over = self._loop.create_future()
        task = process.create_task(test(self), name=_TEST)
        task.add_done_callback(lambda done: self._loop.call_soon(_pass_on, done, over))
        await asyncio.wait([over, self._failure], return_when=asyncio.FIRST_COMPLETED)
        self._over = True
        for ended in (self._failure, over):
            if ended.done():
                ended.result()

    @property
    def digest(self) -> str:
        """A hash of everything that happened."""
        return self._history.digest

    @property
    def story(self) -> Sequence[str]:
        """What happened to processes and brokers, and the records that were lost or repeated at the last question."""
        return [*self._story, *self._found[:5]]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _note(self, actor: str, what: str) -> None:
        if not self._over:
            self._history.note(actor, what)
            self._story.append(self._history.lines[-1])

    def _fail(self, error: BaseException) -> None:
        """End the run, whatever the program does with the error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def _check_handled(self, method: str) -> None:
        if not self._counts_handled:
            raise RuntimeError(f'world.{method}() needs @simulated(handled="module.function")')

    def _who(self) -> str | None:
        process = current_process()
        return None if process is None or process.name == _TEST else process.name

    def _until_faults_end(self) -> float:
        assert self._began_at is not None
        return max(0.0, self._began_at + self._spec.faults_end_ms / 1000 - self._loop.time())

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _drawn(
        self, topic: str, records: int | Iterable[tuple[bytes | str | None, bytes | str | None]]
    ) -> Iterable[tuple[bytes | str | None, bytes | str | None]]:
        if not isinstance(records, int):
            yield from records
            return
        for _ in range(records):
            self._produced += 1
            yield f"key-{self._random.randrange(_KEYS)}", f"{topic}-{self._produced}"

    def _append_later(self, topic: str, row: tuple[bytes | None, bytes | None]) -> None:
        self._written[topic] -= 1
        self._append(topic, row)

    def _append(self, topic: str, row: tuple[bytes | None, bytes | None]) -> None:
        partitions = self._kafka.cluster.kafka.topics.by_name[topic].partitions
        key = row[0]
        number = self._random.randrange(len(partitions)) if key is None else zlib.crc32(key) % len(partitions)
        partition = partitions[number]
        partition.log.append_records([row], self._kafka.cluster.wall_clock_ms(), partition.leader_epoch)

    def _on_offsets_record(self, key: bytes, value: bytes | None, who: str) -> None:
        decoded = offsets_topic.decode_key(key)
        if isinstance(decoded, offsets_topic.OffsetCommitKey) and value is not None:
            stored = offsets_topic.decode_offset_value(value)
            partition = TopicPartition(decoded.topic, decoded.partition)
            self._history.note(who, f"committed {stored.offset} of {partition}")
            self._faults.event("committed", who)
            commit = Commit(self._loop.time(), decoded.group, stored.offset, who)
            self._records.commits.setdefault(partition, []).append(commit)
            self._lives.seen_groups.setdefault(decoded.group)
        elif isinstance(decoded, offsets_topic.GroupMetadataKey):
            self._lives.seen_groups.setdefault(decoded.group)

    def _logs(self) -> dict[TopicPartition, list[Record]]:
        """Return the records of every user topic that consumers with read_committed get."""
        found = {}
        for partition in self._kafka.cluster.kafka.topics.partitions():
            if not partition.topic.startswith("__"):
                found[TopicPartition(partition.topic, partition.index)] = _visible(partition.log)
        return found

    def _of_test(self) -> dict[TopicPartition, list[Record]]:
        """Return the records of topics that the test has written to."""
        return {partition: held for partition, held in self._logs().items() if partition.topic in self._written}

    def _in_progress(self) -> str | None:
        """Return what a running process handles; None if there is no such call."""
        for process, keys in self._records.running.values():
            if self._lives.is_alive(process):
                partition, offset = keys[0][0]
                return f"{process} still handles {partition}@{offset}"
        return None

    def _unread(self) -> str | None:
        """Return which records are not written or not committed yet, for an error text; None if all are."""
        for topic, left in self._written.items():
            if left:
                return f"{left} records of {topic} are not written yet"
        for partition, records in self._logs().items():
            if not records or not (partition.topic in self._written or partition.topic in self._retries):
                continue
            end, last = records[-1].offset + 1, self._records.committed(partition)
            if last is None or last.offset < end:
                done = sum((partition, one.offset) in self._records.handlings for one in records)
                upto = "nothing is committed" if last is None else f"committed up to {last.offset} by {last.group}"
                return f"{partition} ends at {end}, {upto}; {done} of {len(records)} records are handled"
        return None


def _visible(log: PartitionLog) -> list[Record]:
    aborted: set[int] = set()
    found: list[Record] = []
    records = [record for record in log.records() if not isinstance(record, MalformedMessageError)]
    # Backwards, because a marker tells what became of the records before it.
    for record in reversed(records):
        if record.control:
            (aborted.discard if record.committed else aborted.add)(record.producer_id)
        elif not (record.transactional and (record.producer_id in aborted or record.offset >= log.last_stable_offset)):
            found.append(record)
    return found[::-1]


def _named(target: str) -> tuple[Any, str, Any]:
    """Return (owner, name, object) of what ``target`` names, as ``unittest.mock.patch`` does."""
    path, _, name = target.rpartition(".")
    if not path:
        raise ValueError(f'{target!r} must be "module.function" or "module.Class.method"')
    owner = pkgutil.resolve_name(path)
    return owner, name, getattr(owner, name)


def _encoded(part: bytes | str | None) -> bytes | None:
    return part.encode() if isinstance(part, str) else part


def _pass_on(done: asyncio.Task[None], over: asyncio.Future[None]) -> None:
    if over.done():
        return
    error = asyncio.CancelledError("the test was cancelled") if done.cancelled() else done.exception()
    if error is None:
        over.set_result(None)
    else:
        over.set_exception(error)
