"""Whose turn it is among the tasks that use one consumer: first come, first served."""

from __future__ import annotations

import asyncio


class TaskTurns:
    """One task at a time has the turn; a long wait passes it on between two slices."""

    def __init__(self) -> None:
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
        """Wait for the turn; ``holder`` stands for the call that takes it."""
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        self._holder = holder

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
