"""One broker: frames in, frames out.

``handle`` is used unchanged by the TCP server and by the simulated network. A connection must wait for the answer to a
frame before it hands in the next: a broker serves one request of a connection at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import attrs

from consumer_coord.broker import faults
from consumer_coord.broker.consumer_group.metadata import MetadataImage
from consumer_coord.broker.errors import BrokerStoppedError
from consumer_coord.broker.group_coordinator import GroupCoordinator
from consumer_coord.broker.joining import RequestContext
from consumer_coord.broker.purgatory import Purgatory
from consumer_coord.broker.requests import SERVED, error_response
from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import Request, decode_request, decode_request_header, encode_response
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsResponse

if TYPE_CHECKING:
    from consumer_coord.broker.cluster import BrokerCluster

_METADATA = 3
_API_VERSIONS = 18
_CORRELATION_ID_BYTES = 4


@attrs.frozen
class ClientConnection:
    """What a broker knows of a connection; ``host`` is the peer's address."""

    host: str = "127.0.0.1"


class BrokerNode:
    """One broker of a cluster. ``host`` and ``port`` are what it tells clients to connect to."""

    def __init__(self, cluster: BrokerCluster, broker_id: int, rack: str | None = None) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.rack = rack
        self.host = f"broker-{broker_id}"
        self.port = 9092
        self.up = False
        self.purgatory = Purgatory()
        self.coordinator = GroupCoordinator(
            cluster.config,
            random=cluster.random,
            wall_clock_ms=cluster.wall_clock_ms,
            purgatory=self.purgatory,
            hooks=attrs.evolve(
                cluster.hooks,
                append_error=lambda partition: cluster.append_error() or cluster.hooks.append_error(partition),
            ),
            image=MetadataImage(cluster.topics, cluster.rack_of),
        )
        #: What wakes those who wait for records here, to be called when the broker stops.
        self.waiting: dict[int, Callable[[], None]] = {}

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Answer one request frame; None when the request wants no answer (Produce with acks=0).

        Raises :class:`~consumer_coord.errors.DisconnectedError` when the broker stops or a fault ends the connection, and
        :class:`~consumer_coord.errors.MalformedMessageError` or :class:`~consumer_coord.errors.UnsupportedVersionError` for
        what is no request that this broker serves. The connection is to be closed then, without an answer.
        """
        if not self.up:
            raise BrokerStoppedError(f"broker {self.broker_id} is down")
        request = self._decode(frame)
        if request is None:
            return self._refuse_api_versions(frame)
        fault = self.cluster.faults.for_request(self.broker_id, request)
        if fault is None:
            return await self._answer(request, client)
        await faults.before(fault)
        if not self.up:
            raise BrokerStoppedError(f"broker {self.broker_id} is down")
        if fault.error_code:
            response = error_response(request.message, request.version, fault.error_code)
            return encode_response(response, request.version, request.correlation_id)
        answer = await self._answer(request, client)
        faults.after(fault)
        return answer

    def _decode(self, frame: bytes) -> Request | None:
        """The request in a frame, None for an ApiVersions request of a version that is not served."""
        header = decode_request_header(frame)
        served = SERVED.get(header.api_key)
        if served is None or not served.min_version <= header.version <= served.max_version:
            if header.api_key == _API_VERSIONS:
                return None
            raise UnsupportedVersionError(f"this broker does not serve API {header.api_key} in version {header.version}")
        return decode_request(frame)

    async def _answer(self, request: Request, client: ClientConnection) -> bytes | None:
        kept = self.cluster.kept_metadata(request) if request.api_key == _METADATA else None
        if kept is not None:
            return request.correlation_id.to_bytes(_CORRELATION_ID_BYTES, signed=True) + kept
        context = RequestContext(request.version, request.client_id or "", f"/{client.host}")
        handler: Callable[[BrokerNode, RequestContext, Any], Awaitable[Any]] = SERVED[request.api_key].handler
        response = await handler(self, context, request.message)
        if not self.up:
            raise BrokerStoppedError(f"broker {self.broker_id} is down")
        if response is None:
            return None
        answer = encode_response(response, request.version, request.correlation_id)
        if request.api_key == _METADATA:
            self.cluster.keep_metadata(request, answer[_CORRELATION_ID_BYTES:])
        return answer

    def _refuse_api_versions(self, frame: bytes) -> bytes:
        header = decode_request_header(frame)
        served = SERVED[_API_VERSIONS]
        response = ApiVersionsResponse(
            error_code=error_codes.UNSUPPORTED_VERSION,
            api_keys=(ApiVersion(api_key=_API_VERSIONS, min_version=served.min_version, max_version=served.max_version),),
        )
        return encode_response(response, 0, header.correlation_id)

    def shut_down(self) -> None:
        """Stop at once: whoever waits for an answer gets none, since ``handle`` raises for them."""
        self.up = False
        self.coordinator.close()
        for wake in tuple(self.waiting.values()):
            wake()
        self.purgatory.close()
