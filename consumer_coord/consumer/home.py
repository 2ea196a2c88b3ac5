"""Where an engine runs: on an application's thread beside the background loop, on an event loop, or in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from consumer_coord.errors import CoordinatorError

T = TypeVar("T", covariant=True)
S = TypeVar("S")


def callback_never_ends(limit_ms: int) -> str:
    """Return the message for a call that waited for its turn while a callback had it for ``limit_ms``."""
    return (
        f"a callback of this consumer has been running for {limit_ms} ms (max.poll.interval.ms): it must not wait for a thread"
        " or task that calls this consumer; call it in the callback itself"
    )


class Pending(Protocol[T]):
    """A future, of either kind."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> T: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(self, function: Callable[[Any], object], /) -> object: ...


class Home(Protocol):
    """What the engine asks of the place it runs in.  Nothing suspends where the application's thread may block."""

    def now(self) -> float:
        """Seconds on a clock that only grows."""

    def start(self, work: Callable[[], Coroutine[Any, Any, S]]) -> Pending[S]:
        """Start a coroutine of the coordinator's on its loop."""

    def begin(self, start: Callable[[], asyncio.Future[S]]) -> Pending[S]:
        """Call a function on the coordinator's loop; the future that it returns tells how what it began has ended."""

    def later(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call a function on the coordinator's loop after ``delay_s``; it must not keep the consumer alive."""

    async def wait(self, pending: Pending[Any], timeout_s: float) -> bool:
        """Wait until it is done; False when the time is up.  It goes on when the waiting is interrupted."""

    async def ring(self, timeout_s: float) -> None:
        """Wait until the coordinator rouses the application, at most ``timeout_s``."""

    async def through(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, which goes on to its end even when the waiting is cancelled."""

    async def wait_idle(self) -> None:
        """Returns when no such work is under way."""

    def abandoned(self) -> list[CoordinatorError]:
        """Return what such work raised after its caller was cancelled, once."""
