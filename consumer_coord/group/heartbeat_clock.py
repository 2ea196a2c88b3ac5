"""The times of a member's heartbeats, in both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from consumer_coord.environment import now


def answer_in_time_ms(request_timeout_ms: float, session_timeout_ms: float) -> float:
    """Return the time limit for a response that keeps the session alive: short enough for a retry on a new connection."""
    return min(request_timeout_ms, session_timeout_ms / 2)


class HeartbeatClock:
    """The times of one member's next heartbeats (one regular, several early heartbeats), in seconds of the loop's clock.

    Heartbeats are sent *early* when a rebalance, or a step of a rebalance, is near, so that the member does not wait for the
    interval.
    """

    def __init__(self, most_early: int) -> None:
        """Start with a regular heartbeat now; :meth:`early` keeps at most ``most_early`` times plus as many as it receives."""
        #: Time of the next regular heartbeat.
        self.next_at: float = now()
        self._most_early = most_early
        self._early: list[float] = []
        self._woken: asyncio.Future[None] | None = None
        self._sleeps_until = 0.0

    @property
    def due(self) -> float:
        """Time of the next heartbeat."""
        return min([self.next_at, *self._early[:1]])

    def regular(self, moment: float) -> None:
        """Set the time of the next regular heartbeat."""
        self.next_at = moment
        if moment < self._sleeps_until:
            self._wake()

    def early(self, after_ms: Sequence[float]) -> None:
        """Schedule additional early heartbeats at the times ``after_ms``, in milliseconds from now."""
        moment = now()
        times = sorted({*self._early, *(moment + ms / 1000 for ms in after_ms)})
        self._early = times[: self._most_early + len(after_ms)]
        self._wake()

    def sends(self, moment: float) -> bool:
        """Record that a heartbeat is sent at ``moment``; return whether it replaces an early heartbeat that was due."""
        pending = [at for at in self._early if at > moment]
        any_due = len(pending) < len(self._early)
        self._early = pending
        return any_due

    def calm(self) -> None:
        """Cancel the early heartbeats."""
        self._early.clear()

    async def sleep(self, until: float) -> None:
        """Sleep until ``until``, or until another call makes a heartbeat due earlier."""
        loop = asyncio.get_running_loop()
        # This code runs at every heartbeat of every member, so it uses a future and a timer, which cost half as much as an
        # Event with a timeout.
        woken = self._woken = loop.create_future()
        self._sleeps_until = until
        timer = loop.call_at(until, self._wake)
        try:
            await woken
        finally:
            if loop.time() < until:
                timer.cancel()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
