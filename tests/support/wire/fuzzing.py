"""The common entry of the fuzzers: the permitted results of decoding any bytes.

``test_malformed.py`` runs it in CI; ``fuzz_codec.py`` runs it under atheris, by hand, for any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire.codec import decode, decode_request, decode_request_header, decode_response, encode
from consumer_coord.wire.embedded_protocol import decode_assignment, decode_subscription
from consumer_coord.wire.schema import Struct
from tests.support.wire.values import MESSAGES, versions_of

#: All tables, one entry per version.
TARGETS: Sequence[tuple[type[Struct], int]] = [(message, version) for message in MESSAGES for version in versions_of(message)]


def decode_one(message: type[Struct], version: int, body: bytes) -> bool:
    """Decode any bytes; return True if they were a message.

    Any result other than a message or :class:`MalformedMessageError` is a bug, and raises.  A message must be the same after
    it is encoded and decoded again.
    """
    try:
        decoded = decode(message, version, body)
    except MalformedMessageError:
        return False
    again = decode(message, version, encode(decoded, version))
    # A double that is not a number is not equal to itself.
    assert again == decoded or repr(again) == repr(decoded), (message, version, body)
    return True


def decode_anything(data: bytes) -> None:
    """Decode bytes with the decoder that the first two bytes choose."""
    choice = int.from_bytes(data[:2], "big") % (len(TARGETS) + len(_OTHERS))
    body = data[2:]
    if choice < len(TARGETS):
        decode_one(*TARGETS[choice], body)
        return
    try:
        _OTHERS[choice - len(TARGETS)](body)
    except MalformedMessageError:
        return


def _decode_any_request(frame: bytes) -> None:
    decode_request_header(frame)
    try:
        decode_request(frame)
    except UnsupportedVersionError:
        return  # an unknown API or version, which the header contains and the caller must handle


def _decode_any_response(frame: bytes) -> None:
    message, version = TARGETS[len(frame) % len(TARGETS)]
    decode_response(message, version, frame)


_OTHERS: Sequence[Callable[[bytes], object]] = (
    _decode_any_request,
    _decode_any_response,
    decode_subscription,
    decode_assignment,
)
