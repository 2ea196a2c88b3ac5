"""Failures of background tasks, until the application's next poll raises them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, FencedError, PollIntervalExceededError, RetriableError


class Failures:
    """The current failure, if there is one, and the problem that delays a join.

    A *final* failure (fenced, crashed) is raised at every poll. Any other failure is raised once, and the member retries in the
    background.
    """

    def __init__(self, group_id: str, patience_ms: float, notify: Callable[[], None]) -> None:
        self.current: CoordinatorError | None = None
        self.final: bool = False
        self.obstacle: str = ""
        #: Errors for a consumer that reports them as messages, in addition to failures; None if the application does not want
        #: such errors.
        self.notes: deque[CoordinatorError] | None = None
        self._group_id = group_id
        self._patience_s = patience_ms / 1000
        self._notify = notify
        #: Time at which a problem began to delay a join; None without a problem.
        self._stuck_since: float | None = None
        #: The failure by which the problem that delays a join was reported.
        self._stuck: CoordinatorError | None = None
        #: The last failure about topics of the subscription.
        self._missing: CoordinatorError | None = None

    def set(self, error: CoordinatorError, *, final: bool = False) -> None:
        """Record a failure and notify the application; a final failure is never replaced."""
        if not self.final:
            self.current, self.final = error, final or isinstance(error, FencedError)
            self._notify()

    def note(self, error: CoordinatorError) -> None:
        """Report an error in addition to failures, if the application wants such errors."""
        if self.notes is not None:
            self.notes.append(error)
            self._notify()

    def set_missing(self, error: CoordinatorError, *, as_note: bool) -> None:
        """Report that topics of the subscription cannot be read: as a failure, or with ``as_note`` in addition to failures."""
        self._missing = error
        if as_note:
            self.note(error)
        else:
            self.set(error)

    def note_poll_interval(self, max_poll_interval_ms: int) -> None:
        """Report that the member left the group, because the application did not poll for ``max_poll_interval_ms``."""
        self.note(
            PollIntervalExceededError(
                f"the application did not poll for max.poll.interval.ms={max_poll_interval_ms}; joining again"
            )
        )

    def take(self) -> CoordinatorError | None:
        """Return the failure to raise now, and clear it unless it is final; thread-safe."""
        error = self.current
        if error is not None and not self.final:
            self.current = None
        return error

    def clear_obstacle(self) -> None:
        """Clear the problem that delayed a join, and the problem's failure if no poll has raised it yet."""
        self.obstacle = ""
        self._stuck_since = None
        if self.current is not None and self.current is self._stuck:
            self.current = None
        self._stuck = None

    def subscription_changed(self) -> None:
        """Clear everything that concerns the former subscription, and that no poll has reported yet."""
        self.clear_obstacle()
        missing, self._missing = self._missing, None
        if missing is None:
            return
        if self.current is missing:
            self.current = None
        if self.notes is not None and missing in self.notes:
            self.notes.remove(missing)

    def note_obstacle(self, what: str, *, wanted: bool) -> None:
        """Record a problem that delays a join; report the problem to the application after ``default.api.timeout.ms``.

        ``wanted`` is False if no join is needed, for example because the member has its partitions and continues to read.
        """
        self.obstacle = what
        if not wanted:
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = now()
        waited_s = now() - self._stuck_since
        if waited_s > self._patience_s and self.current is None:
            self._stuck_since = now()
            self._stuck = RetriableError(
                f"group {self._group_id!r} could not be joined for {waited_s:.0f} s; still retrying: {what}"
            )
            self.set(self._stuck)


def copy_of(error: CoordinatorError) -> CoordinatorError:
    """Return a new object to raise, because raising one object repeatedly would extend its traceback without limit."""
    again = type(error)(str(error), code=error.code)
    again.__cause__ = error
    return again
