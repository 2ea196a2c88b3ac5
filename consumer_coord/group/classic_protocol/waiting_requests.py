"""Handle JoinGroup and SyncGroup while they wait at the coordinator, which responds when all other members are ready.

The connection of such a request may be silently dead (because of a firewall, for instance). Heartbeats use another connection,
and their responses can show that the coordinator has not received the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, RetriableError
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline

T = TypeVar("T")


class AbandonedError(RetriableError):
    """Raised if a wait is useless: the coordinator cannot have received the request, or the request is no longer needed."""


class WaitingRequest:
    """The JoinGroup or SyncGroup that a member waits for, if there is one."""

    def __init__(self) -> None:
        #: The broker that should respond; None while no request waits.
        self.broker: Broker | None = None
        self._sent_at = 0.0
        self._scope: asyncio.Timeout | None = None
        self._senseless = ""

    @property
    def active(self) -> bool:
        """True while a request waits."""
        return self.broker is not None

    async def ask(self, broker: Broker, send: Callable[[float], Awaitable[T]], deadline: Deadline, again_ms: float | None) -> T:
        """Call ``send`` with its time limit in ms; repeat the call every ``again_ms``, so that it uses another connection.

        Raise what ``send`` raises, and :class:`AbandonedError` when :meth:`abandon` is called.
        """
        while True:
            left_ms = deadline.remaining_ms
            self.broker, self._sent_at, self._senseless = broker, now(), ""
            try:
                async with asyncio.timeout(None if again_ms is None or again_ms >= left_ms else again_ms / 1000) as scope:
                    self._scope = scope
                    return await send(max(1.0, left_ms))
            except TimeoutError as error:
                if isinstance(error, CoordinatorError):
                    raise
                if self._senseless:
                    raise AbandonedError(self._senseless) from None
            finally:
                self._scope = self.broker = None

    def sent_before(self, ms: float) -> bool:
        """Return whether the waiting request was sent more than ``ms`` milliseconds ago."""
        return self._scope is not None and now() - self._sent_at > ms / 1000

    def abandon(self, why: str) -> None:
        """End the wait with an :class:`AbandonedError` that gives ``why`` as the reason."""
        if self._scope is not None and not self._senseless:
            self._senseless = why
            # If the timeout has already expired, it has ended the wait, and `ask` raises the error.
            if not self._scope.expired():
                self._scope.reschedule(now())
