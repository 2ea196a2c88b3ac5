"""The engine's home on an application's thread: the coordinator runs on the background loop, and waiting blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from consumer_coord.consumer.blocking import BlockingCoordinator
from consumer_coord.consumer.home import Pending
from consumer_coord.errors import CoordinatorError
from consumer_coord.threads.outcome import Outcome

T = TypeVar("T")


class BlockingHome:
    """See :class:`~consumer_coord.consumer.home.Home`; nothing here suspends."""

    def __init__(self, coordinator: BlockingCoordinator) -> None:
        self._coordinator = coordinator
        self._core = coordinator.core
        self.now = time.monotonic

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Outcome[T]:
        """On the background loop."""
        return self._coordinator.submit(work)

    def begin(self, start: Callable[[], asyncio.Future[T]]) -> Outcome[T]:
        """On the background loop."""
        return self._coordinator.begin(start)

    def later(self, delay_s: float, function: Callable[[], object]) -> None:
        """By a timer of the background loop."""
        self._coordinator.call_later(delay_s, function)

    async def wait(self, pending: Pending[Any], timeout_s: float) -> bool:
        """Blocks."""
        assert isinstance(pending, Outcome)
        return pending.wait(timeout_s)

    async def ring(self, timeout_s: float) -> None:
        """Blocks."""
        bell = self._core.application.bell
        bell.clear()
        if not self._core.application.attention:
            bell.wait(timeout_s)

    async def through(self, work: Coroutine[Any, Any, None]) -> None:
        """Nothing cancels it; an exception that is not the application's own leaves through it."""
        await work

    async def wait_idle(self) -> None:
        """Nothing goes on."""

    def abandoned(self) -> list[CoordinatorError]:
        """Nothing: an exception reaches the caller."""
        return []
