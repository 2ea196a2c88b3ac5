"""Malformed messages: only one exception, and memory of at most a small multiple of the input."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire.codec import decode, encode
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from consumer_coord.wire.messages.group import HeartbeatRequest
from consumer_coord.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from consumer_coord.wire.schema import Struct, fields_of
from consumer_coord.wire.varint import write_tagged_fields
from tests.support.wire.fuzzing import TARGETS, decode_anything, decode_one
from tests.support.wire.values import MESSAGES, full_value, is_flexible, versions_of

_SEED = 20261116


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_truncated_at_every_byte(message: type[Struct]) -> None:
    for version in versions_of(message):
        body = encode(full_value(message, version), version)
        for length in range(len(body)):
            with pytest.raises(MalformedMessageError):
                decode(message, version, body[:length])


@pytest.mark.thorough
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_byte_replaced_and_random_mutations(message: type[Struct]) -> None:
    rng = random.Random(f"{_SEED} {message.__name__}")
    for version in _first_and_last_of_each_encoding(message):
        body = encode(full_value(message, version), version)
        for position in range(len(body)):
            for byte in (0x00, 0x7F, 0x80, 0xFF):
                decode_one(message, version, body[:position] + bytes((byte,)) + body[position + 1 :])
        for _ in range(20):
            decode_one(message, version, mutated(body, rng))


def test_random_bytes() -> None:
    rng = random.Random(_SEED)
    for _ in range(10_000):
        decode_anything(rng.randbytes(rng.randrange(2, 60)))


def mutated(body: bytes, rng: random.Random) -> bytes:
    """Return data with one to four changes: a byte, or a range removed, repeated or overwritten with a harmful number."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(8)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(40)]
            case 3:
                data[at : at + 4] = rng.choice(_HUGE)
            case _:
                data[at:at] = rng.randbytes(rng.randrange(5))
    return bytes(data)


_HUGE: Sequence[bytes] = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x00\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\x01",
    b"\x7f\xff",
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_huge_counts_and_lengths_cost_no_memory(message: type[Struct]) -> None:
    for version in _first_and_last_of_each_encoding(message)[-2:]:
        body = encode(full_value(message, version, elements=1), version)
        attacks = [body[:at] + huge + body[at:] for at in range(len(body)) for huge in _HUGE]
        decode_one(message, version, body)  # compile the decoder first
        tracemalloc.start()
        try:
            for attack in attacks:
                with_peak_below(64 * len(attack) + 20_000, message, version, attack)
        finally:
            tracemalloc.stop()


def with_peak_below(limit: int, message: type[Struct], version: int, body: bytes) -> None:
    """Decode, and compare the peak of the memory with a limit."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with contextlib.suppress(MalformedMessageError):
        decode(message, version, body)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before <= limit, (message, version, peak - before, len(body))


def _first_and_last_of_each_encoding(message: type[Struct]) -> Sequence[int]:
    versions = versions_of(message)
    classic = [version for version in versions if not is_flexible(message, version)]
    flexible = [version for version in versions if is_flexible(message, version)]
    return sorted({version for some in (classic, flexible) for version in some[:1] + some[-1:]})


def _arrays(struct_class: type[Struct], version: int) -> Iterator[str]:
    return (s.name for s in fields_of(struct_class) if s.kind.element is not None and version in s.versions)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_many_of_the_smallest_elements_cost_a_small_multiple(message: type[Struct]) -> None:
    """The worst valid case: arrays full of elements with the fewest bytes."""
    for version in _first_and_last_of_each_encoding(message):
        for name in _arrays(message, version):
            spec = next(spec for spec in fields_of(message) if spec.name == name)
            assert spec.kind.element is not None
            element = spec.kind.element.struct() if spec.kind.element.struct else spec.kind.element.default
            body = encode(message(**{name: (element,) * 500}), version)
            decode(message, version, body)
            tracemalloc.start()
            try:
                with_peak_below(64 * len(body) + 20_000, message, version, body)
            finally:
                tracemalloc.stop()


def test_a_long_string_is_cut_off_where_the_data_ends() -> None:
    for version, body in ((0, b"\x7f\xff" + b"g" * 10), (4, b"\xff\xff\x01" + b"g" * 10), (4, b"\xff\xff\x7f" + b"g")):
        with pytest.raises(MalformedMessageError):
            decode(HeartbeatRequest, version, body)


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_strings_that_are_not_utf_8(bad: bytes) -> None:
    rest = b"\0\0\0\1" + b"\0\0"
    with pytest.raises(MalformedMessageError, match="HeartbeatRequest of version 0"):
        decode(HeartbeatRequest, 0, struct.pack(">h", len(bad)) + bad + rest)
    with pytest.raises(MalformedMessageError):
        decode(HeartbeatRequest, 4, bytes((len(bad) + 1,)) + bad + b"\0\0\0\1" + b"\1\0\0")
    with pytest.raises(MalformedMessageError):
        decode_subscription(b"\0\0" + b"\0\0\0\1" + struct.pack(">h", len(bad)) + bad + b"\xff\xff\xff\xff")


def test_the_consumer_protocol() -> None:
    subscription = encode_subscription(Subscription(["a", "bb"], b"data", {"a": [0, 1], "bb": [2]}, 7, "rack"))
    assignment = encode_assignment(Assignment({"a": [0, 1], "bb": [2]}, b"data"))
    for decoder, data in ((decode_subscription, subscription), (decode_assignment, assignment)):
        for length in range(len(data)):
            with pytest.raises(MalformedMessageError):
                decoder(data[:length])
        with pytest.raises(MalformedMessageError, match="version -1"):
            decoder(b"\xff\xff" + data[2:])
        decoder(data + b"more of a later version")
        decoder(b"\x00\x63" + data[2:])  # version 99 is read as 3


def test_the_tables_cover_what_they_should() -> None:
    assert len(TARGETS) == sum(len(versions_of(message)) for message in MESSAGES)
    assert sum(is_flexible(message, version) for message, version in TARGETS) > 100


def _request_with(partitions: int) -> bytes:
    """Return an OffsetFetch v7 for this number of partitions of a topic."""
    topics = (OffsetFetchRequestTopic(name="t", partition_indexes=(7,) * partitions),)
    return encode(OffsetFetchRequest(group_id="g", topics=topics), 7)


def test_arrays_have_at_most_a_million_elements() -> None:
    """Kafka 4.4 and later have this limit, whatever the length of the message."""
    decoded = decode(OffsetFetchRequest, 7, _request_with(1_000_000))
    assert len(decoded.topics[0].partition_indexes) == 1_000_000  # type: ignore[index]
    with pytest.raises(
        MalformedMessageError, match="partition_indexes would have 1000001 elements; Kafka allows at most 1000000"
    ):
        decode(OffsetFetchRequest, 7, _request_with(1_000_001))


def test_structures_have_at_most_ten_thousand_tagged_fields() -> None:
    """Kafka 4.4 and later have this limit; unknown fields are skipped."""
    body = encode(HeartbeatRequest(group_id="g"), 4)
    assert body.endswith(b"\0"), "it has no tagged fields"

    def with_fields(count: int) -> bytes:
        return body[:-1] + write_tagged_fields([(900 + number, b"x") for number in range(count)])

    assert decode(HeartbeatRequest, 4, with_fields(10_000)) == HeartbeatRequest(group_id="g")
    with pytest.raises(MalformedMessageError, match="too many tagged fields: 10001"):
        decode(HeartbeatRequest, 4, with_fields(10_001))
