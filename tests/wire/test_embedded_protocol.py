"""The consumer protocol's subscriptions and assignments, against bytes from Java's ``ConsumerProtocol`` of Kafka 4.4.0."""

from __future__ import annotations

import pytest

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

_SUBSCRIPTION = Subscription(
    topics=["orders", "events"],
    user_data=b"\x01\x02",
    owned_partitions={"orders": [2, 0], "events": [7], "nothing": []},
    generation_id=41,
    rack_id="rack-a",
)
_TOPICS_AND_DATA = "0000000200066576656e747300066f7264657273000000020102"
_OWNED = "0000000200066576656e7473000000010000000700066f7264657273000000020000000000000002"
_JAVAS_SUBSCRIPTIONS = {
    0: "0000" + _TOPICS_AND_DATA,
    1: "0001" + _TOPICS_AND_DATA + _OWNED,
    2: "0002" + _TOPICS_AND_DATA + _OWNED + "00000029",
    3: "0003" + _TOPICS_AND_DATA + _OWNED + "00000029" + "00067261636b2d61",
}
_JAVAS_ASSIGNMENT = "0000000200066f726465727300000002000000010000000000066576656e74730000000100000003ffffffff"


@pytest.mark.behaviour(25)
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions(version: int) -> None:
    data = bytes.fromhex(_JAVAS_SUBSCRIPTIONS[version])
    assert encode_subscription(_SUBSCRIPTION, version) == data
    assert decode_subscription(data) == Subscription(
        topics=("events", "orders"),
        user_data=b"\x01\x02",
        owned_partitions={"events": (7,), "orders": (0, 2)} if version >= 1 else {},
        generation_id=41 if version >= 2 else -1,
        rack_id="rack-a" if version >= 3 else None,
    )


def test_an_empty_subscription() -> None:
    data = bytes.fromhex("000300000000ffffffff00000000ffffffffffff")
    assert encode_subscription(Subscription(())) == data
    assert decode_subscription(data) == Subscription(())


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_assignments_keep_their_order(version: int) -> None:
    assignment = Assignment({"orders": (1, 0), "nothing": (), "events": range(3, 4)})
    data = version.to_bytes(2, "big") + bytes.fromhex(_JAVAS_ASSIGNMENT)
    assert encode_assignment(assignment, version) == data
    decoded = decode_assignment(data)
    assert decoded == Assignment({"orders": (1, 0), "events": (3,)})
    assert list(decoded.partitions) == ["orders", "events"]


def test_a_later_version_is_read_as_the_last_one_known() -> None:
    data = b"\x00\x63" + bytes.fromhex(_JAVAS_SUBSCRIPTIONS[3])[2:] + b"what version 99 appends"
    assert decode_subscription(data).rack_id == "rack-a"
    assert encode_subscription(_SUBSCRIPTION, 99).hex() == _JAVAS_SUBSCRIPTIONS[3]


def test_an_empty_rack_is_none() -> None:
    assert decode_subscription(encode_subscription(Subscription(("a",), rack_id=""))).rack_id is None


def test_a_topic_in_several_entries_is_put_together() -> None:
    entry = b"\0\1t" + b"\0\0\0\1"
    data = b"\0\0" + b"\0\0\0\2" + entry + b"\0\0\0\5" + entry + b"\0\0\0\3" + b"\xff\xff\xff\xff"
    assert decode_assignment(data).partitions == {"t": (5, 3)}


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\xff\xff\0\0\0\0\xff\xff\xff\xff"])
def test_no_version_or_a_negative_one_is_malformed(data: bytes) -> None:
    for decoder in (decode_subscription, decode_assignment):
        with pytest.raises(MalformedMessageError, match="version"):
            decoder(data)
    with pytest.raises(UnsupportedVersionError):
        encode_assignment(Assignment({}), -1)
    with pytest.raises(UnsupportedVersionError):
        encode_subscription(Subscription(()), -1)


@pytest.mark.parametrize("partitions", [{"t" * 40_000: (1,)}, {"t": (1 << 31,)}, {"t": range(-(1 << 32), 1 - (1 << 32))}])
def test_names_and_numbers_out_of_range_are_value_errors(partitions: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_assignment(Assignment(partitions))
    with pytest.raises(ValueError, match="out of range"):
        encode_subscription(Subscription((), owned_partitions=partitions))
