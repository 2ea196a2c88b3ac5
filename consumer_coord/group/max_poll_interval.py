"""``max.poll.interval.ms``, in both protocols: a member whose application does not poll leaves the group."""

from __future__ import annotations

from consumer_coord.environment import now
from consumer_coord.group.member_context import MemberContext


class PollWatch:
    """Checks that the application polls within ``max.poll.interval.ms``.

    The application only counts its polls, and this class reads the count periodically, because a clock read at each poll would
    cost more.
    """

    def __init__(self, context: MemberContext) -> None:
        self._with = context
        self._application = context.application
        self._limit_ms = context.config.max_poll_interval_ms
        #: Time between two checks, in seconds, which is also the longest delay until a missing poll is noticed.
        self.look_s: float = max(0.02, self._limit_ms / 1000 / 10)
        self._polls = self._application.polls
        self._polled_at = now()

    def restart(self) -> None:
        """Restart the application's poll interval, after it subscribed or polled again."""
        self._polls = self._application.polls
        self._polled_at = now()

    @property
    def expired(self) -> bool:
        """True when the application has not polled for ``max.poll.interval.ms``."""
        moment = now()
        if self._polls != self._application.polls:
            self._polls = self._application.polls
            self._polled_at = self._with.metrics.last_poll_at = moment
        return moment - self._polled_at > self._limit_ms / 1000

    def report(self) -> None:
        """Warn that the member leaves because the application did not poll."""
        self._with.log.warning(
            "the application did not poll for max.poll.interval.ms=%d: leaving the group. Process smaller batches, or raise"
            " the setting",
            self._limit_ms,
        )
        self._application.failures.note_poll_interval(self._limit_ms)
