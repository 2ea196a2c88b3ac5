"""Encode and decode Kafka messages and frames.

A *body* is a message alone; a *frame* is a header and a body, without the four bytes of its length. All decoders raise
:class:`~consumer_coord.errors.MalformedMessageError` for invalid input, and allocate no more than a small multiple of the
input's size. Bytes after a body are ignored, because some brokers, and later versions of messages, append bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire.apis import APIS, api_for
from consumer_coord.wire.decoder import LOW_LEVEL_ERRORS, Decoder, RowsDecoder, compile_decoder, compile_rows_decoder
from consumer_coord.wire.encoder import Encoder, compile_encoder
from consumer_coord.wire.error_codes import UNSUPPORTED_VERSION
from consumer_coord.wire.messages.cluster import ApiVersionsResponse
from consumer_coord.wire.schema import Struct, message_spec
from consumer_coord.wire.varint import skip_tagged_fields

M = TypeVar("M", bound=Struct)
T = TypeVar("T")

_encoders: dict[tuple[type[Struct], int], Encoder] = {}
_decoders: dict[tuple[type[Struct], int], Decoder] = {}
_view_decoders: dict[tuple[type[Struct], int], Decoder] = {}
_flexible: dict[tuple[type[Struct], int], bool] = {}
_rows_decoders: dict[tuple[type[Struct], int, str], RowsDecoder] = {}

#: The API key, the version, the correlation id and the length of the client id.
_REQUEST_HEADER = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")
_UNSUPPORTED_VERSION = struct.pack(">h", UNSUPPORTED_VERSION)


@attrs.frozen
class RequestHeader:
    """The header of a request, for header versions 1 and 2."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@attrs.frozen
class Request:
    """A decoded request with its header."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    message: Struct


def encode(message: Struct, version: int) -> bytes:
    """Encode the body of a message in one version.

    Raise :class:`~consumer_coord.errors.UnsupportedVersionError` if the table does not have this version, or if a field is set
    that this version does not have. Raise :class:`ValueError` for a number or string outside Kafka's range.
    """
    parts: list[bytes] = []
    _encode_into(parts, message, version)
    return b"".join(parts)


def decode(message: type[M], version: int, data: bytes) -> M:
    """Decode the message at the beginning of ``data``; ignore trailing bytes.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, or :class:`~consumer_coord.errors.UnsupportedVersionError` if
    the table does not have this version.
    """
    return decode_at(message, version, data, 0)[0]


def decode_at(message: type[M], version: int, data: bytes, position: int) -> tuple[M, int]:
    """Decode a body that starts at ``position``; return the message and the position after the body."""
    decoder = _decoders.get((message, version)) or _compiled_decoder(message, version)
    if type(data) is not bytes:
        data = bytes(data)  # Use bytes, because a slice of a memoryview has no decode(), and its content may change.
    return _decoded(decoder, message, version, data, position)


def _decoded(decoder: Decoder, message: type[M], version: int, data: bytes | memoryview, position: int) -> tuple[M, int]:
    try:
        result, position = decoder(data, position)
    except LOW_LEVEL_ERRORS as error:
        raise MalformedMessageError(f"cannot decode the data as {message.__name__} of version {version}: {error}") from error
    if position > len(data):
        raise _truncated(message.__name__, version)
    return result, position


def _encode_into(parts: list[bytes], message: Struct, version: int) -> None:
    kind = type(message)
    encoder = _encoders.get((kind, version)) or _compiled_encoder(kind, version)
    try:
        encoder(message, parts.append)
    except struct.error as error:
        raise ValueError(f"a number or length is out of range in {kind.__name__}: {error}") from error


def _compiled_encoder(message: type[Struct], version: int) -> Encoder:
    encoder = _encoders[message, version] = compile_encoder(message, version, _is_flexible(message, version))
    return encoder


def _compiled_decoder(message: type[Struct], version: int) -> Decoder:
    decoder = _decoders[message, version] = compile_decoder(message, version, _is_flexible(message, version))
    return decoder


def _compiled_view_decoder(message: type[Struct], version: int) -> Decoder:
    decoder = compile_decoder(message, version, _is_flexible(message, version), views=True)
    _view_decoders[message, version] = decoder
    return decoder


def _is_flexible(message: type[Struct], version: int) -> bool:
    """Return whether a version of a message is flexible; raise an error for a version that the table does not have."""
    found = _flexible.get((message, version))
    if found is not None:
        return found
    spec = message_spec(message)
    if version not in spec.versions:
        known = f"{spec.versions.first} to {spec.versions.last}"
        raise UnsupportedVersionError(f"version {version} of {message.__name__} is not supported (supported: {known})")
    found = _flexible[message, version] = version in spec.flexible
    return found


def _truncated(what: str, version: int) -> MalformedMessageError:
    return MalformedMessageError(f"cannot decode the data as {what} of version {version}: the data ends too early")


def encode_request(message: Struct, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request's frame; raise the errors of :func:`encode`."""
    api = api_for(type(message))
    name = None if client_id is None else client_id.encode()
    try:
        parts = [_REQUEST_HEADER.pack(api.key, version, correlation_id, -1 if name is None else len(name)), name or b""]
    except struct.error as error:
        raise ValueError(
            f"cannot encode the request header: the version ({version}) or the length of client.id ({len(name or b'')} bytes)"
            f" does not fit into 16 bits: {error}"
        ) from error
    if api.is_flexible(version):
        parts.append(b"\0")
    _encode_into(parts, message, version)
    return b"".join(parts)


def decode_request_header(frame: bytes) -> RequestHeader:
    """Decode the header of a request, even if its API key or version is not supported."""
    return read_request_header(frame)[0]


def decode_request(frame: bytes) -> Request:
    """Decode the request in a frame.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`, or :class:`~consumer_coord.errors.UnsupportedVersionError` if
    the API key or version is not supported; :func:`decode_request_header` still decodes the client id and the API key.
    """
    return decode_request_behind(*read_request_header(frame), frame)


def decode_request_behind(header: RequestHeader, position: int, frame: bytes) -> Request:
    """Decode the request in a frame, given the results of :func:`read_request_header`."""
    api = APIS.get(header.api_key)
    if api is None:
        raise UnsupportedVersionError(f"API key {header.api_key} is not supported")
    if _is_flexible(api.request, header.version):  # This check also refuses an unknown version, before the body is read.
        position = _skip_header_tags(frame, position)
    message, _ = decode_at(api.request, header.version, frame, position)
    return Request(header.api_key, header.version, header.correlation_id, header.client_id, message)


def encode_response(message: Struct, version: int, correlation_id: int) -> bytes:
    """Encode a response's frame.

    If an ApiVersions request has an unsupported version, Kafka responds in version 0, with error 35 (UNSUPPORTED_VERSION), so
    encode such a response in version 0.
    """
    parts = [_INT32.pack(correlation_id)]
    if _response_header_has_tags(type(message), version):
        parts.append(b"\0")
    _encode_into(parts, message, version)
    return b"".join(parts)


def decode_response(message: type[M], version: int, frame: bytes | memoryview) -> tuple[int, M]:
    """Decode the correlation id and the message of a response's frame; records in a memoryview become slices of it.

    An ApiVersions response with error 35 may have any version: Kafka uses version 0, and librdkafka's mock broker a version
    that does not exist. So decode the error code; also decode the API keys if the response is valid in version 0.
    """
    correlation_id = peek_correlation_id(frame)
    if message is ApiVersionsResponse and frame[4:6] == _UNSUPPORTED_VERSION:
        try:
            return correlation_id, decode_at(message, 0, bytes(frame), 4)[0]
        except MalformedMessageError:
            return correlation_id, message(error_code=UNSUPPORTED_VERSION)  # type: ignore[call-arg]  # it is that class
    position = 4
    if _response_header_has_tags(message, version):
        position = _skip_header_tags(frame, position)
    if isinstance(frame, memoryview):
        decoder = _view_decoders.get((message, version)) or _compiled_view_decoder(message, version)
    else:
        decoder = _decoders.get((message, version)) or _compiled_decoder(message, version)
    return correlation_id, _decoded(decoder, message, version, frame, position)[0]


def decode_response_rows(message: type[M], version: int, frame: bytes, rows: str, take: Callable[[Any], object]) -> M:
    """Decode a response's frame; pass each element of the array ``rows`` to ``take`` instead of keeping the elements.

    Use this function for long responses: only one row is in memory at a time, apart from the data that ``take`` keeps.
    Exceptions of ``take`` propagate. When this function raises :class:`~consumer_coord.errors.MalformedMessageError`, ``take``
    may have received some rows.
    """
    decoder = _rows_decoders.get((message, version, rows))
    if decoder is None:
        decoder = compile_rows_decoder(message, version, _is_flexible(message, version), rows)
        _rows_decoders[message, version, rows] = decoder
    position = 4
    if _response_header_has_tags(message, version):
        position = _skip_header_tags(frame, position)
    try:
        result, position = decoder(frame, position, take)
    except LOW_LEVEL_ERRORS as error:
        raise MalformedMessageError(f"cannot decode the data as {message.__name__} of version {version}: {error}") from error
    if position > len(frame):
        raise _truncated(message.__name__, version)
    found: M = result
    return found


def first_row(rows: Sequence[T], what: str) -> T:
    """Return the row of a response that has one row; raise :class:`MalformedMessageError` if there is no row."""
    if not rows:
        raise MalformedMessageError(f"the response has no row: {what}")
    return rows[0]


def peek_correlation_id(frame: bytes | memoryview) -> int:
    """Return the correlation id, the first field of every response."""
    if len(frame) < 4:
        raise MalformedMessageError(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id: int = _INT32.unpack_from(frame)[0]
    return correlation_id


def read_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """Read a request's header, without its tagged fields; return the header and the position after the client id."""
    if len(frame) < _REQUEST_HEADER.size:
        raise MalformedMessageError(f"a request of {len(frame)} bytes has no header")
    api_key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
    start = _REQUEST_HEADER.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, None), start
    end = start + length
    if end > len(frame):
        raise MalformedMessageError(
            f"the client id has a length of {length} bytes, but the request of {len(frame)} bytes is too short"
        )
    try:
        client_id = str(frame[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"the client id is not valid UTF-8: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id), end


def _skip_header_tags(frame: bytes | memoryview, position: int) -> int:
    try:
        return skip_tagged_fields(frame, position)
    except IndexError as error:
        raise MalformedMessageError("the data ends within the header") from error


def _response_header_has_tags(message: type[Struct], version: int) -> bool:
    """Return whether a response has header version 1, as all flexible responses except ApiVersions do."""
    return message is not ApiVersionsResponse and _is_flexible(message, version)
