"""A member's link to its group coordinator: find the coordinator, send requests to it, forget it after an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consumer_coord.environment import now
from consumer_coord.errors import AuthenticationError, CoordinatorError, RetriableError
from consumer_coord.group.find_coordinator import CoordinatorLookup
from consumer_coord.group.member_log import MemberLog
from consumer_coord.group.metrics import Metrics
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes

#: Codes that may not come back on a new connection: with which a broker refuses a principal, or a version.
EXCUSED = frozenset(
    {
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.SASL_AUTHENTICATION_FAILED,
        codes.UNSUPPORTED_VERSION,
    }
)
#: How long versions count as the broker's, in seconds.
_VERSIONS_S = 5.0


class CoordinatorLink:
    """The link of one member; all members of the group in this process share the look-up."""

    def __init__(
        self,
        cluster: ClusterClient,
        lookup: CoordinatorLookup,
        metrics: Metrics,
        log: MemberLog,
        on_obstacle: Callable[[str], None],
    ) -> None:
        """Create the link; ``on_obstacle`` receives errors that delay the look-up or the coordinator's responses."""
        self._cluster = cluster
        self._lookup = lookup
        self._metrics = metrics
        self._log = log
        #: The coordinator that the log named last.
        self._shown: Broker | None = None
        #: The requests that were refused since they were last accepted, and when this was excused (loop time, in seconds).
        self._excused: dict[str, float] = {}
        #: A method of :class:`~consumer_coord.group.find_coordinator.Waiter`.
        self.note_obstacle = on_obstacle

    @property
    def coordinator(self) -> Broker | None:
        """The coordinator, None while it is not known."""
        return self._lookup.coordinator

    async def find(self, deadline: Deadline) -> Broker:
        """Return the coordinator, and look it up if it is not known (``lookupCoordinator``).

        Raise :class:`~consumer_coord.errors.CoordinatorNotAvailableError` at ``deadline``. Raise authorisation errors at once.
        """
        found = await self._lookup.find(deadline, self)
        if found != self._shown:
            self._shown = found
            self._log.step("CGRPCOORD", "coordinator is %s id %s", found.address, found.id)
        return found

    async def ask(self, broker: Broker, message: Any, *, timeout_ms: float, patience_ms: float | None = None) -> Any:
        """Send one request to the coordinator and return its response.

        Forget the coordinator if the connection breaks or no response arrives within ``timeout_ms``, unless the caller stopped
        waiting earlier, after ``patience_ms``.
        """
        patience = None if patience_ms is None else Deadline.after(patience_ms)
        try:
            answer = await self._cluster.request(broker, message, timeout_ms=timeout_ms, patience_ms=patience_ms)
        except RetriableError as error:
            if patience is None or not patience.passed:
                self.forget(broker, str(error))
            raise
        self.show_answer(message, answer)
        return answer

    def show_answer(self, message: Any, answer: Any) -> None:
        """Log one line for a response of the coordinator, with ``debug=cgrp``."""
        if self._log.steps is None:
            return
        kind = message.request_class if isinstance(message, Versioned) else type(message)
        name = kind.__name__.removesuffix("Request")
        code = getattr(answer, "error_code", 0)
        numbers = [
            f", {field.replace('_', ' ')} {getattr(answer, field)}"
            for field in ("generation_id", "member_epoch", "protocol_name", "member_id")
            if getattr(answer, field, None)
        ]
        self._log.step(name.upper(), "%s response: %s%s", name, codes.error_name(code), "".join(numbers))

    def forget(self, broker: Broker, why: str) -> None:
        """Look up the coordinator before the next request, because ``broker`` is no longer the coordinator."""
        self.note_obstacle(why)
        if self._shown is not None:
            self._shown = None
            self._log.step("COORDCLEAR", "broker %s is no longer coordinator: %s", broker.address, why)
        self._lookup.gone(broker, why)

    def excuses(self, error: CoordinatorError, request: str) -> bool:
        """Return whether to repeat a request that was refused, with a new connection, a new token, and its versions.

        The cause may be a token that has just expired, an authorizer without its rules, or versions that the broker no longer
        offers. Return False for any other error, and if ``request`` was refused again before :meth:`accepted`; for a version,
        only for five seconds.
        """
        if not (isinstance(error, AuthenticationError) or error.code in EXCUSED):
            return False
        excused_at = self._excused.get(request)
        if excused_at is not None and (error.code != codes.UNSUPPORTED_VERSION or now() - excused_at < _VERSIONS_S):
            return False
        self._excused[request] = now()
        self._log.warning("connecting and authenticating again, because %s", error)
        if self.coordinator is not None:
            self._cluster.authenticate_again(self.coordinator)
        return True

    def accepted(self, request: str) -> None:
        """Record that the coordinator accepted a request, so that a later refusal is excused again."""
        self._excused.pop(request, None)

    def refresh_metadata(self) -> None:
        """Refresh topic metadata soon, because the coordinator does not know a topic's id."""
        self._cluster.refresh_later(0)

    def looked_up(self) -> None:
        """Count a look-up for this member."""
        self._metrics.record("coordinator-lookup")
