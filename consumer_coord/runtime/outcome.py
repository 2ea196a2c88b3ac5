"""What work on a loop's thread ends with, for an application's thread, which a signal handler may interrupt anywhere.

``concurrent.futures.Future`` has a lock that both threads take.  A handler that raises, Ctrl-C's for one, can leave it locked
for ever, and the loop then stands still when it tells of the end.  Here the application's thread takes no lock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from consumer_coord.printable import get_logger
from consumer_coord.runtime.locks import Bell

logger = get_logger(__name__)

T = TypeVar("T")


class _End(NamedTuple):
    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False


class Outcome(concurrent.futures.Future[T]):
    """A future that the loop's thread alone sets; :meth:`wait` and all that reads it may be interrupted at any point."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._work: asyncio.Future[T] | None = None
        self._end: _End | None = None
        self._told: deque[Callable[[Any], object]] = deque()
        super().add_done_callback(Outcome._ended)  # type: ignore[arg-type]  # it is called with this very future

    # -- on the loop's thread -------------------------------------------------------------------------------------------

    def follow(self, work: asyncio.Future[T]) -> None:
        """End as ``work`` does."""
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
        self._tell()

    @property
    def work(self) -> asyncio.Future[T] | None:
        """The work on the loop; None before it began."""
        return self._work

    def _give_up(self) -> None:
        if self._work is not None:
            self._work.cancel()

    # -- on any thread --------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done, at most ``timeout_s`` seconds; False when that time is over."""
        if self._end is None:
            over = Bell()
            self.add_done_callback(lambda done: over.set())
            over.wait(timeout_s)
        return self.done()

    def done(self) -> bool:
        """Whether it is over."""
        return self._end is not None

    def running(self) -> bool:
        """Whether it is not."""
        return self._end is None

    def cancelled(self) -> bool:
        """Whether the work was cancelled."""
        return self._end is not None and self._end.cancelled

    def cancel(self) -> bool:
        """Cancel the work, soon; False when it is over."""
        if self._end is not None:
            return self._end.cancelled
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_up)
        return True

    def result(self, timeout: float | None = None) -> T:
        """What the work returned; raises what it raised, CancelledError, or TimeoutError after ``timeout`` seconds."""
        end = self._within(timeout)
        if end.error is not None:
            raise end.error
        value: T = end.value
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the work raised, None when it returned; raises CancelledError, or TimeoutError after ``timeout`` seconds."""
        return self._within(timeout).error

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn`` with this when it is over, on the loop's thread; at once when it is over already."""
        self._told.append(fn)
        if self._end is not None:
            self._tell()

    def _within(self, timeout_s: float | None) -> _End:
        self.wait(timeout_s)
        end = self._end
        if end is None:
            raise concurrent.futures.TimeoutError
        if end.cancelled:
            raise concurrent.futures.CancelledError
        return end

    def _tell(self) -> None:
        # Each is taken once, whichever thread takes it.
        while self._told:
            try:
                told = self._told.popleft()
            except IndexError:
                return  # the other thread took it
            try:
                told(self)
            except Exception:
                logger.exception("what was to be called at the end of %r raised", self._work)


def start_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Outcome[T]:
    """Run a coroutine on a loop, from another thread."""
    outcome: Outcome[T] = Outcome(loop)
    loop.call_soon_threadsafe(lambda: outcome.follow(loop.create_task(work)))
    return outcome
