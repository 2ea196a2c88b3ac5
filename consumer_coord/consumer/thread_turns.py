"""Decide which thread may use an engine, and which calls a callback may make.

One thread at a time uses the engine; other threads wait for their turn. A long poll waits several times for a short while, and
yields its turn between two waits. The turn is an attribute, ``at_hand.user``, and not a lock: a signal handler may raise in
any call, even in ``lock.release()``, but never between the last statements of ``poll``, because these statements call nothing.
So ``poll`` either delivers a message and ends its turn, or does neither. (CPython runs no signal handler, and no other thread,
inside a sequence of statements without calls and loops.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from threading import get_ident
from typing import Any, TypeVar

from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions, to_kafka_exception
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.engine_loop import callback_never_ends
from consumer_coord.errors import ClosedError, ConcurrentUseError
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator

T = TypeVar("T")

#: Interval at which a waiting thread checks for its turn, in seconds.
_TURN_S = 0.001
#: How long a poll that yielded its turn waits for the other thread to take the turn, in seconds.
_PASS_S = 0.02
#: How many more times a call checks for its turn after the time limit of a callback. A process that was suspended during the
#: callback finds the limit passed when it continues; these checks give the callback the time to end.
_GRACE_LOOKS = 1_000


class ThreadTurns:
    """Which thread may use the engine of a blocking consumer, and what its callbacks may do."""

    def __init__(self, coordinator: BlockingCoordinator, engine: Engine) -> None:
        self._loop = coordinator.loop
        #: Raises the error of a process that was forked with this consumer.
        self.check_process: Callable[[], None] = coordinator.check_process
        self._engine = engine
        self._application = engine.core.application
        self._limit_ms: int = engine.core.config.max_poll_interval_ms
        #: Its ``user`` is the identifier of the thread that uses the engine, or 0.
        self._at_hand: Any = engine.reader.at_hand
        self.closed = False
        #: The number of threads that wait for their turn.
        self.waiting: int = 0
        #: The value of ``application.news`` if the last wait for records ended with nothing to do, otherwise False.
        self.quiet: object = False
        #: Calls that run on the loop, including a call whose thread was interrupted and no longer waits for the call's end.
        self.calls: tuple[BlockingCall, ...] = ()
        #: Work that callbacks requested; done when the call that runs the callback ends.
        self.requested: list[Callable[[], Coroutine[Any, Any, None]]] = []
        #: The identifier of the thread that runs a callback, or 0; and the start time of the callback (``time.monotonic``).
        self._calling = 0
        self._calling_since = 0.0

    def check_open(self, what: str = "Consumer closed") -> None:
        if self.closed:
            raise to_kafka_exception(ClosedError(what))

    def may_take(self, me: int) -> bool:
        """Wait until the caller may take the turn in its next statement; inside a callback, return False without a wait."""
        if self.in_callback:
            return False
        self.wait(me)
        return True

    def wait(self, me: int) -> None:
        """Wait until the caller may take the turn in its next statement."""
        self.check_process()
        if self._at_hand.user == me:
            raise to_kafka_exception(
                ConcurrentUseError(
                    "this call interrupts another call of the same thread: a signal handler may only call wakeup()"
                )
            )
        self.waiting += 1
        overdue = 0
        try:
            while self._at_hand.user:
                overdue = overdue + 1 if self._callback_is_overdue else 0
                if overdue > _GRACE_LOOKS:
                    raise to_kafka_exception(ConcurrentUseError(callback_never_ends(self._limit_ms)))
                # A thread that polls without a pause yields its turn only while it checks the group, so make it check the
                # group; if it waits, end the wait.
                if not self._application.attention:
                    self._application.wake()
                time.sleep(_TURN_S)
        finally:
            self.waiting -= 1

    @property
    def _callback_is_overdue(self) -> bool:
        """True if a callback has been running for ``max.poll.interval.ms``; this callback may be waiting for this thread."""
        return bool(self._calling) and time.monotonic() - self._calling_since >= self._limit_ms / 1000

    def on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the engine on the loop, and wait for its result; called by the thread that has the turn."""
        nested = self.in_callback
        left = () if nested else self.calls
        call = BlockingCall(self._loop)

        async def run() -> T:
            for one in left:
                await one.ended()
            return await work()

        self.calls, self.quiet = (*self.calls, call), False
        try:
            return call.run(run)
        finally:
            if call.over and not nested:
                self.calls = ()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for this thread's turn, then run a coroutine of the engine; a callback uses the turn of its caller."""
        return self._in_turn(lambda: self.on_loop(work))

    def use(self, work: Callable[[], T]) -> T:
        """Wait for this thread's turn, then call a function of the engine that awaits nothing.

        A step on the loop would take a hundred times as long. This step is needed only if an earlier call still runs there:
        inside a callback, and after an interrupt.
        """

        async def working() -> T:
            return work()

        return self._in_turn(lambda: self.on_loop(working) if self.calls else work())

    def _in_turn(self, work: Callable[[], T]) -> T:
        """Wait for this thread's turn, then call a function; a callback uses the turn of its caller."""
        self.check_open()
        me, mine = get_ident(), False
        with drop_in_exceptions():
            if self._at_hand.user == me and self._calling == me:
                return work()
            try:
                self.check_process()
                if self._at_hand.user:
                    self.wait(me)
                self._at_hand.user = me
                mine = True
                # The function may change the plan, so the next poll must look at it.
                self._at_hand.messages = None
                self.quiet = False
                self.check_open()
                return work()
            finally:
                if mine and self._at_hand.user == me:
                    self._at_hand.user = 0

    @property
    def in_callback(self) -> bool:
        """True inside a callback of the application, on the callback's thread."""
        return self._calling != 0 and self._calling == get_ident() == self._at_hand.user

    def call_out(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function of the application, and record during the call that a callback runs on this thread."""
        before = self._calling
        if not before:
            self._calling_since = time.monotonic()
        self._calling = get_ident()
        try:
            function(*arguments)
        finally:
            self._calling = before

    def pass_on(self) -> None:
        """Yield the turn to a waiting thread, then take the turn again."""
        me, mine = self._at_hand.user, self.calls
        self.calls = ()
        try:
            self._at_hand.user = 0
            ends = time.monotonic() + _PASS_S
            while self.waiting and not self._at_hand.user and time.monotonic() < ends:
                time.sleep(_TURN_S / 2)
            if self._at_hand.user:
                self.wait(me)
            self._at_hand.user = me
        finally:
            self.calls = (*self.calls, *mine)
        # The other thread may have changed the state: check the group before delivering a message.
        self._application.look_again()

    def do_later(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Schedule a callback's work for the end of the present call, and make this call end soon."""
        self.requested.append(work)
        self._engine.returns_early = True

    async def do_requested(self) -> None:
        """Do what callbacks requested, on the loop, when the call that ran them ends."""
        self._engine.returns_early = False
        while self.requested and not self.closed:
            await self.requested.pop(0)()

    def change(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Change the subscription or the assignment; after an ``unsubscribe`` that is still due."""
        if self.requested and self.in_callback:
            self.do_later(work)
            return
        if self.requested:
            self.run(self.do_requested)
        self.run(work)
