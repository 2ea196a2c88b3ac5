"""The result of work on a loop's thread, for an application's thread that a signal handler may interrupt anywhere.

``concurrent.futures.Future`` has a lock that both threads acquire. A signal handler that raises, such as Ctrl-C's, can leave
this lock locked forever; then the loop blocks when it sets the result. The application's thread reads an :class:`Outcome`
without a lock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from consumer_coord.log_text import get_logger
from consumer_coord.runtime.locks import Bell

logger: Final = get_logger(__name__)

T = TypeVar("T")


class _End(NamedTuple):
    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False


class Outcome(concurrent.futures.Future[T]):
    """A future whose result only the loop's thread sets; :meth:`wait` and all read methods may be interrupted anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._work: asyncio.Future[T] | None = None
        self._end: _End | None = None
        self._on_done: deque[Callable[[Any], object]] = deque()
        super().add_done_callback(Outcome._ended)  # type: ignore[arg-type]  # it is called with this very future

    # -- on the loop's thread -------------------------------------------------------------------------------------------

    def follow(self, work: asyncio.Future[T]) -> None:
        """Take over the result of ``work``, the task on the loop, when it ends."""
        self._work = work
        work.add_done_callback(self._on_end)

    def _on_end(self, work: asyncio.Future[T]) -> None:
        if work.cancelled():
            super().cancel()
        elif (error := work.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(work.result())

    def _ended(self) -> None:
        if super().cancelled():
            self._end = _End(cancelled=True)
        elif (error := super().exception()) is not None:
            self._end = _End(error=error)
        else:
            self._end = _End(super().result())
        self._call_done()

    @property
    def work(self) -> asyncio.Future[T] | None:
        """The work on the loop; None before it began."""
        return self._work

    def _abandon(self) -> None:
        if self._work is not None:
            self._work.cancel()

    # -- on any thread --------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the work is done, at most ``timeout_s`` seconds; return False at the timeout."""
        if self._end is None:
            over = Bell()
            self.add_done_callback(lambda done: over.set())
            over.wait(timeout_s)
        return self.done()

    def done(self) -> bool:
        """Return whether the work is done."""
        return self._end is not None

    def running(self) -> bool:
        """Return whether the work is not done."""
        return self._end is None

    def cancelled(self) -> bool:
        """Return whether the work was cancelled."""
        return self._end is not None and self._end.cancelled

    def cancel(self) -> bool:
        """Cancel the work soon; return False if the work is already done."""
        if self._end is not None:
            return self._end.cancelled
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abandon)
        return True

    def result(self, timeout: float | None = None) -> T:
        """Return the result of the work; raise its error, CancelledError, or TimeoutError after ``timeout`` seconds."""
        end = self._within(timeout)
        if end.error is not None:
            raise end.error
        value: T = end.value
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the work, or None; raise CancelledError, or TimeoutError after ``timeout`` seconds."""
        return self._within(timeout).error

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn`` with this future, on the loop's thread, when the work is done, or at once if it is already done."""
        self._on_done.append(fn)
        if self._end is not None:
            self._call_done()

    def _within(self, timeout_s: float | None) -> _End:
        self.wait(timeout_s)
        end = self._end
        if end is None:
            raise concurrent.futures.TimeoutError
        if end.cancelled:
            raise concurrent.futures.CancelledError
        return end

    def _call_done(self) -> None:
        # Both threads may run this loop at the same time. Each callback is popped only once, so it is called only once.
        while self._on_done:
            try:
                callback = self._on_done.popleft()
            except IndexError:
                return  # The other thread popped the last callback.
            try:
                callback(self)
            except Exception:
                logger.exception("the completion callback of %r raised", self._work)


def start_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Outcome[T]:
    """Run a coroutine on a loop, from another thread."""
    outcome: Outcome[T] = Outcome(loop)
    loop.call_soon_threadsafe(lambda: outcome.follow(loop.create_task(work)))
    return outcome
