"""Figures of the connections to one address, and news of these connections, for statistics and callbacks."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from typing import Any, Final, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import CoordinatorError, RequestTimedOutError
from consumer_coord.net.metadata import Broker

#: Number of responses whose times are remembered for the next report.
_MOST_SAMPLES: Final = 1_000


class Listener(Protocol):
    """Is told of a process's connections; called on the loop, and must neither block nor raise."""

    def connection_failed(self, broker: Broker, error: CoordinatorError) -> None:
        """Receive the error of a connection that could not be opened, or that broke while a request waited."""

    def throttled(self, broker: Broker, throttle_ms: int) -> None:
        """Receive the time by which a quota delayed a Fetch response; 0 when a quota no longer delays them."""


def _samples() -> deque[tuple[float, int]]:
    return deque(maxlen=_MOST_SAMPLES)


@attrs.define(eq=False)
class Traffic:
    """Counters of all connections to one address since the first one."""

    listeners: weakref.WeakKeyDictionary[Listener, Any] = attrs.field(factory=weakref.WeakKeyDictionary)
    #: The broker for which the last connection was opened.
    broker: Broker = Broker(-1, "", 0)
    #: Open connections, and the loop's time of the last change between none and some; 0 before the first attempt.
    open: int = 0
    changed_at: float = 0.0
    connects: int = 0
    disconnects: int = 0
    #: Attempts to connect that failed.
    failures: int = 0
    #: Requests by the name of their API.
    requests: Counter[str] = attrs.field(factory=Counter)
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    #: Requests that never got a response, because their connection was closed, and connections closed for a late response.
    unanswered: int = 0
    timeouts: int = 0
    #: (the loop's time of the response, microseconds since its request), and (the same, throttle time in milliseconds).
    round_trips: deque[tuple[float, int]] = attrs.field(factory=_samples)
    throttles: deque[tuple[float, int]] = attrs.field(factory=_samples)
    _throttled: bool = False

    def opened(self) -> None:
        """Count an open connection."""
        self.connects += 1
        if not self.open:
            self.changed_at = now()
        self.open += 1

    def closed(self) -> None:
        """Count the end of an open connection."""
        self.disconnects += 1
        self.open -= 1
        if not self.open:
            self.changed_at = now()

    def not_opened(self, error: CoordinatorError) -> None:
        """Count and report an attempt to connect that failed."""
        self.failures += 1
        self.changed_at = self.changed_at or now()
        self.failed(error)

    def failed(self, error: CoordinatorError) -> None:
        """Tell the listeners of an error of a connection."""
        self.timeouts += isinstance(error, RequestTimedOutError)
        for listener in tuple(self.listeners):
            listener.connection_failed(self.broker, error)

    def throttle(self, throttle_ms: int) -> None:
        """Tell the listeners that a quota delayed a response, and later that it no longer does."""
        if throttle_ms <= 0 and not self._throttled:
            return
        self._throttled = throttle_ms > 0
        self.throttles.append((now(), throttle_ms))
        for listener in tuple(self.listeners):
            listener.throttled(self.broker, throttle_ms)
