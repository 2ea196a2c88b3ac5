"""The rules for one application's calls, in addition to the rules for the group.

:class:`Planned` draws the actions of an unruly application. :class:`Calls` checks the time limits and errors of the calls. A
wait inside ``poll`` must count as polling, every asynchronous commit must have one outcome, and no partition may be *stranded*,
that is, remain unread without a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import types
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping
from random import Random
from typing import Any, TypeVar

import attrs

from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Phase
from consumer_coord.errors import CallbackError, CoordinatorError, NoOffsetError, WakeupError
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.group.classic_protocol.membership import MemberState
from consumer_coord.group.commits import Ticket
from consumer_coord.group.consumer_protocol.heartbeats import ConsumerMember
from consumer_coord.group.consumer_protocol.states import State
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.columns import FetchWitness
from consumer_coord.simulation.holdings import Holding
from consumer_coord.simulation.member_spec import API_TIMEOUT_S
from consumer_coord.simulation.process import Process
from consumer_coord.topic_partition import TopicPartition

T = TypeVar("T")

#: Time by which a call may exceed its time limit, in seconds: before a call returns, it may have to finish a short wait or a
#: call of the data plane.
MOMENT_S = 0.5

#: Maximum time for which an owned partition may be neither read, paused nor looked up, in seconds.
_STRANDED_S = 3.0

#: Time after which a call is cancelled if the call has not reached the await that was drawn for its cancellation, in seconds.
_LONGEST_CUT_S = 2.0

#: Additional time, in seconds, until a member notices that its application does not poll. Until then, the member may wait for a
#: response or for the coordinator.
_AWAY_S = 20.0

#: The actions of an unruly application in a turn, and their weights.
WHIMS = {
    "cancel_poll": 8,
    "cancel_call": 1,
    "raise_soon": 4,
    "wake": 1,
    "seek": 3,
    "pause": 3,
    "unsubscribe": 1,
}


class ApplicationError(CoordinatorError):
    """An error that an application of a simulation raises."""


class Planned:
    """The unruly actions of one member's application, from its own random generator."""

    def __init__(self, random: Random, per_mille: int) -> None:
        self.random = random
        self._per_mille = per_mille
        self._raises: str | None = None

    def draw(self) -> str | None:
        """Return the action for this turn, or None."""
        if not self._per_mille or self.random.randrange(1_000) >= self._per_mille:
            return None
        whim = self.random.choices(list(WHIMS), list(WHIMS.values()))[0]
        if whim == "raise_soon":
            self._raises = self.random.choice(("assign", "revoke", "lost", "events", "events"))
        return whim

    def raise_in(self, callback: str) -> None:
        """Raise an exception if the seed planned an exception in this callback."""
        if self._raises == callback:
            self._raises = None
            raise ApplicationError(f"the application raises this in {callback}")

    def sometimes(self) -> bool:
        """Return True at random; always return False for a calm application."""
        return bool(self._per_mille) and self.random.random() < 0.3

    async def until_cancelled(self, task: asyncio.Task[Any]) -> None:
        """Wait until the moment at which the seed cancels the call: after some steps of the loop, or after some time."""
        if self.random.random() < 0.5:
            for _ in range(self.random.randrange(40)):
                if task.done():
                    return
                await asyncio.sleep(0)
        else:
            await asyncio.wait({task}, timeout=self.random.choice((0.001, 0.01, 0.05, 0.3)) * self.random.random())


@attrs.frozen
class Cut:
    """The await at which a call is cancelled: the ``step``-th await, ``after_s`` seconds after this await began."""

    call: str
    step: int
    after_s: float

    async def stepped(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call in the current task, and cancel this task at the drawn await."""
        task = asyncio.current_task()
        assert task is not None
        loop, step, after_s = asyncio.get_running_loop(), self.step, self.after_s

        @types.coroutine
        def counted() -> Generator[Any, Any, T]:
            made = 0
            waits = call.__await__()
            resume: Callable[[], Any] = lambda: next(waits)  # noqa: E731 - replaced when an exception is raised
            while True:
                try:
                    awaited = resume()
                except StopIteration as ended:
                    return ended.value  # type: ignore[no-any-return]
                if made == step:
                    if after_s:
                        loop.call_later(after_s, task.cancel)
                    else:
                        task.cancel()
                made += 1
                try:
                    yield awaited
                except BaseException as error:  # noqa: BLE001 - raised in the call
                    resume = functools.partial(waits.throw, error)
                else:
                    resume = functools.partial(next, waits)

        return await counted()


@attrs.define
class Periods:
    """The time inside some periods of a process, without its pauses. Periods that overlap count once."""

    process: Process
    #: How many periods have begun and not ended.
    open: int = 0
    _ended_s: float = 0.0
    _began: float = 0.0

    def seconds(self) -> float:
        """Return the seconds so far, also those of periods that have not ended."""
        return self._ended_s + (self._moment() - self._began if self.open else 0.0)

    def _moment(self) -> float:
        return self.process.time() - self.process.frozen_s

    @contextlib.contextmanager
    def period(self) -> Iterator[None]:
        """Begin a period, which ends with the context."""
        if not self.open:
            self._began = self._moment()
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            if not self.open:
                self._ended_s += self._moment() - self._began


class Calls:
    """The calls of one member, and the rules for them."""

    def __init__(self, name: str, process: Process, fail: Callable[[Violation], None]) -> None:
        self._name = name
        self._process = process
        self._fail = fail
        #: The application's callbacks; its calls of unsubscribe, for which the calls of all other tasks wait; and both.
        self._callbacks = Periods(process)
        self._unsubscribes = Periods(process)
        self._turns = Periods(process)
        #: Seconds that a close in another task may take.
        self.closes_s: float = 0.0
        self._inside = 0
        #: The times at which the last poll began and ended.
        self._entered_at = 0.0
        self._left_at = 0.0
        self._still_s = 0.0
        self._core: ConsumerCoordinator | None = None
        self._max_poll_s = 0.0
        self._proved_at = -1e9
        #: The last time at which the member had its assignment and no join was in progress.
        self._stable_at = -1e9
        #: The last time at which the member was not :meth:`in_group`.
        self._outside_at = -1e9
        self._commits: list[tuple[Ticket, Mapping[TopicPartition, Holding | None]]] = []
        self._odd_since: dict[TopicPartition, float] = {}

    # -- time limits ----------------------------------------------------------------------------------------------------

    async def timed(
        self, call: Coroutine[Any, Any, T], limit_s: float, what: str, *, prompt: bool = False, has_turn: bool = False
    ) -> T:
        """Await a call, which must return within the limit. Time in callbacks and pauses of the process does not count.

        Unless ``prompt`` is set, a call may also wait for a close in another task; and for an unsubscribe, unless it is one
        itself (``has_turn``).
        """
        excused = self._callbacks if has_turn else self._turns
        began, spent = self._process.time(), excused.seconds() + self._process.frozen_s
        killed = False
        try:
            return await call
        except GeneratorExit:
            killed = True
            raise
        finally:
            took = self._process.time() - began - (excused.seconds() + self._process.frozen_s - spent)
            if took > limit_s + (0.0 if prompt else self.closes_s) + MOMENT_S and not killed:
                raise Violation("late", f"{self._name}: {what} took {took:.2f} s; its limit is {limit_s:.2f} s")

    async def cancelled(self, call: Coroutine[Any, Any, T], plan: Planned, *, has_turn: bool = False) -> T | None:
        """Begin a call and cancel the call; return the result if the call ended before the cancellation, else None.

        ``has_turn`` is that of :meth:`timed`.
        """
        task = asyncio.get_running_loop().create_task(call)
        await plan.until_cancelled(task)
        task.cancel()
        return await self._ended(task, has_turn)

    async def cut(self, call: Coroutine[Any, Any, T], cut: Cut) -> T | None:
        """Begin a call and cancel the call at one of its awaits; return the result of a call that ended earlier, else None."""
        task = asyncio.get_running_loop().create_task(cut.stepped(call))
        # A call that does not reach the drawn await is cancelled after this time.
        await asyncio.wait({task}, timeout=_LONGEST_CUT_S)
        task.cancel()
        return await self._ended(task, has_turn=False)

    async def _ended(self, task: asyncio.Task[T], has_turn: bool) -> T | None:

        async def over() -> None:
            await asyncio.wait({task})

        await self.timed(over(), 0.0, "a cancelled call", has_turn=has_turn)
        return None if task.cancelled() else task.result()

    @contextlib.contextmanager
    def called_back(self) -> Iterator[None]:
        """Measure the time inside a callback of the application."""
        with self._callbacks.period(), self._turns.period():
            yield

    @contextlib.contextmanager
    def unsubscribing(self) -> Iterator[None]:
        """Measure the time of an unsubscribe, for whose end the calls of other tasks wait."""
        with self._unsubscribes.period(), self._turns.period():
            yield

    @property
    def unsubscribes(self) -> bool:
        """Whether a call of unsubscribe has begun and not ended."""
        return self._unsubscribes.open > 0

    # -- polling --------------------------------------------------------------------------------------------------------

    async def polling(self, call: Coroutine[Any, Any, T]) -> T:
        """Await poll or consume."""
        self._inside += 1
        self._entered_at = self._process.time()
        self._still_s = self._process.frozen_s
        try:
            return await call
        finally:
            self._inside -= 1
            self._left_at = self._process.time()

    def watch(self, core: ConsumerCoordinator, max_poll_s: float) -> None:
        """Check that the member leaves the group for ``max.poll.interval.ms`` only if the application does not poll."""
        self._core, self._max_poll_s = core, max_poll_s
        protocol = core.protocol
        assert isinstance(protocol, (ClassicProtocol, ConsumerMember))
        witnessed = protocol.session if isinstance(protocol, ClassicProtocol) else protocol
        exceeded = witnessed.poll_interval_exceeded
        self._left_at = self._process.time()

        async def checked() -> None:
            moment = self._process.time()
            # Ignore a poll that began at the virtual time of this check, because the member may count that poll only later.
            polls = self._inside and not self._turns.open and moment > self._entered_at
            since_s = 0.0 if polls else moment - self._left_at
            # The heartbeat task checks for polls ten times in each interval, so the task may count a poll late.
            if since_s < max_poll_s * 0.8 and self._still_s == self._process.frozen_s and not self._turns.open:
                self._fail(
                    Violation("polling", f"{self._name} left because of max.poll.interval.ms, but polled {since_s:.1f} s ago")
                )
            await exceeded()

        witnessed.poll_interval_exceeded = checked  # type: ignore[method-assign]  # observes the calls

    def watch_commits(self, core: ConsumerCoordinator, holdings: Mapping[TopicPartition, Holding]) -> None:
        """Check that the consumer makes no commit below a commit that was confirmed to the application."""
        lane = core.commits
        submit = lane.submit

        def checked(ticket: Ticket) -> None:
            for partition, entry in ticket.entries.items():
                holding = holdings.get(partition)
                if holding is None or holding.went_back or holding.resumes_at is not None:
                    continue
                if max(holding.truncated_position, entry.position.offset) < holding.acknowledged:
                    wrong = f"{self._name} commits {entry.position.offset} of {partition} after {holding.acknowledged}"
                    self._fail(Violation("rewind", f"{wrong}, which was confirmed to the application"))
            submit(ticket)

        lane.submit = checked  # type: ignore[method-assign]  # observes the calls

    async def away(self, seconds: float) -> None:
        """Stop polling for some seconds. After ``max.poll.interval.ms`` the member must have left the group."""
        still_s = self._process.frozen_s
        await asyncio.sleep(seconds)
        too_long = seconds > self._max_poll_s * 1.2 + _AWAY_S and still_s == self._process.frozen_s
        if too_long and self._core is not None and self._core.generation >= 0:
            self._fail(Violation("polling", f"{self._name} is still a member, but has not polled for {seconds:.1f} s"))

    # -- errors ---------------------------------------------------------------------------------------------------------

    def note_proof(self, core: ConsumerCoordinator) -> None:
        """Record when the coordinator last accepted a request of this member."""
        if not self._is_member_for(API_TIMEOUT_S):
            self._outside_at = self._process.time()
        if core.generation >= 0:
            self._proved_at = max(self._proved_at, self._process.time() - core.lease.proven_s)
        if core.protocol.state in (MemberState.STABLE, State.STABLE):
            self._stable_at = self._process.time()

    def _is_member_for(self, seconds: float) -> bool:
        return self._process.time() - min(self._proved_at, self._stable_at) < seconds

    def in_group(self, core: ConsumerCoordinator, *, for_s: float) -> bool:
        """Return whether the coordinator accepted a request within :data:`API_TIMEOUT_S`, and no rebalance has lasted longer.

        If not, a call may raise. ``for_s``: this holds for so many seconds, because a call raises so long after its reason.
        """
        self.note_proof(core)
        return self._is_member_for(API_TIMEOUT_S) and self._process.time() - self._outside_at >= for_s

    def judge(self, error: CoordinatorError, excuse: str | None) -> None:
        """Check the error of a poll."""
        if CoordinatorError in (type(error), type(error.__cause__)):
            # An error of the base class means that a background task crashed.
            raise Violation("crash", f"{self._name}: {error}") from error
        if isinstance(error, (ApplicationError, CallbackError, NoOffsetError, WakeupError)) or excuse is not None:
            return
        raise Violation("raised", f"{self._name}: poll raised {type(error).__name__}: {error}") from error

    # -- asynchronous commits -------------------------------------------------------------------------------------------

    def began_commit(self, ticket: Ticket, holdings: Mapping[TopicPartition, Holding | None]) -> None:
        """Record the start of an asynchronous commit."""
        self._commits.append((ticket, holdings))

    def answered_commit(self, ticket: Ticket) -> Mapping[TopicPartition, Holding | None]:
        """Record the outcome of a commit; return the :class:`Holding` of each partition at the start of the commit."""
        for number, (asked, holdings) in enumerate(self._commits):
            if asked is ticket:
                if number:
                    raise Violation(
                        "reported", f"{self._name} received the outcomes of commits in another order than that of the commits"
                    )
                del self._commits[number]
                return holdings
        raise Violation(
            "reported",
            f"{self._name} received the outcome of a commit of {sorted(ticket.entries)} that it did not make, or received the"
            " outcome twice",
        )

    def all_commits_answered(self) -> None:
        """Check after the close that all commits have an outcome."""
        if self._commits:
            raise Violation("reported", f"{self._name} closed without the outcomes of {len(self._commits)} commits")

    # -- stranded partitions --------------------------------------------------------------------------------------------

    def forget_stranded(self) -> None:
        """Measure again, from the next check, how long each partition has not been fetched."""
        self._odd_since.clear()

    def look_for_stranded(self, engine: Engine, plane: FetchWitness, paused: Collection[TopicPartition]) -> None:
        """Check between two polls that every owned partition is fetched, is ``paused``, or waits for a position."""
        self.note_proof(engine.core)
        if engine.core.application.attention:
            return
        moment = self._process.time()
        odd = {}
        for partition, one in engine.table.items():
            if not one.notified or partition not in engine.core.assignment.held:
                continue
            what = self._odd(engine, plane, partition)
            if one.paused and partition not in paused and one.phase is not Phase.RELEASING:
                what = "is paused, but the application did not pause it"
            if what is not None:
                odd[partition] = self._odd_since.get(partition, moment)
                if moment - odd[partition] > _STRANDED_S:
                    raise Violation("stranded", f"{self._name}: {partition} {what}")
        self._odd_since = odd

    def _odd(self, engine: Engine, plane: FetchWitness, partition: TopicPartition) -> str | None:
        one, reading = engine.table[partition], plane.reading(partition)
        if one.phase is Phase.UNLOCATED or one.declined:
            return None
        if one.phase is Phase.LOCATING:
            return None if engine.looks_up(partition) else "waits for a position that nothing looks up"
        if reading is None:
            # The end of fetching is handled after the last fetched record was delivered.
            fetched = one.fetched and not engine.reader.waits(partition)
            return "has a position, but is not fetched" if fetched else None
        if not one.fetched:
            return "must not be read, but the data plane reads it"
        # The event that reports the position as out of range may still be on its way to the application.
        ended = partition in engine.reader.out_of_range
        if reading.stopped and not ended and not plane.has_event(partition):
            return "is out of range, but no new offset is looked up"
        return None
