"""Whether the application polls: ``max.poll.interval.ms``."""

from __future__ import annotations

from consumer_coord.environment import now
from consumer_coord.group.application import Application
from consumer_coord.group.metrics import Metrics


class PollWatch:
    """Looks at the count of polls now and then: a clock read at each poll would cost the application more."""

    def __init__(self, application: Application, metrics: Metrics, max_poll_interval_ms: float) -> None:
        self._application = application
        self._metrics = metrics
        self._limit_s = max_poll_interval_ms / 1000
        #: Look this often, in seconds: a missing poll is noticed late by no more.
        self.look_s = max(0.02, self._limit_s / 10)
        self._polls = application.polls
        self._polled_at = now()

    def restart(self) -> None:
        """The application's time begins anew."""
        self._polls = self._application.polls
        self._polled_at = now()

    @property
    def expired(self) -> bool:
        """True when the application has not polled for ``max.poll.interval.ms``."""
        if self._polls != self._application.polls:
            self.restart()
            self._metrics.last_poll_at = self._polled_at
        return now() - self._polled_at > self._limit_s
