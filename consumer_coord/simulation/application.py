"""A member's application: uses the production consumer in every way that applications do.

A :class:`MemberProcess` is one life of a member: a process with the production client, including engine and public API. The
application polls, reads, commits and seeks according to its :class:`MemberSpec`. An unruly application
(:class:`~consumer_coord.simulation.calls.Planned`) also cancels calls and raises in callbacks; the seed determines when. The
checkers are notified of each step.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs

from assignors.base import Assignor
from consumer_coord.confluent.topic_partitions import native, partition_of
from consumer_coord.confluent.types import OFFSET_INVALID
from consumer_coord.confluent.types import TopicPartition as Row
from consumer_coord.consumer.partitions import Partition
from consumer_coord.errors import (
    AssignorError,
    BrokerError,
    ClosedError,
    CoordinatorError,
    FatalError,
    FencedError,
    IllegalStateError,
    IncompleteResponseError,
    NoOffsetError,
)
from consumer_coord.group.commits import Ticket
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.simulation.bounded import BoundedRead, draw_bounds
from consumer_coord.simulation.calls import Calls, Cut, Planned
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.columns import WANTED, Delivery, by_log, delivery_of, rows_of, run_of
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.holdings import Holding, Run
from consumer_coord.simulation.member_spec import (
    API_TIMEOUT_S,
    BOUNDED_S,
    COMMIT_TIMEOUT_S,
    DRIFT,
    OVERTAKES_S,
    MemberSpec,
    settings_of,
)
from consumer_coord.simulation.odd_commits import ANSWERED_S, codes_in, codes_of, is_absent, must_be_answered, with_absent
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.record_log import Row as Record
from consumer_coord.simulation.scenario import Fetching
from consumer_coord.simulation.stage import Stage, rule_of
from consumer_coord.simulation.wrong_answers import REFUSALS
from consumer_coord.topic_partition import TopicPartition, listed
from consumer_coord.wire import error_codes


class ProcessingError(Exception):
    """Raised by the application while it processes a record."""


@attrs.frozen
class Trip:
    """A failure of the application at one record of a batch: the record with index ``number`` modulo the number of records.

    ``then`` is one of :data:`TRIPS`, the application's reaction.
    """

    then: str
    number: int


#: The application's reactions to its failure. leave: the exception leaves ``async with``. close: the application closes the
#: consumer while it handles the exception. cancel: the task that polls and processes is cancelled, and another task closes the
#: consumer. seek back: the application catches the exception, seeks back to the record and continues. The fault ``quit`` has
#: another reaction, unsubscribe: the application unsubscribes while it handles the exception, and subscribes again.
TRIPS = ("leave", "close", "cancel", "seek back")

#: Time limit of a close that no fault can delay, in seconds. Every session timeout is longer.
_CLOSE_S = 2.0

#: The calls that :class:`~consumer_coord.simulation.calls.Cut` cancels.
CUTS = ("poll", "getmany", "getone", "commit", "commit all", "seek", "pause", "resume", "unsubscribe", "close")


#: What another task does while the application reads and processes.
BESIDE = ("seek", "pause", "unsubscribe", "ask")

#: What another task does when no fault delays anything.
CALM = ("unsubscribe", "unsubscribe", "commit_absent", "commit_absent_later", "pause", "ask")


@attrs.frozen
class Stall:
    """A pause of the process during the next call of ``callback``. The call ends ``after_s`` seconds after the pause."""

    callback: str
    seconds: float
    after_s: float


class MemberProcess:
    """A process of a member, from its start to its end by a close, a kill, or a fatal error."""

    def __init__(self, stage: Stage, spec: MemberSpec, assignors: Sequence[Assignor], life: int, random: Random) -> None:
        self.spec = spec
        self.name: str = spec.name if life == 1 else f"{spec.name}.{life}"
        #: Whether the member has a newer process.
        self.replaced: bool = False
        self.process: Process = Process.on(stage.loop, self.name)
        if any(fault.kind in ("drift", "leap") for fault in stage.scenario.faults):
            # The client keeps the method that tells the time, so the process needs one of its own from the beginning.
            self.process.set_clock(1.0)
        self.coordinator: ConsumerCoordinator | None = None
        self.finished: bool = False
        self.closing: bool = False
        self.subscription: tuple[str, ...] = spec.topics
        #: Additional processing time in milliseconds, and the time until which the application does not poll.
        self.slow_ms = 0
        self.absent_until: float = 0.0
        #: The next fault of each kind, or None: ``trip``, ``cut`` and ``stall``.
        self.trip: Trip | None = None
        #: True after processing raised an exception, until the next record is delivered.
        self._raised = False
        self.cut: Cut | None = None
        self.stall: Stall | None = None
        #: (API key, seconds): close this number of seconds after the next response to a request with this API key.
        self.closes_after: tuple[int, float] | None = None
        #: True if the application leaves the last commit to ``on_revoke``, which the close calls.
        self.closes_quickly = False
        self.failures: list[str] = []
        self._farewell: asyncio.Task[None] | None = None
        #: True if a task other than the reading task closes the consumer.
        self._closes_beside = False
        #: True while a task other than the reading task unsubscribes.
        self._unsubscribes_beside = False
        #: True while a call of unsubscribe runs.
        self._unsubscribes = False
        #: True if the task that received the last records has ended, so another task processes the records.
        self._received_elsewhere = False
        self._left = False
        #: The task that polls and processes, if a different task closes the consumer.
        self._work: asyncio.Task[list[Any]] | None = None
        self._stage = stage
        self._random = random
        self._assignors = assignors
        self._holdings: dict[TopicPartition, Holding] = {}
        self._paused: set[TopicPartition] = set()
        #: Held while a task pauses or resumes, because the order of two such calls decides what is paused.
        self._pausing = asyncio.Lock()
        #: (partition, offset) -> leader epoch, for the positions after each batch of columns.
        self._epochs: dict[tuple[TopicPartition, int], int] = {}
        #: The consumer's table at the beginning of this turn of the application's loop.
        self._table: Mapping[TopicPartition, Partition] = {}
        self._committed_at = 0.0
        #: True after the commit or the processing of a batch of columns failed. The application then commits positions instead
        #: of batches.
        self._batch_failed = False
        self._asked: list[asyncio.Task[None]] = []
        self._bounded: BoundedRead | None = None
        #: Decides after which batches the application stores its positions; it stores the rest in ``on_revoke``.
        self._stores = Random(f"{stage.scenario.seed}-{self.name}-stores")
        #: Checks of the last commits of stored positions; a close sends these commits after ``on_revoke``.
        self._farewells: list[Callable[[], None]] = []
        self._bounds = Random(f"{stage.scenario.seed}-{self.name}-bounds")
        self._plan = Planned(Random(f"{stage.scenario.seed}-{self.name}-unruly"), spec.unruly)
        self._calls = Calls(self.name, self.process, stage.fail)
        self._consumer: SimulatedConsumer | None = None
        #: The partitions of the callback that runs.
        self._in_callback: frozenset[TopicPartition] = frozenset()

    # -- for checkers -----------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """True until the process has ended, even while the process is paused."""
        return not self.process.dead and not self.finished

    @property
    def instance_id(self) -> str | None:
        """The setting ``group.instance.id``; None for a dynamic member."""
        return self.spec.instance_id

    @property
    def reset(self) -> str:
        """The setting ``auto.offset.reset``."""
        return self.spec.reset

    @property
    def member_id(self) -> str:
        """The member id in the group."""
        return "" if self.coordinator is None else self.coordinator.member_id

    @property
    def generation(self) -> int:
        """The generation that the member knows."""
        return -1 if self.coordinator is None else self.coordinator.generation

    @property
    def leads(self) -> bool:
        """Whether the member leads its classic group."""
        return self.alive and self.coordinator is not None and self.coordinator.protocol.is_leader

    def was_assigned(self, partition: TopicPartition, generation: int) -> bool:
        """Return whether the member knows the assignment of ``generation``, and this assignment contains the partition."""
        if self.coordinator is None or self.coordinator.rebalancing:
            return False
        target = self.coordinator.assignment.target
        return target.generation == generation and partition in target.partitions

    def holds(self, partition: TopicPartition) -> bool:
        """Return whether the member owns a partition and has not lost the partition."""
        return self.coordinator is not None and self.coordinator.assignment.ownership(partition) is not None

    @property
    def consumer(self) -> SimulatedConsumer | None:
        """The consumer, from its creation on."""
        return self._consumer

    @property
    def holdings(self) -> Iterable[Holding]:
        """The partitions that the member owns, each with its :class:`Holding`."""
        return tuple(self._holdings.values())

    # -- called by the simulation -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        self._stage.history.note(self.name, f"starts, {self.spec}")
        self.process.create_task(self._guarded(self._main()), name=self.name)

    def stop(self) -> None:
        """Close the consumer after the current turn of the application's loop."""
        self.closing = True

    def close_now(self) -> None:
        """Close the consumer at once in another task."""

        def begin() -> None:
            if not self.closing and self._consumer is not None:
                self.closing = True
                if self._received_elsewhere and any(holding.in_hand for holding in self._holdings.values()):
                    # The task that received the records has ended, so a close now would commit unprocessed records.
                    return
                # A running call returns only after the close has ended.
                self._calls.closes_s = max(self.spec.close_ms / 1000, 5.0)
                self._closes_beside = True
                self._farewell = asyncio.get_running_loop().create_task(self._guarded(self._close(self._consumer)))

        if self.alive and self.coordinator is not None and not self.closing:
            self.process.call_soon(begin)

    def runs_callback(self, partition: TopicPartition) -> bool:
        """Return whether a callback for a partition runs."""
        return partition in self._in_callback

    @contextlib.contextmanager
    def _called_back(self, partitions: Sequence[TopicPartition]) -> Iterator[None]:
        self._in_callback = frozenset(partitions)
        try:
            with self._calls.called_back():
                yield
        finally:
            self._in_callback = frozenset()

    @property
    def leaves(self) -> bool:
        """Whether the member leaves its group, because the application closes the consumer or unsubscribes."""
        return self.closing or self._calls.unsubscribes

    def answered(self, api_key: int) -> None:
        """React to a broker's response to a request of this member."""
        if self.closes_after is not None and self.closes_after[0] == api_key:
            _, delay_s = self.closes_after
            self.closes_after = None
            self._stage.loop.call_later(delay_s, self.close_now)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        if not self.alive:
            return
        self._stage.kafka.kill(self.process)
        self._stage.history.note(self.name, "killed")
        for partition in sorted(self._holdings):
            self._stage.checkers.ends(self._holdings[partition], "killed")
        self._holdings.clear()

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Change the subscription."""
        self._ask(lambda: self._subscribe(topics))

    def commit_now(self) -> None:
        """Commit the positions at once in another task."""
        self._ask(lambda: self._commit(self._positions()))

    def enforce_rebalance(self) -> None:
        """Request a rebalance."""

        async def enforce() -> None:
            assert self._consumer is not None
            self._consumer.enforce_rebalance("the simulation requests it")
            self._stage.duties.enforced(self.name, self._stage.loop.moment)

        self._ask(enforce)

    def call_beside(self, what: str) -> None:
        """Make one of the calls :data:`BESIDE` or :data:`CALM` at once in another task."""
        self._ask(getattr(self, f"_{what}_beside"))

    def _ask(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in a task other than the polling task."""

        async def run() -> None:
            if self.closing or self.finished:
                return
            try:
                await work()
            except CoordinatorError as error:
                if not self.closing:
                    self._failed(error, "a second task")

        def begin() -> None:
            self._asked = [task for task in self._asked if not task.done()]
            self._asked.append(asyncio.get_running_loop().create_task(self._guarded(run())))

        if self.alive and self.coordinator is not None and not self.closing:
            self.process.call_soon(begin)

    # -- the program ------------------------------------------------------------------------------------------------

    def _guarded(self, work: Awaitable[None]) -> Coroutine[Any, Any, None]:
        return self._stage.guarded(self.name, work)

    async def _main(self) -> None:
        stage = self._stage
        self.process.consumer_coord_environment = stage.kafka.environment(self.process, self._random)
        spec = self.spec
        settings = settings_of(spec, stage.group_id, stage.cluster.bootstrap, self.name)
        self._consumer = consumer = SimulatedConsumer(
            settings | dict((stage.scenario.fetching or Fetching()).settings),
            self._assignors if spec.protocol == "classic" else None,
            report=self._commit_ended,
            events=self._events,
        )
        await self._subscribe(spec.topics)
        self.coordinator = consumer.engine.core
        self._calls.watch(self.coordinator, spec.max_poll_interval_ms / 1000)
        if spec.commits_too:
            self._calls.watch_commits(self.coordinator, self._holdings)
        self._committed_at = stage.loop.time()
        fenced, error = False, None
        try:
            while not self.closing and not fenced:
                fenced = await self._turn(consumer)
        except ProcessingError as raised:
            error = raised
        except ClosedError:
            # Another task closed the consumer during a call.
            if not self.closing:
                raise
        if self._farewell is not None:
            await asyncio.wait({self._farewell})
        else:
            self.closing = True
            await self._close(consumer, error)
        self.finished = True
        stage.history.note(self.name, "ended")

    async def _subscribe(self, topics: tuple[str, ...]) -> None:
        assert self._consumer is not None
        self.subscription = topics
        wanted = list(topics) if self.spec.pattern is None else [f"^{self.spec.pattern}$"]
        self._stage.history.note(self.name, f"subscribes to {', '.join(wanted)}")
        await self._consumer.subscribe(wanted, self._on_assign, partial(self._on_end, "revoke"), partial(self._on_end, "lost"))

    async def _turn(self, consumer: SimulatedConsumer) -> bool:
        """Run one turn of the application's loop; return True if the member was fenced and must end."""
        stage, spec = self._stage, self.spec
        stage.checkers.step()
        self._table = consumer.engine.table
        whim = None if stage.calm else self._plan.draw()
        if stage.calm and self._paused:
            await self._resume(consumer)
        if whim is not None:
            stage.history.note(self.name, f"is unruly: {whim}")
            stage.reach.happened(self, whim)
            await getattr(self, "_" + whim)(consumer)
        if spec.bounded:
            await self._begin_or_drop_bounded(consumer)
        bounded = self._bounded is not None
        try:
            messages = await self._poll_and_process(consumer, cancelled=whim == "cancel_poll")
        except FencedError:
            return True
        if messages:
            await self._commit_processed(consumer, messages)
        elif stage.calm and spec.commit == "store":
            await self._store(consumer)
        if self.closing:
            return False
        if bounded:
            # A bounded read does not fetch partitions that it has read to their ends, so the rule "stranded" does not apply.
            self._calls.forget_stranded()
        else:
            self._calls.look_for_stranded(consumer.engine, consumer.witness, self._paused)
        if self._commit_due():
            self._committed_at = stage.loop.time()
            await self._commit_as_usual(consumer)
        hurries = spec.poll_timeout_ms or (stage.calm and messages)
        pause_s = 0.0 if hurries else spec.poll_every_ms / 1000 * self._random.uniform(0.5, 1.5)
        # The rule "storms" applies to the consumer, and not to an application that commits each small batch.
        shortest_s = 0.02 if spec.commits_batches or spec.commits_too else 0.001
        await self._calls.away(max(pause_s, self.absent_until - stage.loop.time(), shortest_s))
        return False

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _poll_and_process(self, consumer: SimulatedConsumer, *, cancelled: bool) -> list[Any]:
        cut = None if self._stage.calm else self.cut
        if cut is not None and cut.call == "close":
            self.closing = True
            return []
        if cut is not None:
            self.cut = None
            self._stage.history.note(self.name, f"cancels {cut.call}: at await number {cut.step}, after {cut.after_s} s more")
            messages: list[Any] = await getattr(self, "_cut_" + cut.call.replace(" ", "_"))(consumer, cut) or []
            await self._process(messages)
            return messages
        if self.trip is not None and self.trip.then == "cancel" and not self._stage.calm:
            # Poll and process in a separate task, because another task closes the consumer.
            self._work = work = asyncio.get_running_loop().create_task(self._poll_and_process_once(consumer, cancelled=False))
            await asyncio.wait({work})
            if work.cancelled():
                self.closing = True
                return []
            return work.result()
        return await self._poll_and_process_once(consumer, cancelled=cancelled)

    async def _poll_and_process_once(self, consumer: SimulatedConsumer, *, cancelled: bool) -> list[Any]:
        messages = await self._poll(consumer, cancelled=cancelled)
        try:
            await self._process(messages)
        except ProcessingError as error:
            if error.args[0] == "leave":
                raise
            if error.args[0] == "close":
                self.closing = True
                await self._close(consumer)
                return []
            # A task that received the records and returned has finished them, so that unsubscribing would commit them.
            if error.args[0] == "unsubscribe" and self._finishes:
                await self._unsubscribe(consumer)
                return []
            for partition, holding in sorted(self._holdings.items()):
                if holding.in_hand and self.holds(partition):
                    await self._seek_to(consumer, partition, holding.processed)
        return messages

    async def _process(self, messages: Sequence[Any]) -> None:
        """Process the delivered records in virtual time. The application may raise an exception or be cancelled at any time."""
        if not messages:
            return
        runs = self._read(messages)
        await asyncio.sleep((1 + self.slow_ms) / 1000)
        trip, left = self.trip, sum(count for _, count in runs)
        self._raised = False
        if trip is not None and (
            not left or self.closing or self._stage.calm or (trip.then == "cancel" and asyncio.current_task() is not self._work)
        ):
            trip = None
        if trip is not None:
            self.trip, left = None, trip.number % left
        for holding, count in runs:
            self._stage.checkers.processes(holding, min(count, left))
            left -= min(count, left)
        if self.spec.commits_too:
            await self._commit(self._positions())
        if trip is not None:
            self._stage.history.note(self.name, f"raises while it processes: {trip.then}")
            self._raised = True
            if trip.then == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            raise ProcessingError(trip.then)

    async def _poll(self, consumer: SimulatedConsumer, *, cancelled: bool) -> list[Any]:
        """Poll or consume once; check an exception that the call raises."""
        calls, call, timeout_s = self._calls, *self._next_poll(consumer)
        try:
            self._received_elsewhere = cancelled
            if cancelled:
                return await calls.polling(calls.cancelled(call, self._plan)) or []
            return await calls.polling(calls.timed(call, timeout_s, "poll"))
        except CoordinatorError as error:
            return await self._poll_raised(consumer, error)

    def _next_poll(self, consumer: SimulatedConsumer) -> tuple[Coroutine[Any, Any, list[Any]], float]:
        """Return a call of poll or consume, and its time limit in seconds."""
        spec, timeout_s = self.spec, self.spec.poll_timeout_ms / 1000
        if self._bounded is not None:
            return self._read_bounded(consumer, self._bounded), BOUNDED_S
        if spec.columns:
            return self._read_columns(consumer, timeout_s), timeout_s
        if spec.waits_for_all:
            return consumer.consume(spec.batch, timeout_s), timeout_s
        if spec.batch == 1:
            return self._poll_one(consumer, timeout_s), timeout_s
        return consumer.consume_some(spec.batch * max(1, len(self._holdings)), timeout_s), timeout_s

    async def _poll_raised(self, consumer: SimulatedConsumer, error: CoordinatorError) -> list[Any]:
        self._failed(error)
        if isinstance(error, FencedError):
            raise error
        if self.closing and isinstance(error, ClosedError):
            return []
        self._calls.judge(error, self._excuse(consumer, error))
        if isinstance(error, NoOffsetError):
            await self._begin_somewhere(consumer)
        return []

    async def _poll_one(self, consumer: SimulatedConsumer, timeout_s: float) -> list[Any]:
        message = await consumer.poll(timeout_s)
        return [] if message is None else [message]

    async def _read_columns(self, consumer: SimulatedConsumer, timeout_s: float) -> list[Any]:
        most = self.spec.batch * max(1, len(self._holdings))
        batch = await consumer.consume_arrow(most, timeout=timeout_s, columns=WANTED)
        self._note_epochs(consumer)
        return delivery_of(batch)

    async def _begin_or_drop_bounded(self, consumer: SimulatedConsumer) -> None:
        """Begin a bounded read, or abandon the current bounded read, with a small probability."""
        read = self._bounded
        if read is not None:
            if read.may_wait if self._stage.calm else self._bounds.random() < 0.05:
                self._stage.history.note(self.name, "drops a bounded read")
                self._bounded = None
            return
        if self._bounds.randrange(1_000) >= self.spec.bounded:
            return
        held = sorted(one for one in self._holdings if self.holds(one))
        try:
            given = await draw_bounds(self._bounds, self._stage.cluster, consumer.engine.core.cluster, held)
        except CoordinatorError as error:
            self._failed(error, "offsets by time")
            return
        until: Any = "now" if given is None else [native(one, OffsetAndMetadata(offset)) for one, offset in given.items()]
        self._stage.history.note(self.name, f"begins a bounded read, until {given or 'now'}")
        batches = consumer.arrow_batches(until, max_records=self.spec.batch * max(1, len(held)), columns=WANTED)
        self._bounded = read = BoundedRead(self.name, batches, self._stage.cluster, given)
        read.assigned(self._holdings)

    async def _read_bounded(self, consumer: SimulatedConsumer, read: BoundedRead) -> list[Any]:
        try:
            async with asyncio.timeout(BOUNDED_S):
                batch = await anext(read.batches)
        except TimeoutError:
            return []
        except StopAsyncIteration:
            self._stage.history.note(self.name, "ends a bounded read")
            self._bounded = None
            read.ends(one for partition, one in sorted(self._holdings.items()) if self.holds(partition))
            return []
        self._note_epochs(consumer)
        return delivery_of(batch)

    @property
    def lease_slack_s(self) -> float:
        """How long after the end of its session this member may still deliver; the lease allows for a thousandth of drift."""
        longest_ms = max(self.spec.session_timeout_ms, self.spec.rebalance_timeout_ms)
        return 0.0 if self.process.is_steady else 2 * DRIFT * longest_ms / 1000

    @property
    def _raises_after_s(self) -> float:
        """How long after its reason a call may raise an error of the group."""
        return 0.0

    @property
    def in_bounded_read(self) -> bool:
        """Whether the application reads up to given ends, and not beyond."""
        return self._bounded is not None

    def _excuse(self, consumer: SimulatedConsumer, error: CoordinatorError) -> str | None:
        """Return why a poll may raise an error that the application did not cause, or None if the error is a violation."""
        stage = self._stage
        if any(topic not in stage.cluster.kafka.topics.by_name for topic in self.subscription):
            return "a topic is gone"
        if self._unsubscribes_beside and isinstance(error, IllegalStateError):
            return "another task has unsubscribed"
        if stage.cluster.refused and error.code in REFUSALS:
            return "a broker refused the look-up of a start"
        if (stage.cluster.errs or self.process.frozen_s) and isinstance(error, IncompleteResponseError):
            return "a broker answers a look-up wrongly, and other faults or a standstill had used up most of its time limit"
        if stage.cluster.edits and isinstance(error, BrokerError | FatalError):
            return "a broker refuses, or offers no version"
        if error.code == error_codes.INCONSISTENT_GROUP_PROTOCOL and stage.refuses(self.spec.assignors):
            return "a coordinator that loaded the group knows only one assignor of each member"
        in_group = self._calls.in_group(consumer.engine.core, for_s=self._raises_after_s)
        return None if in_group else "the member left long ago"

    def _read(self, messages: Sequence[Any]) -> list[tuple[Holding, int]]:
        """Check the delivered records; return the :class:`Holding` and the length of each sequence of records."""
        read: list[tuple[Holding, int]] = []
        found: Iterable[tuple[TopicPartition, Sequence[Record]]]
        found = messages[0].rows.items() if isinstance(messages[0], Delivery) else rows_of(messages)
        for partition, rows in found:
            for run in by_log(rows) if self._stage.cluster.fetches_by_name else [rows]:
                read.append(self._read_run(partition, run, read))
        self._must_be_fair(read)
        return read

    def _must_be_fair(self, read: Sequence[tuple[Holding, int]]) -> None:
        """Check that no record of a call was appended much later than one that another partition of this member has waiting.

        Responses are delivered in the order of their arrival, so that no partition starves while others flow.
        """
        stage = self._stage
        # With limits in bytes, partitions with more records fall behind. Records of open transactions wait for their end.
        if stage.scenario.fetching is not None:
            return
        cluster, checkers = stage.cluster, stage.checkers
        newest = max((cluster.appended_at(one.partition, one.position - count) for one, count in read), default=math.inf)
        overtaken = newest - Fetching().fetch_wait_max_ms / 1000 - OVERTAKES_S
        if newest == math.inf or overtaken < stage.calm_since():
            return
        for partition, holding in sorted(self._holdings.items()):
            if partition in self._paused or holding.start is None or max(holding.began, holding.sought_at) > overtaken:
                continue
            offset, end = checkers.next_offset(holding), cluster.end_offset(partition)
            if end is not None and offset < end and cluster.appended_at(partition, offset) < overtaken:
                raise Violation(
                    "freshness",
                    f"{self.name} delivers records that were appended at {newest:.1f} s, but not yet {offset} of {partition},"
                    f" which was appended at {cluster.appended_at(partition, offset):.1f} s",
                )

    @property
    def _finishes(self) -> bool:
        """Whether the task that received the last records had also received the records before."""
        return not self._received_elsewhere and asyncio.current_task() is not self._work

    def _reads(self, partition: TopicPartition, start: int) -> Holding:
        """Return the :class:`Holding` of delivered records.

        Raise :class:`Violation` if the member does not own the partition, or has paused the partition.
        """
        holding = self._holdings.get(partition)
        if holding is None:
            raise Violation("callbacks", f"{self.name} received offset {start} of {partition}, but does not own the partition")
        if partition in self._paused:
            raise Violation("callbacks", f"{self.name} received offset {start} of {partition}, but has paused the partition")
        return holding

    def _read_run(
        self, partition: TopicPartition, rows: Sequence[Record], before: Sequence[tuple[Holding, int]]
    ) -> tuple[Holding, int]:
        """Check consecutive records of one partition; return the :class:`Holding` and the number of offsets."""
        cluster = self._stage.cluster
        holding = self._reads(partition, rows[0][0])
        if self._bounded is not None:
            self._bounded.delivers(partition, rows)
        run = run_of(cluster, self.name, partition, holding, rows)
        if not run.present and self._knew_the_topic(partition):
            what = f"{self.name} received {rows[0][0]} of a former {partition}, but knew the present topic before the call"
            raise Violation("identity", what)
        return self._hands_out(holding, run, before)

    def _knew_the_topic(self, partition: TopicPartition) -> bool:
        """Return whether the consumer knew the topic that exists now when this turn of the application's loop began."""
        topic, known = self._stage.cluster.kafka.topics.by_name.get(partition.topic), self._table.get(partition)
        return topic is not None and known is not None and known.topic_id == topic.topic_id

    def _hands_out(self, holding: Holding, run: Run, before: Sequence[tuple[Holding, int]]) -> tuple[Holding, int]:
        """Check a delivery. ``before``: the earlier deliveries of the same call."""
        finishes = self._finishes and not any(holding is other for other, _ in before)
        log_start = self._stage.cluster.log_start(holding.partition)
        self._stage.checkers.hands_out(holding, run, log_start=log_start, leased=self.spec.lease, finishes=finishes)
        return holding, run.end - run.start

    async def _begin_somewhere(self, consumer: SimulatedConsumer) -> None:
        """Choose the start offsets, because ``auto.offset.reset`` is none."""
        waiting = [native(partition) for partition in sorted(consumer.engine.waiting_for_start)]
        found: Sequence[Row] = ()
        with self._reported("committed"):
            found = await consumer.committed(waiting, timeout=2.0)
        for row in found:
            partition = partition_of(row)
            first = self._stage.cluster.log_start(partition)
            if row.offset < first and self.holds(partition):
                await self._seek_to(consumer, partition, first)

    # -- committing -------------------------------------------------------------------------------------------------

    def _commit_due(self) -> bool:
        if self.spec.commits_batches and not self._batch_failed:
            return False
        if self.spec.commit in ("revoke", "auto", "store") or not self._holdings:
            return False
        return self._stage.loop.time() - self._committed_at >= self.spec.commit_every_ms / 1000

    async def _commit_as_usual(self, consumer: SimulatedConsumer) -> None:
        # This commit may fail as well.
        self._batch_failed = bool(self._positions())
        kind = self.spec.commit
        if kind == "async":
            self._asked = [task for task in self._asked if not task.done()]
            work = self._guarded(self._commit(self._positions()))
            self._asked.append(asyncio.get_running_loop().create_task(work, name="commit"))
        elif kind == "later":
            wanted = self._positions() if self._random.random() < 0.5 else None
            with self._reported("commit_later"):
                ticket = await self._calls.timed(consumer.commit_later(wanted), 1.0, "commit_later")
                if ticket is not None:
                    self._calls.began_commit(ticket, {one: self._holdings.get(one) for one in ticket.entries})
        elif kind == "all":
            await self._commit_all(consumer)
        else:
            await self._commit(self._positions())

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(holding.processed, self._epochs.get((partition, holding.processed), -1))
            for partition, holding in sorted(self._holdings.items())
            if holding.start is not None and not self._is_acknowledged(holding)
        }

    def _is_acknowledged(self, holding: Holding) -> bool:
        """Return whether a commit of the owner's position was confirmed, and the position is in the log."""
        end: float = self._stage.checkers.first_record(holding.partition, holding.processed)
        if holding.processed < self._stage.cluster.log_start(holding.partition):
            # Retention removed the position, and the consumer may have committed the offset that its reset policy chose.
            end = math.inf
        return holding.processed <= holding.acknowledged <= end

    def _note_epochs(self, consumer: SimulatedConsumer) -> None:
        """Record the leader epoch of each position. With the epoch in a commit, the next owner can detect a truncation."""
        for partition, at in consumer.engine.positions(self._holdings).items():
            self._epochs[partition, at.offset] = at.leader_epoch

    async def _commit_processed(self, consumer: SimulatedConsumer, messages: Sequence[Any]) -> None:
        """Store or commit the records processed in this turn, if the application commits after each batch."""
        if self.spec.commit == "store" and self._stores.random() < 0.25:
            await self._store(consumer)
        if self.spec.commits_batches:
            if self._raised:
                self._batch_failed = True
            else:
                await self._commit_batch(consumer, messages)

    async def _commit_batch(self, consumer: SimulatedConsumer, deliveries: Sequence[Delivery]) -> None:
        """Commit a batch after all of its records were processed."""
        batch = deliveries[0].batch
        holdings = {one: self._holdings[one] for one in deliveries[0].rows if one in self._holdings}
        try:
            if self.spec.commit == "async":
                ticket = await self._calls.timed(consumer.commit_batch_later(batch), 1.0, "commit of a batch")
                self._calls.began_commit(ticket, {one: holdings.get(one) for one in ticket.entries})
            else:
                call: Coroutine[Any, Any, Any] = consumer.commit(batch, asynchronous=False, timeout=COMMIT_TIMEOUT_S)
                self._acknowledge(await self._calls.timed(call, COMMIT_TIMEOUT_S, "commit of a batch") or (), holdings)
        except CoordinatorError as error:
            self._batch_failed = True
            self._failed(error, "commit of a batch")

    async def _commit(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if not positions or self._consumer is None:
            return
        holdings = {partition: self._holdings[partition] for partition in positions}
        with self._reported(f"commit of {listed(positions, 1000)}"):
            answered = await self._calls.timed(
                self._consumer.commit_now(COMMIT_TIMEOUT_S, positions), COMMIT_TIMEOUT_S, "commit"
            )
            self._acknowledge(answered, holdings)

    async def _commit_all(self, consumer: SimulatedConsumer) -> None:
        """Call ``commit()`` without offsets, which commits all finished records; check that they were delivered."""
        holdings = dict(self._holdings)
        checkers = self._stage.checkers
        # Without the log of a deleted topic, the offset of its next record is unknown.
        given = {
            partition: max(holding.position, checkers.next_offset(holding))
            for partition, holding in holdings.items()
            if holding.start is not None and self._stage.cluster.end_offset(partition) is not None
        }
        with self._reported("commit"):
            answered = await self._calls.timed(consumer.commit_now(COMMIT_TIMEOUT_S), COMMIT_TIMEOUT_S, "commit")
            for row in _accepted(answered):
                partition = partition_of(row)
                offset = given.get(partition)
                if offset is None or row.offset <= offset:
                    continue
                # No record is skipped if retention has deleted the next one, or the position itself, because the reset policy
                # then chooses an offset.
                kept = offset if self.reset == "earliest" else holdings[partition].position
                if kept >= self._stage.cluster.log_start(partition):
                    raise Violation("skipped", f"{self.name} committed {row.offset} of {partition}, but is at {offset}")
            self._acknowledge(answered, holdings)

    def _acknowledge(self, rows: Sequence[Row], holdings: Mapping[TopicPartition, Holding]) -> None:
        for row in rows:
            partition = partition_of(row)
            if row.error is not None:
                self._batch_failed = True
                self.failures.append(f"commit of {partition}: {row.error.str()}")
                self._stage.history.note(self.name, f"commit of {partition} failed: {row.error.str()}")
            elif partition in holdings:
                self._stage.checkers.acknowledged(holdings[partition], row.offset)

    async def _store(self, consumer: SimulatedConsumer) -> None:
        held = {
            partition: OffsetAndMetadata(holding.processed)
            for partition, holding in sorted(self._holdings.items())
            if holding.start is not None and self.holds(partition)
        }
        if held:
            with self._reported("store_offsets"):
                await consumer.store_offsets(offsets=[native(partition, at) for partition, at in held.items()])

    def _commit_ended(self, ticket: Ticket) -> None:
        """Check the outcome of an asynchronous commit."""
        holdings = self._calls.answered_commit(ticket)
        must_be_answered(self.name, codes_of(ticket), undisturbed=False)
        for partition, error in ticket.answers.items():
            holding = holdings.get(partition)
            if error is None and holding is not None:
                self._stage.checkers.acknowledged(holding, ticket.entries[partition].position.offset)
            elif error is not None:
                self._batch_failed = True
                self._failed(error, f"commit of {partition}")

    # -- callbacks --------------------------------------------------------------------------------------------------

    async def _events(self) -> None:
        """Simulate a callback for librdkafka's events between two waits of a poll. The callback may raise an exception."""
        if self.stall is not None and self.stall.callback == "on_commit":
            with self._calls.called_back():
                await self._freeze("on_commit")
        self._plan.raise_in("events")

    async def _on_assign(self, _: Any, rows: Sequence[Row]) -> None:
        partitions = sorted(map(partition_of, rows))
        with self._called_back(partitions):
            self._stage.history.note(self.name, f"on_assign {listed(partitions, 1000)}")
            self._stage.reach.happened(self, "on_assign")
            for partition in partitions:
                self._holdings[partition] = self._stage.checkers.taken_up(self, partition)
            if self._bounded is not None:
                self._bounded.assigned(partitions)
            await self._freeze("on_assign")
            if self.spec.callback_ms:
                await asyncio.sleep(self.spec.callback_ms / 1000)
            if self.spec.assigns:
                await self._assign_in_callback(partitions)
            elif self._plan.sometimes():
                await self._choose(partitions)
            self._plan.raise_in("assign")

    async def _choose(self, partitions: Sequence[TopicPartition]) -> None:
        """Start some at the group's commits, or at the log start offset without a commit. Neither start skips a record."""
        assert self._consumer is not None
        wanted = [partition for partition in partitions if self._random.random() < 0.5 and self.holds(partition)]
        found = await self._consumer.committed([native(partition) for partition in wanted], timeout=2.0)
        for row in found:
            if row.offset == OFFSET_INVALID:
                row.offset = self._stage.cluster.log_start(partition_of(row))
        if found:
            # The others start where they would without this call; partitions that are left out would not be read.
            others = [native(one) for one in partitions if one not in wanted and self.holds(one)]
            await self._consumer.incremental_assign([*found, *others])

    async def _assign_in_callback(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin some partitions a few records before their commit, by the call that programs for confluent-kafka make."""
        assert self._consumer is not None
        found: Sequence[Row] = ()
        with self._reported("committed"):
            found = await self._consumer.committed([native(partition) for partition in partitions], timeout=2.0)
        committed = {partition_of(row): row.offset for row in found if row.offset != OFFSET_INVALID}
        chosen, rows = {}, []
        for partition in partitions:
            if partition in committed and self._random.random() < 0.5:
                low, end = self._stage.cluster.log_start(partition), self._stage.cluster.end_offset(partition) or 0
                chosen[partition] = max(low, min(end, committed[partition] - self._random.randint(0, 3)))
            rows.append(native(partition, OffsetAndMetadata(chosen.get(partition, OFFSET_INVALID))))
        await (self._consumer.incremental_assign(rows) if self.spec.is_cooperative else self._consumer.assign(rows))
        for partition, offset in chosen.items():
            if partition in self._holdings:
                self._stage.checkers.sought(self._holdings[partition], offset)

    async def _on_end(self, kind: str, _: Any, rows: Sequence[Row]) -> None:
        partitions = sorted(map(partition_of, rows))
        with self._called_back(partitions):
            self._stage.history.note(self.name, f"on_{kind} {listed(partitions, 1000)}")
            self._stage.reach.happened(self, f"on_{kind}")
            try:
                await self._freeze(f"on_{kind}")
                if kind == "revoke" and not self.spec.auto:
                    await self._commit({key: value for key, value in self._positions().items() if key in partitions})
                if kind == "revoke" and self.spec.commit == "store":
                    assert self._consumer is not None
                    await self._store(self._consumer)
                if self.spec.assigns:
                    assert self._consumer is not None
                    cooperative = self.spec.is_cooperative
                    await (self._consumer.incremental_unassign(rows) if cooperative else self._consumer.unassign())
                if self.spec.callback_ms:
                    await asyncio.sleep(self.spec.callback_ms / 1000)
                self._plan.raise_in(kind)
            finally:
                for partition in partitions:
                    # A partition may have been lost while the callback for revoked partitions ran.
                    self._end_holding(partition, "revoked" if kind == "revoke" and self.holds(partition) else "lost")

    async def _freeze(self, callback: str) -> None:
        """Pause the process during a callback, if a pause of this kind of callback is planned."""
        stall = self.stall
        if stall is None or stall.callback != callback or self._stage.calm:
            return
        self.stall = None
        left_s = self._stage.scenario.faults_end_ms / 1000 - self._stage.loop.time()
        self._stage.history.note(self.name, f"is frozen inside {callback}")
        self.process.freeze()
        self._stage.loop.call_later(max(0.0, min(stall.seconds, left_s)), self.process.thaw)
        # A timer of a paused process fires after the process resumes.
        await asyncio.sleep(0.001)
        await asyncio.sleep(stall.after_s)

    @property
    def _undisturbed(self) -> bool:
        """True if no fault can delay the last commit and the close.

        With static members, the leader may leave without a last commit, because the members wait until the leader's session
        ends.
        """
        static = any(spec.instance_id for spec in self._stage.scenario.members)
        return self._stage.loop.time() > self._stage.troubled_until and not static

    def _end_holding(self, partition: TopicPartition, how: str) -> None:
        holding = self._holdings.pop(partition, None)
        self._paused.discard(partition)
        if holding is None:
            raise Violation("callbacks", f"{self.name} was notified that {partition} is {how}, but does not own it")
        if self.spec.auto:
            holding.acknowledged = self._stage.checkers.committed_by(holding)
        beside = self._closes_beside or self._unsubscribes_beside or self._raised
        self._stage.checkers.ends(holding, how, beside=beside)
        leaves = self._left or (self._unsubscribes and self._stage.calm)
        if leaves and how == "revoked" and self._undisturbed:
            log_start = self._stage.cluster.log_start(partition)
            check = partial(self._stage.checkers.farewell, holding, log_start, self.generation, beside=beside)
            if self.spec.commit == "store":
                self._farewells.append(check)
            else:
                check()

    # -- the actions of an unruly application, see Planned ----------------------------------------------------------

    async def _cancel_poll(self, consumer: SimulatedConsumer) -> None:
        """Do nothing here: this action cancels the next poll."""

    async def _cancel_call(self, consumer: SimulatedConsumer) -> None:
        """Cancel a call other than poll."""
        held = [native(partition) for partition in self._holdings]
        call = consumer.committed(held[:1], timeout=2.0) if self._random.randrange(2) else consumer.position(held)
        with self._reported("a cancelled call"):
            await self._calls.cancelled(call, self._plan)

    async def _raise_soon(self, consumer: SimulatedConsumer) -> None:
        """Do nothing here: with this action, the next callback of a drawn kind raises an exception."""

    async def _wake(self, consumer: SimulatedConsumer) -> None:
        """Interrupt the next poll, like ``wakeup()`` in another thread."""
        consumer.engine.wakeup()

    async def _seek(self, consumer: SimulatedConsumer) -> None:
        """Seek in some partitions, to the current position or up to 1,000 records back."""
        for partition, holding in sorted(self._holdings.items()):
            if holding.start is not None and self.holds(partition) and self._random.random() < 0.4:
                back = self._random.choice((0, 1, 5, 1_000))
                low = max(self._stage.cluster.log_start(partition), holding.position - back)
                await self._seek_to(consumer, partition, min(low, holding.position))

    async def _seek_to(self, consumer: SimulatedConsumer, partition: TopicPartition, offset: int) -> None:
        row = native(partition, OffsetAndMetadata(offset))
        try:
            if self._plan.sometimes():
                # A cancelled seek may have moved the position or not, so repeat the seek.
                await self._calls.cancelled(consumer.seek(row), self._plan)
            await self._calls.timed(consumer.seek(row), 1.0, "seek")
        except CoordinatorError as error:
            self._failed(error, "seek")
            if self.holds(partition) and not self.closing:
                raise Violation("raised", f"{self.name}: a seek in its partition {partition} raised {error!r}") from error
            return
        holding = self._holdings.get(partition)
        if holding is not None:
            self._stage.checkers.sought(holding, offset)

    async def _pause(self, consumer: SimulatedConsumer) -> None:
        """Pause some partitions, or resume all paused partitions."""
        async with self._pausing:
            wanted = {one for one in self._holdings if self.holds(one) and self._random.random() < 0.4}
            if not wanted:
                await self._resume_all(consumer)
                return
            with self._reported("pause"):
                await self._calls.timed(consumer.pause([native(one) for one in sorted(wanted)]), 1.0, "pause")
                self._paused |= wanted & self._holdings.keys()

    async def _resume(self, consumer: SimulatedConsumer) -> None:
        async with self._pausing:
            await self._resume_all(consumer)

    async def _resume_all(self, consumer: SimulatedConsumer) -> None:
        held = sorted(one for one in self._paused if self.holds(one))
        self._paused.clear()
        with self._reported("resume"):
            await self._calls.timed(consumer.resume([native(one) for one in held]), 1.0, "resume")

    async def _unsubscribe(self, consumer: SimulatedConsumer) -> None:
        """Unsubscribe, and subscribe again."""
        topics = self.subscription
        if not self.spec.auto:
            await self._commit(self._positions())
        limit_s = _CLOSE_S if self._in_calm else API_TIMEOUT_S
        self._unsubscribes = True
        try:
            with self._calls.unsubscribing():
                if self._plan.sometimes():
                    await self._calls.cancelled(consumer.unsubscribe(), self._plan, has_turn=True)
                await self._calls.timed(consumer.unsubscribe(), limit_s, "unsubscribe", has_turn=True)
        except ClosedError as error:
            # Another task closes the consumer at the same time, and revokes the owned partitions.
            self._failed(error, "unsubscribe")
            return
        except CoordinatorError as error:
            self._failed(error, "unsubscribe")
        finally:
            self._unsubscribes = False
        if self._undisturbed:
            self._check_farewells()
        self._farewells.clear()
        self._stage.duties.left(self.name)
        if self._holdings:
            raise Violation("callbacks", f"{self.name} unsubscribed, but no callback ended {listed(self._holdings, 1000)}")
        await asyncio.sleep(self._random.choice((0.0, 0.5, 3.0)))
        await self._subscribe(topics)

    # -- calls of another task, see BESIDE ----------------------------------------------------------------------------

    async def _seek_beside(self) -> None:
        assert self._consumer is not None
        await self._seek(self._consumer)

    async def _pause_beside(self) -> None:
        """Pause some partitions for a moment."""
        assert self._consumer is not None
        await self._pause(self._consumer)
        await asyncio.sleep(0.3)
        await self._resume(self._consumer)

    async def _unsubscribe_beside(self) -> None:
        """Unsubscribe: this finishes nothing that the reading task has in hand. Its next call waits meanwhile."""
        assert self._consumer is not None
        self._unsubscribes_beside = True
        try:
            await self._unsubscribe(self._consumer)
        finally:
            self._unsubscribes_beside = False

    async def _ask_beside(self) -> None:
        """Ask for positions and commits, which change nothing."""
        assert self._consumer is not None
        held = [native(partition) for partition in self._holdings]
        with self._reported("position"):
            await self._calls.timed(self._consumer.position(held), API_TIMEOUT_S, "position")
        with self._reported("committed"):
            await self._calls.timed(self._consumer.committed(held, timeout=2.0), 2.0, "committed")

    def _also_absent(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        wanted = {one: at for one, at in self._positions().items() if self._stage.cluster.log(one) is not None}
        return with_absent({one: at for one, at in wanted.items() if self.holds(one)})

    async def _commit_absent_beside(self) -> None:
        """Commit the positions, and offsets of partitions that do not exist."""
        assert self._consumer is not None
        began, calm = self._stage.loop.time(), self._in_calm
        positions, holdings = self._also_absent(), dict(self._holdings)
        limit_s = ANSWERED_S if calm else COMMIT_TIMEOUT_S
        with self._reported("commit with absent partitions"):
            call = self._consumer.commit_now(COMMIT_TIMEOUT_S, positions)
            answered = await self._calls.timed(call, limit_s, "commit with absent partitions")
            codes = codes_in(answered)
            undisturbed = calm and self._in_calm and all(is_absent(one) or self._held_since(one, began) for one in codes)
            must_be_answered(self.name, codes, undisturbed=undisturbed)
            self._acknowledge([row for row in answered if not is_absent(partition_of(row))], holdings)

    async def _commit_absent_later_beside(self) -> None:
        """Do the same without waiting; a later poll of the reading task receives the outcome."""
        assert self._consumer is not None
        with self._reported("commit with absent partitions"):
            ticket = await self._calls.timed(self._consumer.commit_later(self._also_absent()), COMMIT_TIMEOUT_S, "commit_later")
            if ticket is not None:
                self._calls.began_commit(ticket, {one: self._holdings.get(one) for one in ticket.entries})

    @property
    def _in_calm(self) -> bool:
        """Whether no fault delays or falsifies anything."""
        return self._stage.calm and self._undisturbed and not self._stage.cluster.errs

    def _held_since(self, partition: TopicPartition, moment: float) -> bool:
        holding = self._holdings.get(partition)
        return holding is not None and holding.began <= moment and self.holds(partition)

    # -- calls cancelled at one of their awaits -----------------------------------------------------------------------

    async def _cut_poll(self, consumer: SimulatedConsumer, cut: Cut) -> list[Any]:
        call, _ = self._next_poll(consumer)
        return await self._cut_read(consumer, call, cut)

    async def _cut_read(self, consumer: SimulatedConsumer, call: Coroutine[Any, Any, list[Any]], cut: Cut) -> list[Any]:
        self._received_elsewhere = True
        try:
            return await self._calls.polling(self._calls.cut(call, cut)) or []
        except CoordinatorError as error:
            return await self._poll_raised(consumer, error)

    def _chosen(self) -> list[Row]:
        """Return some of the partitions that the member owns."""
        held = sorted(one for one in self._holdings.keys() - self._paused if self.holds(one))
        return [native(one) for one in held[:: 2 if len(held) > 1 else 1]]

    async def _cut_getmany(self, consumer: SimulatedConsumer, cut: Cut) -> list[Any]:
        async def getmany() -> list[Any]:
            found = await consumer.getmany(*self._chosen(), timeout_ms=1_500, max_records=self.spec.batch)
            return [message for messages in found.values() for message in messages]

        return await self._cut_messages(consumer, getmany, cut)

    async def _cut_getone(self, consumer: SimulatedConsumer, cut: Cut) -> list[Any]:
        async def getone() -> list[Any]:
            return [await consumer.getone(*self._chosen())]

        return await self._cut_messages(consumer, getone, cut)

    async def _cut_messages(
        self, consumer: SimulatedConsumer, call: Callable[[], Coroutine[Any, Any, list[Any]]], cut: Cut
    ) -> list[Any]:
        if self.spec.columns:
            # Cancel ``consume_arrow`` at one of its first awaits, between which the consumer decodes available records.
            return await self._cut_poll(consumer, attrs.evolve(cut, step=cut.step % 3, after_s=0.0))
        # With enable.partition.eof, the call would raise the event for the end of a partition.
        return [] if self.spec.eof else await self._cut_read(consumer, call(), cut)

    async def _cut_off(self, call: Coroutine[Any, Any, Any], cut: Cut) -> Any:
        result = None
        with self._reported(cut.call):
            result = await self._calls.cut(call, cut)
        return result

    async def _cut_commit(self, consumer: SimulatedConsumer, cut: Cut) -> None:
        positions = self._positions()
        holdings = {partition: self._holdings[partition] for partition in positions}
        if positions:
            self._acknowledge(await self._cut_off(consumer.commit_now(COMMIT_TIMEOUT_S, positions), cut) or (), holdings)

    async def _cut_commit_all(self, consumer: SimulatedConsumer, cut: Cut) -> None:
        holdings = dict(self._holdings)
        if not self.spec.auto:
            self._acknowledge(await self._cut_off(consumer.commit_now(COMMIT_TIMEOUT_S), cut) or (), holdings)

    async def _cut_seek(self, consumer: SimulatedConsumer, cut: Cut) -> None:
        for partition, holding in sorted(self._holdings.items())[:1]:
            if holding.start is not None and self.holds(partition):
                offset = max(self._stage.cluster.log_start(partition), holding.position - 1)
                offset = min(offset, holding.position)
                await self._cut_off(consumer.seek(native(partition, OffsetAndMetadata(offset))), cut)
                # A cancelled seek may have moved the position or not, so repeat the seek.
                await self._seek_to(consumer, partition, offset)

    async def _cut_pause(self, consumer: SimulatedConsumer, cut: Cut) -> None:
        held = sorted(one for one in self._holdings if self.holds(one))
        await self._cut_off(consumer.pause([native(one) for one in held]), cut)
        self._paused |= self._holdings.keys() & set(held)
        await self._resume(consumer)

    async def _cut_resume(self, consumer: SimulatedConsumer, cut: Cut) -> None:
        await self._pause(consumer)
        held = sorted(one for one in self._paused if self.holds(one))
        await self._cut_off(consumer.resume([native(one) for one in held]), cut)
        await self._resume(consumer)

    async def _cut_unsubscribe(self, consumer: SimulatedConsumer, cut: Cut) -> None:
        topics = self.subscription
        with self._calls.unsubscribing():
            await self._cut_off(consumer.unsubscribe(), cut)
        if not consumer.subscribed and not self.closing:
            self._stage.duties.left(self.name)
            await self._subscribe(topics)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _close(self, consumer: SimulatedConsumer, error: ProcessingError | None = None) -> None:
        if self._left:
            return
        self._left = True
        self._stage.history.note(self.name, "closes")
        limit_s = 5.0 if self._stage.calm else self.spec.close_ms / 1000
        if not (self.closes_quickly or self.spec.auto):
            await self._commit(self._positions())
        with self._reported("close"):
            if error is not None:
                leaving = consumer.__aexit__(type(error), error, error.__traceback__)
                await self._calls.timed(leaving, API_TIMEOUT_S, "leaving async with")
            # A cancelled close continues in a separate task. A record counts as finished if the task that received the record
            # returned normally, and the task that closes the consumer handles no exception.
            if not (self._raised and self._received_elsewhere):
                await self._cut_close(consumer, limit_s)
            prompt = self._undisturbed
            bound_s = min(limit_s, _CLOSE_S) if prompt else limit_s
            without = self._stage.calm and self._stage.scenario.calm_calls
            bound_s = API_TIMEOUT_S if without and not prompt else bound_s
            await self._calls.timed(consumer.close(None if without else limit_s), bound_s, "close", prompt=prompt)
        if self._undisturbed:
            self._check_farewells()
        self._calls.all_commits_answered()
        if self._holdings:
            raise Violation("callbacks", f"{self.name} closed, but no callback ended {listed(self._holdings, 1000)}")
        for task in self._asked:
            task.cancel()
        if self._asked:
            await asyncio.wait(self._asked)

    def _check_farewells(self) -> None:
        for check in self._farewells:
            check()

    async def _cut_close(self, consumer: SimulatedConsumer, limit_s: float) -> None:
        """Cancel a close if the scenario or chance requires this. The close continues in a separate task."""
        if self._stage.calm:
            return
        if self.cut is not None:
            self._closes_beside = True
            await self._calls.cut(consumer.close(limit_s), self.cut)
        elif self._plan.sometimes():
            self._closes_beside = True
            await self._calls.cancelled(consumer.close(limit_s), self._plan)

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Record an error of a call as a failure of the application. If there is nothing to commit, record nothing."""
        try:
            yield
        except CoordinatorError as error:
            if error.code != _NOTHING_TO_COMMIT:
                self._failed(error, what)

    def _failed(self, error: CoordinatorError, what: str = "poll") -> None:
        self.failures.append(f"{what}: {type(error).__name__}: {error}")
        self._stage.history.note(self.name, f"{what} raised {type(error).__name__}: {error}")
        self._stage.reach.happened(self, type(error).__name__)
        if isinstance(error.__cause__, Violation):
            # A checker raised inside a callback.
            raise error.__cause__
        if rule_of(error) == "transitions":
            raise Violation("transitions", f"{self.name}: {what} raised {error!r}") from error
        if isinstance(error, AssignorError):
            raise Violation("plans", f"{self.name}: {error}")


#: The error code of librdkafka's _NO_OFFSET.
_NOTHING_TO_COMMIT = -168


def _accepted(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a commit that has an answer without an error."""
    return [row for row in rows if row.error is None]
