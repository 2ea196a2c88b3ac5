"""The cluster clients of a loop: members with the same addresses and credentials share their connections and metadata."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Connector, Environment, of_running_loop
from consumer_coord.net import security
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Authenticator
from consumer_coord.net.connections import Connections
from consumer_coord.net.oauth import with_oauth_callback
from consumer_coord.net.tcp import TcpConnector
from consumer_coord.version import __version__

T = TypeVar("T")


def real_environment(connector: Connector) -> Environment:
    """Return the environment outside simulations: system clocks, real randomness, and worker threads for slow work."""
    return Environment(
        connector=connector,
        random=random.Random(),
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        run_blocking=_in_thread,
        lease_clock=_suspension_clock(),
    )


def _suspension_clock() -> Callable[[], float]:
    """Return a clock, in seconds, that also counts the time while the machine is suspended, if the system has such a clock."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else functools.partial(time.clock_gettime, boot_time)


async def _in_thread(function: Callable[[], T], /) -> T:
    """Run slow work in a separate daemon thread, because work that never returns must not block other work or the exit."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def complete(result: Callable[[], None]) -> None:
        # When the work ends, the waiting task may have been cancelled, and the loop may have been closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if outcome.done() else result())

    def run() -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            failure = error
            complete(lambda: outcome.set_exception(failure))
        else:
            complete(lambda: outcome.set_result(value))

    threading.Thread(target=run, name="consumer-coord-work", daemon=True).start()
    return await outcome


def cluster_client(
    config: ClientConfig, *, unreachable_timeout_ms: int | None = None, connections: Connections | None = None
) -> ClusterClient:
    """Return a cluster client for the running loop, with new connections unless ``connections`` is given.

    ``unreachable_timeout_ms``: see :class:`~consumer_coord.net.client_config.ClientConfig`. Raise
    :class:`~consumer_coord.errors.ConfigurationError` for security settings that contradict each other.
    """
    config = attrs.evolve(config, software_version=__version__, unreachable_timeout_ms=unreachable_timeout_ms)
    if connections is not None:
        return ClusterClient(config, connections.environment, connections=connections)
    environment, authenticator = _way_to(config)
    return ClusterClient(config, environment, authenticator)


def _way_to(config: ClientConfig) -> tuple[Environment, Authenticator | None]:
    """Return the environment, which connects to brokers, and the authenticator for ``config``."""
    given = of_running_loop()
    if given is not None:
        return given, None
    secured = security.load(with_oauth_callback(config.security))
    environment = real_environment(
        TcpConnector(secured.ssl_context, config.connection_setup_timeout_ms, config.receive_message_max_bytes)
    )
    return environment, secured.authenticator(environment)


@attrs.define
class _SharedConnections:
    connections: Connections
    users: int = 0


@attrs.define
class _Shared:
    client: ClusterClient
    connections: _SharedConnections
    users: int = 0


class Clusters(Protocol):
    """Provides cluster clients, with their connections, to members."""

    def acquire(self, config: ClientConfig) -> ClusterClient:
        """Return a cluster client for ``config``."""

    async def release(self, config: ClientConfig) -> None:
        """Release a client that is no longer needed."""


class SharedClusters:
    """Shared cluster clients by configuration, and shared connections by their settings, with reference counts; on one loop."""

    def __init__(self) -> None:
        self._clients: dict[str, _Shared] = {}
        self._connections: dict[str, _SharedConnections] = {}

    def acquire(self, config: ClientConfig) -> ClusterClient:
        """Return the cluster client for ``config``, which the first call creates; call :meth:`release` when done."""
        shared = self._clients.get(_key(config))
        if shared is None:
            key = _connections_key(config)
            common = self._connections.get(key)
            if common is None:
                environment, authenticator = _way_to(config)
                versioned = attrs.evolve(config, software_version=__version__)
                common = self._connections[key] = _SharedConnections(Connections(versioned, environment, authenticator))
            common.users += 1
            client = cluster_client(config, connections=common.connections)
            shared = self._clients[_key(config)] = _Shared(client, common)
        shared.users += 1
        return shared.client

    async def release(self, config: ClientConfig) -> None:
        """Release a client; when no user remains, close the client, and connections that no other client uses."""
        shared = self._clients[_key(config)]
        shared.users -= 1
        if shared.users:
            return
        del self._clients[_key(config)]
        common = shared.connections
        common.users -= 1
        if not common.users:
            del self._connections[_connections_key(config)]
        await shared.client.close()
        if not common.users:
            await common.connections.close()


def _key(config: ClientConfig) -> str:
    # Callables (oauth_cb) are compared by identity, everything else by value.
    security = sorted((key, repr(value)) for key, value in config.security.items())
    return repr((attrs.evolve(config, security={}), security))


def _connections_key(config: ClientConfig) -> str:
    """Return the key of the settings that connections depend on.

    The key omits the addresses, and ``client.id``, which each request carries. The key includes ``socket.timeout.ms``, because
    a connection on which a response is late is closed for all its users.
    """
    return _key(
        attrs.evolve(
            config,
            bootstrap_servers=(),
            client_id="",
            metadata_max_age_ms=0,
            retry_backoff_ms=0,
            retry_backoff_max_ms=0,
            allow_auto_create_topics=False,
        )
    )


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SharedClusters] = weakref.WeakKeyDictionary()


def shared_clusters() -> SharedClusters:
    """Return the running loop's cluster clients, for members on an application's loop."""
    return _of_loops.setdefault(asyncio.get_running_loop(), SharedClusters())


def forget_clusters(loop: asyncio.AbstractEventLoop) -> None:
    """Forget the clients of a loop that has ended. A simulated process that was killed released none of them."""
    _of_loops.pop(loop, None)
