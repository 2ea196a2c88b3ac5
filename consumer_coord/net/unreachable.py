"""Log warnings while no broker of a cluster can be reached.

A client retries while its caller waits. Without a log line, a wrong host or port would look like a slow broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)

#: Delay of the first log line, and the interval of later log lines, in seconds.
REPORTED_AFTER_S = 2.0
REPORTED_AGAIN_S = 60.0


class Reach:
    """The result of the last connection attempt to each address that was tried since a broker was last reached."""

    def __init__(self) -> None:
        self._tried: dict[str, str] = {}
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def trying(self, address: str) -> None:
        """Record that a connection is being opened while no other connection is open."""
        self._tried.setdefault(address, "no answer yet")
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._timer = loop.call_later(REPORTED_AFTER_S, self._report)

    def failed(self, address: str, why: Exception) -> None:
        """Record that a connection could not be opened."""
        if self._timer is not None:
            self._tried[address] = str(why)

    def reached(self) -> None:
        """Record that a broker responded."""
        self.close()

    def close(self) -> None:
        """Stop logging."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tried.clear()

    def _report(self) -> None:
        loop = asyncio.get_running_loop()
        logger.warning("no broker could be reached for %.0f s, still retrying; %s", loop.time() - self._since, self.summary())
        self._timer = loop.call_later(REPORTED_AGAIN_S, self._report)

    def summary(self, most: int = 5) -> str:
        """Return the addresses that were tried, and the result for each address; at most ``most`` of them."""
        rows: Sequence[str] = [f"{address}: {what.removeprefix(f'{address} ')}" for address, what in self._tried.items()]
        more = f"; and {len(rows) - most} more addresses" if len(rows) > most else ""
        return "; ".join(rows[:most]) + more
