"""Look up the group's coordinator (FindCoordinator, KIP-699), and forget it when it is no longer the coordinator."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from consumer_coord.errors import CoordinatorNotAvailableError
from consumer_coord.final_errors import fatal
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.group_requests import coordinator_in, find_coordinator
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline, retrying
from consumer_coord.wire import error_codes as codes

logger: Final = get_logger(__name__)


class Waiter(Protocol):
    """A member that waits for a look-up."""

    def looked_up(self) -> None:
        """Record that a broker responded to the look-up."""

    def note_obstacle(self, what: str) -> None:
        """Record a problem that delays the look-up."""


class CoordinatorLookup:
    """Finds the broker that coordinates one group. All members of the process share one look-up at a time."""

    def __init__(self, group_id: str, cluster: ClusterClient, attempt_ms: float) -> None:
        """Prepare look-ups; ``attempt_ms`` is the time limit of the request to one broker."""
        self._attempt_ms = attempt_ms
        self.coordinator: Broker | None = None
        self._group_id = group_id
        self._cluster = cluster
        self._lookup: asyncio.Task[Broker] | None = None
        self._waiting: list[Waiter] = []
        self._last = ""

    async def find(self, deadline: Deadline | None, waiter: Waiter) -> Broker:
        """Return the coordinator, and look it up if it is not known.

        Raise :class:`CoordinatorNotAvailableError` at ``deadline``. Raise fatal errors, such as a missing authorisation, at
        once.
        """
        if self.coordinator is not None:
            return self.coordinator
        task = self._lookup
        if task is None or task.done():
            task = self._lookup = asyncio.create_task(self._look_up(), name=f"find coordinator of {self._group_id}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        timeout_s = None if deadline is None else deadline.remaining_ms / 1000
        self._waiting.append(waiter)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        finally:
            self._waiting.remove(waiter)
        if not done:
            raise CoordinatorNotAvailableError(
                f"the coordinator of group {self._group_id!r} was not found in time: check bootstrap.servers, and that the"
                f" brokers are up ({self._last or 'no answer yet'})"
            )
        return task.result()

    def gone(self, broker: Broker, why: str) -> None:
        """Forget the coordinator, if it is still ``broker``; the next :meth:`find` looks it up."""
        if self.coordinator == broker:
            logger.info("group %s: coordinator %s is gone: %s", self._group_id, broker.address, why)
            self.coordinator = None

    def close(self) -> None:
        """Cancel a look-up in progress, and forget the coordinator."""
        self.coordinator = None
        if self._lookup is not None:
            self._lookup.cancel()

    async def _look_up(self) -> Broker:
        """Ask brokers, with backoff, until one names the coordinator; continue even if a waiting member times out."""
        group_id = self._group_id
        request = find_coordinator(group_id)
        async for attempt in retrying(self._cluster.backoff, None, what="FindCoordinator", log=self._note):
            with attempt:
                answer = await self._cluster.request_any(
                    request,
                    Deadline.after(self._cluster.config.request_timeout_ms),
                    attempt_ms=self._attempt_ms,
                    note=self._note,
                )
                code, coordinator = coordinator_in(answer, group_id, self._cluster.answers)
                for waiter in dict.fromkeys(self._waiting):
                    waiter.looked_up()
                if code == codes.NONE:
                    self.coordinator = coordinator
                    return coordinator
                if codes.is_retriable(code):
                    raise CoordinatorNotAvailableError(
                        f"the brokers have no coordinator for group {group_id!r} at present ({codes.error_name(code)})",
                        code=code,
                    )
                raise fatal(code, group_id=group_id, request="FindCoordinator")
        raise AssertionError("unreachable: the retry loop returns or raises")

    def _note(self, message: str) -> None:
        self._last = message
        for waiter in dict.fromkeys(self._waiting):
            waiter.note_obstacle(message)
