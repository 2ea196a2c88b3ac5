"""Let one task at a time use a consumer, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumer_coord.consumer.engine_loop import callback_never_ends
from consumer_coord.errors import ConcurrentUseError

#: How long a call still waits for its turn after the time limit of a callback, in seconds. If the process was frozen during the
#: callback, the callback can end during this time.
_GRACE_S = 1.0


class TaskTurns:
    """Assigns the turn to use the engine to one task at a time; a task in a long wait yields the turn repeatedly."""

    def __init__(self, max_poll_interval_ms: int, callback_runs_s: Callable[[], float]) -> None:
        """Set the time limit of callbacks; ``callback_runs_s`` returns how long a callback has been running, or 0."""
        self._limit_ms = max_poll_interval_ms
        self._callback_runs_s = callback_runs_s
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._holder: object | None = None

    @property
    def taken(self) -> bool:
        """True while a task has the turn."""
        return self._lock.locked()

    @property
    def waited_for(self) -> bool:
        """True while tasks wait for the turn."""
        return self._waiting > 0

    async def take(self, holder: object) -> None:
        """Wait for the turn, then take it for the call ``holder``.

        Raise :class:`~consumer_coord.errors.ConcurrentUseError` if a callback has had the turn for
        ``max.poll.interval.ms``: the callback may be waiting for the task that waits here.
        """
        if not self._waiting and not self._lock.locked():
            await self._lock.acquire()
        else:
            self._waiting += 1
            try:
                await self._wait()
            finally:
                self._waiting -= 1
        self._holder = holder

    async def _wait(self) -> None:
        late = False
        while True:
            try:
                async with asyncio.timeout(_GRACE_S if late else self._limit_ms / 1000):
                    await self._lock.acquire()
                return
            except TimeoutError:
                too_long = self._callback_runs_s() >= self._limit_ms / 1000
                if too_long and late:
                    raise ConcurrentUseError(callback_never_ends(self._limit_ms)) from None
                late = too_long

    def give(self, holder: object) -> None:
        """End the turn of ``holder``; do nothing if another task has the turn because ``holder`` was cancelled."""
        if self._holder is holder:
            self._holder = None
            self._lock.release()

    async def pass_on(self) -> bool:
        """Yield the turn to waiting tasks, then take it again; return False if no task waits."""
        if not self._waiting:
            return False
        holder, self._holder = self._holder, None
        self._lock.release()
        assert holder is not None
        await self.take(holder)
        return True
