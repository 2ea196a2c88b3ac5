"""An asyncio event loop in virtual time.

No time is spent waiting: when no callback is ready, the clock jumps to the next timer. A minute of heartbeats takes
milliseconds, and the same program takes the same steps in the same order each time:

* callbacks run in the order in which they were scheduled, and timers of the same moment fire in the order in which they were
  set;
* tasks and futures hash by their number, not by their address, so that even the order of a set of tasks is always the same;
* there are no threads and no sockets.  ``run_in_executor`` and ``asyncio.to_thread`` run inline.

Certain mistakes of the program end the run. :class:`DeadlockError`: nothing is ready and no timer is set. :class:`LimitError`:
callbacks schedule each other and no time passes, or the run exceeds its limit of steps or time.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import gc
import heapq
import itertools
import random
import threading
import weakref
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar, TypeVarTuple, Unpack

import attrs

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Maximum number of callbacks in one moment of virtual time; more callbacks mean that the program is in an endless loop.
MAX_STEPS_PER_MOMENT = 2_000_000

_STEPS_BETWEEN_LOOKS = 1_000

#: Maximum number of clock reads without a suspension. A callback that reads the clock until time has passed would never end,
#: because time does not pass in a callback.
MAX_CLOCK_READS = 200_000

#: The thresholds of Python's garbage collector during a run.
_COLLECT_AT = (50_000, 20, 100)

#: Number of cancelled timers above which they are removed from the heap, if they are also more than half of the heap.
_SWEEP_AT = 100


class SimulationError(Exception):
    """Base of the errors about the simulation itself."""


class DeadlockError(SimulationError):
    """Raised if the main coroutine waits forever: nothing is ready and no timer is set."""


class LimitError(SimulationError):
    """Raised if the run exceeded its limit of steps or of virtual time."""


class LeakError(SimulationError):
    """Raised if the main coroutine ended and left tasks or timers."""


@attrs.frozen
class Leaks:
    """Unfinished tasks, with the places where they wait, and timers that would still fire, as text."""

    tasks: tuple[str, ...]
    timers: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.tasks or self.timers)

    def __str__(self) -> str:
        return "\n".join([*(f"task {task}" for task in self.tasks), *(f"timer {timer}" for timer in self.timers)])


class _Future(asyncio.Future[Any]):
    number: int

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    # A class attribute, because the constructor of the base class already hashes the task.
    number = 0

    def __init__(self, number: int, coroutine: Any, *, loop: asyncio.AbstractEventLoop, name: str, context: Any) -> None:
        self.number = number
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class _Slots:
    """Attributes of asyncio's handles that the type stubs do not declare."""

    __slots__ = ()
    _args: Any
    _callback: Any
    _cancelled: bool
    _context: contextvars.Context
    _loop: asyncio.AbstractEventLoop
    _repr: str | None
    _source_traceback: None


class Handle(_Slots, asyncio.Handle):
    """A handle like asyncio's, created with half as many function calls, because a run creates about fifty thousand handles."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: Any, home: asyncio.AbstractEventLoop, context: contextvars.Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = home
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None


class Timer(_Slots, asyncio.TimerHandle):
    """A timer handle like asyncio's, created with fewer function calls."""

    __slots__ = ()
    _when: float
    #: True while the timer is in the heap. ``cancel()`` then notifies the loop.
    _scheduled: bool

    def __init__(
        self,
        loop: VirtualTimeLoop,
        when: float,
        callback: Callable[..., object],
        args: Any,
        home: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
        due: float | None = None,
    ) -> None:
        """Set a timer on ``loop``, for the loop or for one of the loop's processes (``home``).

        ``due`` is ``when`` on the clock of ``loop``, if ``home`` has another clock.
        """
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = home
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._scheduled = True
        self._repr = self._source_traceback = None
        heapq.heappush(loop.timers, (when if due is None else due, next(loop.numbers), self))

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)  # type: ignore[attr-defined]  # asyncio's own hook


def run_inline(loop: asyncio.AbstractEventLoop, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
    """Run ``function`` at once; return its finished future."""
    future: asyncio.Future[T] = loop.create_future()
    try:
        future.set_result(function(*args))
    except Exception as error:  # noqa: BLE001 - raised by the future
        future.set_exception(error)
    return future


class OnVirtualClock(asyncio.AbstractEventLoop):
    """The methods of an event loop that a :class:`VirtualTimeLoop` and its processes have in common."""

    #: Debug mode is always off. asyncio calls this method for every future; ``bool()`` returns False without a Python frame.
    get_debug = bool
    #: The loop with the clock and the queue of the run.
    loop: VirtualTimeLoop
    #: The ready callbacks of all processes, in order.
    queue: deque[Any]
    _closed: bool = False

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback, as asyncio does. Other threads must not call this method."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = Handle(callback, args, self, context)
        self.queue.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback like :meth:`call_soon`; raise an exception in a second thread, because a run has one thread."""
        if self.loop._thread_id not in (None, threading.get_ident()):
            raise RuntimeError("a VirtualTimeLoop has one thread; with two, the order of events would depend on chance")
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer, as asyncio does. Timers of one moment fire in the order in which they were set."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        return Timer(self.loop, when, callback, args, self, context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer, like asyncio. ``delay`` is in virtual seconds."""
        loop = self.loop
        return Timer(loop, loop.moment + delay, callback, args, self, context)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future that hashes by its number."""
        future = _Future(loop=self)
        future.number = next(self.loop.numbers)
        return future

    def create_task(self, coro: Any, *, name: object = None, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """Return a new task that hashes by its number. The number is also the default name of the task."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        number = next(self.loop.numbers)
        label = f"Task-{number}" if name is None else str(name)
        task = _Task(number, coro, loop=self, name=label, context=context)
        self.loop.tasks.add(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Run ``func`` inline, without virtual time."""
        return run_inline(self, func, *args)

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an exception, because only the simulated network exists."""
        raise SimulationError("a simulation has no sockets: pass a simulated connector")

    async def getnameinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an exception, like :meth:`getaddrinfo`."""
        raise SimulationError("a simulation has no sockets: pass a simulated connector")


class SharesClock(OnVirtualClock):
    """An event loop that uses the clock of a :class:`VirtualTimeLoop`, and can be paused and ended separately."""

    dead: bool
    #: True while the loop must not run its callbacks.
    halted: bool

    @abc.abstractmethod
    def put_off(self, handle: asyncio.Handle) -> None:
        """Keep a callback that became ready while the process was paused."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End the loop as SIGKILL ends a process: no task is cancelled, and no ``finally`` runs."""

    @abc.abstractmethod
    def dispose(self) -> None:
        """Close the remaining tasks after the run."""


class VirtualTimeLoop(OnVirtualClock, base_events.BaseEventLoop):
    """An asyncio event loop whose ``time()`` is virtual, in seconds, and starts at 0.

    ``max_time_s`` and ``max_steps`` end a run that is too long with :class:`LimitError`. ``random`` is a random generator for
    the simulated program, created from ``seed``. The loop does not use this generator.
    """

    # Declare the attributes of the base class.
    _stopping: bool
    _thread_id: int | None

    def __init__(self, *, seed: int | None = None, max_time_s: float = float("inf"), max_steps: int | None = None) -> None:
        super().__init__()
        self.loop: VirtualTimeLoop = self
        self.random: random.Random = random.Random(0 if seed is None else seed)
        self.steps: int = 0
        self.max_time_s = max_time_s
        self.max_steps = max_steps
        #: The arguments of the exception handler: exceptions in callbacks, and exceptions of tasks that no code awaited.
        self.errors: list[dict[str, Any]] = []
        #: The same value as :meth:`time`, for setting timers. Reading this attribute does not count as a read of the clock.
        self.moment: float = 0.0
        #: The timers, as a heap.
        self.timers: list[tuple[float, int, Timer]] = []
        self._cancelled_timers = 0
        #: The numbers of timers, futures and tasks.
        self.numbers: itertools.count[int] = itertools.count(1)
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._moment_began_at_step = 0
        #: The number of clock reads since the last check of the limits.
        self._clock_reads = 0
        self.queue: deque[Any] = deque()
        #: The processes on this loop's clock: see :mod:`consumer_coord.simulation.process`.
        self.processes: list[SharesClock] = []

    # -- time and scheduling ----------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        self._clock_reads += 1
        if self._clock_reads > MAX_CLOCK_READS:
            raise LimitError(f"the clock was read {MAX_CLOCK_READS} times at {self.moment:.3f} s without a suspension")
        return self.moment

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > _SWEEP_AT and self._cancelled_timers * 2 > len(self.timers):
            self.timers[:] = [entry for entry in self.timers if not entry[2]._cancelled]
            heapq.heapify(self.timers)
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        """Run the ready callbacks, and jump to the next timer if there are none, until :meth:`stop` is called.

        ``run_forever`` calls this method once. Unlike asyncio's method, this method does not return until the end, because
        there is no I/O to poll.
        """
        queue, take = self.queue, self.queue.popleft
        most_steps = float("inf") if self.max_steps is None else self.max_steps
        # The loop of the process whose callback ran last. Reading this from asyncio would be a system call before Python 3.12.
        running: Any = self
        try:
            while not self._stopping:
                if not queue:
                    self._jump()
                # The number of callbacks is limited, so that callbacks that only schedule each other do not prevent the check.
                count = len(queue)
                if count > _STEPS_BETWEEN_LOOKS:
                    count = _STEPS_BETWEEN_LOOKS
                self.steps += count
                for _ in range(count):
                    handle = take()
                    home = handle._loop
                    if home is not running:
                        if home is not self and home.halted:
                            home.put_off(handle)
                            continue
                        events._set_running_loop(home)
                        running = home
                    if not handle._cancelled:
                        # This code does the same as Handle._run.
                        try:
                            handle._context.run(handle._callback, *handle._args)
                        except BaseException as error:  # noqa: BLE001 - a finding of the run
                            _raised(home, handle, error)
                in_moment = self.steps - self._moment_began_at_step
                if in_moment > _STEPS_BETWEEN_LOOKS or self._clock_reads > MAX_CLOCK_READS or self.steps > most_steps:
                    self._check_limits()
                self._clock_reads = 0
        finally:
            events._set_running_loop(self)

    def _check_limits(self) -> None:
        """Raise :class:`LimitError` if callbacks read the clock or schedule each other endlessly."""
        # The run that this ends still reads the clock.
        reads, self._clock_reads = self._clock_reads, 0
        if reads > MAX_CLOCK_READS:
            # time() has raised this error in a callback, too, but the callback may have caught the error.
            raise LimitError(f"the clock was read {reads} times at {self.moment:.3f} s without a suspension")
        if self.steps - self._moment_began_at_step > MAX_STEPS_PER_MOMENT:
            raise LimitError(
                f"{MAX_STEPS_PER_MOMENT} callbacks ran at {self.moment:.3f} s without time passing:\n{self.leaks()}"
            )
        if self.max_steps is not None and self.steps > self.max_steps:
            raise LimitError(f"more than {self.max_steps} steps at {self.moment:.3f} s")

    def _jump(self) -> None:
        timers, pop = self.timers, heapq.heappop
        while timers and timers[0][2]._cancelled:
            pop(timers)
            self._cancelled_timers -= 1
        if not timers:
            if self._stopping:
                return
            raise DeadlockError(f"at {self.moment:.3f} s nothing is ready and no timer is set:\n{self.leaks()}")
        moment = timers[0][0]
        if moment > self.moment:
            if moment > self.max_time_s:
                raise LimitError(f"virtual time passed {self.max_time_s:.0f} s:\n{self.leaks()}")
            self.moment = moment
            self._moment_began_at_step = self.steps
        else:
            moment = self.moment
        append = self.queue.append
        while timers and timers[0][0] <= moment:
            handle = pop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_timers -= 1
            else:
                append(handle)

    def tasks_of(self, home: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of this loop, or of a process on it, in the order of their creation.

        asyncio's register contains the tasks of every loop until the garbage collector frees the tasks.
        """
        return sorted((task for task in self.tasks if task.get_loop() is home and not task.done()), key=hash)

    # -- errors and leaks -------------------------------------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep an error in :attr:`errors`. A simulation run fails if there is such an error."""
        self.errors.append(context)

    def leaks(self) -> Leaks:
        """Return the unfinished tasks, except the running one, and the timers that would still fire."""
        current = asyncio.current_task(self) if self.is_running() else None
        loops = [self, *(process for process in self.processes if not process.dead)]
        tasks = sorted((task for loop in loops for task in self.tasks_of(loop) if task is not current), key=hash)
        timers = sorted(entry for entry in self.timers if not entry[2]._cancelled and entry[2]._loop in loops)
        return Leaks(
            tuple(f"{task.get_name()} {waits_at(task)}" for task in tasks),
            tuple(f"at {when:.3f} s: {_name(timer)}" for when, _, timer in timers),
        )


def _raised(home: asyncio.AbstractEventLoop, handle: asyncio.Handle, error: BaseException) -> None:
    """Keep the exception of a callback, like asyncio's handles."""
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        raise error
    home.call_exception_handler({"message": f"Exception in callback {handle!r}", "exception": error})


def waits_at(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the innermost line, through all coroutines that the task awaits."""
    places: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            places.append(f"{code.co_name} ({code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "in " + " > ".join(places) if places else "finished"


def _name(timer: Timer) -> str:
    return str(getattr(timer._callback, "__qualname__", timer._callback))


def run(
    main: Coroutine[Any, Any, T],
    *,
    seed: int | None = None,
    max_time_s: float = float("inf"),
    max_steps: int | None = None,
    strict: bool = False,
) -> T:
    """Run ``main`` to its end on a fresh :class:`VirtualTimeLoop`, as ``asyncio.run`` does on a real loop.

    Remaining tasks are cancelled. With ``strict``, raise :class:`LeakError` for these tasks, for timers that would still fire,
    and for exceptions that no code awaited. Raise :class:`DeadlockError` and :class:`LimitError`.
    """
    if events._get_running_loop() is not None:
        raise RuntimeError("consumer_coord.simulation.loop.run() cannot be called from a running event loop")
    loop = VirtualTimeLoop(seed=seed, max_time_s=max_time_s, max_steps=max_steps)
    with _fewer_collections():
        try:
            result = loop.run_until_complete(main)
            left = loop.leaks() if strict else None
        finally:
            _end(loop)
    if left:
        raise LeakError(str(left))
    if strict and loop.errors:
        raise LeakError("\n".join(f"{error.get('message')}: {error.get('exception')!r}" for error in loop.errors))
    return result


@contextlib.contextmanager
def _fewer_collections() -> Iterator[None]:
    """Make garbage collections rare.

    The objects of a run either remain in use, or are freed at once without the collector. For a large group, repeated garbage
    collections take a third of the running time. What was there before is not looked at, after the remains of the former run
    were freed.
    """
    before, freezes = gc.get_threshold(), gc.get_freeze_count() == 0
    gc.set_threshold(*_COLLECT_AT)
    if freezes:
        gc.collect(1)
        gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freezes:
            gc.unfreeze()


def _end(loop: VirtualTimeLoop) -> None:
    """Cancel the remaining tasks, and close."""
    left = loop.tasks_of(loop)
    for process in loop.processes:
        process.kill()
    loop.max_time_s, loop.max_steps = float("inf"), None
    try:
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    except SimulationError:
        # A task ignored the cancellation. Do not raise an exception here, because the error of the run is more useful.
        loop.errors.append({"message": f"these tasks did not end when cancelled:\n{loop.leaks()}"})
    finally:
        for process in loop.processes:
            process.dispose()
        loop.close()
