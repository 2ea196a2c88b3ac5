"""The member's view of its application: polls, callbacks, and the signal that something has changed.

The application polls on its own thread, or as a task of the loop, and a poll must cost as little as possible. Each poll only
increments :attr:`Application.polls`, and compares :attr:`Application.news` with :attr:`Application.seen`. If they differ, the
application reads the value of ``news``, processes all changes, and then stores that value in ``seen``. So if the processing is
interrupted, it is repeated, and a change that arrives during the processing is processed next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.failures import Failures, copy_of
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.poll_metrics import PollTimes
from consumer_coord.runtime.locks import Bell
from consumer_coord.wake_ups import WakeUp


class Polls:
    """Counts the polls of an application."""

    def __init__(self) -> None:
        self.polls: int = 0

    def expire(self) -> None:
        """Do nothing, because each poll compares :attr:`Application.news` with :attr:`Application.seen`."""


class Application:
    """A member's application, as the member sees it; all methods and attributes are thread-safe."""

    def __init__(
        self,
        group_id: str,
        assignment: AssignmentState,
        metrics: Metrics,
        signal: WakeUp,
        *,
        patience_ms: float,
        on_poll: Callable[[int], bool],
    ) -> None:
        """Connect the application to its member.

        If a join makes no progress for ``patience_ms``, the application is notified of the reason. Each poll that processes
        changes calls ``on_poll`` with the number of polls; ``on_poll`` returns True while the member waits for a later poll.
        """
        #: Counts the polls, and learns at once when the next poll must look at something. A consumer replaces it by its
        #: reader's, which lets a thread or a task take messages without a look until then.
        self.at_hand: Polls = Polls()
        #: Number of these waits.
        self.waits: int = 0
        #: Identifies the last change or failure that the application must process; only :meth:`look_again` replaces this
        #: object.
        self.news: object = None
        #: The value of :attr:`news` that the application read before it last processed all changes.
        self.seen: object = None
        #: True while the id of a topic that the application reads is unknown. The application must then process new metadata,
        #: too.
        self.awaits_topic_id = False
        #: The bell that :meth:`wake` rings. The application waits for this bell while it has no partition to fetch from;
        #: otherwise it waits for messages in the data plane.
        self.bell: Bell = Bell()
        #: The function that wakes the application; an application on the loop replaces this function.
        self.ring: Callable[[], object] = self.bell.set
        #: Failures that the next poll raises, and the problem that delays a join.
        self.failures: Failures = Failures(group_id, patience_ms, self.call_attention)
        self._loop = asyncio.get_running_loop()
        #: The loop's clock, in seconds.
        self.clock: Callable[[], float] = self._loop.time
        #: The metrics to which the application's thread adds its polls.
        self.poll_times: PollTimes = metrics.polls
        self._assignment = assignment
        self._metrics = metrics
        self._signal = signal
        self._on_poll = on_poll

    @property
    def polls(self) -> int:
        """Number of polls, and of waits inside a call; the application's thread increments it."""
        return self.at_hand.polls

    @polls.setter
    def polls(self, polls: int) -> None:
        self.at_hand.polls = polls

    @property
    def attention(self) -> bool:
        """Return whether there is a change or failure that the application must process."""
        return self.news is not self.seen

    @property
    def calls(self) -> int:
        """The number of polls, without the waits inside a call."""
        return self.polls - self.waits

    def waited(self) -> None:
        """Count a wait inside a call as a poll, because the application is alive."""
        self.polls += 1
        self.waits += 1

    def record_poll(self) -> None:
        """Count a poll of an application that applies the group's changes in a separate call.

        Raise the failure of a background task, if there is one.
        """
        self.polls += 1
        news = self.news
        if news is not self.seen and not self.look() and self._assignment.reconciled:
            self.seen = news

    def look(self) -> bool:
        """Report the poll to the member; raise the failure of a background task, if there is one.

        Return True while the member waits for a later poll; in that case the caller must not change :attr:`seen`.
        """
        waits = self._on_poll(self.polls)
        failure = self.failures.take()
        if waits or failure is not None:
            self.call(self._signal.fire)
        if failure is not None:
            raise copy_of(failure)
        return waits

    def called_back(self, kind: str, began: float) -> None:
        """Record how long a callback took; it began at ``began`` by :attr:`clock`. Call this on the application's thread."""
        self._metrics.record(f"partition-{kind}-latency", (self.clock() - began) * 1000)

    def look_again(self) -> None:
        """Make the next poll process all changes; thread-safe."""
        # Store a new object each time, because two threads may call this method at the same time.
        self.news = object()
        self.at_hand.expire()

    def wake(self) -> None:
        """Make the next poll, or a poll that is waiting now, process all changes."""
        self.look_again()
        self.ring()

    def call_attention(self) -> None:
        """Make the application's next poll and the member's coroutines check for changes; on the loop."""
        self.wake()
        self._signal.fire()

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` soon on the loop; do nothing if the loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)
