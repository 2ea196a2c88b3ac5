"""A connection to one broker: it matches responses to requests, and every request has a deadline.

A broker serves one request of a connection at a time (Kafka's ``SocketServer`` mutes the channel), so a request after a waiting
JoinGroup on the same connection waits, too. So callers use a separate connection for such requests; see ``net/connections.py``.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import Environment, RunBlocking, Transport
from consumer_coord.errors import (
    CoordinatorError,
    DisconnectedError,
    FatalError,
    MalformedMessageError,
    RequestTimedOutError,
    RetriableError,
    UnsupportedVersionError,
)
from consumer_coord.log_text import get_logger
from consumer_coord.net.broker_versions import release_with, setting_too_new
from consumer_coord.net.traffic import Traffic
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import decode_response, encode_request, peek_correlation_id
from consumer_coord.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

logger: Final = get_logger(__name__)

_SOFTWARE_NAME = "consumer-coord"

#: The newest version of ApiVersions that does not name the broker's cluster. Brokers before Kafka 4.4 support this version,
#: too.
_VERSION_WITHOUT_CLUSTER = 4

#: Responses of at least this size, in bytes, are decoded in a thread.
LARGE_FRAME_BYTES = 256 * 1024

#: Fraction of a SASL session's lifetime after which the session is renewed (``SaslClientAuthenticator``: 0.85 to 0.95).
_SESSION_WINDOW = 0.85
#: Shortest time between two authentications of a connection, in seconds. Brokers refuse a second authentication within one
#: second.
_SHORTEST_SESSION_S = 1.1


#: Shortest time between two questions for the versions of a broker that seems not to support a request, in seconds.
_ASK_AGAIN_S = 5.0


class ApiVersionsCutError(DisconnectedError):
    """Raised if a broker closed the connection instead of answering ApiVersions."""


class Authenticator(Protocol):
    """Authenticates this client on a fresh connection (SASL)."""

    async def authenticate(self, connection: Connection) -> int:
        """Authenticate over :meth:`Connection.exchange`, either a new connection or an open one whose SASL session ends soon.

        Return the session's lifetime in milliseconds, or 0 if the session does not end (KIP-368). Raise
        :class:`~consumer_coord.errors.AuthenticationError` if the broker refuses.
        """

    def forget(self) -> None:
        """Drop a cached token, so that the next authentication obtains another one."""


@attrs.frozen
class Versioned:
    """A request whose fields depend on its version, such as FindCoordinator, which has other fields since version 4.

    ``newest``: the newest version to send, or None for no limit. ``decode``: converts a response, given its version and frame;
    None returns the decoded message. A long frame is decoded in a thread. ``quick``: decode even a long frame on the loop,
    because its response has few values (Fetch: one block of bytes per partition), and a thread would cost more. Records in such
    a response may be memoryviews. ``follow``: returns what to ask next, given a response that was decoded on the loop, with the
    time limit in milliseconds; it is sent in the same turn of the loop, and the caller goes on waiting. None: nothing.
    """

    request_class: type[Any]
    build: Callable[[int], Any]
    newest: int | None = None
    decode: Callable[[int, bytes], Any] | None = None
    quick: bool = False
    follow: Callable[[Any], tuple[Versioned, float] | None] | None = None


@attrs.define(eq=False)
class _InFlight:
    """A request that waits for its response."""

    future: asyncio.Future[Any]
    decode: Callable[[Any], Any]
    follow: Callable[[Any], tuple[Versioned, float] | None] | None
    client_id: str | None
    name: str
    sent_at: float
    #: Time (loop's clock, in seconds) by which the response must arrive.
    ends: float
    quick: bool
    #: True while a thread decodes the response.
    is_decoding: bool = False

    def timed_out(self, address: str) -> RequestTimedOutError:
        """Return the error for this request if its response does not arrive in time."""
        name = self.name.removesuffix("Request")
        return RequestTimedOutError(f"{address} did not answer {name} within {(self.ends - self.sent_at) * 1000:.0f} ms")


class Connection:
    """An open, authenticated connection to one broker.

    Created by :meth:`open`. When the connection breaks, all requests in flight fail with
    :class:`~consumer_coord.errors.DisconnectedError` and :attr:`closed` is True; it is never reopened.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        client_id: str,
        software_version: str,
        run_blocking: RunBlocking,
        traffic: Traffic | None = None,
    ) -> None:
        self.address = address
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.last_used: float = asyncio.get_running_loop().time()
        self.last_response_at: float = self.last_used
        #: True after the broker responded to a request that was sent after the connection was set up.
        self.proven: bool = False
        self._transport = transport
        self._traffic = traffic or Traffic()
        #: Whether the connection was set up, and counts as open.
        self._counted = False
        self._run_blocking = run_blocking
        self._client_id = client_id
        self._software_version = software_version
        self._correlation_id = 0
        self._in_flight: dict[int, _InFlight] = {}
        self._closed_by: CoordinatorError | None = None
        self._authenticator: Authenticator | None = None
        self._session_ends_at = float("inf")
        #: The cluster id and the number that the broker should have, and the newest version of ApiVersions to send.
        self._expected: tuple[str | None, int, int | None] = (None, -1, None)
        #: The loop's time at which the broker was last asked for its versions again.
        self._asked_again_at = -math.inf
        self._gate = asyncio.Lock()
        #: Timer for the earliest time at which a response can be late.
        self._timer: asyncio.TimerHandle | None = None
        #: Tasks that wait for threads to decode large responses.
        self._decoding: set[asyncio.Task[None]] = set()
        transport.listen(self)

    def __repr__(self) -> str:
        return f"<Connection to {self.address}: {'closed' if self.closed else f'{len(self._in_flight)} in flight'}>"

    @classmethod
    async def open(
        cls,
        environment: Environment,
        host: str,
        port: int,
        *,
        client_id: str,
        software_version: str,
        timeout_ms: int,
        authenticator: Authenticator | None = None,
        versions: Mapping[int, tuple[int, int]] | None = None,
        cluster_id: str | None = None,
        node_id: int = -1,
        newest_api_versions: int | None = None,
        traffic: Traffic | None = None,
    ) -> Connection:
        """Connect, negotiate versions and authenticate, all within ``timeout_ms``.

        ``versions``: the broker's versions, if another open connection has them; in this case, ApiVersions is not sent.
        ``cluster_id`` and ``node_id``: the expected broker (KIP-1242). Raise :class:`DisconnectedError` with
        REBOOTSTRAP_REQUIRED if another broker now has this address, which brokers before Kafka 4.4 do not report.
        ``newest_api_versions``: the newest version of ApiVersions to send. Using the newest version that the cluster is known
        to serve saves a round trip. Raise :class:`ApiVersionsCutError` if the broker closes the connection on ApiVersions.
        ``traffic`` counts what is sent and received.
        """
        address = f"{host}:{port}"
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                transport = await environment.connector.connect(host, port)
                connection = cls(transport, address, client_id, software_version, environment.run_blocking, traffic)
                connection._expected = (cluster_id, node_id, newest_api_versions)
                if versions is None:
                    await connection._agree_on_versions(timeout_ms)
                else:
                    connection.versions = versions
                if authenticator is not None:
                    await connection._authenticate(authenticator)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError) and not isinstance(error, CoordinatorError):
                raise RequestTimedOutError(f"{address} was not ready for requests within {timeout_ms} ms") from error
            raise
        connection._counted = True
        connection._traffic.opened()
        return connection

    @property
    def closed(self) -> bool:
        """True after the connection can no longer send requests."""
        return self._closed_by is not None

    @property
    def idle(self) -> bool:
        """True while no request waits for a response."""
        return not self._in_flight

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for their responses."""
        return len(self._in_flight)

    @property
    def waits_since(self) -> float:
        """The loop's time when the oldest pending request was sent; infinity if no request is pending."""
        oldest = next(iter(self._in_flight.values()), None)
        return float("inf") if oldest is None else oldest.sent_at

    def version_for(self, request_class: type[Any], newest: int | None = None) -> int:
        """Return the newest version that both sides support; raise :class:`UnsupportedVersionError` if there is none."""
        api = api_for(request_class)
        if api.key not in self.versions:
            raise UnsupportedVersionError(
                f"{self.address} does not support {api.name}, which needs Apache Kafka {release_with(api.name)} or newer"
            )
        low, high = self.versions[api.key]
        ours = api.max_version if newest is None else min(newest, api.max_version)
        version = min(high, ours)
        if version < max(low, api.min_version):
            raise UnsupportedVersionError(
                f"{self.address} supports {api.name} v{low}-v{high}, but this client supports v{api.min_version}-v{ours}"
            )
        return version

    async def request(
        self, message: Any, *, timeout_ms: float, version: int | None = None, client_id: str | None = None
    ) -> Any:
        """Send one request and wait for its response; with :attr:`Versioned.follow`, for the response to the last request.

        ``client_id``: the client that the request is for, by default the one that opened the connection. Raise
        :class:`RequestTimedOutError` after ``timeout_ms`` and close the connection, because the broker would respond to later
        requests only after this one; raise :class:`DisconnectedError` if the connection breaks.
        """
        ends = asyncio.get_running_loop().time() + timeout_ms / 1000
        if self._authenticator is not None:
            await self._renew_session(ends)
        try:
            future = self._send_newest(message, version, client_id, ends)
        except UnsupportedVersionError:
            if not await self._offers_others(timeout_ms):
                raise
            future = self._send_newest(message, version, client_id, ends)
        response = await future
        self.proven = True
        return response

    def _send_newest(
        self,
        message: Any,
        version: int | None,
        client_id: str | None,
        ends: float,
        future: asyncio.Future[Any] | None = None,
    ) -> asyncio.Future[Any]:
        """Send a request in the given version, or in the newest that both sides support."""
        request_class = message.request_class if isinstance(message, Versioned) else type(message)
        if version is None:
            version = self.version_for(request_class, message.newest if isinstance(message, Versioned) else None)
        decode: Callable[[int, Any], Any] = functools.partial(_message, api_for(request_class).response)
        quick, follow = False, None
        if isinstance(message, Versioned):
            decode, quick, follow = message.decode or decode, message.quick, message.follow
            message = message.build(version)
        return self._send(message, version, functools.partial(decode, version), client_id, quick, ends, follow, future)

    def close(self) -> None:
        """Close at once; requests in flight fail."""
        self._close(DisconnectedError(f"the connection to {self.address} was closed by this client"))

    async def wait_closed(self) -> None:
        """Wait until all decoding has ended, after :meth:`close`."""
        await asyncio.gather(*self._decoding, return_exceptions=True)

    async def exchange(self, message: Any) -> Any:
        """Send one request of an :class:`Authenticator`; the caller sets the time limit for the whole exchange."""
        version = self.version_for(type(message))
        api = api_for(type(message))
        return await self._send(message, version, lambda frame: decode_response(api.response, version, frame)[1])

    async def _authenticate(self, authenticator: Authenticator) -> None:
        lifetime_ms = await authenticator.authenticate(self)
        self._authenticator = authenticator
        if lifetime_ms > 0:
            wait_s = max(_SHORTEST_SESSION_S, _SESSION_WINDOW * lifetime_ms / 1000)
            self._session_ends_at = asyncio.get_running_loop().time() + wait_s
        else:
            self._session_ends_at = float("inf")

    async def _renew_session(self, ends: float) -> None:
        """If the SASL session is about to end, authenticate again (KIP-368), after the responses to requests in flight.

        While a session is renewed, other requests wait for the end of the renewal.
        """
        if not self._gate.locked() and asyncio.get_running_loop().time() < self._session_ends_at:
            return
        try:
            async with asyncio.timeout_at(ends), self._gate:
                await self._authenticate_again()
        except TimeoutError as error:
            if isinstance(error, CoordinatorError):
                raise
            timed_out = RequestTimedOutError(f"the SASL session with {self.address} was not renewed in time")
            self._close(DisconnectedError(f"the connection to {self.address} was closed: {timed_out}"))
            raise timed_out from None

    async def _authenticate_again(self) -> None:
        if self._authenticator is None or self.closed or asyncio.get_running_loop().time() < self._session_ends_at:
            return
        try:
            await self._authenticate(self._authenticator)
        except CoordinatorError as error:
            self._close(error)
            raise
        except BaseException:
            # During the SASL exchange, the broker accepts only the further requests of the exchange.
            self.close()
            raise

    def _send(
        self,
        message: Any,
        version: int,
        decode: Callable[[Any], Any],
        client_id: str | None = None,
        quick: bool = False,
        ends: float = math.inf,
        follow: Callable[[Any], tuple[Versioned, float] | None] | None = None,
        future: asyncio.Future[Any] | None = None,
    ) -> asyncio.Future[Any]:
        if self._closed_by is not None:
            raise DisconnectedError(str(self._closed_by)) from self._closed_by
        loop = asyncio.get_running_loop()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        correlation_id = self._correlation_id
        try:
            frame = encode_request(message, version, correlation_id, self._client_id if client_id is None else client_id)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(setting_too_new(self.address, str(error))) from error
        if future is None:
            future = loop.create_future()
        try:
            self._transport.send(frame)
        except DisconnectedError as error:
            self._close(error)
            raise
        # The entry remains if the caller is cancelled, so that the late response is recognised and dropped.
        self.last_used = loop.time()
        name = type(message).__name__
        self._in_flight[correlation_id] = _InFlight(future, decode, follow, client_id, name, self.last_used, ends, quick)
        self._traffic.requests[name] += 1
        self._traffic.sent += 1
        self._traffic.sent_bytes += len(frame)
        if self._timer is None or ends < self._timer.when():
            self._look_at(ends)
        return future

    def _look_at(self, moment: float) -> None:
        """Schedule the check for late responses at ``moment``; one timer costs less than a timer for each request."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, self._look) if moment < math.inf else None

    def _look(self) -> None:
        """Close the connection if a response is late, because the broker would respond to later requests only afterwards."""
        assert self._timer is not None
        moment = self._timer.when()
        pending = [one for one in self._in_flight.values() if not one.future.done()]
        late = [one for one in pending if one.ends <= moment]
        for one in late:
            one.future.set_exception(one.timed_out(self.address))
        if late:
            error = late[0].timed_out(self.address)
            self._lost(DisconnectedError(f"the connection to {self.address} was closed: {error}"), error)
        else:
            self._timer = None
            self._look_at(min((one.ends for one in pending), default=math.inf))

    def frame_received(self, frame: bytes | memoryview) -> None:
        """Process a response; the coroutine that waits for it resumes in the loop's next iteration."""
        if self._closed_by is not None:
            return
        self.last_response_at = asyncio.get_running_loop().time()
        self._traffic.received += 1
        self._traffic.received_bytes += len(frame)
        try:
            self._answer(frame)
        except CoordinatorError as error:
            self._lost(error)
        except BaseException as error:
            reason = DisconnectedError(f"reading from {self.address} ended: {error!r}")
            self._lost(reason)
            raise

    def connection_lost(self, reason: CoordinatorError) -> None:
        """Close the connection, because the transport has ended."""
        self._lost(reason)

    def _lost(self, reason: CoordinatorError, cause: CoordinatorError | None = None) -> None:
        """Close the connection; if a request waited on a connection that was set up, report the ``cause``, or the reason."""
        disturbed = self._closed_by is None and self._counted and bool(self._in_flight)
        self._close(reason)
        if disturbed:
            self._traffic.failed(cause or reason)

    def _answer(self, frame: bytes | memoryview) -> None:
        correlation_id = peek_correlation_id(frame)
        # A broker answers in the order of the requests. Whatever has the id of another request may be of another type.
        due = next((one for one, request in self._in_flight.items() if not request.is_decoding), None)
        if correlation_id != due:
            what = "a later request first" if correlation_id in self._in_flight else "a request that this client did not send"
            raise MalformedMessageError(f"{self.address} answered {what}")
        waiting = self._in_flight[correlation_id]
        self._traffic.round_trips.append((self.last_response_at, int((self.last_response_at - waiting.sent_at) * 1e6)))
        if waiting.future.done():
            del self._in_flight[correlation_id]
        elif len(frame) < LARGE_FRAME_BYTES or waiting.quick:
            del self._in_flight[correlation_id]
            try:
                response = waiting.decode(frame if waiting.quick else bytes(frame))
                if not self._follow(waiting, response):
                    waiting.future.set_result(response)
            except BaseException as error:
                waiting.future.set_exception(_failure_of(error, self.address))
                raise
        else:
            # Decoding the metadata of a million partitions takes seconds, and the loop must send heartbeats.
            waiting.is_decoding = True
            task = asyncio.get_running_loop().create_task(self._decode(correlation_id, waiting, bytes(frame)))
            self._decoding.add(task)
            task.add_done_callback(self._decoding.discard)

    def _follow(self, waiting: _InFlight, response: Any) -> bool:
        """Send the request that follows a response, if there is one; return whether the caller goes on waiting."""
        moment = self.last_response_at
        if waiting.follow is None or self._gate.locked() or moment >= self._session_ends_at:
            return False
        following = waiting.follow(response)
        if following is None:
            return False
        message, timeout_ms = following
        self.proven = True
        try:
            self._send_newest(message, None, waiting.client_id, moment + timeout_ms / 1000, waiting.future)
        except UnsupportedVersionError:
            # The caller sends the request again, and then the broker is asked again for its versions.
            return False
        except DisconnectedError as error:
            waiting.future.set_exception(error)
        return True

    async def _decode(self, correlation_id: int, waiting: _InFlight, frame: bytes) -> None:
        try:
            response = await self._run_blocking(lambda: waiting.decode(frame))
        except BaseException as error:
            if not waiting.future.done():
                waiting.future.set_exception(_failure_of(error, self.address))
            self._close(_failure_of(error, self.address))
            if not isinstance(error, CoordinatorError):
                raise
        else:
            if not waiting.future.done():
                waiting.future.set_result(response)
        finally:
            self._in_flight.pop(correlation_id, None)

    def _close(self, reason: CoordinatorError) -> None:
        if self._closed_by is not None:
            return
        self._closed_by = reason
        self._traffic.unanswered += len(self._in_flight)
        if self._counted:
            self._traffic.closed()
        self._transport.close()
        self._look_at(math.inf)
        for task in self._decoding:
            if task is not asyncio.current_task():
                task.cancel()
        for waiting in self._in_flight.values():
            if not waiting.future.done():
                # If no retry can resolve the error, for example because the broker refused a certificate, raise the same type
                # of error.
                error = type(reason)(str(reason)) if isinstance(reason, FatalError) else DisconnectedError(str(reason))
                error.__cause__ = reason
                waiting.future.set_exception(error)
                # The caller may be cancelled, so mark the exception as retrieved. Otherwise asyncio would log an error.
                waiting.future.exception()
        self._in_flight.clear()
        logger.debug("closed connection to %s: %s", self.address, reason)

    @property
    def newest_api_versions(self) -> int:
        """The newest version of ApiVersions that the broker serves."""
        return self.versions.get(api_for(ApiVersionsRequest).key, (0, 0))[1]

    async def _offers_others(self, timeout_ms: float) -> bool:
        """Ask the broker for its versions again; return whether they differ from those that it gave before.

        A version that is missing is no answer for the life of a connection: the first answer may come from a proxy, or may have
        been cut. The broker is asked at most once in :data:`_ASK_AGAIN_S`.
        """
        moment = asyncio.get_running_loop().time()
        if moment < self._asked_again_at + _ASK_AGAIN_S:
            return False
        self._asked_again_at = moment
        before = self.versions
        try:
            await self._agree_on_versions(timeout_ms)
        except CoordinatorError as error:
            logger.info("%s was asked again for its versions: %s", self.address, error)
            return False
        return self.versions != before

    async def _agree_on_versions(self, timeout_ms: float) -> None:
        """Send ApiVersions (KIP-35, KIP-511, KIP-1242) in the newest useful version; if refused, in the broker's newest."""
        cluster_id, node_id, newest = self._expected
        api = api_for(ApiVersionsRequest)
        question = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME,
            client_software_version=self._software_version,
            cluster_id=cluster_id,
            node_id=node_id,
        )
        version = api.max_version if cluster_id is not None else _VERSION_WITHOUT_CLUSTER
        if newest is not None:
            version = min(version, newest)
        answer = await self._api_versions(question, version, timeout_ms)
        if answer.error_code == error_codes.UNSUPPORTED_VERSION:
            # With this error, Kafka returns its newest version, and librdkafka's mock broker returns no version.
            older = next((key.max_version for key in answer.api_keys if key.api_key == api.key), 0)
            answer = await self._api_versions(question, older if older < version else 0, timeout_ms)
        if answer.error_code == error_codes.REBOOTSTRAP_REQUIRED:
            raise DisconnectedError(
                f"{self.address} is not broker {node_id} of cluster {cluster_id} (REBOOTSTRAP_REQUIRED)", code=answer.error_code
            )
        if answer.error_code != error_codes.NONE:
            kind = RetriableError if error_codes.is_retriable(answer.error_code) else UnsupportedVersionError
            raise kind(
                f"{self.address} refused ApiVersions with {error_codes.error_name(answer.error_code)}", code=answer.error_code
            )
        ranges = ((key.api_key, (key.min_version, key.max_version)) for key in answer.api_keys)
        versions = {key: (low, high) for key, (low, high) in ranges if 0 <= low <= high}
        if not versions:
            raise RetriableError(f"{self.address} answered ApiVersions without a version of any request")
        self.versions = versions

    async def _api_versions(self, question: ApiVersionsRequest, version: int, timeout_ms: float) -> ApiVersionsResponse:
        future = self._send(question, version, lambda frame: decode_response(ApiVersionsResponse, version, frame)[1])
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer: ApiVersionsResponse = await future
                return answer
        except DisconnectedError as error:
            if isinstance(error.__cause__, MalformedMessageError):
                raise
            raise ApiVersionsCutError(f"{self.address} closed the connection on ApiVersions v{version}") from error
        except TimeoutError as error:
            raise RequestTimedOutError(f"{self.address} did not answer ApiVersions within {timeout_ms:.0f} ms") from error


def _message(response: type[Any], version: int, frame: bytes | memoryview) -> Any:
    return decode_response(response, version, frame)[1]


def _failure_of(error: BaseException, address: str) -> CoordinatorError:
    """Return the error to raise in the coroutine that waits for a response, after the response could not be decoded."""
    return error if isinstance(error, CoordinatorError) else DisconnectedError(f"reading from {address} ended: {error!r}")
