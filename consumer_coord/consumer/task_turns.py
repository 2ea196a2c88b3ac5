"""Whose turn it is among the tasks that use one consumer: first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumer_coord.consumer.scheduler import callback_never_ends
from consumer_coord.errors import ConcurrentUseError


class TaskTurns:
    """One task at a time has the turn; a long wait passes it on between two slices."""

    def __init__(self, max_poll_interval_ms: int, callback_runs_s: Callable[[], float]) -> None:
        """``callback_runs_s`` returns for how long a callback of the application has been running, 0 when none is."""
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
        """Wait for the turn; ``holder`` stands for the call that takes it.

        Raises :class:`~consumer_coord.errors.ConcurrentUseError` when a callback has had the turn for
        ``max.poll.interval.ms``: it may wait for the task that waits here.
        """
        if not self._waiting and not self._lock.locked():
            await self._lock.acquire()  # at once
        else:
            self._waiting += 1
            try:
                await self._wait()
            finally:
                self._waiting -= 1
        self._holder = holder

    async def _wait(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limit_ms / 1000):
                    await self._lock.acquire()
                return
            except TimeoutError:
                if self._callback_runs_s() >= self._limit_ms / 1000:
                    raise ConcurrentUseError(callback_never_ends(self._limit_ms)) from None

    def give(self, holder: object) -> None:
        """End the turn of ``holder``; nothing when it has none, because it was cancelled while another task had it."""
        if self._holder is holder:
            self._holder = None
            self._lock.release()

    async def pass_on(self) -> bool:
        """Let those who wait have their turns first; False when there are none."""
        if not self._waiting:
            return False
        holder, self._holder = self._holder, None
        self._lock.release()
        assert holder is not None
        await self.take(holder)
        return True
