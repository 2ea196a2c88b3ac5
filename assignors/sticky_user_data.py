"""The bytes in which sticky assignors remember what their member was given.

``StickyAssignor`` is eager: members own nothing when they join, so each one sends its last assignment as user data.
Version 0 is an array of (topic, partitions); version 1 (KIP-341) has the generation behind it.
``CooperativeStickyAssignor`` sends the generation alone, since the subscription itself names what is owned.  Both follow
the schemas in the Java classes of those names, byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

NO_GENERATION = -1


class InvalidUserDataError(ValueError):
    """Bytes that are not a sticky assignor's user data."""


def encode(assignment: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """Version 1: topic -> partitions, and the generation in which they were given."""
    topics = _in_java_map_order({topic: partitions for topic, partitions in assignment.items() if partitions})
    parts = [_INT32.pack(len(topics))]
    for topic in topics:
        name = topic.encode()
        partitions = assignment[topic]
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)]
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def decode(data: bytes) -> tuple[dict[str, list[int]], int]:
    """Read version 1 or 0; returns topic -> partitions and the generation, -1 in version 0.

    Raises :class:`InvalidUserDataError`.  As in Java, bytes behind what was read are not looked at.
    """
    at = 0
    count, at = _int32(data, at)
    if not 0 <= count <= len(data):
        raise InvalidUserDataError(f"{count} topics in {len(data)} bytes")
    assignment: dict[str, list[int]] = {}
    for _ in range(count):
        if at + 2 > len(data):
            raise InvalidUserDataError("the data end before a topic's name")
        (length,) = _INT16.unpack_from(data, at)
        at += 2
        if not 0 <= length <= len(data) - at:
            raise InvalidUserDataError(f"a topic's name of {length} bytes, {len(data) - at} are left")
        topic = data[at : at + length].decode(errors="replace")
        number, at = _int32(data, at + length)
        if not 0 <= number <= (len(data) - at) // 4:
            raise InvalidUserDataError(f"{number} partitions of {topic!r}, {len(data) - at} bytes are left")
        assignment.setdefault(topic, []).extend(struct.unpack_from(f">{number}i", data, at))
        at += 4 * number
    generation = NO_GENERATION if at + 4 > len(data) else _INT32.unpack_from(data, at)[0]
    return assignment, generation


def encode_generation(generation: int) -> bytes:
    """What a cooperative sticky member sends."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """The generation in a cooperative sticky member's user data, -1 if there is none."""
    return NO_GENERATION if data is None or len(data) < 4 else _INT32.unpack_from(data)[0]


def _int32(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise InvalidUserDataError("the data end before a count")
    return _INT32.unpack_from(data, at)[0], at + 4


def _in_java_map_order(assignment: Mapping[str, Sequence[int]]) -> list[str]:
    """Topics in the order in which Java's ``HashMap`` lists them, since Java groups them by one before it writes.

    That is by the low bits of their hashes, as many as the table's size takes.  ``computeIfAbsent`` puts a new key at the
    head of its bucket, and looks whether the table is too small before it adds and not after.  (Java turns buckets
    of more than eight into trees; eight topics in one are not met in practice, and readers do not mind the order.)
    """
    topics = list(assignment)
    topics.reverse()
    noticed = len(topics) - (bool(topics) and len(assignment[topics[0]]) == 1)
    size = 16
    while noticed > size * 3 // 4:
        size *= 2
    return sorted(topics, key=lambda topic: _java_hash(topic) & (size - 1))


def _java_hash(text: str) -> int:
    """``String.hashCode`` as ``HashMap`` spreads it."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value ^ value >> 16
