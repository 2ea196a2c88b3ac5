"""Decide which thread may use an engine, and which calls a callback may make.

One thread at a time uses the engine; others wait for their turn. A long poll yields its turn between two slices of waiting. The
turn is an attribute, ``_user``, and not a lock: a signal handler may raise in any call, ``lock.release()`` included, but never
between the statements that end ``poll``, which call nothing. So ``poll`` either delivers a message and ends its turn, or does
neither. (CPython runs signal handlers, and other threads, only between calls.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from threading import get_ident
from typing import Any, TypeVar

from consumer_coord.consumer.librdkafka.kafka_exceptions import drop_in_exceptions, to_kafka_exception
from consumer_coord.consumer.scheduler import callback_never_ends
from consumer_coord.errors import ClosedError, ConcurrentUseError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.runtime.blocking_coordinator import BlockingCoordinator

T = TypeVar("T")

#: Interval at which a waiting thread checks for its turn, in seconds.
_TURN_S = 0.001
#: How long a poll that yielded its turn waits for the other thread to take the turn, in seconds.
_PASS_S = 0.02
#: How many more looks a call waits for its turn: the process may freeze during a callback, which then continues.
_GRACE_LOOKS = 1_000


class Turns:
    """The part of a blocking consumer that decides which thread may call."""

    _coordinator: BlockingCoordinator
    _core: ConsumerCoordinator
    #: True before the consumer was completely created, and after it was closed.
    _closed = True
    #: The thread that has the turn, or 0; and the number of waiting threads.
    _user = 0
    _waiting = 0
    #: The application's news when a wait for messages ended with nothing to do; False after anything else.
    _quiet: object = False
    #: Calls that run on the loop, including calls that were abandoned by their threads and may not have ended.
    _calls: tuple[BlockingCall, ...] = ()
    #: The thread that a callback runs on, and the time when it began (``time.monotonic``).
    _calling = 0
    _calling_since = 0.0

    def _check_open(self, what: str = "Consumer closed") -> None:
        if self._closed:
            raise to_kafka_exception(ClosedError(what))

    def _may_take_turn(self, me: int) -> bool:
        """Wait until the turn is free; the caller takes the turn in its next statement. Return False inside a callback."""
        if self._in_callback:
            return False
        self._wait_for_turn(me)
        return True

    def _wait_for_turn(self, me: int) -> None:
        """Wait until the turn is free; the caller takes the turn in its next statement."""
        self._coordinator.check_process()
        if self._user == me:
            raise to_kafka_exception(
                ConcurrentUseError(
                    "this call interrupts another one of the same thread: a signal handler may call wakeup(), and nothing else"
                )
            )
        self._waiting += 1
        overdue = 0
        try:
            while self._user:
                overdue = overdue + 1 if self._callback_is_overdue else 0
                if overdue > _GRACE_LOOKS:
                    limit_ms = self._core.config.max_poll_interval_ms
                    raise to_kafka_exception(ConcurrentUseError(callback_never_ends(limit_ms)))
                # A thread that polls without a pause passes its turn when it next looks at the group.
                self._core.application.look_again()
                time.sleep(_TURN_S)
        finally:
            self._waiting -= 1

    @property
    def _callback_is_overdue(self) -> bool:
        """True when a callback has had the turn for ``max.poll.interval.ms``: the callback may wait for this thread."""
        limit_s = self._core.config.max_poll_interval_ms / 1000
        return bool(self._calling) and time.monotonic() - self._calling_since >= limit_s

    def _on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the engine; this thread has the turn."""
        nested = self._in_callback
        left = () if nested else self._calls
        call = BlockingCall(self._coordinator.loop)

        async def run() -> T:
            for one in left:
                await one.ended()
            return await work()

        self._calls, self._quiet = (*self._calls, call), False
        try:
            return call.run(run)
        finally:
            if call.over and not nested:
                self._calls = ()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the engine in this thread's turn; inside a callback, in the turn of the callback's caller."""
        return self._in_turn(lambda: self._on_loop(work))

    def _in_turn(self, work: Callable[[], T]) -> T:
        """Call a function in this thread's turn; inside a callback, in the turn of the callback's caller."""
        self._check_open()
        me, mine = get_ident(), False
        with drop_in_exceptions():
            if self._user == me and self._calling == me:
                return work()
            try:
                self._coordinator.check_process()
                if self._user:
                    self._wait_for_turn(me)
                self._user = me
                mine = True
                self._check_open()
                return work()
            finally:
                if mine and self._user == me:
                    self._user = 0

    @property
    def _in_callback(self) -> bool:
        """True inside a callback of the application, on the callback's thread."""
        return self._calling != 0 and self._calling == get_ident() == self._user

    def _call_out(self, function: Callable[..., object], *arguments: object) -> None:
        """Call the application, and record that a callback runs on this thread."""
        before = self._calling
        if not before:
            self._calling_since = time.monotonic()
        self._calling = get_ident()
        try:
            function(*arguments)
        finally:
            self._calling = before

    def _pass_turn(self) -> None:
        """Yield the turn to a waiting thread, then take the turn again."""
        me, mine = self._user, self._calls
        self._calls = ()
        try:
            self._user = 0
            ends = time.monotonic() + _PASS_S
            while self._waiting and not self._user and time.monotonic() < ends:
                time.sleep(_TURN_S / 2)
            if self._user:
                self._wait_for_turn(me)
            self._user = me
        finally:
            self._calls = (*self._calls, *mine)
        # The other thread may have changed the state: check the group before delivering a message.
        self._core.application.look_again()
