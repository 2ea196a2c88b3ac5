"""Wait for a condition with a deadline: :func:`eventually` in a thread, :func:`eventually_async` in a coroutine.

Both return the first true value of the condition. When the deadline passes, both raise TimeoutError with what was awaited and
the last value. A condition that raises ends the wait with its exception.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")

#: Generous, because the machine may be busy; no healthy test waits this long.
DEADLINE_S = 180.0


def eventually(
    condition: Callable[[], T],
    what: str = "the condition",
    *,
    within_s: float = DEADLINE_S,
    every_s: float = 0.02,
    step: Callable[[], object] | None = None,
    shows: Callable[[], object] | None = None,
) -> T:
    """Evaluate ``condition`` until its value is true, and return that value.

    ``step`` runs between two evaluations instead of the pause of ``every_s`` seconds: a poll, for instance. Raise TimeoutError
    after ``within_s`` seconds; the message has ``what`` was awaited, and the last value, or the result of ``shows``.
    """
    ends = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() >= ends:
            raise TimeoutError(_message(what, within_s, value, shows))
        if step is None:
            _NEVER.wait(every_s)
        else:
            step()
    return value


@overload
async def eventually_async(
    condition: Callable[[], Coroutine[Any, Any, T]],
    what: str = ...,
    *,
    within_s: float = ...,
    every_s: float = ...,
    step: Callable[[], Awaitable[object]] | None = ...,
    shows: Callable[[], object] | None = ...,
) -> T: ...


@overload
async def eventually_async(
    condition: Callable[[], T],
    what: str = ...,
    *,
    within_s: float = ...,
    every_s: float = ...,
    step: Callable[[], Awaitable[object]] | None = ...,
    shows: Callable[[], object] | None = ...,
) -> T: ...


async def eventually_async(
    condition: Callable[[], Any],
    what: str = "the condition",
    *,
    within_s: float = DEADLINE_S,
    every_s: float = 0.001,
    step: Callable[[], Awaitable[object]] | None = None,
    shows: Callable[[], object] | None = None,
) -> Any:
    """Evaluate ``condition`` until its value is true, and return that value; as :func:`eventually`, in the time of the loop.

    ``condition`` may be a coroutine function. In virtual time the pause of ``every_s`` seconds takes no real time.
    """
    clock = asyncio.get_running_loop().time
    ends = clock() + within_s
    while True:
        value = condition()
        if inspect.iscoroutine(value):
            value = await value
        if value:
            return value
        if clock() >= ends:
            raise TimeoutError(_message(what, within_s, value, shows))
        await (asyncio.sleep(every_s) if step is None else step())


def _message(what: str, within_s: float, value: object, shows: Callable[[], object] | None) -> str:
    last = repr(value) if shows is None else str(shows())
    return f"{what}: not within {within_s:g} s; last value: {last}"


#: Never set: a wait for it is a pause, also where a test has replaced ``time.sleep``.
_NEVER = threading.Event()
