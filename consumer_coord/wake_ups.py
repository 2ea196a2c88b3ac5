"""A wake-up for several waiters at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumer_coord.errors import CoordinatorError
from consumer_coord.retry import Deadline


class WakeUp:
    """A wake-up for tasks that wait for a condition. All waiters check their conditions again, and none misses a wake-up."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wake all waiters. Call this method only on the loop."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the next :meth:`fire`; waiters resume in the order in which they began to wait."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def until(self, condition: Callable[[], bool], deadline: Deadline | None = None) -> bool:
        """Wait until ``condition()`` is true; return False if ``deadline`` passed first."""
        if condition():
            return True
        try:
            async with asyncio.timeout(None if deadline is None else deadline.remaining_ms / 1000):
                while not condition():
                    await self.wait()
        except TimeoutError as error:
            if isinstance(error, CoordinatorError):
                raise
            return condition()
        return True
