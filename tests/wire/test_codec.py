"""The codec's round trip, and its rules about versions, nulls, tags and trailing bytes."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire.apis import APIS, api_for
from consumer_coord.wire.codec import decode, encode
from consumer_coord.wire.messages.cluster import (
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from consumer_coord.wire.messages.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    MemberIdentity,
)
from consumer_coord.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from consumer_coord.wire.schema import Struct, fields_of
from tests.support.wire.values import FEW, MESSAGES, is_flexible, values_of, versions_of


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
@FEW
@given(data=st.data(), trailing=st.binary(max_size=3))
def test_decoding_reverses_encoding(message: type[Struct], data: st.DataObject, trailing: bytes) -> None:
    for version in versions_of(message):
        value = data.draw(values_of(message, version))
        body = encode(value, version)
        assert decode(message, version, body) == value
        assert decode(message, version, body + trailing) == value
        assert decode(message, version, memoryview(bytearray(body))) == value  # type: ignore[arg-type]  # a caller's mistake


def test_a_decoded_message_is_frozen_and_like_a_constructed_one() -> None:
    value = HeartbeatResponse(throttle_time_ms=1, error_code=27)
    decoded = decode(HeartbeatResponse, 4, encode(value, 4))
    assert type(decoded) is HeartbeatResponse
    assert hash(decoded) == hash(value)
    with pytest.raises(AttributeError):
        decoded.error_code = 0  # type: ignore[misc]  # the test checks that it is frozen


def test_fields_a_version_does_not_have_get_kafkas_defaults() -> None:
    body = encode(JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer"), 0)
    decoded = decode(JoinGroupRequest, 0, body)
    assert decoded.rebalance_timeout_ms == -1
    assert decoded.group_instance_id is None
    partition = decode(
        MetadataResponse,
        4,
        encode(MetadataResponse(topics=(MetadataResponseTopic(partitions=(MetadataResponsePartition(),)),)), 4),
    )
    assert partition.topics[0].partitions[0].leader_epoch == -1
    assert partition.topics[0].topic_id == uuid.UUID(int=0)


def test_a_value_with_no_place_in_the_version_is_refused_unless_it_is_ignorable() -> None:
    static = JoinGroupRequest(group_id="g", group_instance_id="i", rebalance_timeout_ms=1)
    with pytest.raises(UnsupportedVersionError, match=r"version 4 has no JoinGroupRequest\.group_instance_id"):
        encode(static, 4)
    assert decode(JoinGroupRequest, 5, encode(static, 5)) == static
    assert decode(JoinGroupRequest, 0, encode(JoinGroupRequest(rebalance_timeout_ms=1, reason="r"), 0)).reason is None
    with pytest.raises(UnsupportedVersionError, match="members"):
        encode(LeaveGroupRequest(members=(MemberIdentity("a"),)), 2)
    with pytest.raises(UnsupportedVersionError, match="member_id"):
        encode(LeaveGroupRequest(member_id="a"), 3)


def test_null_is_refused_where_the_version_has_none() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"MetadataRequest\.topics may not be null in version 0"):
        encode(MetadataRequest(topics=None), 0)
    assert decode(MetadataRequest, 1, encode(MetadataRequest(topics=None), 1)).topics is None
    with pytest.raises(MalformedMessageError, match="topics must not be null"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")


@pytest.mark.parametrize("version", [-1, 10, 32767])
def test_a_version_outside_the_table_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="supported: 0 to 9"):
        encode(JoinGroupRequest(), version)
    with pytest.raises(UnsupportedVersionError, match="supported: 0 to 9"):
        decode(JoinGroupRequest, version, b"")


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (HeartbeatRequest(generation_id=1 << 31), 0),
        (HeartbeatRequest(group_id="g" * 32768), 0),
        (HeartbeatRequest(group_id="g" * 32768), 4),
    ],
)
def test_numbers_and_strings_beyond_kafkas_ranges_are_value_errors(message: Struct, version: int) -> None:
    with pytest.raises(ValueError, match=r"range|32767"):
        encode(message, version)


def test_the_longest_string_and_long_arrays() -> None:
    for version in (0, 4):
        value = HeartbeatRequest(group_id="g" * 32767)
        assert decode(HeartbeatRequest, version, encode(value, version)) == value
    for count in (126, 127, 128, 16383, 16384):
        topic = OffsetFetchRequestTopic("t", tuple(range(count)))
        request = OffsetFetchRequest(group_id="g", topics=(topic, topic))
        for version in (5, 7):
            assert decode(OffsetFetchRequest, version, encode(request, version)) == request


def test_any_sequence_can_be_encoded_and_comes_back_as_a_tuple() -> None:
    value = OffsetFetchRequestTopic("t", range(3))
    decoded = decode(OffsetFetchRequest, 1, encode(OffsetFetchRequest(group_id="g", topics=[value]), 1))
    assert decoded.topics == (OffsetFetchRequestTopic("t", (0, 1, 2)),)


def test_unknown_tagged_fields_are_skipped_at_any_place() -> None:
    member = b"\x02m" + b"\x00" + b"\x03ab" + b"\x02\x07\x01z\x90\x4e\x02zz"  # tags 7 and 10000
    body = b"\0\0\0\1" + b"\0\0" + b"\0\0\0\2" + b"\x02p" + b"\x02l" + b"\x02m" + b"\x02" + member
    tail = b"\x01\x00\x00"  # tag 0, without bytes
    decoded = decode(JoinGroupResponse, 6, body + tail)
    assert decoded.members == (JoinGroupResponseMember("m", None, b"ab"),)
    assert (decoded.generation_id, decoded.leader) == (2, "l")
    with pytest.raises(MalformedMessageError):
        decode(JoinGroupResponse, 6, body + tail[:2])


def test_known_tagged_fields_are_written_only_when_they_say_something() -> None:
    plain = encode(ApiVersionsResponse(), 3)
    assert plain.endswith(b"\0")
    value = ApiVersionsResponse(finalized_features_epoch=7, supported_features=(SupportedFeatureKey("group.version", 0, 1),))
    assert decode(ApiVersionsResponse, 3, encode(value, 3)) == value
    # An unknown tag, and reversed order: Kafka does not write this, but another client or broker may.
    reordered = plain[:-1] + b"\x03" + b"\x63\x02hi" + b"\x01\x08" + (7).to_bytes(8, "big") + b"\x00\x01\x01"
    assert decode(ApiVersionsResponse, 3, reordered).finalized_features_epoch == 7


def test_a_tagged_field_longer_than_announced_is_malformed() -> None:
    body = encode(ApiVersionsResponse(), 3)[:-1] + b"\x01" + b"\x01\x04" + (7).to_bytes(8, "big")
    with pytest.raises(MalformedMessageError, match="tagged field 1 of ApiVersionsResponse"):
        decode(ApiVersionsResponse, 3, body)


def test_requests_and_responses_have_tables_of_the_same_versions() -> None:
    assert [api.name for api in APIS.values()] == [APIS[key].name for key in sorted(APIS)]
    for api in APIS.values():
        assert versions_of(api.request) == versions_of(api.response)
        assert api_for(api.request) is api
        for version in versions_of(api.request):
            assert api.is_flexible(version) == is_flexible(api.request, version) == is_flexible(api.response, version)
    with pytest.raises(KeyError):
        api_for(JoinGroupResponse)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_field_of_a_table_is_in_some_version(message: type[Struct]) -> None:
    def check(struct: type[Struct]) -> None:
        for spec in fields_of(struct):
            assert any(version in spec.versions for version in versions_of(message)), spec.name
            inner = spec.kind.struct or (spec.kind.element and spec.kind.element.struct)
            if inner:
                check(inner)

    check(message)
