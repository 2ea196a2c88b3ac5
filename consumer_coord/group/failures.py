"""What went wrong in the background, until the application's next poll raises it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, FencedError, PollIntervalExceededError, RetriableError


class Failures:
    """At most one failure at a time, and what stands in the way of a join.

    A *final* failure (fenced, crashed) is raised at every poll; another one once, and then the background tries again.
    """

    def __init__(self, group_id: str, patience_ms: float, tell: Callable[[], None]) -> None:
        self.current: CoordinatorError | None = None
        self.final = False
        self.obstacle = ""
        #: What the application is told beside failures: a consumer that tells by messages with an error takes it from here.
        #: None: it is not told.
        self.notes: deque[CoordinatorError] | None = None
        self._group_id = group_id
        self._patience_s = patience_ms / 1000
        self._tell = tell
        #: When something began to stand in the way of a join; None while nothing does.
        self._stuck_since: float | None = None
        #: The failure that told of it.
        self._stuck: CoordinatorError | None = None

    def set(self, error: CoordinatorError, *, final: bool = False) -> None:
        """Note a failure and call the application; a final one is never replaced."""
        if not self.final:
            self.current, self.final = error, final or isinstance(error, FencedError)
            self._tell()

    def note(self, error: CoordinatorError) -> None:
        """Tell the application of this beside failures, if it wants to be told."""
        if self.notes is not None:
            self.notes.append(error)
            self._tell()

    def note_poll_interval(self, max_poll_interval_ms: int) -> None:
        """Tell of an application that did not poll for so long, and was taken out of its group."""
        self.note(PollIntervalExceededError(f"no poll for max.poll.interval.ms={max_poll_interval_ms}: joining again"))

    def take(self) -> CoordinatorError | None:
        """The failure to raise now; one that is not final is over with that.  Thread-safe."""
        error = self.current
        if error is not None and not self.final:
            self.current = None
        return error

    def clear_obstacle(self) -> None:
        """The member made progress: nothing stands in the way, and a poll that comes only now hears of nothing."""
        self.obstacle = ""
        self._stuck_since = None
        if self.current is not None and self.current is self._stuck:
            self.current = None
        self._stuck = None

    def note_obstacle(self, what: str, *, wanted: bool) -> None:
        """Remember what stands in the way; if something does for ``default.api.timeout.ms``, the application hears of it.

        ``wanted`` is False when nothing has to be joined: a member that has its partitions reads on.
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
                f"group {self._group_id!r} could not be joined for {waited_s:.0f} s, and goes on trying: {what}"
            )
            self.set(self._stuck)


def copy_of(error: CoordinatorError) -> CoordinatorError:
    """A new object to raise: raising one object again and again would grow its traceback for ever."""
    again = type(error)(str(error), code=error.code)
    again.__cause__ = error
    return again
