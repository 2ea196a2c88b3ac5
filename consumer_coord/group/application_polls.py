"""The member's view of its application: its polls, its callbacks, and how the member makes it look.

The application polls on its own thread, or as a task of the loop, and must not pay for the group at each poll. So it only
counts its polls in :attr:`Application.polls`, and compares :attr:`Application.news` with :attr:`Application.seen`. If they
differ, it looks at everything, and stores the news of before that look as seen. So an interrupted look is repeated, and news
that come during a look are looked at next.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from consumer_coord.group.assignment import AssignmentState
from consumer_coord.group.failures import Failures, copy_of
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.poll_metrics import PollTimes
from consumer_coord.runtime.locks import Bell
from consumer_coord.signals import Signal


class Application:
    """One member's application, as the member sees it; everything may be used from any thread."""

    def __init__(
        self,
        group_id: str,
        assignment: AssignmentState,
        metrics: Metrics,
        signal: Signal,
        *,
        patience_ms: float,
        on_poll: Callable[[int], bool],
    ) -> None:
        """``patience_ms``: after this time without progress of a join, the application is told what is in the way.

        ``on_poll`` gets the count of polls at each poll that looks; it returns True while the member waits for a later poll.
        """
        #: The application counts its polls here, from its own thread.
        self.polls = 0
        #: Names the last change or failure that the application has to look at; :meth:`look_again` alone replaces it.
        self.news: object = None
        #: The news of before the last complete look.
        self.seen: object = None
        #: True while the id of a topic that the application reads is unknown: it looks again at new metadata.
        self.awaits_topic_id = False
        #: Set with it, for an application that waits for nothing else.
        self.bell = Bell()
        #: Wakes the application; an application on the loop has something else here.
        self.ring: Callable[[], object] = self.bell.set
        #: What the next poll raises, and what delays a join.
        self.failures = Failures(group_id, patience_ms, self.call_attention)
        self._loop = asyncio.get_running_loop()
        #: When the coordinator is asked next, of :attr:`clock`; in the past while it is being asked.  Its answer may be the
        #: news of a rebalance, so an application that waits for messages looks then.
        self.response_due_at = math.inf
        #: The loop's clock, in seconds.
        self.clock = self._loop.time
        self._assignment = assignment
        self._metrics = metrics
        self._signal = signal
        self._on_poll = on_poll

    @property
    def poll_times(self) -> PollTimes:
        """Where the application's thread records when it polled."""
        return self._metrics.polls

    @property
    def attention(self) -> bool:
        """Whether the application has something to look at."""
        return self.news is not self.seen

    def polled(self) -> None:
        """Count a poll of an application that looks at nothing but failures; raise what failed in the background."""
        self.polls += 1
        news = self.news
        if news is not self.seen and not self.look() and self._assignment.reconciled:
            self.seen = news

    def look(self) -> bool:
        """Report the poll to the member; raise what failed in the background.

        Return True while the member waits for a later poll: then these news are not seen yet.
        """
        waits = self._on_poll(self.polls)
        failure = self.failures.take()
        if waits or failure is not None:
            self.call(self._signal.fire)
        if failure is not None:
            raise copy_of(failure)
        return waits

    def called_back(self, kind: str, began: float) -> None:
        """A callback was called at ``began``, of :attr:`clock`, and ends now; on the application's thread."""
        self._metrics.record(f"partition-{kind}-latency", (self.clock() - began) * 1000)

    def look_again(self) -> None:
        """Make the next poll look at everything; from any thread."""
        # A new object each time: two threads may do this at once.
        self.news = object()

    def rouse(self) -> None:
        """Make the next poll, or the one that waits now, look at everything."""
        self.look_again()
        self.ring()

    def call_attention(self) -> None:
        """The same, and the member's own coroutines look again; on the loop."""
        self.rouse()
        self._signal.fire()

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the loop, soon; without effect after the loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)
