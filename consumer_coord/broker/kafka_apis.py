"""Handle the requests to one broker: decode a request frame, and encode the response frame (Kafka's ``KafkaApis``).

The TCP server and the simulated network both use ``handle``. A connection must wait for the response to a frame before it
passes the next frame, because a broker serves one request of a connection at a time.
"""

from __future__ import annotations

import attrs

from consumer_coord.broker import faults
from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import BrokerStoppedError
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.requests.failed import error_response
from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import (
    Request,
    decode_request_behind,
    decode_request_header,
    encode_response,
    read_request_header,
)
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsResponse

_METADATA = 3
_API_VERSIONS = 18
_CORRELATION_ID_BYTES = 4


@attrs.frozen
class ClientConnection:
    """The broker's data about a connection; ``host`` is the client's address."""

    host: str = "127.0.0.1"


@attrs.frozen
class KafkaApis:
    """Serves the requests to one broker."""

    node: BrokerNode

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self.node.up

    async def handle(self, frame: bytes, client: ClientConnection) -> bytes | None:
        """Serve one request frame; return the response, or None if the request has no response (Produce with acks=0).

        Raise :class:`~consumer_coord.errors.DisconnectedError` if the broker stops or a fault ends the connection. Raise
        :class:`~consumer_coord.errors.MalformedMessageError` or :class:`~consumer_coord.errors.UnsupportedVersionError` for an
        invalid frame or a request that this broker does not serve. After an error, the caller must close the connection without
        a response.
        """
        self._check_up()
        request = self._decode(frame)
        if request is None:
            return _refuse_api_versions(frame)
        fault = self.node.cluster.faults.for_request(self.node.broker_id, request)
        if fault is None:
            return await self._answer(request, client)
        await faults.before(fault)
        self._check_up()
        if fault.error_code:
            response = error_response(request.message, request.version, fault.error_code)
            return encode_response(response, request.version, request.correlation_id)
        answer = await self._answer(request, client)
        faults.after(fault)
        return answer

    def _check_up(self) -> None:
        if not self.node.up:
            raise BrokerStoppedError(f"broker {self.node.broker_id} is down")

    def _decode(self, frame: bytes) -> Request | None:
        """Decode a frame; return None for an ApiVersions request of an unsupported version."""
        header, position = read_request_header(frame)
        served = SERVED.get(header.api_key)
        if served is None or not served.min_version <= header.version <= served.max_version:
            if header.api_key == _API_VERSIONS:
                return None
            raise UnsupportedVersionError(f"this broker does not serve API {header.api_key} in version {header.version}")
        return decode_request_behind(header, position, frame)

    async def _answer(self, request: Request, client: ClientConnection) -> bytes | None:
        cluster = self.node.cluster
        kept = cluster.kept_metadata(request) if request.api_key == _METADATA else None
        if kept is not None:
            return request.correlation_id.to_bytes(_CORRELATION_ID_BYTES, signed=True) + kept
        context = RequestContext(request.version, request.client_id or "", f"/{client.host}")
        response = await SERVED[request.api_key].handler(self.node, context, request.message)
        self._check_up()
        if response is None:
            return None
        answer = encode_response(response, request.version, request.correlation_id)
        if request.api_key == _METADATA:
            cluster.keep_metadata(request, answer[_CORRELATION_ID_BYTES:])
        return answer


def _refuse_api_versions(frame: bytes) -> bytes:
    """Return the response to an unsupported version of ApiVersions: as in Kafka, in version 0, with the supported versions."""
    header = decode_request_header(frame)
    served = SERVED[_API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=error_codes.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=_API_VERSIONS, min_version=served.min_version, max_version=served.max_version),),
    )
    return encode_response(response, 0, header.correlation_id)
