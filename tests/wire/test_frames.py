"""Headers before a body, and the one response that breaks their rules."""

from __future__ import annotations

import pytest

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import APIS
from consumer_coord.wire.codec import (
    Request,
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_response,
    encode,
    encode_request,
    encode_response,
    peek_correlation_id,
)
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsResponse
from consumer_coord.wire.messages.group import HeartbeatRequest, HeartbeatResponse

_EVERY_VERSION = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


def test_every_request_and_response_survives_its_frame() -> None:
    for api, version in _EVERY_VERSION:
        request, response = api.request(), api.response()
        frame = encode_request(request, version, 77, "client")
        assert decode_request(frame) == Request(api.key, version, 77, "client", request)
        assert decode_response(api.response, version, encode_response(response, version, 78)) == (78, response)


def test_request_headers_of_version_1_and_2() -> None:
    beat = HeartbeatRequest("g", 1, "m")
    classic = encode_request(beat, 3, 5, "id")
    assert classic == b"\0\x0c" + b"\0\3" + b"\0\0\0\5" + b"\0\2id" + encode(beat, 3)
    flexible = encode_request(beat, 4, 5, None)
    assert flexible == b"\0\x0c" + b"\0\4" + b"\0\0\0\5" + b"\xff\xff" + b"\0" + encode(beat, 4)
    tagged = flexible[:10] + b"\x01\x05\x02zz" + flexible[11:]
    assert decode_request(tagged).message == beat
    assert decode_request(tagged).client_id is None


def test_the_header_of_an_unknown_request_can_be_read() -> None:
    frame = b"\0\x12" + b"\0\x63" + b"\0\0\0\7" + b"\0\2me" + b"whatever"
    assert decode_request_header(frame) == RequestHeader(18, 99, 7, "me")
    with pytest.raises(UnsupportedVersionError, match="version 99 of ApiVersionsRequest"):
        decode_request(frame)
    with pytest.raises(UnsupportedVersionError, match="key 4660"):
        decode_request(b"\x12\x34" + frame[2:])


@pytest.mark.parametrize("length", range(13))
def test_a_truncated_header_is_malformed(length: int) -> None:
    frame = encode_request(HeartbeatRequest("g", 1, "m"), 4, 5, "me")
    with pytest.raises(MalformedMessageError):
        decode_request(frame[:length])


def test_a_client_id_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        decode_request_header(b"\0\x0c" + b"\0\3" + b"\0\0\0\5" + b"\0\1\xff")


def test_a_client_id_that_is_too_long_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"the length of client.id \(32768 bytes\) does not fit"):
        encode_request(HeartbeatRequest(), 4, 1, "x" * 32768)


def test_response_headers_of_version_0_and_1() -> None:
    response = HeartbeatResponse(0, 27)
    assert encode_response(response, 3, 9) == b"\0\0\0\x09" + encode(response, 3)
    flexible = encode_response(response, 4, 9)
    assert flexible == b"\0\0\0\x09" + b"\0" + encode(response, 4)
    assert decode_response(HeartbeatResponse, 4, flexible[:4] + b"\x01\x63\x01z" + flexible[5:]) == (9, response)
    assert peek_correlation_id(flexible) == 9
    for length in range(4):
        with pytest.raises(MalformedMessageError):
            peek_correlation_id(flexible[:length])
    with pytest.raises(MalformedMessageError, match="header"):
        decode_response(HeartbeatResponse, 4, flexible[:4])


def test_api_versions_responses_always_have_header_version_0() -> None:
    response = ApiVersionsResponse(api_keys=(ApiVersion(18, 0, 4),), throttle_time_ms=3)
    assert encode_response(response, 4, 9) == b"\0\0\0\x09" + encode(response, 4)


def test_a_version_of_api_versions_that_the_broker_does_not_know() -> None:
    """Kafka answers with version 0 and its versions of ApiVersions; librdkafka's mock broker sends a body of no version."""
    kafkas = ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION, api_keys=(ApiVersion(18, 0, 3),))
    assert decode_response(ApiVersionsResponse, 4, encode_response(kafkas, 0, 1)) == (1, kafkas)
    mocks = b"\0\0\0\1" + b"\0\x23" + b"\0"
    alone = ApiVersionsResponse(error_code=error_codes.UNSUPPORTED_VERSION)
    assert decode_response(ApiVersionsResponse, 4, mocks) == (1, alone)


def test_error_codes_have_kafkas_names() -> None:
    assert error_codes.NONE == 0
    assert error_codes.error_name(16) == "NOT_COORDINATOR"
    assert error_codes.error_name(-1) == "UNKNOWN_SERVER_ERROR"
    assert error_codes.error_name(1234) == "UNKNOWN_ERROR_CODE_1234"
    assert error_codes.is_retriable(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert not error_codes.is_retriable(error_codes.ILLEGAL_GENERATION)
    assert not error_codes.is_retriable(1234)
    assert sorted(error_codes.ERROR_NAMES) == list(range(-1, 137))
