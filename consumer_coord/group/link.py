"""A member's link to its group coordinator: find it, ask it, forget it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consumer_coord.errors import RetriableError
from consumer_coord.group.discovery import CoordinatorLookup
from consumer_coord.group.metrics import Metrics
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline


class CoordinatorLink:
    """The link of one member; the look-up itself is shared by all members of the group in this process."""

    def __init__(
        self, cluster: ClusterClient, lookup: CoordinatorLookup, metrics: Metrics, on_obstacle: Callable[[str], None]
    ) -> None:
        """``on_obstacle`` is told what delays finding the coordinator or its answers."""
        self._cluster = cluster
        self._lookup = lookup
        self._metrics = metrics
        #: Of :class:`~consumer_coord.group.discovery.Waiter`.
        self.note_obstacle = on_obstacle

    @property
    def coordinator(self) -> Broker | None:
        """The coordinator, None while it is not known."""
        return self._lookup.coordinator

    async def find(self, deadline: Deadline) -> Broker:
        """The coordinator, looked up if it is not known (``lookupCoordinator``).

        Raises :class:`~consumer_coord.errors.CoordinatorNotAvailableError` at ``deadline``, authorisation errors at once.
        """
        return await self._lookup.find(deadline, self)

    async def ask(self, broker: Broker, message: Any, *, timeout_ms: float, patience_ms: float | None = None) -> Any:
        """One request to the coordinator.

        A broken connection, or no answer within ``timeout_ms``, forgets the coordinator; a caller whose ``patience_ms`` ended
        earlier does not.
        """
        patience = None if patience_ms is None else Deadline.after(patience_ms)
        try:
            return await self._cluster.request(broker, message, timeout_ms=timeout_ms, patience_ms=patience_ms)
        except RetriableError as error:
            if patience is None or not patience.passed:
                self.forget(broker, str(error))
            raise

    def forget(self, broker: Broker, why: str) -> None:
        """``broker`` is not the coordinator any more: look it up before the next request."""
        self.note_obstacle(why)
        self._lookup.gone(broker, why)

    def looked_up(self) -> None:
        """The brokers were asked for the coordinator, on this member's behalf."""
        self._metrics.record("coordinator-lookup")
