"""How a thread waits for the records of a blocking consumer, as messages or as columns, and receives errors in their place.

A wait that finds no other work is remembered (:attr:`ThreadTurns.quiet`): the next one waits for a record alone. Any other use
of the consumer ends this.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from threading import get_ident
from typing import Any, Final

from consumer_coord.confluent.events import error_messages, is_delivered
from consumer_coord.confluent.kafka_exceptions import kafka_exceptions, raise_cause
from consumer_coord.confluent.topic_partitions import seconds
from consumer_coord.confluent.types import Message
from consumer_coord.consumer.deliveries import Deliveries
from consumer_coord.consumer.engine import FOREVER_S, SLICE_S, Engine
from consumer_coord.consumer.thread_turns import ThreadTurns
from consumer_coord.errors import CallbackError, CoordinatorError

#: Number of messages that a poll decodes at once.
MOST_READY: Final = 300
#: Maximum number of non-fatal errors kept for an application that does not poll. Older errors are dropped.
_MOST_NOTES = 100


class ThreadWaits:
    """The waits of a blocking consumer; every method is for the thread that has the turn."""

    def __init__(
        self,
        engine: Engine,
        turns: ThreadTurns,
        deliveries: Deliveries[int],
        *,
        raises: bool,
        reported: Collection[object],
        report: Callable[[], None],
        events: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Wait for the records of an engine.

        * ``raises``: raise errors (``poll.raises.errors``) instead of returning them as messages.
        * ``reported`` is not empty while the data plane has events for ``events``, which :class:`Engine` explains.
        * ``report`` reports the outcomes of asynchronous commits to the application.
        """
        self._engine = engine
        self._turns = turns
        self._deliveries = deliveries
        self._core = engine.core
        self._application = engine.core.application
        self._reader = engine.reader
        self._at_hand: Any = engine.reader.at_hand
        self._outcomes = engine.commits
        self._raises = raises
        self._reported = reported
        self._report = report
        self._events = events
        #: Messages with an error that poll and consume return next.
        self.errors: deque[Message] = deque()
        #: The last error that was reported as a message; iteration raises this error.
        self.failure: CoordinatorError | None = None
        #: The failure that ended this member; None until it was reported.
        self._final: CoordinatorError | None = None
        if not raises:
            self._application.failures.notes = deque(maxlen=_MOST_NOTES)

    def make_ready(self, least: int, most: int, timeout: float | None, *, offers: bool = False) -> deque[Any]:
        """Wait for ``least`` messages; return the queue from which the caller may deliver some now, or the queue of errors.

        ``offers``: let this thread's next polls take the other messages of the queue, until something happens.
        """
        at_hand, application, turns, outcomes = self._at_hand, self._application, self._turns, self._outcomes
        ready: deque[Any] = at_hand.ready
        at_hand.messages = None
        at_hand.polls += 1
        if least and turns.quiet is application.news and not outcomes.unreported:
            timeout = self.wait_quietly(timeout)
            if timeout == 0 and turns.quiet is application.news:
                return ready
        # Read before everything else is looked at, so that a later event ends the offer, and a freeze the lease.
        changes = at_hand.changes
        leased_until = self._core.lease.until
        if outcomes.news:
            self._report_outcomes()
        ready = at_hand.ready
        if len(ready) < least and not turns.calls and self._engine.fast_path:
            # The usual case: nothing else is pending.
            timeout = self.look(least, most, timeout)
            ready = at_hand.ready
            if timeout == 0 and not ready and turns.quiet is application.news:
                return ready
        enough = least and (len(ready) >= least or (timeout == 0 and ready))
        if not (enough and self._nothing_else(leased_until)):
            if not self._gather(least, most, timeout):
                return self.errors
            ready = at_hand.ready
        if offers and application.news is application.seen and not turns.calls:
            at_hand.offer(self._deliveries.last, leased_until, changes)
        return ready

    def _report_outcomes(self) -> None:
        """Report the outcomes of asynchronous commits; work that a callback requests is done before the next message."""
        self._deliveries.finish(get_ident())
        self._report()
        if self._turns.requested:
            self._application.look_again()

    def _nothing_else(self, leased_until: float) -> bool:
        """Return whether messages that were taken after reading ``leased_until`` may be delivered without further checks."""
        application, reader = self._application, self._reader
        if application.news is not application.seen or self._turns.calls:
            return False
        if reader.applied is not self._engine.plan or not reader.fast:
            return False
        return self._core.lease.clock() < leased_until

    def wait_quietly(self, timeout: float | None, *, columns: bool = False) -> float:
        """Wait once for a record, because the last wait found no other work; return the remaining time, in seconds.

        ``columns``: do not decode it.
        """
        # An idle member spends its processor time here. After each wait the processor's caches are cold, so this code is short,
        # makes few calls, and touches few objects.
        application, reader, turns = self._application, self._reader, self._turns
        quiet = turns.quiet
        if timeout is None or not 0 <= timeout <= SLICE_S:
            return FOREVER_S if timeout is None else timeout
        began = time.monotonic()
        # If the wait is interrupted, this value remains, so the next poll checks everything.
        turns.quiet = False
        if timeout:
            self._wait_for_bell(timeout)
        if reader.pending:
            reader.pull(0 if columns else MOST_READY)
        else:
            reader.sweep()
        waited_s = min(timeout, time.monotonic() - began)
        application.poll_times.record_quiet(began, application.polls - application.waits, waited_s)
        if not reader.found(1, columns=columns):
            turns.quiet = quiet
        if self._reported:
            application.look_again()
        return timeout - waited_s

    def _wait_for_bell(self, timeout: float) -> None:
        """Wait for news of the group, or for records."""
        application = self._application
        application.bell.clear()
        if not (application.attention or self._reader.pending):
            application.bell.wait(timeout)

    def look(self, least: int, most: int, timeout: float | None, *, columns: bool = False) -> float:
        """Make messages ready, and wait until there are ``least``, other work is pending, or ``timeout`` ends.

        For ``columns``, wait until there is anything to decode. Return the remaining time, in seconds.
        """
        application, reader, turns = self._application, self._reader, self._turns
        began = time.monotonic()
        left_s = FOREVER_S if timeout is None or timeout < 0 else timeout
        ends = began + left_s
        while True:
            news = application.news
            turns.quiet = False
            reader.pull(most)
            if self._reported:
                application.look_again()
            if self._outcomes.news and left_s > 0:
                self._report_outcomes()
            fast = self._engine.fast_path
            turns.quiet = news if fast and not reader.found(1, columns=columns) and not turns.calls else False
            if left_s <= 0 or reader.found(least, columns=columns) or not fast:
                application.poll_times.record(began, application.calls)
                return max(0.0, left_s)
            reader.exceed()
            self._wait_for_bell(min(left_s, SLICE_S))
            application.waited()
            left_s = ends - time.monotonic()

    def _gather(self, least: int, most: int, timeout: float | None) -> bool:
        """Wait for messages; return whether some may be delivered. If not, ``errors`` may contain errors to return."""
        self._turns.check_open()
        self._deliveries.finish(get_ident())
        if self._take_notes():
            return False
        try:
            with kafka_exceptions():
                self._turns.check_process()
                ready = self._turns.on_loop(lambda: self._engine.gather(least, most, seconds(timeout, FOREVER_S)))
                if self._turns.requested:
                    self._turns.on_loop(self._turns.do_requested)
                    ready = ready and not self._turns.closed and bool(self._reader.ready)
                return ready
        except CallbackError as error:
            raise_cause(error)
        except CoordinatorError as error:
            if self._raises or not is_delivered(error):
                raise
            failures = self._application.failures
            if failures.final and failures.current is self._final:
                # The failure was reported once; later polls return nothing.
                self._wait_in_vain(timeout)
                return False
            self._final = failures.current if failures.final else None
            self.errors.extend(error_messages(error))
            self.failure = error
            self._application.look_again()
            return False

    def _wait_in_vain(self, timeout: float | None) -> None:
        ends = time.monotonic() + seconds(timeout, FOREVER_S)
        while (left_s := ends - time.monotonic()) > 0 and not self._turns.closed:
            time.sleep(min(left_s, SLICE_S))
            self._turns.on_loop(self._events)

    def _take_notes(self) -> bool:
        """Convert errors of background tasks to messages; return whether messages with errors are waiting."""
        notes = self._application.failures.notes
        while notes:
            self.errors.extend(error_messages(notes.popleft()))
        if self.errors:
            self._application.look_again()
        return bool(self.errors)

    def poll_inside(self, most: int, timeout: float | None) -> list[Message]:
        """Return messages for a poll inside a callback, without processing changes of the group."""
        me, ends = get_ident(), time.monotonic() + seconds(timeout, FOREVER_S)
        self._deliveries.finish(me)
        while not self._turns.on_loop(lambda: self._engine.read_only(most, max(0.0, ends - time.monotonic()))):
            if time.monotonic() >= ends:
                return []
        messages = self._engine.take(most)
        self._deliveries.last[me] = tuple(messages)
        return messages
