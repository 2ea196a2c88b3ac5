"""Decide which thread may use an engine, and which calls a callback may make.

One thread at a time uses the engine; other threads wait for their turn. A long poll waits several times for a short while, and
yields its turn between two waits. The turn is an attribute, ``_at_hand.user``, and not a lock: a signal handler may raise in
any call, even in ``lock.release()``, but never between the last statements of ``poll``, because these statements call nothing.
So ``poll`` either delivers a message and ends its turn, or does neither. (CPython runs no signal handler, and no other thread,
inside a sequence of statements without calls and loops.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import starmap
from operator import methodcaller
from threading import get_ident
from typing import Any, Generic, ParamSpec, TypeVar

from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions, to_kafka_exception
from consumer_coord.consumer.engine_loop import callback_never_ends
from consumer_coord.errors import ClosedError, ConcurrentUseError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator

P = ParamSpec("P")
T = TypeVar("T")

_SEND = methodcaller("send", None)

#: Interval at which a waiting thread checks for its turn, in seconds.
_TURN_S = 0.001
#: How long a poll that yielded its turn waits for the other thread to take the turn, in seconds.
_PASS_S = 0.02
#: How many more times a call checks for its turn after the time limit of a callback. A process that was suspended during the
#: callback finds the limit passed when it continues; these checks give the callback the time to end.
_GRACE_LOOKS = 1_000


class Done(Generic[T]):
    """An awaitable with its result."""

    def __init__(self, result: T) -> None:
        self._result = result

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        return self._result


def run_blocking(work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **keywords: P.kwargs) -> T:
    """Run a coroutine that awaits nothing but :class:`Done` on the calling thread, and return its result."""
    try:
        # The coroutine is made and started without an instruction in between: if a signal handler raised there, Python would
        # warn that the coroutine was never awaited.
        next(map(_SEND, starmap(partial(work, *args, **keywords), ((),))))
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call of a blocking consumer has suspended")


class Turns:
    """The part of a blocking consumer that decides which thread may use the engine."""

    _coordinator: BlockingCoordinator
    _core: ConsumerCoordinator
    #: True before the consumer was completely created, and after it was closed.
    _closed = True
    #: Its ``user`` is the identifier of the thread that uses the engine, or 0.
    _at_hand: Any
    #: The number of threads that wait for their turn.
    _waiting = 0
    #: The value of ``application.news`` if the last wait for records ended with nothing to do, otherwise False.
    _quiet: object = False
    #: Calls that run on the loop, including a call whose thread was interrupted and no longer waits for the call's end.
    _calls: tuple[BlockingCall, ...] = ()
    #: The identifier of the thread that runs a callback, or 0; and the start time of the callback (``time.monotonic``).
    _calling = 0
    _calling_since = 0.0

    def _check_open(self, what: str = "Consumer closed") -> None:
        if self._closed:
            raise to_kafka_exception(ClosedError(what))

    def _may_take_turn(self, me: int) -> bool:
        """Wait until the caller may take the turn in its next statement; inside a callback, return False without a wait."""
        if self._in_callback:
            return False
        self._wait_for_turn(me)
        return True

    def _wait_for_turn(self, me: int) -> None:
        """Wait until the caller may take the turn in its next statement."""
        self._coordinator.check_process()
        if self._at_hand.user == me:
            raise to_kafka_exception(
                ConcurrentUseError(
                    "this call interrupts another call of the same thread: a signal handler may only call wakeup()"
                )
            )
        self._waiting += 1
        overdue = 0
        try:
            while self._at_hand.user:
                overdue = overdue + 1 if self._callback_is_overdue else 0
                if overdue > _GRACE_LOOKS:
                    limit_ms = self._core.config.max_poll_interval_ms
                    raise to_kafka_exception(ConcurrentUseError(callback_never_ends(limit_ms)))
                # A thread that polls without a pause yields its turn only while it checks the group, so make it check the
                # group; if it waits, end the wait.
                if not self._core.application.attention:
                    self._core.application.wake()
                time.sleep(_TURN_S)
        finally:
            self._waiting -= 1

    @property
    def _callback_is_overdue(self) -> bool:
        """True if a callback has been running for ``max.poll.interval.ms``; this callback may be waiting for this thread."""
        limit_s = self._core.config.max_poll_interval_ms / 1000
        return bool(self._calling) and time.monotonic() - self._calling_since >= limit_s

    def _on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the engine on the loop, and wait for its result; called by the thread that has the turn."""
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
        """Wait for this thread's turn, then run a coroutine of the engine; a callback uses the turn of its caller."""
        return self._in_turn(lambda: self._on_loop(work))

    def _use(self, work: Callable[[], T]) -> T:
        """Wait for this thread's turn, then call a function of the engine that awaits nothing.

        A step on the loop would take a hundred times as long. This step is needed only if an earlier call still runs there:
        inside a callback, and after an interrupt.
        """

        async def on_loop() -> T:
            return work()

        return self._in_turn(lambda: self._on_loop(on_loop) if self._calls else work())

    def _in_turn(self, work: Callable[[], T]) -> T:
        """Wait for this thread's turn, then call a function; a callback uses the turn of its caller."""
        self._check_open()
        me, mine = get_ident(), False
        with drop_in_exceptions():
            if self._at_hand.user == me and self._calling == me:
                return work()
            try:
                self._coordinator.check_process()
                if self._at_hand.user:
                    self._wait_for_turn(me)
                self._at_hand.user = me
                mine = True
                # The function may change the plan, so the next poll must look at it.
                self._at_hand.messages = None
                self._quiet = False
                self._check_open()
                return work()
            finally:
                if mine and self._at_hand.user == me:
                    self._at_hand.user = 0

    @property
    def _in_callback(self) -> bool:
        """True inside a callback of the application, on the callback's thread."""
        return self._calling != 0 and self._calling == get_ident() == self._at_hand.user

    def _call_out(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function of the application, and record during the call that a callback runs on this thread."""
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
        me, mine = self._at_hand.user, self._calls
        self._calls = ()
        try:
            self._at_hand.user = 0
            ends = time.monotonic() + _PASS_S
            while self._waiting and not self._at_hand.user and time.monotonic() < ends:
                time.sleep(_TURN_S / 2)
            if self._at_hand.user:
                self._wait_for_turn(me)
            self._at_hand.user = me
        finally:
            self._calls = (*self._calls, *mine)
        # The other thread may have changed the state: check the group before delivering a message.
        self._core.application.look_again()
