"""Databases and services that a program calls, in virtual time: a function takes some time, and sometimes fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from random import Random
from typing import Any

import attrs


@attrs.frozen
class ExternalCall:
    """One call of the program. ``done``: the service has done it, although the program may never have heard of it."""

    at_s: float
    process: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    done: bool
    failed: bool


@attrs.define(eq=False)
class External:
    """A service that replaces a coroutine function of the program; :attr:`calls` has what it was asked."""

    answer: Callable[..., Any]
    delay_s: tuple[float, float]
    failures: float
    error: type[Exception]
    _random: Random
    _process: Callable[[], str | None]
    calls: list[ExternalCall] = attrs.field(factory=list)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take some time, do what is asked in the middle of it, and answer, or fail before or after it is done."""
        loop, random = asyncio.get_running_loop(), self._random
        delay_s, fails, before = random.uniform(*self.delay_s), random.random() < self.failures, random.random() < 0.5
        process = self._process() or "test"
        await asyncio.sleep(delay_s / 2)
        done = not (fails and before)
        self.calls.append(ExternalCall(loop.time(), process, args, kwargs, done, fails))
        answer = self.answer(*args, **kwargs) if done else None
        if inspect.isawaitable(answer):
            answer = await answer
        await asyncio.sleep(delay_s / 2)
        if fails:
            raise self.error("the simulated service failed" + ("" if before else " after it had done what it was asked"))
        return answer
