"""Checks that the application polls: ``max.poll.interval.ms``."""

from __future__ import annotations

from consumer_coord.environment import now
from consumer_coord.group.application_polls import Application
from consumer_coord.group.metrics import Metrics


class PollWatch:
    """Reads the count of polls now and then: a clock read at each poll would cost the application more."""

    def __init__(self, application: Application, metrics: Metrics, max_poll_interval_ms: float) -> None:
        self._application = application
        self._metrics = metrics
        self._limit_s = max_poll_interval_ms / 1000
        #: Interval of the checks, in seconds, and thus the longest delay in noticing a missing poll.
        self.look_s: float = max(0.02, self._limit_s / 10)
        self._polls = application.polls
        self._polled_at = now()

    def restart(self) -> None:
        """Restart the application's poll interval."""
        self._polls = self._application.polls
        self._polled_at = now()

    @property
    def expired(self) -> bool:
        """True when the application has not polled for ``max.poll.interval.ms``."""
        if self._polls != self._application.polls:
            self.restart()
            self._metrics.last_poll_at = self._polled_at
        return now() - self._polled_at > self._limit_s


class PollMarks:
    """The counts of polls at which the member began to wait for the application's next poll; None when it does not wait."""

    def __init__(self) -> None:
        #: Set when the member left because the application did not poll.
        self.parked_at: int | None = None
        #: Set when the application began to leave.
        self.leaving_at: int | None = None
        #: Set when a transaction began to hold the epoch, at most until ``held_until``, by the loop's clock in seconds.
        self.held_at: int | None = None
        self.held_until: float = 0.0

    @property
    def leaving(self) -> bool:
        """True while the application revokes everything to leave."""
        return self.leaving_at is not None

    def hold(self, polls: int, until: float) -> None:
        """Keep the epoch until the poll after number ``polls``, or ``until``."""
        self.held_at, self.held_until = polls, until

    def polled(self, polls: int) -> bool:
        """End the waits for poll number ``polls``; return True if there were any. Thread-safe."""
        ended = False
        if self.parked_at is not None and self.parked_at != polls:
            self.parked_at, ended = None, True
        if self.held_at is not None and self.held_at != polls:
            self.held_at, ended = None, True
        if self.leaving_at is not None and self.leaving_at != polls:
            self.leaving_at, ended = None, True
        return ended

    @property
    def waiting(self) -> bool:
        """True while the member waits for a later poll: the application's flag stays set."""
        return self.parked_at is not None or self.held_at is not None
