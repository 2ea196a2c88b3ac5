"""The fast path of a poll, without the kernel in C: see ``_at_hand.h`` for the rules."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from threading import get_ident
from typing import Any


class AtHand:
    """What a poll has offered to the next polls of its thread, and which thread has the turn of a consumer."""

    def __init__(self, clock: Callable[[], float], clock_id: int) -> None:
        """Offer nothing yet. ``clock`` is the lease's; ``clock_id`` is the system clock that it reads, or -1: not used here."""
        self.polls: int = 0
        #: Number of calls of :meth:`expire`.
        self.changes: int = 0
        #: The thread that has the turn, or 0.
        self.user: int = 0
        #: The queue of messages. A new queue ends the offer of the former one.
        self.ready: MutableSequence[Any] | None = None
        #: The queue that was offered; a call that takes the turn sets it to None.
        self.messages: MutableSequence[Any] | None = None
        self._clock = clock
        self._last: dict[Any, Any] = {}
        self._thread = 0
        self._receiver: object = None
        self._until = 0.0
        self._offered_at = 0

    def use_clock(self, clock: Callable[[], float], clock_id: int) -> None:
        """Read the lease's time from another clock."""
        self._clock = clock

    def expire(self) -> None:
        """End the offer, because the next poll must look at something; any thread."""
        self.changes += 1

    def offer(self, last: dict[Any, Any], until: float, changes: int, receiver: object = None) -> None:
        """Let the thread that has the turn take messages of the queue after it, without a look.

        ``last``: the last delivery to the ``receiver`` (if None: to this thread) is stored there. The offer holds as long as
        the clock is below ``until``, and no event came after :attr:`changes` was read.
        """
        self.messages, self._last, self._thread = self.ready, last, self.user
        self._receiver = self.user if receiver is None else receiver
        self._until, self._offered_at = until, changes

    @property
    def message(self) -> Any:
        """Take the next message of the offer, which counts as delivered; None without one."""
        if self.messages is None:
            return None
        me, moment = get_ident(), self._clock()
        # No function is called from here on: a signal handler may raise in a call, and another thread may run.
        messages = self.messages
        if (
            not messages
            or messages is not self.ready
            or self.user
            or self._thread != me
            or moment >= self._until
            or self.changes != self._offered_at
        ):
            return None
        message = messages[0]
        del messages[0]
        self.polls += 1
        # The last statement, because the release of the former message may call a function of the application's.
        self._last[self._receiver] = message
        return message
