"""Heartbeats, which keep a member's session alive while its application works.

One task for each member. In addition to the regular heartbeats it sends *early* ones when another member's join or the second
round of a cooperative rebalance is near (``peers.py`` decides when), so that the member need not wait for the interval.

The same task notices that the application has not polled for ``max.poll.interval.ms``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from consumer_coord.environment import now
from consumer_coord.errors import RetriableError
from consumer_coord.group.generation import Generation
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.process_peers.moments import Rhythm
from consumer_coord.printable import get_logger

logger: Final = get_logger(__name__)

#: Most pending early heartbeats, apart from those requested in the current call.
_MOST_EARLY = 10


class Heart(Protocol):
    """The member as its heartbeat task sees it; implemented by `ClassicSession`."""

    @property
    def generation_state(self) -> Generation: ...
    @property
    def heartbeats_wanted(self) -> bool: ...
    @property
    def joining(self) -> bool: ...
    @property
    def ending(self) -> bool: ...
    @property
    def polls(self) -> int: ...

    def response_due_at(self, moment: float) -> None: ...
    async def send_heartbeat(self) -> None: ...
    async def poll_interval_exceeded(self) -> None: ...
    def session_expired(self) -> None: ...


class Heartbeat:
    """The heartbeat task of one member; start it with :meth:`run`."""

    def __init__(
        self,
        heart: Heart,
        metrics: Metrics,
        *,
        interval_ms: int,
        session_timeout_ms: int,
        max_poll_interval_ms: int,
        retry_backoff_ms: int,
        rhythm: Rhythm | None = None,
    ) -> None:
        """Prepare the task; ``rhythm``: the heartbeat moments among the members of the process (None: each interval)."""
        self._heart = heart
        self._metrics = metrics
        self._interval_s = interval_ms / 1000
        self._session_s = session_timeout_ms / 1000
        self._max_poll_s = max_poll_interval_ms / 1000
        self._retry_s = retry_backoff_ms / 1000
        self._rhythm = rhythm or Rhythm()
        self._woken: asyncio.Future[None] | None = None
        self._sleeps_until = 0.0
        self._early: list[float] = []
        self._next_at = now() + self._interval_s
        self._answered_at = now()
        self._polls = heart.polls
        self._polled_at = now()

    def session_starts(self) -> None:
        """Restart the session time: the coordinator has just received a join or a sync."""
        self._answered_at = now()
        self._next_at = self._rhythm.first(now(), self._interval_s)
        if self._next_at < self._sleeps_until:
            self._wake()
        self._metrics.last_heartbeat_at = self._answered_at

    def early(self, after_ms: Sequence[float]) -> None:
        """Send heartbeats ``after_ms`` from now, because a rebalance or its second round is near."""
        moment = now()
        self._early = sorted({*self._early, *(moment + ms / 1000 for ms in after_ms)})[: _MOST_EARLY + len(after_ms)]
        self._wake()

    @property
    def poll_expired(self) -> bool:
        """True when the application has not polled for ``max.poll.interval.ms``."""
        self._look_at_polls()
        return now() - self._polled_at > self._max_poll_s

    def poll_restarts(self) -> None:
        """Restart the application's poll interval, after it subscribed or polled again."""
        self._polls = self._heart.polls
        self._polled_at = now()

    def _look_at_polls(self) -> None:
        # The application only counts its polls, which is free; a clock read per poll would not be.
        if self._polls != self._heart.polls:
            self._polls = self._heart.polls
            self._polled_at = now()
            self._metrics.last_poll_at = self._polled_at

    async def run(self) -> None:
        """Send heartbeats until cancelled.

        Retriable errors are retried, the member handles fatal ones, and any other error ends the task.
        """
        while True:
            await self._pause()
            if not self._heart.heartbeats_wanted:
                self._answered_at = now()
                self._early.clear()
                if self._next_at <= now():
                    self._next_at = now() + self._interval_s
                continue
            if self._heart.joining:
                # The group is known to rebalance: early heartbeats have nothing to find out.
                self._early.clear()
            elif self.poll_expired and not self._heart.ending:
                await self._heart.poll_interval_exceeded()
                continue
            if now() - self._answered_at > self._session_s:
                self._heart.session_expired()
                self._answered_at = now()
            moment = now()
            due_early = bool(self._early) and self._early[0] <= moment
            if not due_early and self._next_at > moment:
                continue
            self._early = [at for at in self._early if at > moment]
            if due_early:
                self._metrics.record("early-heartbeat")
            await self._beat()

    async def _pause(self) -> None:
        moment = now()
        beat_at = min([self._next_at, *self._early[:1]])
        self._heart.response_due_at(beat_at)
        # A missing poll is noticed at most a tenth of the interval late.
        until = min(beat_at, moment + max(0.02, self._max_poll_s / 10))
        if until <= moment:
            # Yield to the loop.
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        # A future and a timer cost half as much as an Event in a timeout, and this runs at every heartbeat of every member.
        woken = self._woken = loop.create_future()
        self._sleeps_until = until
        timer = loop.call_at(until, self._wake)
        try:
            await woken
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _beat(self) -> None:
        started = now()
        self._next_at = self._rhythm.next(started, self._interval_s, alone=self._heart.joining)
        try:
            await self._heart.send_heartbeat()
        except RetriableError as error:
            logger.debug("heartbeat failed: %s", error)
            self._next_at = now() + min(self._retry_s, self._interval_s)
        else:
            self._answered_at = now()
            self._metrics.last_heartbeat_at = self._answered_at
            self._metrics.record("heartbeat", (self._answered_at - started) * 1000)
