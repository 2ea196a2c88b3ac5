"""A blocking call: its coroutine runs on the loop, and the calling thread runs code that must not run on the loop.

The engine of a blocking consumer runs on the loop of the background thread. Calls of librdkafka that block, and the
application's callbacks, must run on the thread that called the consumer. This thread waits for the end of the coroutine, and
runs the functions that the coroutine passes to :meth:`BlockingCall.on_caller`.

A signal handler, such as Ctrl-C's, may raise on the calling thread. In that case the call ends on both sides: the coroutine is
cancelled, and raises :class:`CallInterruptedError` where it awaits a function that was interrupted or had not run yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from consumer_coord.errors import ClosedError
from consumer_coord.runtime.locks import Bell
from consumer_coord.runtime.outcome import Outcome

T = TypeVar("T")

#: Interval at which a waiting thread checks that the loop still runs, in seconds.
_LOOK_S = 1.0


class CallInterruptedError(BaseException):
    """Raised in the coroutine if an interrupt of the calling thread, and not an error of a function, ended the call."""


class _Job(Generic[T]):
    """A function that runs on the calling thread, and the future of its result on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> None:
        self._loop = loop
        self._function = function
        self.result: asyncio.Future[T] = loop.create_future()
        # Mark an exception as retrieved, because the coroutine that awaited it may have been cancelled.
        self.result.add_done_callback(lambda done: done.cancelled() or done.exception())

    def run(self) -> None:
        """Run the function, on the calling thread."""
        try:
            value = self._function()
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            failure: Exception = error
            if isinstance(error, StopIteration):
                # A future does not accept StopIteration. So raise RuntimeError instead, as a coroutine does.
                failure = RuntimeError("a callback raised StopIteration")
                failure.__cause__ = error
            self._end(lambda: self.result.set_exception(failure))
        except BaseException:
            self.interrupt()
            raise
        else:
            self._end(lambda: self.result.set_result(value))

    def interrupt(self) -> None:
        """End the job without a result."""
        self._end(lambda: self.result.set_exception(CallInterruptedError()))

    def _end(self, end: Callable[[], None]) -> None:
        # The loop may have been closed because the interpreter exits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: None if self.result.done() else end())


class BlockingCall:
    """A call of a blocking method; the calling thread creates and runs it."""

    #: The blocking call that started the running task.
    _current: contextvars.ContextVar[BlockingCall] = contextvars.ContextVar("blocking call")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[_Job[Any]] = deque()
        self._bell = Bell()
        self._left = False
        self._outcome: Outcome[Any] = Outcome(loop)
        self._outcome.add_done_callback(lambda _: self._bell.set())

    # -- on the calling thread ----------------------------------------------------------------------------------------

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop, wait until it ends, and return its result or raise its exception."""
        outcome: Outcome[T] = self._outcome
        try:
            self._loop.call_soon_threadsafe(self._begin, work)
            while not outcome.done():
                self._bell.wait(_LOOK_S)
                while self._jobs:
                    # Remove the job only after it ran, so that an interrupt before the removal does not lose the job.
                    self._jobs[0].run()
                    self._jobs.popleft()
                if not self._loop.is_running():
                    raise ClosedError("the background loop has ended, because the Python interpreter is shutting down")
            return outcome.result()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Cancel the coroutine and interrupt the functions for the calling thread; idempotent, from any thread."""
        self._left = True
        for job in tuple(self._jobs):
            job.interrupt()
        with contextlib.suppress(RuntimeError):
            self._outcome.cancel()

    @property
    def over(self) -> bool:
        """True after the coroutine has ended."""
        return self._outcome.done()

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._current.set(self)
        self._outcome.follow(self._loop.create_task(work()))

    async def ended(self) -> None:
        """End a call after its thread has left; wait until its coroutine has ended."""
        self._leave()
        # If there is no task, the thread left before the call reached the loop.
        if self._outcome.work is not None:
            await asyncio.wait({self._outcome.work})

    @classmethod
    def on_caller(cls, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function on the thread whose blocking call the running task belongs to."""
        call = cls._current.get()
        job = _Job(call._loop, function)
        call._jobs.append(job)
        if call._left:
            job.interrupt()
        else:
            call._bell.set()
        return job.result
