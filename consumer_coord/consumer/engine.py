"""The application's half of a member, for both consumers: reading, positions, commits, callbacks, close.

The engine owns one table: a dictionary from partition to :class:`~consumer_coord.consumer.partitions.Partition`, replaced as a
whole. What becomes of a partition is decided by a pure function (``consumer/reducer.py``), from the table, the group's
assignment, the cluster's metadata, and the results of look-ups and readings. :meth:`Engine._look`, which awaits nothing,
gathers these facts, does what the function asks for, and publishes a :class:`~consumer_coord.consumer.partitions.Plan`.
:meth:`Engine._settle` applies the plan: the reader begins and ends Fetches, and the engine calls the application's callback.

The engine runs on the coordinator's loop. The consumers ensure that only one caller uses the engine at a time. If other threads
may call a method, its docstring says so.

**Interrupts.** The calling task may be cancelled at any await; if a signal handler raises on the thread of a blocking call, the
task of this call is cancelled, too. So each step is a comparison that may be repeated, and a callback counts as called from the
moment immediately before its start. No other task runs between two statements without an await.

**Leases.** A record is delivered only while the coordinator cannot have removed this member from the group
(``consumer_coord/group/lease.py``), and only if nothing has changed since the plan was applied. The engine reads the end of the
lease before it checks both conditions. If the process freezes after this read, the old lease has expired.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.consumer import commit_before_revoke, offsets_to_commit
from consumer_coord.consumer.callback_types import Callback, Callbacks, Partitions
from consumer_coord.consumer.commit_before_revoke import LastWait
from consumer_coord.consumer.commit_reports import AutoCommit, CommitReports
from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.consumer.partitions import (
    Origin,
    Partition,
    PartitionEvent,
    Phase,
    Plan,
    Positions,
    Table,
    after,
    applied,
    begun,
    in_phase,
    last_serial,
    not_assigned,
    reads,
    start_at,
)
from consumer_coord.consumer.reducer import (
    Accept,
    Add,
    AskTracker,
    Call,
    Drop,
    Facts,
    Group,
    LastCommit,
    Recreated,
    Release,
    Request,
    Steps,
    Warn,
    look,
)
from consumer_coord.consumer.start_lookups import (
    LookUp,
    LookUpResults,
    Rules,
    StartBy,
    WakeAt,
    begin_readings,
    error_to_raise,
)
from consumer_coord.consumer.start_offsets import ResetPolicy, Starts
from consumer_coord.consumer.stored_positions import StoredPositions
from consumer_coord.errors import (
    CallbackError,
    ClosedError,
    ConcurrentUseError,
    ConfigurationError,
    CoordinatorError,
    FatalError,
    IllegalStateError,
    NotAssignedError,
    WakeupError,
)
from consumer_coord.group.commits import Entry, Ticket
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.group.subscription import TopicSubscription, librdkafka_pattern, to_pattern, to_topics
from consumer_coord.log_text import get_logger
from consumer_coord.offsets import OFFSET_INVALID, OFFSET_STORED, CommitResult, OffsetAndMetadata
from consumer_coord.record_tracker import RecordTracker
from consumer_coord.topic_partition import TopicPartition, listed

if TYPE_CHECKING:
    from consumer_coord.consumer.reading.reader import Reader

logger: Final = get_logger(__name__)

#: Maximum wait before the group is checked again, and while the lease has expired, in seconds.
SLICE_S = 0.1
_SUSPENDED_SLICE_S = 0.05

#: How long a blocking call waits beyond the time limit of its coroutine, in seconds.
GRACE_S = 5.0

FOREVER_S = 365 * 86_400.0

#: librdkafka's ``_CONFLICT``: a partition is already assigned; and ``_STATE``: a partition is not assigned.
_CONFLICT, _STATE = -173, -172

_NAMES = {Phase.TAKEN: "on_assign", Phase.REVOKED: "on_revoke", Phase.LOST: "on_lost"}
_METRICS = {Phase.TAKEN: "assigned", Phase.REVOKED: "revoked", Phase.LOST: "lost"}


class Engine:
    """The engine of one consumer."""

    def __init__(
        self,
        core: ConsumerCoordinator,
        reader: Reader,
        engine_loop: EngineLoop,
        *,
        reset: ResetPolicy,
        call: Callable[[Callback, Partitions], Coroutine[Any, Any, None]],
        events: Callable[[], Coroutine[Any, Any, None]],
        unfinished: Callable[[Mapping[TopicPartition, int]], Positions] = lambda committed: {},
        auto_store: bool = True,
        reports_automatic: bool = False,
    ) -> None:
        """Create the engine.

        * ``reader`` has what is fetched.
        * ``call`` calls the application's rebalance callbacks with the consumer and the partitions.
        * ``events`` reports the data plane's events and the outcomes of :attr:`commits` to the application.
        * ``unfinished`` returns the positions of delivered records that the application still works on, at or after the offsets
          that it committed.
        * ``auto_store``: if False, records are finished only after :meth:`store` stored a position after them.
        * ``reports_automatic``: whether outcomes of automatic commits are reported like those of the application's commits.
        """
        self.core = core
        self.callbacks: Callbacks = Callbacks()
        #: True while the application assigns partitions itself.
        self.manual: bool = False
        self.closing = False
        #: Decides which records are finished, and when a partition may be released, instead of the receivers of records.
        self.tracker: RecordTracker | None = None
        #: The loop time until which the tracker may delay the release of partitions; None while it delays none.
        self._release_ends: float | None = None
        #: True if a callback requested work that begins after the present call. In this case, :meth:`gather` must not wait.
        self.returns_early = False
        #: The state of every assigned partition. A change stores a new dictionary with new :class:`Partition` objects; neither
        #: is modified.
        self.table: Mapping[TopicPartition, Partition] = {}
        self.plan: Plan = Plan()
        #: The positions that the application stored.
        self.stored: StoredPositions = StoredPositions()
        self.reader: Reader = reader
        self.commits: CommitReports = CommitReports(core)
        self.auto: AutoCommit = AutoCommit(core, engine_loop)
        #: Returns the partitions whose records are in handlers, and for how long the oldest one has worked, in seconds; called
        #: on the loop.
        self.handling: Callable[[], Mapping[TopicPartition, float]] = dict
        #: What the application adds to the metrics.
        self.figures: Callable[[], Mapping[str, float]] = dict
        self.engine_loop: EngineLoop = engine_loop
        self._reset = reset
        self._auto_store = auto_store
        self._reports_automatic = reports_automatic
        self._call = call
        self._events = events
        self._unfinished = unfinished
        #: Partition -> the application's last commit, and the serial number of the reading in which the application made it.
        self._explicit: dict[TopicPartition, tuple[int, Ticket]] = {}
        #: The topics of which this consumer was assigned partitions.
        self._read_topics: frozenset[str] = frozenset()
        #: The greatest serial number of a reading so far.
        self._serial = 0
        #: The look-ups of starts that partitions wait for.
        self._look_ups: dict[LookUp, asyncio.Future[Starts]] = {}
        #: The last started callback, until its end is recorded.
        self._calling: Call | None = None
        #: Exceptions of callbacks, until the next poll raises the first exception.
        self._failures: list[CoordinatorError] = []
        self._woken = False
        #: True while a close has no time left to wait for commits.
        self._hurry = False
        #: The loop time for which the engine has set a timer to repeat look-ups of start offsets.
        self._retry_at = 0.0
        #: How many times the member had lost partitions when the engine last checked.
        self._losses = 0
        #: Whether nothing is pending for any partition, so that a consumer may take messages without a check.
        self._settled = False
        #: What :func:`consumer_coord.consumer.health_watch.watch_of` remembers for this engine.
        self.watch: object = None

    # -- messages -----------------------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether the lease has expired: records may belong to another member, so nothing is delivered."""
        return not self.manual and self.core.lease.clock() >= self.core.lease.until

    @property
    def deliverable(self) -> bool:
        """Whether fetched records still belong to this member."""
        return self._may_deliver(self.core.lease.until)

    @property
    def at_hand(self) -> bool:
        """Whether a call for any records may deliver what was fetched without a step of the engine.

        Not after a call that read only some partitions, perhaps a cancelled one: :meth:`gather` must read the others again.
        """
        return not self.attention and self.reader.fast and self.deliverable

    @property
    def attention(self) -> bool:
        """Whether a poll must process a change before it delivers a message."""
        return self.core.application.attention or self.commits.news

    @property
    def fast_path(self) -> bool:
        """Whether a consumer may decode and deliver records without any other check."""
        application = self.core.application
        return (
            self._settled
            and self.tracker is None
            and self.reader.fast
            and self.reader.applied is self.plan
            and application.news is application.seen
            and not self.core.protocol.rebalancing
        )

    async def gather(
        self,
        least: int,
        most: int,
        timeout_s: float,
        *,
        only: frozenset[TopicPartition] | None = None,
        tracked: bool = False,
        columns: bool = False,
    ) -> bool:
        """Wait until ``least`` messages are ready, or until ``timeout_s`` seconds have passed.

        Return False if delivery is not allowed. Raise exceptions of background tasks and callbacks, without a loss of messages.
        ``only``: read only these partitions during this call. ``tracked``: the caller passes the messages to :attr:`tracker`.
        ``columns``: wait for records that are not decoded, instead of messages.
        """
        core, reader = self.core, self.reader
        self._must_not_be_tracked(tracked)
        began = self.engine_loop.now()
        ends = began + timeout_s
        late = False
        # An earlier call has delivered the messages that were ready when a look-up failed. Others may never stop arriving.
        self._raise_unlocated()
        while True:
            # Read the end of the lease before the check of the group. If the process freezes after the check, this end is in
            # the past, even if a heartbeat has renewed the lease since.
            leased_until = core.lease.until
            if self.attention or any(not reader.waits(one) for one in self._ended_readings()):
                await self.attend()
            reader.apply(self.plan, only)
            leased = self._may_deliver(leased_until)
            # Report a partition without a position before the call waits again.
            found = reader.found(least, columns=columns)
            if late or ((found or (not reader.ready and self._unlocated())) and leased) or self.returns_early:
                break
            if not (found or columns):
                reader.exceed()
            await self._wait(most, max(0.0, ends - self.engine_loop.now()))
            core.application.waited()
            await self._events()
            if self.engine_loop.now() >= ends:
                if not core.application.attention:
                    leased = self._may_deliver(leased_until)
                    break
                late = True
        core.application.poll_times.record(began, core.application.calls)
        if self._ended_readings():
            # First deliver the records already fetched from the partitions whose reading ended. The next poll checks the group,
            # even if messages still wait.
            core.application.look_again()
        if not reader.found(1, columns=columns):
            self._raise_unlocated()
            return False
        return leased

    def check_may_commit_in_transaction(self) -> None:
        """Raise :class:`IllegalStateError` if the offsets of this consumer are committed outside transactions."""
        if self.tracker is not None:
            raise IllegalStateError(
                "transactions do not work with process() and track_records(), which commit offsets outside them: read in a"
                " loop of your own (see Exactly-once processing)"
            )

    def _must_not_be_tracked(self, tracked: bool) -> None:
        if self.tracker is not None and not tracked:
            raise ConcurrentUseError(
                "the records of this consumer are tracked, for instance by process(): nothing else may read from it"
            )

    def _may_deliver(self, leased_until: float) -> bool:
        """Return whether fetched records still belong to this member.

        The caller must have read ``leased_until`` before any other check.
        """
        if self.reader.applied is not self.plan:
            return False
        return self.manual or (self.core.assignment.losses == self._losses and self.core.lease.clock() < leased_until)

    async def _wait(self, most: int, left_s: float) -> None:
        """Wait once for a short time: for news of the group or for records."""
        if self.suspended:
            await self.engine_loop.ring(min(left_s, _SUSPENDED_SLICE_S))
            return
        if not self.reader.pending:
            await self.engine_loop.ring(min(left_s, SLICE_S))
        await self.reader.fetch(most)

    def take(self, most: int) -> list[Any]:
        """Return up to ``most`` messages and mark them as delivered.

        Call this method directly after :meth:`gather`, with no await in between.
        """
        return self.reader.take(most)

    async def read_only(self, most: int, timeout_s: float) -> bool:
        """Wait for messages without processing changes of the group, for a poll inside a callback."""
        self._must_not_be_tracked(False)
        leased_until, reader = self.core.lease.until, self.reader
        reader.apply(self.plan)
        if not reader.ready:
            if timeout_s > 0 and not reader.pending:
                # News of the group is not processed here, so only the bell ends this wait.
                await self.engine_loop.bell(min(timeout_s, SLICE_S))
            await reader.fetch(most)
        return bool(reader.ready) and self._may_deliver(leased_until)

    def wakeup(self) -> None:
        """Make the current wait, or the next wait, raise :class:`WakeupError`; callable from any thread."""
        self._woken = True
        self.core.application.wake()

    # -- carrying out ---------------------------------------------------------------------------------------------------

    async def attend(self) -> None:
        """Process all changes since the last call: apply a new plan, call callbacks, and start a due automatic commit."""
        core = self.core
        if self.closing:
            raise ClosedError("the consumer is closed")
        await self.engine_loop.wait_idle()
        # The changes are marked as seen only at the end, so that the next call processes them again if a step raises or is
        # interrupted.
        news = core.application.news
        core.application.waited()
        waits = core.application.look()
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup() was called")
        if self.auto.due:
            self.auto.rearm()
            self._commit_automatically(self._to_commit(), core.config.default_api_timeout_ms)
        await self._settle()
        await self._events()
        failure = self.take_failure()
        if failure is not None:
            raise failure
        if not waits:
            core.application.seen = news

    async def _settle(self, *, leaving: bool = False) -> bool:
        """Update the table, apply the plan and call callbacks until nothing changes.

        Return False if the last commit before a revoke is still pending.
        """
        while True:
            call = self._look(leaving)
            if call is not None:
                self._calling = call
                partitions = frozenset(one for one in self._awaiting(call) if self.table[one].notified)
                callback = self._callback(call.phase, partitions)
                if callback is not None:
                    await self.engine_loop.through(self._called(callback, call.phase, partitions))
            elif self.reader.applied is not self.plan:
                self.reader.apply(self.plan)
            else:
                return not in_phase(self.table, Phase.STOPPING, Phase.COMMITTING, Phase.RELEASING)

    def _callback(self, phase: Phase, partitions: Partitions) -> Callback | None:
        callbacks = self.callbacks
        if phase is Phase.TAKEN:
            return callbacks.on_assign
        if not partitions:
            return None
        return callbacks.on_revoke if phase is Phase.REVOKED else callbacks.on_lost or callbacks.on_revoke

    async def _called(self, callback: Callback, phase: Phase, partitions: Partitions) -> None:
        began = self.core.application.clock()
        try:
            await self._call(callback, partitions)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, the protocol continues first
            failure = CallbackError(f"{_NAMES[phase]} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._failures.append(failure)
        finally:
            self.core.application.called_back(_METRICS[phase], began)

    def _awaiting(self, call: Call) -> Partitions:
        return frozenset(partition for partition, one in self.table.items() if one.awaits is call)

    @property
    def calling(self) -> Phase | None:
        """The phase of the partitions that a rebalance callback is called with, while the callback runs; None otherwise."""
        return None if self._calling is None else self._calling.phase

    @property
    def called(self) -> Partitions:
        """The partitions that a rebalance callback is called with, while the callback runs; empty otherwise."""
        return frozenset() if self._calling is None else self._awaiting(self._calling)

    def take_failure(self) -> CoordinatorError | None:
        """Return the first exception that a callback raised since the last call of this method."""
        failures, self._failures = [*self._failures, *self.engine_loop.abandoned()], []
        return failures[0] if failures else None

    # -- the reducer ----------------------------------------------------------------------------------------------------

    def _put(self, event: PartitionEvent, partitions: Collection[TopicPartition], **changes: Any) -> None:
        """Apply an event that the application caused. Partitions for which it is outdated do not change."""
        if foreign := not_assigned(self.table, event, partitions):
            raise self._not_assigned(event.value, foreign)
        self._replace(applied(self.table, event, partitions, **changes))

    def _begin(self, event: PartitionEvent, values: Mapping[TopicPartition, Partition]) -> None:
        """Add partitions to the table."""
        for partition, value in values.items():
            assert after(event, self.table[partition].phase if partition in self.table else None) is value.phase
        self.stored.begin(values)
        self._replace({**self.table, **values})
        self._read_topics |= {partition.topic for partition in values}

    def _replace(self, table: Table) -> None:
        if table is self.table:
            return
        for partition in self.table.keys() - table.keys():
            self.stored.end(partition)
        self._serial = last_serial(table, self._serial)
        self.table = table

    def _look(self, leaving: bool) -> Call | None:
        """Take every step that is possible now (:func:`look`), and publish the plan; return the callback that is due."""
        facts, steps = self._facts(), Steps(timer=self._retry_at)
        while True:
            table, request = look(self.table, None if self.manual else self._group(leaving), facts, steps)
            self._replace(table)
            if request is None or isinstance(request, Call):
                break
            steps = self._answered(request, steps)
        self._calling = None
        awaited = {one.awaits for one in self.table.values()}
        self._look_ups = {one: pending for one, pending in self._look_ups.items() if one in awaited}
        if request is not None and request.phase is Phase.LOST:
            self._release_ends = None
        self._publish()
        self._losses = self.core.assignment.losses
        self.core.application.awaits_topic_id = any(one.topic_id is None for one in self.table.values())
        return request

    def _publish(self) -> None:
        self.plan = self._planned(self.table)
        self._settled = all(one.settled for one in self.table.values())

    def _planned(self, table: Table) -> Plan:
        """Return the plan for a table: the present or the applied one, if it says the same."""
        wanted = reads(table)
        return next((plan for plan in (self.plan, self.reader.applied) if plan.reads == wanted), None) or Plan(wanted)

    def _facts(self) -> Facts:
        ended = self.reader.out_of_range
        return Facts(
            rules=Rules(self._reset.reset, self.core.config.default_api_timeout_ms, self.core.cluster.backoff.ms),
            moment=self.engine_loop.now(),
            serial=self._serial,
            called=self._calling,
            topics={partition: self.topic_id(partition) for partition in self.table},
            known=self._known(),
            ended={one: ended[one] for one in self._ended_readings() if not self.reader.waits(one)},
            found=self._found(),
        )

    def _known(self) -> Partitions:
        """Return the partitions of recreated topics of which the application has heard (:attr:`Facts.known`)."""
        renamed = {partition: one for partition, one in self.table.items() if one.former_topic_id is not None}
        return self.reader.heard(renamed) | in_phase(renamed, Phase.UNLOCATED)

    def _group(self, leaving: bool) -> Group:
        assignment, moment = self.core.assignment, self.engine_loop.now()
        waits = {one: value.awaits for one, value in self.table.items() if isinstance(value.awaits, LastWait)}
        return Group(
            change=assignment.change(),
            held=assignment.held,
            applied=self.reader.applied.reads,
            leaving=leaving,
            committing=frozenset(one for one, wait in waits.items() if wait.pending(moment) and not self._hurry),
            sealed=frozenset(one for one in in_phase(self.table, Phase.RELEASING) if self.stored.sealed(one)),
        )

    def _answered(self, request: Request, steps: Steps) -> Steps:
        """Do what the reducer has asked for; return what the next look is told."""
        match request:
            case AskTracker(partitions):
                return attrs.evolve(steps, may_release=self._may_release(partitions))
            case Accept(change):
                assignment = self.core.assignment
                assignment.accept(change)
                return attrs.evolve(steps, accepted=True, first=change.first and not assignment.change().first)
            case WakeAt(moment):
                self._retry_at = moment
                self.engine_loop.later(moment - self.engine_loop.now(), self.core.application.wake)
                return attrs.evolve(steps, timer=moment)
            case _:
                self._carry_out(request)
                return steps

    def _carry_out(self, request: Request) -> None:
        match request:
            case Release(partitions):
                self.core.release(partitions)
            case LastCommit(partitions, called):
                self._commit_before_release(partitions, called)
            case Drop(partitions):
                self._drop(partitions)
            case Add(partitions):
                self._add(partitions)
            case Recreated(partitions):
                logger.warning(
                    "%s: the topic was deleted and created again; reading continues with the first record of the new topic",
                    listed(partitions),
                )
                # A stored position belongs to the deleted topic.
                self.stored.seal(partitions)
                self.stored.begin(partitions)
            case Warn(texts):
                for text in texts:
                    logger.warning("%s", text)
            case LookUp():
                self._begin_look_up(request)

    def _add(self, partitions: Partitions) -> None:
        owned = self.core.assignment.ownerships(partitions)
        values = {
            one: Partition(phase=Phase.TAKEN, ownership=owned[one], serial=number, topic_id=self.topic_id(one))
            for number, one in enumerate(sorted(partitions), start=self._serial + 1)
        }
        self._begin(PartitionEvent.ADD, values)

    def _may_release(self, partitions: Partitions) -> bool:
        """Return whether the tracker lets go of partitions that the reader no longer fetches, or its time is over."""
        tracker, moment = self.tracker, self.engine_loop.now()
        waits = tracker is not None and [one for one in partitions if not tracker.may_release(one, self.table[one].serial)]
        if not waits or self._hurry or (self._release_ends is not None and moment >= self._release_ends):
            self._release_ends = None
            return True
        if self._release_ends is None:
            limit_s = self.core.config.rebalance_timeout_ms / 1000
            self._release_ends = moment + limit_s
            self.engine_loop.later(limit_s, self.core.application.wake)
        return False

    def _commit_before_release(self, partitions: Partitions, called: bool) -> None:
        """Commit what is finished in these partitions, and let them wait for it (``commit_before_revoke.py``)."""
        if called:
            self.stored.seal(partitions)
        if not self.auto.enabled:
            return
        finished = commit_before_revoke.finished_in(self.table, self._to_commit(), partitions, called)
        if called:
            partitions &= finished.keys()
        limit_ms = commit_before_revoke.limit_ms(self.core.config)
        self._commit_automatically(finished, limit_ms, what="commit after on_revoke" if called else "commit before a revoke")
        waits = commit_before_revoke.waits(self.table, partitions, self.engine_loop.now() + limit_ms / 1000)
        if waits:
            self.engine_loop.later(limit_ms / 1000, self.core.application.wake)
        self._replace({**self.table, **waits})

    def _ended_readings(self) -> list[TopicPartition]:
        """Return the partitions whose offset is out of range, and whose new start is not being looked up yet."""
        ended = self.reader.out_of_range
        return [one for one in ended if one in self.table and self.table[one].phase is Phase.READING]

    # -- start offsets --------------------------------------------------------------------------------------------------

    def _begin_look_up(self, look_up: LookUp) -> None:
        core, policy, wanted, limits = self.core, self._reset, look_up.wanted, look_up.limits
        match look_up.by:
            case StartBy.COMMIT:
                pending = core.look_up(lambda: policy.starts(core, wanted, limits))
            case StartBy.RESET:
                pending = core.look_up(lambda: policy.resets(core, frozenset(wanted), limits, wanted))
            case StartBy.LOGICAL:
                pending = core.look_up(lambda: policy.at(core, wanted, limits))
        self._look_ups[look_up] = pending
        application = core.application
        pending.add_done_callback(lambda _: application.wake())

    def _found(self) -> LookUpResults:
        """Return the results of the look-ups that have ended."""
        results: dict[LookUp, Starts | CoordinatorError | None] = {}
        for look_up, pending in self._look_ups.items():
            if pending.done():
                error = None if pending.cancelled() else pending.exception()
                if error is not None and not isinstance(error, CoordinatorError):
                    crash = CoordinatorError(f"a look-up of start offsets crashed: {error!r}; please report this")
                    crash.__cause__ = error
                    error = crash
                results[look_up] = None if pending.cancelled() else error or pending.result()
        return results

    def looks_up(self, partition: TopicPartition) -> bool:
        """Return whether the start of a partition is being looked up, or will be looked up after a back-off."""
        one = self.table[partition]
        return isinstance(one.awaits, LookUp) or (one.retry is not None and self._retry_at >= self.engine_loop.now())

    @property
    def waiting_for_start(self) -> Partitions:
        """Return the partitions whose start offset is unknown."""
        return frozenset(partition for partition, one in self.table.items() if one.waits_for_start)

    def _unlocated(self) -> bool:
        return not self._settled and any(one.phase is Phase.UNLOCATED for one in self.table.values())

    def _raise_unlocated(self) -> None:
        """Raise the error of partitions that have no position. After the back-off, the engine looks up their starts again."""
        if self._settled or (due := error_to_raise(self.table)) is None:
            return
        error, told = due
        self._put(PartitionEvent.RETRY, told)
        self.core.application.wake()
        raise error

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        """Return the id of the topic that now has the partition's topic name, or None while the id is unknown."""
        return self.core.cluster.metadata.topic_id(partition)

    # -- offsets --------------------------------------------------------------------------------------------------------

    @property
    def read_committed(self) -> bool:
        """Whether the consumer reads only up to the last stable offset."""
        return self._reset.read_committed

    def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions up to which the application has finished: after delivered records, or as it stored them."""
        if self.tracker is None and not self._auto_store:
            stored = {partition: self.stored.position(partition) for partition in self.table}
            return {partition: at for partition, at in stored.items() if at is not None}
        delivered = self.reader.positions(self.table)
        if self.tracker is not None:
            return offsets_to_commit.tracked(self.table, delivered, self.tracker.finished)
        return {**offsets_to_commit.starts(self.table, Origin.CHOSEN, Origin.RESET), **delivered}

    def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the application's positions: after the last message, or at the chosen start.

        As in librdkafka, a start from the group's commit or from ``auto.offset.reset`` is omitted until the first message.
        """
        wanted = {partition: self.table[partition] for partition in partitions if partition in self.table}
        return {**offsets_to_commit.starts(wanted, Origin.CHOSEN), **self.reader.positions(wanted)}

    def _to_commit(self) -> Positions:
        """Return the offsets of an automatic commit: the finished positions, and the starts of partitions without a commit.

        Without the starts, the next owner would, with ``auto.offset.reset=latest``, skip the records written before that owner
        begins to read. Omit a partition if the application has committed this offset or a later one in this reading.
        """
        table = self.table
        # The application's threads may commit meanwhile.
        commits = offsets_to_commit.of_this_reading(table, dict(self._explicit))
        finished: Positions = self.finished()
        if self.tracker is not None:
            return finished
        if self._auto_store:
            unfinished = self._unfinished({one: ticket.entries[one].position.offset for one, ticket in commits.items()})
            began = {one: self.reader.began(one, table[one].serial) for one in unfinished if one in finished}
            finished = offsets_to_commit.before_unfinished(finished, unfinished, began)
        else:
            finished = {**offsets_to_commit.starts(table, Origin.RESET), **finished}
        return offsets_to_commit.without_committed(finished, commits)

    def store(self, positions: Positions) -> None:
        """Store finished positions for the next commit; needs ``enable.auto.offset.store=false``. Any thread may call it.

        As in librdkafka, raise :class:`NotAssignedError` only if none of the partitions is assigned. A partition counts as
        assigned until its last commit begins, after on_revoke. So automatic commits include every position that is accepted.
        """
        if self._auto_store:
            raise ConfigurationError("store_offsets needs enable.auto.offset.store=false")
        held = False
        for partition, at in positions.items():
            one = self.table.get(partition)
            held |= one is not None and one.phase is not Phase.LOST and self.stored.put(partition, at)
        if positions and not held:
            raise self._not_assigned("store_offsets", positions)

    def entries(self, wanted: Positions) -> Mapping[TopicPartition, Entry]:
        """Return positions with the present ownership numbers and topic ids, for a commit; callable from any thread."""
        table = self.table
        renamed = {one: table[one] for one in wanted if one in table and table[one].former_topic_id is not None}
        # The consumer itself moves on over markers and aborted records. Any other position is one in the former topic, until a
        # record is delivered.
        own = {one for one, offset in self.reader.reached(renamed).items() if offset == wanted[one].offset}
        return offsets_to_commit.entries(table, wanted, self.reader.heard(renamed) | own)

    def ticket(self, entries: Mapping[TopicPartition, Entry], timeout_ms: float | None, wake: Callable[[], object]) -> Ticket:
        """Create a commit (:class:`Ticket`); callable from any thread.

        If ``timeout_ms`` is None, the time limit is ``default.api.timeout.ms``.
        """
        limit_ms = self.core.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        made_at = self.core.application.clock()
        return Ticket(entries, made_at, made_at + limit_ms / 1000, wake)

    def _commit_automatically(self, finished: Positions, timeout_ms: float, *, what: str = "automatic commit") -> Ticket | None:
        """Start to commit the offsets not yet committed; return the commit, or None. ``what`` names the commit in the log."""
        wanted = offsets_to_commit.new_offsets(self.table, finished)
        if not wanted:
            return None
        # No reference to the engine, so that a dropped consumer can be collected while the commit is in flight.
        application, tracker = self.core.application, self.tracker

        def ended() -> None:
            failed = {one: error for one, error in ticket.answers.items() if error is not None}
            if failed:
                # If one of these partitions moves to another member now, that member processes the uncommitted records again.
                logger.warning("%s of %s failed: %s", what, listed(failed), next(iter(failed.values())))
            if tracker is not None:
                for partition in ticket.shed:
                    tracker.metadata_rejected(partition, len(entries[partition].position.metadata))
            application.wake()

        entries = self.entries(wanted)
        if tracker is not None:
            entries = {one: entry._replace(sheds_metadata=bool(entry.position.metadata)) for one, entry in entries.items()}
        ticket = self.ticket(entries, timeout_ms, ended)
        self.core.commits.submit(ticket)
        committed = {one: attrs.evolve(self.table[one], committed=at, commit=ticket) for one, at in wanted.items()}
        self._replace({**self.table, **committed})
        if self._reports_automatic:
            self.commits.add(ticket)
        return ticket

    def submit(self, ticket: Ticket) -> None:
        """Submit a commit that the application requested; callable from any thread."""
        table = self.table
        for partition, entry in ticket.entries.items():
            one = table.get(partition)
            if one is not None and one.ownership == entry.ownership:
                self._explicit[partition] = (one.serial, ticket)
        self.core.commits.submit(ticket)

    def commit_later(self, entries: Mapping[TopicPartition, Entry]) -> Ticket:
        """Commit without waiting; a later poll reports the outcome of the returned ticket. Callable from any thread."""
        ticket = self.ticket(entries, None, self.commits.notify)
        # In this order, an interrupt between the two calls leaves at worst an unreported commit, and never a wait for a commit
        # that was not submitted.
        self.submit(ticket)
        self.commits.add(ticket)
        return ticket

    async def commit(self, entries: Mapping[TopicPartition, Entry], timeout_ms: float | None) -> CommitResult:
        """Commit and wait for the response; callable on the loop at any time, also during a poll."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not answered.done():
                answered.set_result(None)

        ticket = self.ticket(entries, timeout_ms, wake)
        self.submit(ticket)
        if not ticket.done:
            await answered
        return ticket.answers

    # -- tracked records ------------------------------------------------------------------------------------------------

    def track(self, tracker: RecordTracker | None) -> None:
        """Let ``tracker`` keep the records that are delivered from now on, and commit what it finishes; None: no longer."""
        if tracker is not None and self.tracker is not None:
            raise ConcurrentUseError("the records of this consumer are tracked already, for instance by process()")
        self.tracker = tracker
        self._release_ends = None
        self.auto.enable(enabled=tracker is not None or self.core.config.enable_auto_commit)
        self.core.application.wake()

    async def commit_tracked(self, timeout_s: float) -> bool:
        """Commit what the tracker has finished, and wait for the response; return False if there was none in time.

        A failure is logged, as that of any automatic commit.
        """
        commit = self._commit_automatically(self._to_commit(), max(1.0, timeout_s * 1000), what="the last commit")
        commits = [one.commit for one in self.table.values() if one.commit is not None] if commit is None else [commit]
        ends = self.engine_loop.now() + timeout_s
        return all([await self.commits.answered(one, ends) for one in commits])

    # -- where to read --------------------------------------------------------------------------------------------------

    def choose(self, positions: Positions) -> None:
        """Start newly assigned partitions at these positions; callable only inside on_assign."""
        foreign = {one for one in positions if one not in self.table or self.table[one].phase is not Phase.TAKEN}
        if foreign:
            raise NotAssignedError(f"{listed(foreign)} are not among the partitions that the group has just assigned")
        self._seek(positions)

    def _seek(self, positions: Positions) -> None:
        if foreign := not_assigned(self.table, PartitionEvent.SEEK, positions):
            raise self._not_assigned("seek", foreign)
        self._replace(begun(self.table, positions, self._known(), self._serial))

    async def select(self, wanted: Positions, among: Partitions) -> None:
        """Of the owned partitions ``among``, read only ``wanted``, from their given offsets, if any.

        The group is not notified: this member keeps the other partitions without reading them.
        """
        if foreign := wanted.keys() - self.core.assignment.held:
            raise NotAssignedError(
                f"assign: the group did not assign {listed(foreign)}. To read these partitions as well, call"
                " incremental_assign; to read only these partitions, call unsubscribe first"
            )
        declined = (among - wanted.keys()) & self.table.keys()
        self._put(PartitionEvent.DECLINE, declined, declined=True, start=None, origin=None, logical=None)
        accepted = frozenset(one for one in wanted.keys() & self.table.keys() if self.table[one].declined)
        self._put(PartitionEvent.ACCEPT, accepted, declined=False)
        self._seek({one: at for one, at in wanted.items() if at.offset not in (OFFSET_INVALID, OFFSET_STORED)})
        await self._changed()

    async def seek(self, partition: TopicPartition, position: OffsetAndMetadata) -> None:
        """Continue at another position; a partition that has not started yet starts there."""
        self.must_hold([partition], "seek")
        self._seek({partition: position})
        await self._changed()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver no records of these partitions until :meth:`resume`.

        Partitions that a rebalance does not move stay paused.

        Lost partitions are ignored, because the application may not know of their loss yet.
        """
        self._set_paused(PartitionEvent.PAUSE, partitions, paused=True)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver records of these partitions again."""
        self._set_paused(PartitionEvent.RESUME, partitions, paused=False)

    def _set_paused(self, event: PartitionEvent, partitions: Collection[TopicPartition], *, paused: bool) -> None:
        """Change the plan, on the thread or in the task that has the turn; the next delivery applies it first.

        So a partition that is paused and resumed between two polls costs no step of the loop.
        """
        changing = [one for one in partitions if one in self.table and self.table[one].paused is not paused]
        if changing:
            table = applied(self.table, event, changing, paused=paused)
            plan = self._planned(table)
            # No signal handler runs between these stores.
            self.table, self.plan = table, plan

    async def _changed(self) -> None:
        """Apply a change that the application made by a call; a change made inside a callback is applied after the callback."""
        self._replace(begin_readings(self.table))
        self._publish()
        if self._calling is None:
            self.reader.apply(self.plan)
        if any(one.needs_look_up for one in self.table.values()):
            self.core.application.wake()

    def must_hold(self, partitions: Iterable[TopicPartition], what: str) -> None:
        """Raise :class:`NotAssignedError` for partitions that are not assigned to this consumer."""
        foreign = set(partitions) - self.table.keys()
        if foreign:
            raise self._not_assigned(what, foreign)

    def _not_assigned(self, what: str, partitions: Collection[TopicPartition]) -> NotAssignedError:
        """Return the error for partitions that are not assigned; as in librdkafka, ``_STATE`` if one of the topics is known."""
        topics = {one.topic for one in partitions}
        known = topics & self._read_topics or self.core.cluster.metadata.partitions(topics)
        text = f"{what}: not assigned to this consumer: {listed(partitions)}"
        return NotAssignedError(text, code=_STATE if known else None)

    @property
    def assigned(self) -> Partitions:
        """Return the assigned partitions, without the partitions of the group that the application declined to read."""
        return frozenset(partition for partition, one in self.table.items() if not one.declined)

    @property
    def chosen(self) -> Positions:
        """Return the starts of the partitions of :attr:`added`; a logical offset is returned as it was given."""
        added = {one: value for one, value in self.table.items() if value.ownership is None}
        logical = {one: OffsetAndMetadata(value.logical) for one, value in added.items() if value.logical is not None}
        return {**{one: value.start for one, value in added.items() if value.start is not None}, **logical}

    @property
    def paused(self) -> Partitions:
        """Return the paused partitions."""
        return frozenset(partition for partition, one in self.table.items() if one.paused)

    # -- subscription, manual assignment --------------------------------------------------------------------------------

    async def subscribe(self, topics: Collection[str], callbacks: Callbacks) -> TopicSubscription:
        """End a manual assignment, and subscribe to topics; a topic that starts with ``^`` is a pattern."""
        if self.manual:
            await self.unassign(frozenset(self.table))
        patterns = any(topic.startswith("^") for topic in topics)
        subscription = to_pattern(librdkafka_pattern(topics)) if patterns else to_topics(topics)
        self.core.subscribe_to(subscription)
        self.callbacks = callbacks
        self.auto.begin()
        return subscription

    @property
    def added(self) -> Partitions:
        """Return the partitions that the application assigned itself: manually, or in addition to the group's assignment."""
        return frozenset(partition for partition, one in self.table.items() if one.ownership is None)

    async def add(self, positions: Positions) -> None:
        """Also read partitions that the group did not assign, until the application ends their assignment."""
        self._assign(positions)
        await self._changed()

    async def assign(self, positions: Positions, *, instead: bool) -> None:
        """Assign partitions manually, in addition to the assigned partitions or ``instead`` of them."""
        if instead:
            await self.unassign(frozenset(self.table))
        self.manual = True
        self._assign(positions)
        await self._changed()

    def _assign(self, positions: Positions) -> None:
        if twice := positions.keys() & self.table.keys():
            raise FatalError(f"assign: {listed(twice)} are already assigned", code=_CONFLICT)
        self._begin(
            PartitionEvent.ASSIGN,
            {
                one: Partition(
                    phase=Phase.LOCATING,
                    ownership=None,
                    serial=number,
                    topic_id=self.topic_id(one),
                    notified=True,
                    **start_at(one, at),
                )
                for number, (one, at) in enumerate(sorted(positions.items()), start=self._serial + 1)
            },
        )
        self.auto.begin()

    async def unassign(self, partitions: Partitions) -> None:
        """End the assignment of partitions that the application assigned itself.

        If commits are automatic, commit finished records, and wait for this commit, but for at most the session timeout.
        """
        commit = self._drop(partitions & self.table.keys())
        self._publish()
        self.reader.apply(self.plan)
        if commit is not None:
            await self.commits.answered(commit, commit.ends)
        if not self.added:
            self.manual = False

    def _drop(self, partitions: Partitions) -> Ticket | None:
        """Remove partitions that the application assigned itself; return their last commit if commits are automatic."""
        self.stored.seal(partitions)
        commit: Ticket | None = None
        if self.auto.enabled and partitions:
            finished = commit_before_revoke.finished_in(self.table, self._to_commit(), partitions, called=False)
            commit = self._commit_automatically(finished, self.core.config.session_timeout_ms, what="commit before unassigning")
        self._put(PartitionEvent.UNASSIGN, partitions)
        return commit

    # -- closing --------------------------------------------------------------------------------------------------------

    async def revoke_all(self, ends: float) -> CoordinatorError | None:
        """Revoke all partitions, before close and unsubscribe; return the first exception of a callback."""
        core = self.core
        await self.engine_loop.wait_idle()
        # This call counts as a poll, because the application waits here, and commits and callbacks may take a long time.
        core.application.waited()
        await self.unassign(self.added)
        core.prepare_to_leave()
        try:
            while True:
                news = core.application.news
                released = await self._settle(leaving=True)
                core.application.seen = news
                if released:
                    break
                left_s = ends - self.engine_loop.now()
                # After the time limit, pending commits are not awaited: callbacks run, and the partitions are released.
                self._hurry = left_s <= 0
                if not self._hurry:
                    await self.engine_loop.ring(min(left_s, SLICE_S))
        finally:
            self._hurry = False
            # The next poll processes the changes that happened during this call.
            core.application.look_again()
        return self.take_failure()

    async def finish(self, timeout_s: float) -> CoordinatorError | None:
        """Commit finished records, revoke all partitions, and report every commit; called before the coordinator is closed.

        Return the first exception of a callback. All steps except callbacks end within ``timeout_s`` seconds.
        """
        ends = self.engine_loop.now() + timeout_s
        self.auto.stop()
        failure: CoordinatorError | None = None
        if self.manual:
            await self.engine_loop.wait_idle()
            self.stored.seal(self.table)
            if self.auto.enabled:
                commit = self._commit_automatically(self._to_commit(), max(1.0, timeout_s * 1000))
                if commit is not None:
                    await self.commits.answered(commit, ends)
        else:
            failure = await self.revoke_all(ends)
        await self.commits.finish(ends)
        return failure
