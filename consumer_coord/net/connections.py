"""The connections of a process to the brokers of a cluster, one *shared* connection a broker.

A broker serves one request of a connection at a time.  So JoinGroup and SyncGroup, which it answers late, borrow a connection
from a pool while they wait; heartbeats, commits and look-ups travel on the shared one.

Members that have the same security settings use one :class:`Connections` (``runtime/background.py``), whatever their
``client.id``, which is part of each request.  A process with fifty members has one connection to the coordinator, and two at
the most that nothing was sent on for some seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

from consumer_coord.environment import Environment, now
from consumer_coord.errors import AuthenticationError, CoordinatorError, DisconnectedError
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.connection import Authenticator, Connection
from consumer_coord.net.metadata import Broker
from consumer_coord.net.reach import Reach
from consumer_coord.net.sasl import SaslAuthenticator, require_no_sasl
from consumer_coord.retry import Backoff, Deadline, timed_out

#: A connection on which nothing was heard for so long carries no JoinGroup or SyncGroup: it may be dead without a sign of it
#: (a firewall forgot it).  So they are closed then, which also leaves idle members with few connections.
_KEPT_S = 3.0

#: So many shared connections are kept until ``connections.max.idle.ms``, those used last: to the coordinator, and to the
#: broker that tells the metadata.  Others, as look-ups of offsets leave them behind, are closed after so many idle seconds.
_KEPT_SHARED = 2
_SPARE_S = 10.0

#: A broker that refused the credentials is asked again after so long, and at most after so long: each attempt may count
#: against the account.
_REFUSED_MS = 1_000
_REFUSED_MAX_MS = 10_000


@attrs.define(eq=False)
class _Endpoint:
    """What is kept for one address."""

    shared: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    #: Those that carried a JoinGroup or SyncGroup a moment ago, and may carry the next one; the one heard last is the last.
    waiting: deque[Connection] = attrs.field(factory=deque)
    closing: asyncio.TimerHandle | None = None
    failures: int = 0
    not_before: float = 0.0
    #: A connection that took over the versions of the shared one failed: the next one asks for itself.
    ask_versions: bool = False


def _kept(endpoint: _Endpoint) -> Connection | None:
    """A connection that carried a waiting request, and on which something was heard not long ago."""
    # Only the last ones are looked at: a thousand members of a process keep a thousand of them.
    while endpoint.waiting:
        connection = endpoint.waiting.pop()
        if not connection.closed and connection.heard_at + _KEPT_S > now():
            return connection
        connection.close()
    return None


class Connections:
    """Open connections by address, on one loop; close them with :meth:`close`."""

    def __init__(self, config: ClientConfig, environment: Environment, authenticator: Authenticator | None = None) -> None:
        """Of ``config`` the times and the backoff count, and the ``client.id`` for what opens a connection."""
        self._config = config
        self.environment = environment
        self._reconnect = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, environment.random)
        self._after_refusal = Backoff(_REFUSED_MS, _REFUSED_MAX_MS, environment.random)
        self._authenticator = authenticator
        self._endpoints: dict[tuple[str, int], _Endpoint] = {}
        #: Why the last connection was refused for its credentials or by TLS; None once a broker took one since.
        self.refusal: AuthenticationError | None = None
        #: True once a broker took a connection; False again when one is refused.
        self.reached = False
        self._reach = Reach()
        #: What the last broker said of ApiVersions, None before: the others are of the same age, but in an upgrade.
        self._newest_api_versions: int | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def use_credentials(self, username: str, password: str) -> None:
        """Authenticate connections that are made from now on as this user, where the mechanism has passwords."""
        if isinstance(self._authenticator, SaslAuthenticator):
            self._authenticator = self._authenticator.with_credentials(username, password)

    def open_connection(self, broker: Broker) -> Connection | None:
        """The shared connection to a broker if it is open now: for what must not wait, such as leaving at exit."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        if endpoint is None or endpoint.shared is None or endpoint.shared.closed:
            return None
        return endpoint.shared

    def load(self, broker: Broker) -> tuple[bool, bool, int]:
        """The less, the better a broker is to ask: in backoff, without an open connection, requests in flight."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        if endpoint is None:
            return False, True, 0
        backing_off = endpoint.not_before > now()
        if endpoint.shared is None or endpoint.shared.closed:
            return backing_off, True, 0
        return backing_off, False, endpoint.shared.in_flight

    def failing(self, broker: Broker) -> bool:
        """True when the last attempt to connect to it failed."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        return endpoint is not None and endpoint.failures > 0

    async def request_waiting(
        self, broker: Broker, message: Any, deadline: Deadline, client_id: str, cluster_id: str | None
    ) -> Any:
        """Ask a broker what it answers late, on a connection that carries nothing else until then.

        ``cluster_id``: as for :meth:`shared`.
        """
        endpoint = self._endpoint(broker)
        connection = _kept(endpoint)
        if connection is None:
            connection = await self._connect(broker, endpoint, deadline, cluster_id, self._known_versions(endpoint))
        try:
            answer = await connection.request(message, timeout_ms=max(1.0, deadline.remaining_ms), client_id=client_id)
        except BaseException:
            # A cancelled join leaves its answer behind on the wire, and the next request would wait for it.
            connection.close()
            endpoint.ask_versions = True
            raise
        if connection.closed or self._closed:
            connection.close()
        else:
            endpoint.waiting.append(connection)
            if endpoint.closing is None:
                endpoint.closing = asyncio.get_running_loop().call_later(_KEPT_S, self._close_kept, endpoint)
        return answer

    def _close_kept(self, endpoint: _Endpoint) -> None:
        """Close the connections for waiting requests on which nothing was heard for long."""
        waiting, moment = endpoint.waiting, now()
        while waiting and (waiting[0].closed or waiting[0].heard_at + _KEPT_S <= moment):
            waiting.popleft().close()
        endpoint.closing = None
        if waiting:
            due = waiting[0].heard_at + _KEPT_S
            endpoint.closing = asyncio.get_running_loop().call_at(due, self._close_kept, endpoint)

    async def shared(self, broker: Broker, deadline: Deadline, cluster_id: str | None) -> Connection:
        """The shared connection to a broker, opened if need be.

        ``cluster_id``: the broker's cluster if that is known.  Raises :class:`~consumer_coord.errors.DisconnectedError` with
        REBOOTSTRAP_REQUIRED when another broker has its address now.
        """
        endpoint = self._endpoint(broker)
        if endpoint.shared is not None and not endpoint.shared.closed:
            return endpoint.shared
        if endpoint.opening is None or endpoint.opening.done():
            setup = Deadline.after(self._config.connection_setup_timeout_ms)
            endpoint.opening = asyncio.create_task(
                self._open_shared(broker, endpoint, setup, cluster_id), name=f"connect {broker.address}"
            )
            # All callers may have timed out by the time it fails; that is no "exception never retrieved".
            endpoint.opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        patience_ms = deadline.remaining_ms
        try:
            async with asyncio.timeout(max(0.001, patience_ms / 1000)):
                # The one who asked first may give up; the others still want the connection.
                return await asyncio.shield(endpoint.opening)
        except TimeoutError as error:
            if isinstance(error, CoordinatorError):
                raise
            raise timed_out(f"connecting to {broker.address}", patience_ms) from error

    async def _open_shared(self, broker: Broker, endpoint: _Endpoint, deadline: Deadline, cluster_id: str | None) -> Connection:
        connection = await self._connect(broker, endpoint, deadline, cluster_id)
        if self._closed:
            connection.close()
            raise DisconnectedError("the connections are closed")
        endpoint.shared = connection
        self._sweep()
        return connection

    def _sweep(self) -> None:
        """Close shared connections that have been idle for long, and look again when the next one may be due."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        loop = asyncio.get_running_loop()
        open_ = [one.shared for one in self._endpoints.values() if one.shared is not None and not one.shared.closed]
        open_.sort(key=lambda connection: connection.last_used, reverse=True)
        # 0 is never, as in librdkafka.
        max_idle_s = self._config.connections_max_idle_ms / 1000 or float("inf")
        due = float("inf")
        for place, connection in enumerate(open_):
            limit_s = max_idle_s if place < _KEPT_SHARED else min(_SPARE_S, max_idle_s)
            ends = (connection.last_used if connection.idle else loop.time()) + limit_s
            if ends <= loop.time():
                connection.close()
            else:
                due = min(due, ends)
        if due < float("inf"):
            self._sweeping = loop.call_at(due, self._sweep)

    def _known_versions(self, endpoint: _Endpoint) -> Mapping[int, tuple[int, int]] | None:
        """What the broker said on its shared connection, while that is open: a broker that was upgraded closed it before.

        Fifty members that start ask once, and not fifty times.
        """
        if endpoint.ask_versions or endpoint.shared is None or endpoint.shared.closed:
            return None
        return endpoint.shared.versions

    async def _connect(
        self,
        broker: Broker,
        endpoint: _Endpoint,
        deadline: Deadline,
        cluster_id: str | None,
        versions: Mapping[int, tuple[int, int]] | None = None,
    ) -> Connection:
        self._check_open()
        wait_s = endpoint.not_before - now()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, deadline.remaining_ms / 1000))
        timeout_ms = int(max(1, deadline.within(self._config.connection_setup_timeout_ms)))
        if not any(one.shared is not None and not one.shared.closed for one in self._endpoints.values()):
            self._reach.trying(broker.address)
        try:
            connection = await Connection.open(
                self.environment,
                broker.host,
                broker.port,
                client_id=self._config.client_id,
                software_version=self._config.software_version,
                timeout_ms=timeout_ms,
                authenticator=self._authenticator,
                versions=versions,
                cluster_id=cluster_id if broker.id >= 0 else None,
                node_id=broker.id,
                newest_api_versions=self._newest_api_versions,
            )
            if self._authenticator is None and endpoint.shared is not None and not endpoint.shared.proven:
                # The last connection was closed at its first request: a listener that expects SASL does that.
                await self._check_no_sasl(connection, timeout_ms)
        except CoordinatorError as error:
            self._reach.failed(broker.address, error)
            if isinstance(error, AuthenticationError):
                self.refusal, self.reached = error, False
            backoff = self._after_refusal if isinstance(error, AuthenticationError) else self._reconnect
            endpoint.not_before = now() + backoff.ms(endpoint.failures) / 1000
            endpoint.failures += 1
            endpoint.ask_versions = True
            raise
        self._reach.reached()
        self.refusal, self.reached = None, True
        endpoint.failures = 0
        if versions is None:
            endpoint.ask_versions = False
            self._newest_api_versions = connection.newest_api_versions
        return connection

    async def _check_no_sasl(self, connection: Connection, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await require_no_sasl(connection)
        except TimeoutError as error:
            connection.close()
            if isinstance(error, CoordinatorError):
                raise
            raise timed_out(f"asking {connection.address} whether it expects SASL", timeout_ms) from error
        except BaseException:
            connection.close()
            raise

    def _endpoint(self, broker: Broker) -> _Endpoint:
        return self._endpoints.setdefault((broker.host, broker.port), _Endpoint())

    def _check_open(self) -> None:
        if self._closed:
            raise DisconnectedError("the connections are closed")

    async def close(self) -> None:
        """Close every connection; what is in flight fails."""
        self._closed = True
        self._reach.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        tasks: list[asyncio.Task[Any]] = []
        connections: list[Connection] = []
        for endpoint in self._endpoints.values():
            if endpoint.opening is not None:
                endpoint.opening.cancel()
                tasks.append(endpoint.opening)
            if endpoint.closing is not None:
                endpoint.closing.cancel()
            connections += endpoint.waiting
            if endpoint.shared is not None:
                connections.append(endpoint.shared)
        for connection in connections:
            connection.close()
        await asyncio.gather(*tasks, *(connection.wait_closed() for connection in connections), return_exceptions=True)
        self._endpoints.clear()
