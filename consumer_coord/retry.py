"""Retries, over the loop's time and the environment's random generator.

The backoff is Kafka's (``ExponentialBackoff``, KIP-580): doubling from ``retry.backoff.ms`` to ``retry.backoff.max.ms``, each
with 20 % of jitter.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from typing import Self

from assignors import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import RequestTimedOutError, RetriableError
from consumer_coord.printable import get_logger

logger = get_logger(__name__)

_JITTER = 0.2


@attrs.frozen
class Deadline:
    """A point in the loop's time, in seconds; every wait of this package has one."""

    at: float

    @classmethod
    def after(cls, timeout_ms: float) -> Deadline:
        """Return the deadline ``timeout_ms`` from now."""
        return cls(now() + timeout_ms / 1000)

    @property
    def remaining_ms(self) -> float:
        """Milliseconds left, never negative."""
        return max(0.0, (self.at - now()) * 1000)

    @property
    def passed(self) -> bool:
        """True when no time is left."""
        return now() >= self.at

    def within(self, timeout_ms: float) -> float:
        """Return the smaller of ``timeout_ms`` and the time left, in milliseconds."""
        return min(timeout_ms, self.remaining_ms)


@attrs.frozen
class Backoff:
    """The delay before the n-th retry, n from 0."""

    initial_ms: float
    max_ms: float
    random: random.Random

    def ms(self, retries: int) -> float:
        """Return milliseconds, with jitter even at ``max_ms``: equal waits would keep in step with other timers."""
        jitter = self.random.uniform(1 - _JITTER, 1 + _JITTER)
        return min(self.max_ms, min(self.max_ms, self.initial_ms * 2.0 ** min(retries, 30)) * jitter)


class Pace:
    """A rate limit: at most ``burst`` turns at once, and ``per_s`` a second in the long run."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._apart_s = 1 / per_s
        self._ahead_s = burst / per_s
        #: Time at which all turns so far would be over if they came one at a time.
        self._booked_until = float("-inf")

    async def turn(self) -> None:
        """Wait for a turn; the first ones do not wait."""
        moment = now()
        self._booked_until = max(self._booked_until, moment) + self._apart_s
        wait_s = self._booked_until - moment - self._ahead_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class Attempt:
    """One attempt of :func:`retrying`, as a context manager: keeps a :class:`RetriableError` for the next step."""

    error: RetriableError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, RetriableError):
            self.error = error
        return self.error is not None


async def retrying(
    backoff: Backoff,
    deadline: Deadline | None,
    *,
    what: str,
    log: Callable[[str], None] | None = None,
) -> AsyncIterator[Attempt]:
    """Retry on :class:`RetriableError` until ``deadline`` (None: forever); the last error is raised unchanged.

    Use it as ``async for attempt in retrying(...): with attempt: ...``; the loop ends after an attempt without an error.
    """
    for retries in itertools.count():
        attempt = Attempt()
        yield attempt
        if attempt.error is None:
            return
        wait_ms = backoff.ms(retries)
        if deadline is not None:
            if deadline.passed:
                raise attempt.error
            wait_ms = deadline.within(wait_ms)
        message = f"{what}: {attempt.error}; trying again"
        if log is not None:
            log(message)
        else:
            logger.debug("%s", message)
        await asyncio.sleep(wait_ms / 1000)


def timed_out(what: str, timeout_ms: float, last: BaseException | None = None) -> RequestTimedOutError:
    """Return the error for a deadline that passed, with the last error."""
    because = f"; the last attempt failed with: {last}" if last is not None else ""
    return RequestTimedOutError(f"{what} did not finish within {timeout_ms:.0f} ms{because}")
