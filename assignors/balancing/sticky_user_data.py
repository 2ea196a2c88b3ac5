"""The user data in which members of the sticky assignors send their last assignment.

``StickyAssignor`` is eager: members own no partitions when they join, so each member sends its last assignment as user data.
Version 0 is an array of (topic, partitions); version 1 (KIP-341) appends the generation. ``CooperativeStickyAssignor`` sends
only the generation, because the subscription has the owned partitions. Both formats are byte for byte those of the Java classes
with these names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

NO_GENERATION = -1

#: The layouts of arrays with fewer partitions than this number are cached.
_SHORT = 128


class InvalidUserDataError(ValueError):
    """Raised for user data that is not in a sticky assignor's format."""


def encode(assignment: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """Encode an assignment (topic -> partitions) and its generation as version 1."""
    topics = _in_java_map_order({topic: partitions for topic, partitions in assignment.items() if partitions})
    parts = [_INT32.pack(len(topics))]
    for topic in topics:
        name = topic.encode()
        partitions = assignment[topic]
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)]
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def decode(data: bytes) -> tuple[dict[str, Sequence[int]], int]:
    """Read version 1 or 0; return topic -> partitions and the generation, -1 in version 0.

    Raise :class:`InvalidUserDataError`. As in Java, trailing bytes are ignored.
    """
    try:
        return _decode(data)
    except struct.error as error:
        raise InvalidUserDataError(f"the data end too early; their length in bytes is {len(data)}") from error


def _decode(data: bytes) -> tuple[dict[str, Sequence[int]], int]:
    size = len(data)
    (count,) = _INT32.unpack_from(data)
    if not 0 <= count <= size:
        raise InvalidUserDataError(f"{count} topics do not fit into {size} bytes of data")
    assignment: dict[str, Sequence[int]] = {}
    at = 4
    for _ in range(count):
        (length,) = _INT16.unpack_from(data, at)
        at += 2
        if not 0 <= length <= size - at:
            raise InvalidUserDataError(f"a topic name of {length} bytes does not fit into the {size - at} remaining bytes")
        topic = _topic(data[at : at + length])
        at += length
        (number,) = _INT32.unpack_from(data, at)
        at += 4
        if not 0 <= number <= (size - at) // 4:
            raise InvalidUserDataError(
                f"{number} partitions of topic {topic!r} do not fit into the {size - at} remaining bytes"
            )
        partitions = _numbers(number).unpack_from(data, at) if number < _SHORT else struct.unpack_from(f">{number}i", data, at)
        assignment[topic] = (*assignment[topic], *partitions) if topic in assignment else partitions
        at += 4 * number
    generation = NO_GENERATION if at + 4 > size else _INT32.unpack_from(data, at)[0]
    return assignment, generation


@lru_cache(maxsize=4096)
def _topic(name: bytes) -> str:
    # A leader reads the same names from thousands of members, so one string per name saves memory.
    return name.decode(errors="replace")


@lru_cache(maxsize=_SHORT)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")


def encode_generation(generation: int) -> bytes:
    """Encode the user data of a cooperative sticky member."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """Return the generation in a cooperative sticky member's user data; -1 if there is none."""
    return NO_GENERATION if data is None or len(data) < 4 else _INT32.unpack_from(data)[0]


def _in_java_map_order(assignment: Mapping[str, Sequence[int]]) -> list[str]:
    """Return topics in the order of Java's ``HashMap``, because Java writes the topics in this order.

    The order is that of the low bits of the hashes. The number of these bits depends on the table's size. ``computeIfAbsent``
    puts a new key at the head of its bucket, and checks the size of the table before it adds the key, not after. (Java turns
    buckets of more than eight topics into trees. Such buckets do not occur in practice, and readers accept any order.)
    """
    topics = list(assignment)
    topics.reverse()
    noticed = len(topics) - (bool(topics) and len(assignment[topics[0]]) == 1)
    size = 16
    while noticed > size * 3 // 4:
        size *= 2
    return sorted(topics, key=lambda topic: _java_hash(topic) & (size - 1))


def _java_hash(text: str) -> int:
    """Return ``String.hashCode`` with the bits spread as in ``HashMap``."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value ^ value >> 16
