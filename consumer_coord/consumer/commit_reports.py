"""The commits of a consumer: the timer of automatic commits, and the reports of asynchronous commits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from consumer_coord.consumer.engine_loop import EngineLoop
from consumer_coord.errors import RequestTimedOutError
from consumer_coord.group.commits import Ticket
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.retry import Deadline

#: Maximum number of asynchronous commits in flight. Above this number, the next commit waits for the oldest commit.
MOST_ASYNCHRONOUS = 20_000


class AutoCommit:
    """The timer of ``enable.auto.commit``: the engine commits at the first poll after :attr:`due` became true."""

    def __init__(self, core: ConsumerCoordinator, engine_loop: EngineLoop) -> None:
        self.enabled: bool = core.config.enable_auto_commit
        self._engine_loop = engine_loop
        # With an interval of 0, automatic commits happen only before revocations, as in librdkafka.
        self._interval_s = core.config.auto_commit_interval_ms / 1000
        self._wake = core.application.wake
        #: The timer of the present interval; None before :meth:`begin`. It stays when the interval has passed.
        self._timer: asyncio.TimerHandle | None = None
        self._passed = False

    def enable(self, *, enabled: bool) -> None:
        """Turn automatic commits on, from now on, or off."""
        self.enabled = enabled
        if enabled:
            self.begin()
        else:
            self.stop()

    def begin(self) -> None:
        """Start the timer, at the first subscription or assignment."""
        if self.enabled and self._timer is None and self._interval_s > 0:
            self.rearm()

    def stop(self) -> None:
        """Stop the timer."""
        self._passed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def due(self) -> bool:
        """Whether the interval has passed."""
        return self._passed

    def rearm(self) -> None:
        """Start the next interval."""
        self._passed = False
        self._timer = self._engine_loop.later(self._interval_s, self._ring)

    def _ring(self) -> None:
        self._passed = True
        self._wake()


class CommitReports:
    """The asynchronous commits in flight. The outcome of each commit is reported exactly once, in the order of the calls."""

    def __init__(self, core: ConsumerCoordinator) -> None:
        self._core = core
        #: The commits whose outcome was not reported yet.
        self.unreported: deque[Ticket] = deque()
        #: True if an outcome arrived after the last :meth:`take`. The next poll reports this outcome to the application.
        self.news: bool = False

    @property
    def full(self) -> bool:
        """Whether the next commit must wait for the response to an earlier commit."""
        return len(self.unreported) >= MOST_ASYNCHRONOUS and not self.unreported[-MOST_ASYNCHRONOUS].done

    def add(self, ticket: Ticket) -> None:
        """At a later poll, report the outcome of a commit (:class:`Ticket`) that was already submitted.

        The ticket's ``wake`` must be :meth:`notify`.
        """
        self.unreported.append(ticket)
        if ticket.done:
            self.notify()

    def notify(self) -> None:
        """Make the running poll or the next poll report outcomes; callable from any thread."""
        self.news = True
        self._core.application.at_hand.expire()
        self._core.application.ring()

    @property
    def due(self) -> bool:
        """Whether the outcome of the oldest commit is known."""
        return bool(self.unreported) and self.unreported[0].done

    def take(self) -> Iterator[Ticket]:
        """Yield and mark as reported all unreported commits, in the order of the calls, up to the first without a response."""
        # Cleared before the check, so that a commit that is answered during the check sets this attribute again.
        self.news = False
        try:
            while self.due:
                yield self.unreported.popleft()
        finally:
            # The application's callback may have raised before all outcomes were reported.
            if self.due:
                self.news = True

    async def make_room(self) -> None:
        """Wait until another commit may be submitted, but for at most ``default.api.timeout.ms``."""
        ends = self._core.application.clock() + self._core.config.default_api_timeout_ms / 1000
        while self.full and await self.answered(self.unreported[-MOST_ASYNCHRONOUS], ends):
            pass

    async def answered(self, ticket: Ticket, ends: float) -> bool:
        """Wait for the outcome of a :class:`Ticket` until the loop time ``ends``; return whether the outcome is known."""
        return await self._core.commits.answered(ticket, Deadline(ends))

    async def finish(self, ends: float) -> None:
        """Wait for all commits until the loop time ``ends``, then fail the commits without a response; called before close."""
        for ticket in tuple(self.unreported):
            if not await self.answered(ticket, ends):
                ticket.fail(RequestTimedOutError("the commit had no response before the consumer was closed"))
