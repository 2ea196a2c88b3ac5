"""The connections of a process to the brokers of a cluster: one *shared* connection for each broker, and a pool.

A broker serves one request of a connection at a time. So JoinGroup and SyncGroup, whose responses are late, borrow a connection
from a pool while they wait; heartbeats, commits and look-ups use the shared connection.

Members with the same security settings use one :class:`Connections` (``shared_clusters.py``), regardless of their
``client.id``, which is part of each request. A process with fifty members normally has one connection to the coordinator. Of
the shared connections that have been idle for some seconds, at most two stay open.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Environment, now
from consumer_coord.errors import AuthenticationError, ClosedError, CoordinatorError
from consumer_coord.log_text import get_logger
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.connection import ApiVersionsCutError, Authenticator, Connection
from consumer_coord.net.metadata import Broker
from consumer_coord.net.traffic import Listener, Traffic
from consumer_coord.net.unreachable import Reach
from consumer_coord.retry import Backoff, Deadline, timed_out

logger: Final = get_logger(__name__)

#: Idle seconds after which a connection in the pool for JoinGroup and SyncGroup is closed instead of used again, because a
#: firewall may have dropped the connection without notice. Closing also limits the number of connections of idle members.
_KEPT_S = 3.0

#: Number of the last used shared connections that stay open until ``connections.max.idle.ms``; usually these lead to the
#: coordinator and to the broker that serves metadata. Other shared connections, such as connections for offset look-ups, are
#: closed after they were idle for ``_SPARE_S`` seconds.
_KEPT_SHARED = 2
_SPARE_S = 10.0

#: First and largest delay before a broker that refused the credentials is tried again, because each attempt may count against
#: the account.
_REFUSED_MS = 1_000
_REFUSED_MAX_MS = 10_000


#: The newest version of ApiVersions to send after a broker closed 0, 1, 2 … connections instead of answering ApiVersions; None
#: for no limit. Some brokers (Azure Event Hubs) close the connection on a version that they do not know. A broker that restarts
#: behaves in the same way, so the newest version is tried twice, and again after the oldest.
_API_VERSIONS_TRIED = (None, None, 3, 0)


@attrs.define(eq=False)
class _Endpoint:
    """The connections to one address, and the failed attempts to connect."""

    traffic: Traffic
    shared: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    #: The pool: connections that recently carried a JoinGroup or SyncGroup, and may carry the next one. The connection with the
    #: latest response is last.
    waiting: deque[Connection] = attrs.field(factory=deque)
    closing: asyncio.TimerHandle | None = None
    failures: int = 0
    not_before: float = 0.0
    #: True after a connection failed. The next connection then sends ApiVersions, because the broker may have been upgraded.
    ask_versions: bool = False
    #: Number of connections that the broker closed instead of answering ApiVersions.
    cut: int = 0

    @property
    def api_versions(self) -> int | None:
        """The newest version of ApiVersions to send to this broker; None for no limit."""
        return _API_VERSIONS_TRIED[self.cut % len(_API_VERSIONS_TRIED)]

    @property
    def open(self) -> Connection | None:
        """The shared connection if it is open."""
        return None if self.shared is None or self.shared.closed else self.shared


def _note_cut(endpoint: _Endpoint, error: ApiVersionsCutError) -> None:
    """Count a connection that a broker closed on ApiVersions; log if an older version is sent next."""
    endpoint.cut += 1
    if endpoint.api_versions is not None:
        logger.info("%s; sending v%d next, because this broker may not know newer versions", error, endpoint.api_versions)


def _kept(endpoint: _Endpoint) -> Connection | None:
    """Take from the pool the connection with the latest response; return None if the last response was too long ago."""
    # Check only the end of the pool, because a process with a thousand members may have a thousand connections.
    while endpoint.waiting:
        connection = endpoint.waiting.pop()
        if not connection.closed and connection.last_response_at + _KEPT_S > now():
            return connection
        connection.close()
    return None


class Connections:
    """Open connections by address, on one loop; close them with :meth:`close`."""

    def __init__(self, config: ClientConfig, environment: Environment, authenticator: Authenticator | None = None) -> None:
        """Prepare connections with the times, the backoff and the ``client.id`` of ``config``."""
        self._config = config
        self.environment = environment
        # A given first pause may be longer than the default of the longest one.
        longest_ms = max(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._reconnect = Backoff(config.reconnect_backoff_ms, longest_ms, environment.random)
        self._after_refusal = Backoff(_REFUSED_MS, _REFUSED_MAX_MS, environment.random)
        self._authenticator = authenticator
        #: Are told of failures and throttling; a listener that was garbage-collected is removed.
        self.listeners: weakref.WeakKeyDictionary[Listener, None] = weakref.WeakKeyDictionary()
        self._endpoints: defaultdict[tuple[str, int], _Endpoint] = defaultdict(lambda: _Endpoint(Traffic(self.listeners)))
        #: The error of the last connection that failed because of credentials or TLS; None after a later connection succeeded.
        self.refusal: AuthenticationError | None = None
        #: True after a connection succeeded; False again after a broker refused the credentials or TLS of a connection.
        self.reached: bool = False
        self._reach = Reach()
        #: The newest version of ApiVersions that the last connected broker supports, or None. Except during an upgrade, all
        #: brokers support the same versions.
        self._newest_api_versions: int | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def use_credentials(self, username: str, password: str) -> None:
        """Authenticate new connections as this user, if the mechanism has passwords."""
        from consumer_coord.net.sasl import SaslAuthenticator

        if isinstance(self._authenticator, SaslAuthenticator):
            self._authenticator = self._authenticator.with_credentials(username, password)

    def authenticate_again(self, broker: Broker) -> None:
        """Close the connections to a broker, and drop a cached token, so that the next request authenticates again."""
        if self._authenticator is not None:
            self._authenticator.forget()
        endpoint = self._endpoints.get((broker.host, broker.port))
        if endpoint is not None:
            for connection in (endpoint.open, *endpoint.waiting):
                if connection is not None:
                    connection.close()
            endpoint.waiting.clear()

    def open_connection(self, broker: Broker) -> Connection | None:
        """Return the shared connection to a broker if it is open, for requests that must not wait, such as a leave at exit."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        return None if endpoint is None else endpoint.open

    def load(self, broker: Broker) -> tuple[bool, bool, int]:
        """Return a sort key, lower for better brokers: (in backoff, not connected, number of requests in flight)."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        if endpoint is None:
            return False, True, 0
        connection = endpoint.open
        return endpoint.not_before > now(), connection is None, 0 if connection is None else connection.in_flight

    def traffic(self, broker: Broker) -> Traffic | None:
        """Return the figures of the connections to a broker; None if none was ever opened."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        return None if endpoint is None else endpoint.traffic

    def failing(self, broker: Broker) -> bool:
        """Return whether the last attempt to connect to a broker failed."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        return endpoint is not None and endpoint.failures > 0

    def retry_at(self, broker: Broker) -> float:
        """Return the loop's time in seconds of the next attempt to connect to a broker; 0 if the last attempt did not fail."""
        endpoint = self._endpoints.get((broker.host, broker.port))
        return endpoint.not_before if endpoint is not None and endpoint.failures else 0.0

    @property
    def answered_at(self) -> float:
        """Loop time of the last response on a connection that is still open, in seconds; minus infinity without one."""
        open_ = [one for endpoint in self._endpoints.values() for one in (endpoint.open, *endpoint.waiting) if one is not None]
        return max((connection.last_response_at for connection in open_ if not connection.closed), default=-math.inf)

    async def request_waiting(
        self, broker: Broker, message: Any, deadline: Deadline, client_id: str, cluster_id: str | None
    ) -> Any:
        """Send a request to which the broker responds late, on a connection from the pool, which carries no other request.

        ``cluster_id``: see :meth:`shared`.
        """
        endpoint = self._endpoints[broker.host, broker.port]
        connection = _kept(endpoint)
        if connection is None:
            connection = await self._connect(broker, endpoint, deadline, cluster_id, self._known_versions(endpoint))
        try:
            answer = await connection.request(message, timeout_ms=max(1.0, deadline.remaining_ms), client_id=client_id)
        except BaseException:
            # Do not use the connection again: brokers respond in order, so the next response would wait for the response that
            # has not arrived.
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
        """In the pool for waiting requests, close each connection that has received no response for too long."""
        waiting, moment = endpoint.waiting, now()
        while waiting and (waiting[0].closed or waiting[0].last_response_at + _KEPT_S <= moment):
            waiting.popleft().close()
        endpoint.closing = None
        if waiting:
            due = waiting[0].last_response_at + _KEPT_S
            endpoint.closing = asyncio.get_running_loop().call_at(due, self._close_kept, endpoint)

    async def shared(self, broker: Broker, deadline: Deadline, cluster_id: str | None) -> Connection:
        """Return the shared connection to a broker; open it if necessary.

        ``cluster_id``: the broker's cluster, if known. Raise :class:`~consumer_coord.errors.DisconnectedError` with
        REBOOTSTRAP_REQUIRED if another broker now has this broker's address.
        """
        endpoint = self._endpoints[broker.host, broker.port]
        if (connection := endpoint.open) is not None:
            return connection
        if endpoint.opening is None or endpoint.opening.done():
            setup = Deadline.after(self._config.connection_setup_timeout_ms)
            endpoint.opening = asyncio.create_task(
                self._open_shared(broker, endpoint, setup, cluster_id), name=f"connect {broker.address}"
            )
            # All callers may have timed out before a failure, so mark the exception as retrieved. Otherwise asyncio would log
            # an error.
            endpoint.opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        patience_ms = deadline.remaining_ms
        try:
            async with asyncio.timeout(max(0.001, patience_ms / 1000)):
                # The first caller may time out; the other callers still need the connection.
                return await asyncio.shield(endpoint.opening)
        except TimeoutError as error:
            if isinstance(error, CoordinatorError):
                raise
            raise timed_out(f"connecting to {broker.address}", patience_ms) from error

    async def _open_shared(self, broker: Broker, endpoint: _Endpoint, deadline: Deadline, cluster_id: str | None) -> Connection:
        connection = await self._connect(broker, endpoint, deadline, cluster_id)
        if self._closed:
            connection.close()
            raise ClosedError("the connections are closed")
        endpoint.shared = connection
        self._sweep()
        return connection

    def _sweep(self) -> None:
        """Close shared connections that have been idle for too long, and set a timer for the next check."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        loop = asyncio.get_running_loop()
        open_ = [one for endpoint in self._endpoints.values() if (one := endpoint.open) is not None]
        open_.sort(key=lambda connection: connection.last_used, reverse=True)
        # As in librdkafka, 0 means that idle connections are never closed.
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
        """Return the broker's versions from its open shared connection, which an upgrade of the broker would have closed.

        So when fifty members start, the process sends ApiVersions once instead of fifty times.
        """
        connection = endpoint.open
        return None if endpoint.ask_versions or connection is None else connection.versions

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
        limit = min((one for one in (endpoint.api_versions, self._newest_api_versions) if one is not None), default=None)
        if not any(one.open for one in self._endpoints.values()):
            self._reach.trying(broker.address)
        endpoint.traffic.broker = broker
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
                newest_api_versions=limit,
                traffic=endpoint.traffic,
            )
            if self._authenticator is None and endpoint.shared is not None and not endpoint.shared.proven:
                # The last connection was closed at its first request, as a listener that expects SASL would do.
                await self._check_no_sasl(connection, timeout_ms)
        except CoordinatorError as error:
            self._reach.failed(broker.address, error)
            if isinstance(error, AuthenticationError):
                self.refusal, self.reached = error, False
            if isinstance(error, ApiVersionsCutError):
                _note_cut(endpoint, error)
            backoff = self._after_refusal if isinstance(error, AuthenticationError) else self._reconnect
            endpoint.not_before = now() + backoff.ms(endpoint.failures) / 1000
            endpoint.failures += 1
            endpoint.ask_versions = True
            endpoint.traffic.not_opened(error)
            raise
        self._reach.reached()
        self.refusal, self.reached = None, True
        endpoint.failures = 0
        if versions is None:
            endpoint.ask_versions = False
            self._newest_api_versions = connection.newest_api_versions
        return connection

    async def _check_no_sasl(self, connection: Connection, timeout_ms: int) -> None:
        from consumer_coord.net.sasl import require_no_sasl

        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await require_no_sasl(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError) and not isinstance(error, CoordinatorError):
                raise timed_out(f"asking {connection.address} whether it expects SASL", timeout_ms) from error
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the connections are closed")

    async def close(self) -> None:
        """Close every connection; requests in flight fail."""
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
