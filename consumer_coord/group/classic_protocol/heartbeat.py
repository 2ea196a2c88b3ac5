"""Heartbeats, which keep a member's session alive while its application works.

Each member has one heartbeat task. In addition to the regular heartbeats, the task sends early heartbeats when another member's
join or the second round of a cooperative rebalance is near (``peers.py`` decides when).

The same task notices that the application has not polled for ``max.poll.interval.ms``.
"""

from __future__ import annotations

import asyncio
from typing import Final

from consumer_coord.config import CoordinatorConfig
from consumer_coord.environment import now
from consumer_coord.errors import RetriableError
from consumer_coord.group.classic_protocol.session import ClassicSession
from consumer_coord.group.max_poll_interval import PollWatch
from consumer_coord.group.member_context import MemberContext
from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)


def _most_intervals(config: CoordinatorConfig) -> int:
    """Return how many heartbeat intervals may pass between two heartbeats of a member whose peers notice rebalances for it.

    Kafka recommends three heartbeats per session. A static member that was replaced must stop soon, and only the response to
    its own heartbeat reports the replacement.
    """
    if config.group_instance_id is not None:
        return 1
    return max(1, config.session_timeout_ms // 3 // config.heartbeat_interval_ms)


class Heartbeat:
    """The heartbeat task of one member; start it with :meth:`run`."""

    def __init__(self, context: MemberContext, session: ClassicSession) -> None:
        config = context.config
        self._session = session
        self._clock = session.clock
        self._metrics = context.metrics
        self._interval_s = config.heartbeat_interval_ms / 1000
        self._session_s = config.session_timeout_ms / 1000
        self._retry_s = config.retry_backoff_ms / 1000
        self.polls: PollWatch = PollWatch(context)
        #: This member's heartbeat times, coordinated with the other members of the process.
        self._rhythm = context.peers.add(session, _most_intervals(config))
        self._clock.regular(now() + self._interval_s)
        self._answered_at = now()

    def session_starts(self) -> None:
        """Restart the session timeout after a response to JoinGroup or SyncGroup."""
        self._answered_at = now()
        self._clock.regular(self._rhythm.first(now(), self._interval_s))
        self._metrics.last_heartbeat_at = self._answered_at

    async def run(self) -> None:
        """Send heartbeats until cancelled.

        Retriable errors are retried, the member handles fatal errors, and any other error ends the task.
        """
        clock, session = self._clock, self._session
        while True:
            await self._pause()
            if not session.membership.heartbeats_wanted:
                self._answered_at = now()
                clock.calm()
                if clock.next_at <= now():
                    clock.regular(now() + self._interval_s)
                continue
            if session.joining:
                # This member already knows that the group rebalances, so early heartbeats are unnecessary.
                clock.calm()
            elif self.polls.expired and not session.membership.ending:
                # While the member leaves, it may wait for last commits, and the application no longer polls.
                self.polls.report()
                await session.poll_interval_exceeded()
                continue
            moment = now()
            if moment - self._answered_at > self._session_s:
                session.session_expired()
                self._answered_at = moment
            if clock.due > moment:
                continue
            if clock.sends(moment):
                self._metrics.record("early-heartbeat")
            await self._beat()

    async def _pause(self) -> None:
        moment = now()
        due = self._clock.due
        until = min(due, moment + self.polls.look_s)
        if until <= moment:
            # Yield to the loop.
            await asyncio.sleep(0)
        else:
            await self._clock.sleep(until)

    async def _beat(self) -> None:
        started = now()
        self._clock.regular(self._rhythm.next(started, self._interval_s, alone=self._session.joining))
        try:
            await self._session.send_heartbeat()
        except RetriableError as error:
            logger.debug("heartbeat failed: %s", error)
            self._clock.regular(now() + min(self._retry_s, self._interval_s))
        else:
            self._answered_at = now()
            self._metrics.last_heartbeat_at = self._answered_at
            self._metrics.record("heartbeat", (self._answered_at - started) * 1000)
