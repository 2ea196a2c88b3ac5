"""Unsigned varints and tag buffers (KIP-482), the parts of the flexible encoding that tables have in common."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.errors import MalformedMessageError

#: The maximum number of tagged fields of a structure; Kafka 4.4 and later have this limit.
MAX_TAGGED_FIELDS = 10_000


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes and 31 bits; return the value and the position after it.

    Raise :class:`IndexError` if ``data`` ends too early; the codec turns this error into :class:`MalformedMessageError`.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                raise MalformedMessageError(f"a length of {value} before byte {position} is not allowed")
            return value, position
        shift += 7
        if shift > 28:
            raise MalformedMessageError(f"a variable-length number of more than five bytes before byte {position}")


def write_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


#: Value -> its varint, for the values whose varint has one byte.
ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def skip_tagged_fields(data: bytes | memoryview, position: int) -> int:
    """Return the position after a tag buffer, whatever fields it has."""
    count, position = read_uvarint(data, position)
    check_tag_count(count, data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
    return position


def check_tag_count(count: int, data: bytes | memoryview, position: int) -> None:
    """Raise an error for more tagged fields than Kafka accepts, or than fit in the remaining bytes (two bytes per field)."""
    if count > MAX_TAGGED_FIELDS or 2 * count > len(data) - position:
        raise MalformedMessageError(f"too many tagged fields: {count} before byte {position} of {len(data)}")


def write_tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a tag buffer with ``fields``, which are (tag, encoded value) in the order of the tags."""
    out = [write_uvarint(len(fields))]
    for tag, value in fields:
        out += (write_uvarint(tag), write_uvarint(len(value)), value)
    return b"".join(out)
