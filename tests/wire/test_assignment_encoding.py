"""Assignments are encoded from cached parts: the bytes are those of the schema."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.wire.codec import encode
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartition,
    encode_assignment,
)


def by_schema(partitions: Mapping[str, Sequence[int]], user_data: bytes | None) -> bytes:
    entries = [ConsumerProtocolTopicPartition(topic, list(numbers)) for topic, numbers in partitions.items() if numbers]
    return b"\0\3" + encode(ConsumerProtocolAssignment(assigned_partitions=entries, user_data=user_data), 3)


def test_any_sequence_is_written_as_the_schema_says() -> None:
    for number in range(300):
        rng = random.Random(number)
        partitions: dict[str, Sequence[int]] = {}
        for place in range(rng.randint(0, 5)):
            start, length = rng.randint(0, 2**31 - 400), rng.choice((0, 1, 2, 5, 64, 65, 300))
            numbers = range(start, start + length, rng.choice((1, 1, 3)))
            partitions[f"tøpic-{place}"] = rng.choice((numbers, list(numbers), tuple(numbers)))
        user_data = rng.choice((None, b"", b"data"))
        assert encode_assignment(Assignment(partitions, user_data)) == by_schema(partitions, user_data)


def test_a_value_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_assignment(Assignment({"t": [0, 2**31]}))
    with pytest.raises(ValueError, match="out of range"):
        encode_assignment(Assignment({"t" * 40_000: [0]}))
    with pytest.raises(UnsupportedVersionError, match="no version -1"):
        encode_assignment(Assignment({"t": [0]}), -1)
