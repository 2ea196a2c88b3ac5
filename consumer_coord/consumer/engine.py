"""The application's half of a member, once for every kind of consumer: reading, positions, commits, hand-over, close.

Coroutines over a data plane (:mod:`~consumer_coord.consumer.data_plane`) and a home
(:mod:`~consumer_coord.consumer.home`).  Used by one caller at a time, which is the consumers' part to see to; what may be
called at any time says so.

**Interrupts.**  A signal handler may raise between any two statements, and a task may be cancelled at any await.  So nothing
here depends on having come to its end: each call compares what should be with what is (:class:`Reader` for the data plane,
:class:`Handover` for the partitions, :class:`Starting` for the positions) and does the rest.  A call that is left early raises
``attention``, so that the next one looks.

**Leases.**  A record is handed out only while the coordinator must still count this member as one of the group
(``ConsumerCoordinator.lease_until``).  Past that moment nothing is handed out, until a heartbeat is answered, or the
partitions are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

import attrs

from consumer_coord.consumer.commits import AsynchronousCommits, AutoCommit, Tell, outcome
from consumer_coord.consumer.data_plane import EARLIEST, OFFSET_INVALID, OFFSET_STORED, DataPlane
from consumer_coord.consumer.handover import Callback, Callbacks, Handover, Partitions
from consumer_coord.consumer.home import Home, Pending
from consumer_coord.consumer.reader import Positions, Reader
from consumer_coord.consumer.recreated_topics import RecreatedTopics
from consumer_coord.consumer.start_positions import ResetPolicy
from consumer_coord.consumer.starting import Starting
from consumer_coord.errors import (
    ClosedError,
    ConfigurationError,
    CoordinatorError,
    NotAssignedError,
    RequestTimedOutError,
    WakeupError,
)
from consumer_coord.group.committed_offsets import CommitResult, OffsetAndMetadata
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.printable import get_logger
from consumer_coord.topic_partition import TopicPartition, listed

logger = get_logger(__name__)

#: How long the group waits for the data plane to send its question about topics; the answer may come later.
_LEARN_S = 0.002
#: How long the data plane may wait before the group is looked at again.
_SLICE_S = 0.1
#: While the coordinator is asked for something, and how long that makes a difference.
_ANSWER_SLICE_S, _LONGEST_ANSWER_S = 0.005, 1.0
#: While the group rebalances, how long messages may wait for the engine, which waits for the group.
_REBALANCING_SLICE_S = 0.05

#: What a call waits beyond the time that its coroutine was given.
_GRACE_S = 5.0

FOREVER_S = 365 * 86_400.0


@attrs.frozen
class _Final:
    """The last commit of a partition that is about to be revoked, and how long that waits for it (of the home's clock)."""

    pending: Pending[CommitResult]
    ends: float


@attrs.frozen(kw_only=True)
class EngineSettings:
    """What the engine needs beside the coordinator's settings."""

    reset: ResetPolicy
    #: Whether an event's error tells of an offset that is out of range.
    is_lapsed: Callable[[Any], bool]
    #: False: :meth:`Engine.store` says what is finished, and not that it was handed out.
    auto_store: bool = True
    #: Whether automatic commits are told of, as those of the application are.
    tells_automatic: bool = False


class Engine:
    """See the module.  ``call`` calls the application's rebalance callbacks with the consumer and the partitions."""

    def __init__(
        self,
        core: ConsumerCoordinator,
        plane: DataPlane,
        home: Home,
        settings: EngineSettings,
        *,
        call: Callable[[Callback, Partitions], Coroutine[Any, Any, None]],
        told: Tell,
        events: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """``told`` gets the outcome of asynchronous commits, ``events`` tells what the data plane wants to be told."""
        self.core = core
        self.reader = Reader(plane, settings.is_lapsed)
        self.handover = Handover(core, _Holder(self, call))
        self.recreated = RecreatedTopics(core, home, self.reader.handed_out)
        self.commits = AsynchronousCommits(core, home, told, self.recreated)
        self.auto = AutoCommit(core, home, self.recreated, self.commits.follow if settings.tells_automatic else None)
        self.starting = Starting(core, home, self.reader, settings.reset, self.auto.started, self._began, self.recreated.now)
        #: With ``auto_store`` off: what the application stored.
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        #: With ``auto_store`` off: where partitions without a commit began, until the application stores something there.
        self._beginnings: dict[TopicPartition, OffsetAndMetadata] = {}
        #: Where ``auto.offset.reset`` began partitions, until the application chooses another position.
        self._by_policy: dict[TopicPartition, int] = {}
        #: True while partitions are assigned by the application, not by a group.
        self.manual = False
        self.closing = False
        #: Topics of the subscription that the data plane may not have heard of.
        self._expected: frozenset[str] = frozenset()
        self._home = home
        self._settings = settings
        self._events = events
        self._woken = False
        #: True while a close has no time left to wait for commits.
        self._hurry = False
        #: Commits of what is about to be revoked.
        self._final: dict[TopicPartition, _Final] = {}

    # -- messages -----------------------------------------------------------------------------------------------------

    @property
    def declined(self) -> Partitions:
        """Held, but not wanted by the application."""
        return self.starting.declined

    @property
    def suspended(self) -> bool:
        """True while records may be another member's: nothing is handed out."""
        return not self.manual and self.core.lease.clock() >= self.core.lease.until

    @property
    def plain(self) -> bool:
        """True when a skin may take messages from the data plane by itself: nothing has to be looked at, by far most often."""
        core = self.core
        return (
            self.reader.plain
            and not core.application.attention
            and not core.rebalancing
            and not self.starting.pending
            and not self.reader.lapsed
        )

    async def gather(self, least: int, most: int, timeout_s: float) -> bool:
        """Wait until ``least`` messages stand in ``reader.ahead`` to be handed out, or the time is up.

        False when nothing may be handed out.  Raises what the background or a callback raised; no message is lost by that.
        """
        core, reader = self.core, self.reader
        began = self._home.now()
        ends = began + timeout_s
        late = False
        while True:
            if core.application.attention or (reader.lapsed and reader.lapsed.keys() - self.starting.pending):
                await self.attend()
            else:
                await reader.ready()
            ready = len(reader.ahead)
            # A partition without a position is told of before any more is waited for.
            enough = ready >= least or (not ready and bool(self.starting.unknown))
            if late or (enough and not self.suspended):
                break
            await self._wait(most - ready, max(0.0, ends - self._home.now()))
            # Waiting is polling: the application is here.
            core.application.polls += 1
            await self._events()
            if self._home.now() >= ends:
                if not core.application.attention:
                    break
                late = True
        core.application.poll_times.record_fetch(began, len(reader.ahead))
        if not reader.ahead:
            self.starting.raise_unknown()
            return False
        return not self.suspended

    async def _wait(self, most: int, left_s: float) -> None:
        """One slice of waiting, for the group or for messages, whichever is likelier to come.

        Nothing wakes the data plane for the group.  So with nothing to fetch, and while the group rebalances, the wait is
        for the group: then a hand-over waits for nothing, and messages for a moment.
        """
        core, reader = self.core, self.reader
        slice_s = min(left_s, self.slice_s())
        if self.suspended:
            await self._home.ring(min(left_s, _REBALANCING_SLICE_S))
            return
        if not self.manual and (not reader.assigned or core.rebalancing or self.starting.pending):
            if not core.application.attention:
                await self._wait_for_group(min(left_s, _REBALANCING_SLICE_S) if reader.assigned else slice_s)
            slice_s = 0.0
        await reader.fetch(most, slice_s)

    def slice_s(self) -> float:
        """How long to wait for messages alone: short while an answer of the coordinator's is under way, or near."""
        moment, slice_s = self._home.now(), _SLICE_S
        for at in (self.commits.asked_at, self.core.application.hears_at):
            near_s = at - moment
            if -_LONGEST_ANSWER_S < near_s < slice_s:
                slice_s = min(slice_s, max(0.0, near_s) + _ANSWER_SLICE_S)
        return slice_s

    async def _wait_for_group(self, slice_s: float) -> None:
        """Meanwhile the data plane hears of the topics: it would begin to read a second later otherwise."""
        ends = self._home.now() + slice_s
        unheard = bool(self._expected) and not self.reader.assigned and slice_s > 0
        if unheard and await self.reader.plane.learn(self._expected, min(slice_s, _LEARN_S)):
            self._expected = frozenset()
        left_s = ends - self._home.now()
        if left_s > 0 or slice_s == 0:
            await self._home.ring(max(0.0, left_s))

    def take(self, most: int) -> list[Any]:
        """Up to ``most`` messages, which count as handed out from now on; after :meth:`gather`, without a wait between."""
        return self.reader.take(most)

    def wakeup(self) -> None:
        """Make the wait that is under way, or the next one, raise :class:`WakeupError`; from any thread."""
        self._woken = True
        self.core.application.rouse()

    # -- what the group wants -------------------------------------------------------------------------------------------

    async def attend(self) -> None:
        """Look at everything that may have come up since the last call."""
        core = self.core
        if self.closing:
            raise ClosedError("the consumer is closed")
        try:
            await self._home.wait_idle()
            await self.reader.ready()
            core.application.polled(looks=True)
            if self._woken:
                self._woken = False
                raise WakeupError("wakeup() was called")
            if self.auto.due:
                self.auto.tick(await self._to_commit())
            self.commits.tell()
            await self.handover.carry_out()
            await self.starting.go_on(self.handover.told)
            await self._begin_recreated()
            await self._events()
            failure = self.handover.take_failure()
            if failure is not None:
                raise failure
        except BaseException:
            core.application.attention = True
            raise

    async def _begin_recreated(self) -> None:
        """Partitions of a topic that was deleted and made again begin with its first record."""
        recreated = self.recreated.found(self.reader.assigned.keys())
        if recreated:
            logger.warning(
                "%s: the topic was deleted and made again while it was read; reading begins with its first record",
                listed(recreated),
            )
            await self._home.wait_idle()
            await self.reader.ready()
            # First, and found again until begun_anew: after an interrupt no position of the former topic is left to commit.
            self.auto.forget(recreated)
            self._forget_positions(recreated)
            self.starting.begun_elsewhere(recreated)
            await self.reader.restart(dict.fromkeys(recreated, EARLIEST))
            self.recreated.begun_anew(recreated)

    def _forget_positions(self, partitions: Partitions) -> None:
        for partition in partitions:
            self.stored.pop(partition, None)
            self._beginnings.pop(partition, None)
            self._by_policy.pop(partition, None)

    async def finish_revoked(self, revoked: Partitions) -> bool:
        """Freeze exactly these, and commit what is finished of them; True when the commits are over."""
        for partition in self._final.keys() - revoked:
            del self._final[partition]
        if not revoked and not self.reader.frozen:
            return True
        await self.reader.freeze(revoked)
        if self.auto.enabled:
            new = revoked - self._final.keys()
            if new:
                finished = {partition: at for partition, at in (await self._to_commit()).items() if partition in new}
                config = self.core.config
                limit_ms = min(config.session_timeout_ms, config.rebalance_timeout_ms)
                self.auto.commit(finished, limit_ms, what="commit before giving up")
                # The last one of the interval may be on its way with the same positions, and may take longer than that.
                under_way, ends = self.auto.under_way(new), self._home.now() + limit_ms / 1000
                for pending in set(under_way.values()):
                    pending.add_done_callback(lambda _: self.core.application.rouse())
                if under_way:
                    self._home.later(limit_ms / 1000, self.core.application.rouse)
                self._final.update({partition: _Final(pending, ends) for partition, pending in under_way.items()})
            moment = self._home.now()
            if not self._hurry and any(not one.pending.done() and moment < one.ends for one in self._final.values()):
                return False
        self.commits.tell()
        return True

    async def forget(self, partitions: Partitions) -> None:
        """These are read no more."""
        await self.reader.stop(partitions)
        self.auto.forget(partitions)
        self.starting.forget(partitions)
        self.recreated.forget(partitions)
        self._forget_positions(partitions)
        for partition in partitions:
            self._final.pop(partition, None)

    async def give_up_all(self, ends: float) -> CoordinatorError | None:
        """Everything held is revoked, or was lost; before close and unsubscribe.  Returns what a callback raised first."""
        await self._home.wait_idle()
        await self.reader.ready()
        core = self.core
        # As by a poll: the application is here, and commits and callbacks may take their time.
        core.application.polls += 1
        await self.unassign(self.added)
        core.prepare_to_leave()
        try:
            core.application.attention = False
            while not await self.handover.carry_out(leaving=True):
                left_s = ends - self._home.now()
                # When the time is up, what is on its way is not waited for: callbacks run, and the partitions are given up.
                self._hurry = left_s <= 0
                if not self._hurry:
                    await self._home.ring(min(left_s, _SLICE_S))
                    core.application.attention = False
        finally:
            self._hurry = False
            # Whatever came up meanwhile is for the next poll.
            core.application.attention = True
        return self.handover.take_failure()

    # -- offsets --------------------------------------------------------------------------------------------------------

    async def finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions of what the application has finished: all it was given, or what it stored."""
        assigned = self.reader.assigned
        if self._settings.auto_store:
            return await self.reader.positions(assigned)
        return {partition: at for partition, at in self.stored.items() if partition in assigned}

    async def _to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What an automatic commit takes: what is finished, and the beginning of a partition that had no commit.

        Without the latter, ``auto.offset.reset=latest`` would skip what is written before the next member begins.
        """
        return {**self._beginnings, **await self.finished()}

    def _began(self, reset: Positions) -> None:
        self.recreated.begun_by_policy(reset)
        self._by_policy.update({partition: at.offset for partition, at in reset.items()})
        if not self._settings.auto_store:
            self._beginnings.update({partition: at for partition, at in reset.items() if at.offset >= 0})

    async def finished_now(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The same, between two polls."""
        await self.reader.ready()
        return await self.finished()

    async def positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return where the application goes on: behind its last message, or where it chose to begin.

        A position that ``auto.offset.reset`` found is left out until the first message, as in librdkafka.
        """
        await self.reader.ready()
        found = await self.reader.positions(partitions)
        return {partition: at for partition, at in found.items() if self._by_policy.get(partition) != at.offset}

    def store(self, positions: Positions) -> None:
        """These are finished; for ``auto_store`` off."""
        if self._settings.auto_store:
            raise ConfigurationError("store_offsets needs enable.auto.offset.store=false")
        self.must_hold(positions, "store_offsets")
        self.stored.update(positions)
        for partition in positions:
            self._beginnings.pop(partition, None)

    async def commit(self, wanted: Positions, timeout_ms: float | None) -> CommitResult:
        """Commit and wait for the answer; at any time, beside a poll too."""
        core = self.core
        limit_ms = core.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        pending = self.recreated.commit(wanted, limit_ms)
        # The coordinator ends it in time; the rest is for a loop that is held up.
        if not await self._home.wait(pending, limit_ms / 1000 + _GRACE_S):
            return dict.fromkeys(wanted, RequestTimedOutError("the commit was not answered in time"))
        return outcome(wanted, pending)

    # -- where to read --------------------------------------------------------------------------------------------------

    def choose(self, positions: Positions) -> None:
        """Inside on_assign: begin at these positions."""
        foreign = {partition for partition in positions if partition in self.reader.assigned} | (
            positions.keys() - self.core.assignment.held
        )
        if foreign:
            raise NotAssignedError(f"{listed(foreign)} were not assigned by the group just now")
        self.starting.choose(positions)

    async def select(self, wanted: Positions, among: Partitions) -> None:
        """Of the held partitions ``among``, read ``wanted`` and nothing else; those with an offset from there.

        The group knows nothing of it: the others stay this member's, and wait.
        """
        if foreign := wanted.keys() - self.core.assignment.held:
            raise NotAssignedError(
                f"assign: {listed(foreign)} were not assigned by the group; incremental_assign reads them in addition,"
                " unsubscribe first to read them alone"
            )
        declined = among - wanted.keys()
        self.starting.declined = (self.starting.declined - wanted.keys()) | declined
        known = {partition: at for partition, at in wanted.items() if at.offset not in (OFFSET_INVALID, OFFSET_STORED)}
        await self.reader.ready()
        await self.reader.stop(declined & self.reader.assigned.keys())
        self.starting.choose({partition: at for partition, at in known.items() if partition not in self.reader.assigned})
        for partition in known.keys() & self.reader.assigned.keys():
            self._by_policy.pop(partition, None)
            await self.reader.seek(partition, known[partition])

    async def read_only(self, most: int, timeout_s: float) -> bool:
        """Wait for messages of what is read already, without a look at the group: for a poll inside a callback."""
        await self.reader.ready()
        if not self.reader.ahead:
            await self.reader.fetch(most, min(timeout_s, _SLICE_S))
        return bool(self.reader.ahead) and not self.suspended

    async def seek(self, partition: TopicPartition, position: OffsetAndMetadata, *, in_callback: bool) -> None:
        """Go on at another position; for a partition that is still to be started, begin there."""
        # Also before a start: what an interrupted call has left of a partition whose offset was out of range is stopped first.
        await self.reader.ready()
        self._by_policy.pop(partition, None)
        waits = partition in self.starting.pending or partition in self.reader.lapsed
        if partition in self.reader.assigned and (partition not in self.core.assignment.held or not waits):
            self._beginnings.pop(partition, None)
            self.starting.begun_elsewhere([partition])
            await self.reader.seek(partition, position)
            return
        self.must_hold([partition], "seek")
        self.starting.declined -= {partition}
        self.starting.choose({partition: position})
        if not in_callback:
            await self.starting.go_on(self.handover.told)

    async def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of these until :meth:`resume`; survives rebalances that keep them.

        What was lost meanwhile is passed over: the application may not have heard of it.
        """
        await self.reader.ready()
        await self.reader.pause(self._still_here(partitions))

    async def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out messages of these again."""
        await self.reader.ready()
        await self.reader.resume(self._still_here(partitions))

    def _still_here(self, partitions: Collection[TopicPartition]) -> Partitions:
        return frozenset(partitions) & (self.reader.assigned.keys() | self.core.assignment.held)

    def must_hold(self, partitions: Iterable[TopicPartition], what: str) -> None:
        """Raise for partitions that are not assigned to this consumer."""
        foreign = set(partitions) - self.reader.assigned.keys() - self.core.assignment.held
        if foreign:
            raise NotAssignedError(f"{what}: {listed(foreign)} are not assigned to this consumer")

    # -- subscription, manual assignment --------------------------------------------------------------------------------

    def subscribed(self, callbacks: Callbacks, topics: Iterable[str] = ()) -> None:
        """The subscription was handed to the coordinator; ``topics``: those that it names."""
        self._expected = frozenset(topics)
        self.handover.callbacks = callbacks
        self.auto.begin()

    @property
    def added(self) -> Partitions:
        """Partitions that are read in addition to those the group assigned; all partitions of a manual assignment."""
        return frozenset(self.reader.assigned.keys() - self.core.assignment.held)

    async def add(self, positions: Positions) -> None:
        """Read partitions that the group did not assign, in addition; they stay until the application ends them."""
        await self.reader.ready()
        await self.reader.start(positions, begun=positions.keys())
        self.auto.begin()

    async def assign(self, positions: Mapping[TopicPartition, OffsetAndMetadata], *, instead: bool) -> None:
        """Manual assignment, in addition or ``instead`` of what is assigned."""
        await self.reader.ready()
        if instead:
            await self.unassign(frozenset(self.reader.assigned))
        self.manual = True
        await self.reader.start(positions, begun=positions.keys())
        self.auto.begin()

    async def unassign(self, partitions: Partitions) -> None:
        """End a manual assignment or a part of it, or partitions that were added to what the group assigned."""
        await self.reader.ready()
        if self.auto.enabled and partitions:
            finished = {partition: at for partition, at in (await self._to_commit()).items() if partition in partitions}
            self.auto.commit(finished, self.core.config.default_api_timeout_ms, what="commit before unassigning")
        await self.forget(partitions)
        if not self.reader.assigned:
            self.manual = False

    # -- the end --------------------------------------------------------------------------------------------------------

    async def finish(self, timeout_s: float) -> CoordinatorError | None:
        """Commit what is finished, give everything up, tell of every commit; before the coordinator is closed.

        Returns what a callback raised first.  Everything but callbacks ends within ``timeout_s``.
        """
        ends = self._home.now() + timeout_s
        self.auto.stop()
        failure: CoordinatorError | None = None
        if self.manual:
            await self.reader.ready()
            if self.auto.enabled:
                pending = self.auto.commit(await self._to_commit(), max(1.0, timeout_s * 1000))
                if pending is not None:
                    await self._home.wait(pending, timeout_s)
        else:
            failure = await self.give_up_all(ends)
        await self.commits.finish(ends)
        return failure


class _Holder:
    """The engine, as the hand-over sees it."""

    def __init__(self, engine: Engine, call: Callable[[Callback, Partitions], Coroutine[Any, Any, None]]) -> None:
        self._engine = engine
        self.call = call

    async def through(self, work: Coroutine[Any, Any, None]) -> None:
        await self._engine._home.through(work)

    async def finish(self, revoked: Partitions) -> bool:
        return await self._engine.finish_revoked(revoked)

    async def stop(self, partitions: Partitions) -> None:
        await self._engine.forget(partitions)

    async def may_take_up(self, added: Partitions) -> bool:
        return True
