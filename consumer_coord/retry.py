"""Retries with tenacity, on the loop's time and the environment's random generator.

By default tenacity uses ``time.monotonic`` and the global ``random``, which a simulation cannot replay, so this module passes
its own wait, stop and sleep. The backoff is Kafka's (``ExponentialBackoff``, KIP-580): doubling from ``retry.backoff.ms`` to
``retry.backoff.max.ms``, each with 20 % of jitter.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import RequestTimedOutError, RetriableError
from consumer_coord.log_text import get_logger

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState

logger: Final = get_logger(__name__)

_JITTER = 0.2


@attrs.frozen
class Deadline:
    """A point in the loop's time, in seconds; every wait of this package has a deadline."""

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
    """The delays before the retries of one operation."""

    initial_ms: float
    max_ms: float
    random: random.Random

    def ms(self, retries: int) -> float:
        """Return the delay after ``retries`` retries, with jitter even at ``max_ms``, so that timers do not synchronize."""
        jitter = self.random.uniform(1 - _JITTER, 1 + _JITTER)
        return min(self.max_ms, min(self.max_ms, self.initial_ms * 2.0 ** min(retries, 30)) * jitter)


class Pace:
    """A rate limit: at most ``burst`` operations at once, and ``per_s`` operations per second on average."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._apart_s = 1 / per_s
        self._ahead_s = burst / per_s
        #: When all operations so far would be over (loop time) if each began after the last and took 1 / ``per_s`` seconds.
        self._booked_until = float("-inf")

    async def turn(self) -> None:
        """Wait until the next operation may begin. The first operations (``burst``) do not wait."""
        moment = now()
        self._booked_until = max(self._booked_until, moment) + self._apart_s
        wait_s = self._booked_until - moment - self._ahead_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class _FirstAttempt:
    """The attempt before all retries; keeps a :class:`RetriableError`."""

    error: RetriableError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, RetriableError):
            self.error = error
        return self.error is not None


class _Attempts:
    """The first attempt, and tenacity's attempts after a failure."""

    def __init__(self, begin_retries: Callable[[], AsyncRetrying]) -> None:
        self._begin_retries = begin_retries
        self._first: _FirstAttempt | None = None
        self._retries: AsyncRetrying | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AbstractContextManager[Any]:
        if self._first is None:
            self._first = _FirstAttempt()
            return self._first
        if self._first.error is None:
            raise StopAsyncIteration
        if self._retries is None:
            self._retries = self._begin_retries().__aiter__()
            # tenacity takes the failure as the result of its first attempt, and decides about the second attempt.
            with await self._retries.__anext__():
                raise self._first.error
        return await self._retries.__anext__()


def retrying(
    backoff: Backoff,
    deadline: Deadline | None,
    *,
    what: str,
    log: Callable[[str], None] | None = None,
) -> AsyncIterator[AbstractContextManager[Any]]:
    """Retry on :class:`RetriableError` until ``deadline`` (None: forever), then raise the last error.

    No attempt begins after the deadline. If the deadline ended the last attempt early, raise the error of the attempt before,
    which says more than a timeout.
    """
    previous: BaseException | None = None

    def wait_s(state: RetryCallState) -> float:
        wait_ms = backoff.ms(state.attempt_number - 1)
        return (wait_ms if deadline is None else deadline.within(wait_ms)) / 1000

    def before_sleep(state: RetryCallState) -> None:
        nonlocal previous
        assert state.outcome is not None
        previous = state.outcome.exception()
        message = f"{what}: {previous}; trying again"
        if log is not None:
            log(message)
        else:
            logger.debug("%s", message)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        if deadline is not None and deadline.passed:
            assert previous is not None
            raise previous

    def at_deadline(state: RetryCallState) -> NoReturn:
        assert state.outcome is not None
        error = state.outcome.exception()
        assert error is not None
        raise previous if previous is not None and isinstance(error, RequestTimedOutError) else error

    def begin_retries() -> AsyncRetrying:
        # Imported after the first failure, because the import takes longer than everything else in this module.
        import tenacity

        return tenacity.AsyncRetrying(
            wait=wait_s,
            stop=lambda _: deadline is not None and deadline.passed,
            retry=tenacity.retry_if_exception_type(RetriableError),
            sleep=sleep,
            before_sleep=before_sleep,
            retry_error_callback=at_deadline,
        )

    return _Attempts(begin_retries)


def timed_out(what: str, timeout_ms: float, last: BaseException | None = None) -> RequestTimedOutError:
    """Return the error for a deadline that passed, with the last error."""
    because = f"; the last attempt failed with: {last}" if last is not None else ""
    return RequestTimedOutError(f"{what} did not finish within {timeout_ms:.0f} ms{because}")
