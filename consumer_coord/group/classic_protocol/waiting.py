"""JoinGroup and SyncGroup while they wait at the coordinator, which answers when the rest of the group is ready.

Such a request may be on a connection that is dead without a sign of it (a firewall forgot it, bytes vanish).  What tells of
that are the heartbeats, which travel on another connection: their answers say whether the coordinator can have the request.
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
    """The wait was senseless: the coordinator cannot have the request, or what it was for is gone."""


class WaitingRequest:
    """The one request of a member that waits, if any."""

    def __init__(self) -> None:
        #: Who was asked; None while nothing waits.
        self.broker: Broker | None = None
        self._sent_at = 0.0
        self._scope: asyncio.Timeout | None = None
        self._senseless = ""

    @property
    def active(self) -> bool:
        """True while a request waits."""
        return self.broker is not None

    async def ask(self, broker: Broker, send: Callable[[float], Awaitable[T]], deadline: Deadline, again_ms: float | None) -> T:
        """``send``, which is told for how many milliseconds to wait; it is called again, to use another connection, every
        ``again_ms``.

        Raises what ``send`` raises, and :class:`AbandonedError` when :meth:`abandon` is called.
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
        """True while a request waits that was sent more than ``ms`` ago."""
        return self._scope is not None and now() - self._sent_at > ms / 1000

    def abandon(self, why: str) -> None:
        """The wait is senseless: it ends with an :class:`AbandonedError` that says ``why``."""
        if self._scope is not None and not self._senseless:
            self._senseless = why
            # In the moment in which it is to be sent again it ends by itself.
            if not self._scope.expired():
                self._scope.reschedule(now())
