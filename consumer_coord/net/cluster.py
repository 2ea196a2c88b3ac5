"""The brokers of one cluster, requests to them, and current metadata.

One :class:`ClusterClient` serves every member of a process with the same connection settings; clients that differ only in
``client.id``, bootstrap addresses or the maximum age of metadata share their connections (``net/connections.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Environment, now
from consumer_coord.errors import (
    AuthenticationError,
    AuthorizationError,
    ClosedError,
    CoordinatorError,
    DisconnectedError,
    MalformedMessageError,
    RetriableError,
    UnreachableError,
    UnsupportedVersionError,
)
from consumer_coord.log_text import get_logger
from consumer_coord.net.answers import AnswerCheck
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.connection import Authenticator, Connection, Versioned
from consumer_coord.net.connections import Connections
from consumer_coord.net.metadata import Broker, Metadata, read_metadata
from consumer_coord.net.traffic import Listener, Traffic
from consumer_coord.retry import Backoff, Deadline, retrying, timed_out
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.cluster import MetadataRequest, MetadataRequestTopic

logger: Final = get_logger(__name__)


@attrs.define(eq=False)
class Watch:
    """Topics whose metadata a client needs (None: all); ``on_change`` receives new metadata on the loop.

    Before ``on_change``, ``prepare`` receives the same metadata, and may compute results that take a long time and that the
    metadata caches. If the response is long, ``prepare`` runs in a thread.
    """

    topics: frozenset[str] | None
    on_change: Callable[[Metadata], None]
    prepare: Callable[[Metadata], object]


class _AllUnreachable(Exception):
    """Raised if no broker address is listening, so that the current request is not retried."""


class ClusterClient:
    """Connections and metadata of one cluster; all coroutines run on one loop.

    :meth:`close` also ends the background task that refreshes the metadata.
    """

    def __init__(
        self,
        config: ClientConfig,
        environment: Environment,
        authenticator: Authenticator | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Prepare the client; ``connections`` are closed by their owner. With None, the client creates its own connections."""
        self.config = config
        self.metadata: Metadata = Metadata()
        self.environment = environment
        #: Compares the brokers' responses with the requests.
        self.answers: AnswerCheck = AnswerCheck()
        self.backoff: Backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, environment.random)
        #: The pauses of a request that any broker may answer. Each broker that is down has its own pauses, so longer ones would
        #: only delay the first request after its return.
        longest_ms = max(config.retry_backoff_ms, min(config.retry_backoff_max_ms, config.reconnect_backoff_max_ms))
        self._any_backoff = Backoff(config.retry_backoff_ms, longest_ms, environment.random)
        self._connections = connections or Connections(config, environment, authenticator)
        self._owns_connections = connections is None
        self._bootstrap = tuple(Broker(-1 - index, host, port) for index, (host, port) in enumerate(config.bootstrap_servers))
        #: Objects that the users of this client share, by key; each user removes an object that it no longer needs.
        self.shared: dict[Hashable, Any] = {}
        self._watches: dict[Watch, None] = {}
        self._refresh_lock = asyncio.Lock()
        #: How many refreshes have started, and the number of the last one that succeeded.
        self._refresh_started = 0
        self._refreshed = 0
        self._refresh_failures = 0
        self._refresh_at = float("inf")
        #: The time of the first Metadata request since the last Metadata response; None if no Metadata request waits for a
        #: response.
        self._asking_since: float | None = None
        self._wake = asyncio.Event()
        self._upkeep: asyncio.Task[None] | None = None
        self._closed = False

    # -- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self, broker: Broker, message: Any, *, timeout_ms: float, patience_ms: float | None = None, waits: bool = False
    ) -> Any:
        """Send one request and return its response.

        ``waits``: use a separate connection, because the broker responds late (JoinGroup, SyncGroup). If a broker does not
        respond within ``timeout_ms``, its connection is closed for all members that share the connection. If ``patience_ms`` is
        shorter, only this caller stops waiting after this time, and the late response is dropped.
        """
        self._check_open()
        try:
            return await self._request(broker, message, timeout_ms, patience_ms, waits)
        except DisconnectedError as error:
            if error.code == error_codes.REBOOTSTRAP_REQUIRED:
                self._rebootstrap(str(error))
            raise

    async def _request(self, broker: Broker, message: Any, timeout_ms: float, patience_ms: float | None, waits: bool) -> Any:
        connections, client_id, cluster_id = self._connections, self.config.client_id, self.metadata.cluster_id
        if waits:
            return await connections.request_waiting(broker, message, Deadline.after(timeout_ms), client_id, cluster_id)
        if patience_ms is None or patience_ms >= timeout_ms:
            connection = connections.open_connection(broker)
            if connection is None:
                deadline = Deadline.after(timeout_ms)
                connection = await connections.shared(broker, deadline, cluster_id)
                timeout_ms = max(1.0, deadline.remaining_ms)
            return await connection.request(message, timeout_ms=timeout_ms, client_id=client_id)
        deadline = Deadline.after(patience_ms)
        connection = await connections.shared(broker, deadline, cluster_id)
        try:
            async with asyncio.timeout(deadline.remaining_ms / 1000):
                return await connection.request(message, timeout_ms=timeout_ms, client_id=client_id)
        except TimeoutError as error:
            if isinstance(error, CoordinatorError):
                raise
            if connection.waits_since < now() - timeout_ms / 1000:
                # The oldest request is past its timeout, and its caller no longer waits. So this caller must detect that the
                # broker hangs.
                connection.close()
            raise timed_out(f"{_name(message)} to {broker.address}", patience_ms) from None

    def use_credentials(self, username: str, password: str) -> None:
        """Authenticate new connections as this user, if the mechanism has passwords."""
        self._connections.use_credentials(username, password)

    def authenticate_again(self, broker: Broker) -> None:
        """Close the connections to a broker, and drop a cached token, so that the next request authenticates again."""
        self._connections.authenticate_again(broker)

    @property
    def refusal(self) -> AuthenticationError | None:
        """The error of the last connection that failed because of credentials or TLS; None after a later success."""
        return self._connections.refusal

    @property
    def reached(self) -> bool:
        """True after a connection succeeded; False again after a broker refused the credentials or TLS of a connection."""
        return self._connections.reached

    @property
    def listeners(self) -> weakref.WeakKeyDictionary[Listener, None]:
        """Are told what happens to the connections, which this client may share with clients of other brokers."""
        return self._connections.listeners

    def brokers(self) -> tuple[Broker, ...]:
        """Return the known brokers; the bootstrap addresses while there is no metadata."""
        return tuple(self.metadata.brokers.values()) or self._bootstrap

    def failing(self, broker: Broker) -> bool:
        """Return whether the last attempt to connect to a broker failed."""
        return self._connections.failing(broker)

    def traffic(self, broker: Broker) -> Traffic | None:
        """Return the figures of the connections to a broker; None if none was ever opened."""
        return self._connections.traffic(broker)

    @property
    def answered_at(self) -> float:
        """Loop time of the last response on a connection that is still open, in seconds; minus infinity without one."""
        return self._connections.answered_at

    def retry_at(self, broker: Broker) -> float:
        """Return the loop's time in seconds of the next attempt to connect to a broker; 0 if the last attempt did not fail."""
        return self._connections.retry_at(broker)

    def version_spoken(self, broker: Broker, request_class: type[Any]) -> int | None:
        """Return the version in which a request would be sent to a broker; None if that is not known before it is sent."""
        connection = self.open_connection(broker)
        try:
            return None if connection is None else connection.version_for(request_class)
        except UnsupportedVersionError:
            # The connection asks the broker again before it refuses the request.
            return None

    def open_connection(self, broker: Broker) -> Connection | None:
        """Return the shared connection to a broker if it is open, for requests that must not wait, such as a leave at exit."""
        return self._connections.open_connection(broker)

    async def request_any(
        self,
        message: Any,
        deadline: Deadline,
        *,
        attempt_ms: float | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Any:
        """Send a request to the least-loaded known broker; after a failure try other brokers, with backoff, until ``deadline``.

        ``attempt_ms`` limits the request to one broker, by default to the request timeout. ``note`` receives each failure at
        once, so that the caller can report the cause of the delay.
        """
        attempt_ms = self.config.request_timeout_ms if attempt_ms is None else attempt_ms
        limit_ms = deadline.remaining_ms
        name = _name(message)
        failed: dict[int, int] = {}
        began = now()
        unreachable: set[int] = set()
        try:
            async for attempt in retrying(self._any_backoff, deadline, what=name, log=note):
                with attempt:
                    broker = self.least_loaded(failed)
                    try:
                        return await self.request(
                            broker, message, timeout_ms=attempt_ms, patience_ms=max(1.0, deadline.within(attempt_ms))
                        )
                    except (RetriableError, MalformedMessageError) as error:
                        failed[broker.id] = failed.get(broker.id, 0) + 1
                        if isinstance(error, UnreachableError):
                            unreachable.add(broker.id)
                        else:
                            unreachable.discard(broker.id)
                        self._check_reachable(unreachable, began, error)
                        if isinstance(error, RetriableError):
                            raise
                        raise DisconnectedError(str(error)) from error
        except RetriableError as error:
            addresses = ", ".join(sorted({broker.address for broker in self._candidates()}))
            raise timed_out(f"{name} to any of {addresses}", limit_ms, error) from error
        except _AllUnreachable as error:
            raise UnreachableError(f"nothing listens at bootstrap.servers: {error.__cause__}") from error.__cause__
        raise AssertionError("unreachable: the retries return or raise")

    def _check_reachable(self, unreachable: set[int], began: float, error: CoordinatorError) -> None:
        limit_ms = self.config.unreachable_timeout_ms
        if limit_ms is None or now() - began < limit_ms / 1000:
            return
        if unreachable.issuperset(broker.id for broker in self._candidates()):
            raise _AllUnreachable from error

    def least_loaded(self, failed: Mapping[int, int] | None = None) -> Broker:
        """Return the best broker: with the fewest failures; among equals, with an open connection and the fewest requests."""
        failed = failed or {}

        def load(broker: Broker) -> tuple[int, bool, bool, int]:
            return failed.get(broker.id, 0), *self._connections.load(broker)

        candidates = self._candidates()
        if not candidates:
            raise DisconnectedError("bootstrap.servers is not set, so no broker is known")
        best = min(map(load, candidates))
        return self.environment.random.choice([broker for broker in candidates if load(broker) == best])

    def _candidates(self) -> Sequence[Broker]:
        """Return the known brokers. If they do not respond, add the bootstrap addresses, to find a cluster that has moved."""
        known = tuple(self.metadata.brokers.values())
        addresses = {broker.address for broker in known}
        reachable = any(not self._connections.failing(broker) for broker in known)
        if known and reachable and not self._is_silent():
            return known
        return (*known, *(broker for broker in self._bootstrap if broker.address not in addresses))

    def _is_silent(self) -> bool:
        """Return whether no Metadata request was answered for ``metadata.recovery.rebootstrap.trigger.ms`` (KIP-1102)."""
        since = self._asking_since
        return since is not None and now() - since >= self.config.rebootstrap_trigger_ms / 1000

    def _rebootstrap(self, why: str) -> None:
        """Forget the brokers and the cluster id, and ask the bootstrap servers again (KIP-899, KIP-1242)."""
        logger.warning("asking bootstrap.servers for the brokers of the cluster: %s", why)
        self.metadata = attrs.evolve(self.metadata, version=self.metadata.version + 1, cluster_id=None, brokers={}, ids={})
        self.refresh_soon()

    # -- metadata ---------------------------------------------------------------------------------------------------

    def watch(
        self,
        topics: frozenset[str] | None,
        on_change: Callable[[Metadata], None],
        prepare: Callable[[Metadata], object] = lambda _: None,
    ) -> Watch:
        """Keep the metadata of ``topics`` (None: of all topics) current until :meth:`unwatch`; see :class:`Watch`."""
        watch = Watch(topics, on_change, prepare)
        self._watches[watch] = None
        if self._upkeep is None and not self._closed:
            self._upkeep = asyncio.create_task(self._keep_up(), name="metadata")
        return watch

    def change_watch(self, watch: Watch, topics: frozenset[str] | None) -> None:
        """Change the topics of a watch; if some are unknown, refresh the metadata soon."""
        if watch.topics != topics:
            watch.topics = topics
            if topics is None or not topics <= self.metadata.topics.keys():
                self.refresh_soon()

    def unwatch(self, watch: Watch) -> None:
        """End a watch."""
        self._watches.pop(watch, None)

    def refresh_soon(self) -> None:
        """Refresh the metadata in the background, for example after NOT_LEADER, an unknown topic or a lost broker."""
        self.refresh_later(0)

    def refresh_later(self, after_ms: float) -> None:
        """Refresh the metadata in the background, ``after_ms`` from now unless another refresh is due earlier."""
        self._refresh_at = min(self._refresh_at, now() + after_ms / 1000)
        self._wake.set()

    async def refresh(self, deadline: Deadline) -> Metadata:
        """Return metadata that was requested after this call began; concurrent calls share one request.

        Raise a retriable error if no broker has answered until ``deadline``.
        """
        asked_after, limit_ms = self._refresh_started, deadline.remaining_ms
        try:
            async with asyncio.timeout_at(deadline.at):
                await self._refresh_lock.acquire()
        except TimeoutError:
            raise timed_out("another request for metadata", limit_ms) from None
        try:
            if self._refreshed > asked_after:
                return self.metadata
            self._refresh_started += 1
            started = self._refresh_started
            if self._asking_since is None:
                self._asking_since = now()
            code, fresh = await self._ask_for_metadata(deadline)
            known = self.metadata.cluster_id
            if code == error_codes.REBOOTSTRAP_REQUIRED or known not in (None, fresh.cluster_id):
                # The address of a broker may now belong to another cluster, whose metadata must not be used.
                self._rebootstrap(
                    f"a broker of cluster {known} now reports cluster id {fresh.cluster_id} ({error_codes.error_name(code)})"
                )
                code, fresh = await self._ask_for_metadata(deadline)
            if code == error_codes.REBOOTSTRAP_REQUIRED:
                raise DisconnectedError(
                    "the bootstrap servers answered Metadata with REBOOTSTRAP_REQUIRED; check that bootstrap.servers names"
                    " brokers of the present cluster",
                    code=code,
                )
            if code == error_codes.CLUSTER_AUTHORIZATION_FAILED:
                raise AuthorizationError("this principal may not describe the cluster", code=code)
            self._asking_since = None
            self._take_in(fresh)
            self._refreshed = started
            return self.metadata
        finally:
            self._refresh_lock.release()

    async def topic_metadata(self, broker: Broker, topics: frozenset[str], *, timeout_ms: float) -> Metadata:
        """Return a broker's present metadata of a few topics, without a change of :attr:`metadata`."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
        )
        previous, began = self.metadata, now()

        def read(version: int, frame: bytes) -> Metadata:
            return read_metadata(version, frame, previous, topics, began)[1]

        found: Metadata = await self.request(
            broker, Versioned(MetadataRequest, lambda _: request, decode=read), timeout_ms=timeout_ms
        )
        return found

    async def _ask_for_metadata(self, deadline: Deadline) -> tuple[int, Metadata]:
        """Request metadata; return the response's error code, and the current metadata with the changes from the response."""
        interest = self._interest()
        # An empty list requests no topics, None requests all topics.
        request = MetadataRequest(
            topics=None if interest is None else [MetadataRequestTopic(name=name) for name in sorted(interest)],
            allow_auto_topic_creation=self.config.allow_auto_create_topics,
        )
        # This task has the refresh lock, so no other task replaces the metadata before the response arrives.
        previous, watches, began = self.metadata, tuple(self._watches), now()

        def read(version: int, frame: bytes) -> tuple[int, Metadata]:
            code, fresh = read_metadata(version, frame, previous, interest, began)
            for watch in watches:
                watch.prepare(fresh)
            return code, fresh

        code, fresh = await self.request_any(Versioned(MetadataRequest, lambda _: request, decode=read), deadline)
        if interest is None:
            return code, fresh
        # Since the request was sent, a watch may have begun to need topics that are known.
        needed = self._interest()
        again = {
            name: topic
            for name, topic in previous.topics.items()
            if name not in interest and (needed is None or name in needed)
        }
        return code, attrs.evolve(fresh, topics={**fresh.topics, **again}) if again else fresh

    def _interest(self) -> frozenset[str] | None:
        interest: set[str] = set()
        for watch in self._watches:
            if watch.topics is None:
                return None
            interest |= watch.topics
        return frozenset(interest)

    def _take_in(self, fresh: Metadata) -> None:
        interest = self._interest()
        missing = interest is not None and not interest <= fresh.topics.keys()
        doubtful = bool(fresh.unknown_since or fresh.fewer_since)
        transient = doubtful or any(map(error_codes.is_retriable, set(fresh.errors.values())))
        self._refresh_failures = self._refresh_failures + 1 if missing or transient else 0
        wait_ms: float = self.config.metadata_max_age_ms
        if self._refresh_failures:
            # Retry soon for a topic that does not exist yet, then at increasing intervals.
            wait_ms = min(wait_ms, self.backoff.ms(self._refresh_failures))
        self._refresh_at = now() + wait_ms / 1000
        self.metadata = fresh
        for watch in tuple(self._watches):
            watch.on_change(fresh)

    async def _keep_up(self) -> None:
        """Refresh the metadata whenever a refresh is due, until :meth:`close`."""
        self._refresh_at = min(self._refresh_at, now())
        while not self._closed:
            pause_s = min(self._refresh_at - now(), self.config.metadata_max_age_ms / 1000)
            if pause_s > 0:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                continue
            if not self._watches:
                self._refresh_at = now() + self.config.metadata_max_age_ms / 1000
                continue
            self._refresh_at = float("inf")
            try:
                await self.refresh(Deadline.after(self.config.request_timeout_ms))
            except CoordinatorError as error:
                self._refresh_failures += 1
                self._refresh_at = now() + self.backoff.ms(self._refresh_failures) / 1000
                logger.warning("metadata could not be refreshed: %s", error)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            # Not retriable, so that every look-up in progress ends.
            raise ClosedError("the cluster client is closed")

    async def close(self) -> None:
        """End the background task, and connections that are not shared; requests in flight on these connections fail."""
        self._closed = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        if self._owns_connections:
            await self._connections.close()


def _name(message: Any) -> str:
    """Return a request's name, for error texts."""
    kind: type[Any] = message.request_class if isinstance(message, Versioned) else type(message)
    return kind.__name__.removesuffix("Request")
