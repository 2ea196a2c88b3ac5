"""A decorator that runs a test's coroutine in virtual time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from consumer_coord.simulation import loop as virtual

P = ParamSpec("P")

#: No test takes more virtual time than this; an endless wait ends here, and the error shows the wait.
_LONGEST_S = 7_200


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test's coroutine on a virtual-time loop; an exception that no task awaited fails the test."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def whole() -> None:
            await test(*args, **kwargs)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual.VirtualTimeLoop)
            assert not loop.errors, loop.errors

        virtual.run(whole(), seed=1, max_time_s=_LONGEST_S)

    return run


async def pause(ms: float = 0) -> None:
    """Let virtual time pass, and run everything that is ready."""
    await asyncio.sleep(ms / 1000 + 1e-6)


def now_ms() -> float:
    """Return the virtual milliseconds since the test began."""
    return asyncio.get_running_loop().time() * 1000
