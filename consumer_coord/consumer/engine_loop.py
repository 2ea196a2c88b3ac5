"""The event loop of an engine: its coordinator's loop, which belongs to a background thread, an application or a simulation."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from consumer_coord.errors import CallbackError, CoordinatorError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.runtime.blocking_call import CallInterruptedError


def callback_never_ends(limit_ms: int) -> str:
    """Return the error text for a call that waited for its turn while a callback ran for ``limit_ms``."""
    return (
        f"a callback of this consumer has been running for {limit_ms} ms (max.poll.interval.ms). A callback must not wait for"
        " another thread or task that calls this consumer; call the consumer in the callback itself"
    )


def weakly(method: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls a bound method as long as its object exists.

    For timers and callbacks, which must not keep a consumer alive that was dropped.
    """
    found = weakref.WeakMethod(method)

    def call() -> None:
        if (present := found()) is not None:
            present()

    return call


class LoopBell:
    """A bell for one waiting task, used instead of the coordinator's bell for threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Ring in the loop's next iteration, so that the caller can finish its step first."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._loop.call_soon(_end, waiting)

    async def wait(self, timeout_s: float) -> None:
        """Wait until the bell rings, at most ``timeout_s`` seconds."""
        waiting = self._waiting = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, _end, waiting)
        try:
            await waiting
        finally:
            timer.cancel()


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class EngineLoop:
    """The loop, its clock and its tasks, as the engine uses them; created and used on the loop."""

    def __init__(self, core: ConsumerCoordinator, *, other_threads: bool = False) -> None:
        """Keep the coordinator. ``other_threads``: whether the application calls from threads other than the loop's thread."""
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._bell = LoopBell()
        core.application.ring = self._ring_from_anywhere if other_threads else self._bell.set
        self.now: Callable[[], float] = self._loop.time
        self._work: asyncio.Task[None] | None = None
        self._abandoned: list[CoordinatorError] = []
        #: The running callback. The context variable identifies the callback in the callback's task and in tasks that this task
        #: started.
        self._running: object | None = None
        self._running_since = 0.0
        self._callback = contextvars.ContextVar[object | None]("callback", default=None)

    @property
    def in_callback(self) -> bool:
        """True inside the running callback, and in tasks that it started, until the callback ends."""
        return self._running is not None and self._callback.get() is self._running

    @property
    def callback_runs_s(self) -> float:
        """The seconds since the current callback began; 0 if no callback is running."""
        return 0.0 if self._running is None else self._loop.time() - self._running_since

    def later(self, delay_s: float, method: Callable[[], object]) -> asyncio.TimerHandle:
        """Call a bound method after ``delay_s`` seconds if its object still exists: a timer keeps no closed consumer alive."""
        return self._loop.call_later(delay_s, weakly(method))

    def records_arrived(self) -> None:
        """Wake the application, because records arrived; on the loop."""
        self._core.application.bell.set()
        self._bell.set()

    def _ring_from_anywhere(self) -> None:
        self._core.application.bell.set()
        # The loop may already be closed when the interpreter exits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._bell.set)

    async def ring(self, timeout_s: float) -> None:
        """Wait until the coordinator wakes the application, at most ``timeout_s`` seconds.

        Always yield to the loop, because the awaited work may be a task of this loop.
        """
        if self._core.application.attention:
            await asyncio.sleep(0)
        else:
            await self._bell.wait(timeout_s)

    async def bell(self, timeout_s: float) -> None:
        """Wait until something new happens, at most ``timeout_s`` seconds; changes of the group that wait do not count."""
        await self._bell.wait(timeout_s)

    async def through(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work`` in a task whose context marks it as a callback; the task continues if the caller is cancelled.

        The caller must call :meth:`wait_idle` first, because only one callback may run.
        """
        callback = object()

        async def run() -> None:
            try:
                await work
            finally:
                self._running = None

        context = contextvars.copy_context()
        context.run(self._callback.set, callback)
        self._running, self._running_since = callback, self._loop.time()
        self._work = self._loop.create_task(run(), context=context)
        try:
            await asyncio.shield(self._work)
        except asyncio.CancelledError:
            self._work.add_done_callback(self._abandon)
            raise

    def _abandon(self, work: asyncio.Task[None]) -> None:
        """Keep the exception of a callback whose caller was cancelled."""
        error = None if work.cancelled() else work.exception()
        # A CallInterruptedError was already raised on the application's thread.
        if error is not None and not isinstance(error, CallInterruptedError):
            failure = CallbackError(f"a callback raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._abandoned.append(failure)
            self._core.application.wake()

    def abandoned(self) -> list[CoordinatorError]:
        """Return the exceptions of callbacks whose callers were cancelled, each exception only once."""
        failures, self._abandoned = self._abandoned, []
        return failures

    async def wait_idle(self) -> None:
        """Wait for the callback of a call that was cancelled."""
        if self._work is not None and not self._work.done():
            await asyncio.wait({self._work})
