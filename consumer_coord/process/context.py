"""What a handler may know about its own call: :func:`context`."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from consumer_coord.errors import IllegalStateError

#: The type of the event: ``asyncio.Event`` or ``threading.Event``.
E = TypeVar("E")


class Context(Generic[E]):
    """The call of a handler for one record."""

    def __init__(self, attempt: int, deadline: float | None, make_event: Callable[[], E]) -> None:
        #: The number of this attempt, from 1 on.
        self.attempt: int = attempt
        #: When the handler is cancelled, or its result is ignored, in seconds of ``time.monotonic``; None without a limit.
        self.deadline: float | None = deadline
        #: When the attempt has failed by the policy's timeout, whatever else lowers :attr:`deadline`.
        self.times_out_at: float | None = deadline
        #: Why the result no longer counts: ``"timeout"`` (the group may have removed this member), ``"revoked"``, ``"lost"`` or
        #: ``"stopping"``; None while it counts.
        self.reason: str | None = None
        #: The OpenTelemetry span of this call; None if the application does not trace.
        self.span: Any = None
        self._make_event = make_event
        self._lost: E | None = None

    @property
    def lost(self) -> E:
        """The event that is set when the result of this call no longer counts: another member may handle the record, too."""
        if self._lost is None:
            self._lost = self._make_event()
            if self.reason is not None:
                self._set()
        return self._lost

    def lose(self, reason: str) -> None:
        """Set :attr:`lost`; called by the driver."""
        self.reason = self.reason or reason
        if self._lost is not None:
            self._set()

    def limit(self, deadline: float) -> None:
        """Lower the deadline; called by the driver."""
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)

    def _set(self) -> None:
        event: Any = self._lost
        event.set()


#: The context of the running handler.
CURRENT: contextvars.ContextVar[Context[Any]] = contextvars.ContextVar("consumer_coord.process.context")


def context() -> Context[Any]:
    """Return the :class:`Context` of the handler that calls this; raise :class:`IllegalStateError` outside a handler."""
    try:
        return CURRENT.get()
    except LookupError:
        raise IllegalStateError("context() is for handlers of process(): it was called outside one") from None
