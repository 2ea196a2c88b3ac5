"""The fast path for arrays with uniform elements returns the same values as decoding one element at a time, or is skipped."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire.codec import decode, encode
from consumer_coord.wire.messages.cluster import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponsePartitions,
)
from consumer_coord.wire.schema import BOOL, BYTES, RECORDS, STRING, UUID, ZERO_UUID, Kind, Struct, fields_of
from consumer_coord.wire.uniform_arrays import FEWEST, is_eligible
from tests.support.wire.fuzzing import decode_one
from tests.support.wire.values import MESSAGES, is_flexible, versions_of
from tests.wire.test_malformed import mutated

_COUNT = FEWEST + 4


def _short_cuts() -> Iterator[tuple[type[Struct], int, Sequence[str], type[Struct]]]:
    """Return every message and version with a path to an array that may take the fast path."""
    for message in MESSAGES:
        for version in versions_of(message):
            for path, struct in _eligible_arrays(message, version):
                yield message, version, path, struct


def _eligible_arrays(struct: type[Struct], version: int) -> Iterator[tuple[Sequence[str], type[Struct]]]:
    for spec in fields_of(struct):
        inner = spec.kind.element.struct if spec.kind.element is not None else None
        if inner is None or version not in spec.versions:
            continue
        if is_eligible(inner, version):
            yield (spec.name,), inner
        else:
            yield from (((spec.name, *path), found) for path, found in _eligible_arrays(inner, version))


_CASES = list(_short_cuts())


def _wrapped(message: type[Struct], path: Sequence[str], elements: Sequence[Struct]) -> Struct:
    """Return a message with ``elements`` in the array at ``path``."""
    name, *rest = path
    if not rest:
        return message(**{name: tuple(elements)})
    inner = next(spec.kind.element for spec in fields_of(message) if spec.name == name)
    assert inner is not None
    assert inner.struct is not None
    return message(**{name: (_wrapped(inner.struct, rest, elements),)})


def _element(struct: type[Struct], version: int, number: int, inner: int, null: bool = False) -> Any:
    """Return an element whose values depend on ``number``, with ``inner`` elements in its arrays, and empty or null strings."""
    values = {}
    for spec in fields_of(struct):
        if version in spec.versions and spec.tag is None:
            values[spec.name] = None if null and version in spec.nullable else _value(spec.kind, number, inner)
    return struct(**values)


def _value(kind: Kind[Any], number: int, inner: int) -> Any:
    if kind is STRING:
        return ""
    if kind in (BYTES, RECORDS):
        return b""
    if kind is UUID:
        return ZERO_UUID if number % 3 else ZERO_UUID.__class__(int=number)
    if kind is BOOL:
        return number % 2 == 0
    if kind.element is not None:
        return tuple(number + i for i in range(inner))
    return number % 100


def test_partitions_are_among_the_short_cuts() -> None:
    found = {struct for _, _, _, struct in _CASES}
    assert {
        MetadataResponsePartition,
        OffsetFetchResponsePartitions,
        OffsetCommitRequestPartition,
        OffsetCommitResponsePartition,
        ListOffsetsPartition,
    } <= found


@pytest.mark.parametrize("inner", [0, 1, 3, 16, 17])
@pytest.mark.parametrize("null", [False, True])
def test_all_alike(inner: int, null: bool) -> None:
    for message, version, path, struct in _CASES:
        elements = [_element(struct, version, number, inner, null) for number in range(_COUNT)]
        value = _wrapped(message, path, elements)
        body = encode(value, version)
        decoded = decode(message, version, body)
        assert decoded == value, (message, version)
        assert _at(decoded, path)[3].__class__ is struct


def test_one_element_differs() -> None:
    """Decode arrays in which a single element differs: in a string, an array length, or a null, at four indexes."""
    for message, version, path, struct in _CASES:
        alike = [_element(struct, version, number, 2) for number in range(_COUNT)]
        for place in (0, 1, _COUNT // 2, _COUNT - 1):
            for change in _changes(struct, version):
                elements = [*alike[:place], attrs.evolve(alike[place], **change), *alike[place + 1 :]]
                value = _wrapped(message, path, elements)
                assert decode(message, version, encode(value, version)) == value, (message, version, place, change)


def _changes(struct: type[Struct], version: int) -> Iterator[dict[str, Any]]:
    for spec in fields_of(struct):
        if version not in spec.versions or spec.tag is not None:
            continue
        if spec.kind is STRING:
            yield {spec.name: "differs"}
        elif spec.kind in (BYTES, RECORDS):
            yield {spec.name: b"differs"}
        elif spec.kind.element is not None:
            yield {spec.name: (7,)}
        if version in spec.nullable:
            yield {spec.name: None}


def test_tagged_fields_in_one_element() -> None:
    response = OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic("t", partitions=[OffsetCommitResponsePartition(p) for p in range(_COUNT)])]
    )
    body = encode(response, 9)
    first = body.index(b"\x02t") + 3
    for place in range(_COUNT):
        tag_buffer = first + place * 7 + 6
        assert body[tag_buffer] == 0
        tagged = body[:tag_buffer] + b"\x01\x09\x02zz" + body[tag_buffer + 1 :]
        assert decode(OffsetCommitResponse, 9, tagged).topics[0].partitions == tuple(response.topics[0].partitions)


def test_truncated_and_mutated() -> None:
    rng = random.Random(7)
    for message, version, path, struct in _CASES:
        if version not in (versions_of(message)[0], versions_of(message)[-1]):
            continue
        body = encode(_wrapped(message, path, [_element(struct, version, n, 2) for n in range(_COUNT)]), version)
        for length in range(0, len(body), 3):
            with pytest.raises(MalformedMessageError):
                decode(message, version, body[:length])
        for _ in range(30):
            decode_one(message, version, mutated(body, rng))


def test_null_in_an_array_that_must_not_have_it_is_malformed_in_all_elements_alike() -> None:
    partitions = [MetadataResponsePartition(partition_index=p) for p in range(_COUNT)]
    for version in (8, 9):
        body = encode(MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=partitions)]), version)
        lengths = b"\x01\x01\x01\x00" if is_flexible(MetadataResponse, version) else b"\0" * 12
        nulls = b"\x00\x00\x00\x00" if is_flexible(MetadataResponse, version) else b"\xff" * 12
        assert body.count(lengths) >= _COUNT
        with pytest.raises(MalformedMessageError, match="null"):
            decode(MetadataResponse, version, body.replace(lengths, nulls))


def test_more_shapes_than_are_kept() -> None:
    for inner in range(9):
        for isr in range(9):
            partition = MetadataResponsePartition(replica_nodes=(1,) * inner, isr_nodes=(2,) * isr)
            value = MetadataResponse(topics=(MetadataResponseTopic(name="t", partitions=(partition,) * _COUNT),))
            assert decode(MetadataResponse, 9, encode(value, 9)) == value


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path[:-1]:
        value = getattr(value, name)[0]
    return getattr(value, path[-1])
