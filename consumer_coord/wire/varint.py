"""Unsigned varints and tag buffers (KIP-482), the parts of the flexible encoding that tables have in common."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.errors import MalformedMessageError

#: The maximum number of tagged fields of a structure that Kafka accepts, since 4.4.
MAX_TAGGED_FIELDS = 10_000


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes and 31 bits; return the value and the position after it.

    Raise :class:`IndexError` at the end of ``data``, which the decoder turns into a malformed message.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                raise MalformedMessageError(f"a length of {value} before byte {position}")
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


#: The varints of one byte, by value.
ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def skip_tagged_fields(data: bytes | memoryview, position: int) -> int:
    """Return the position after a tag buffer with any content."""
    count, position = read_uvarint(data, position)
    check_tag_count(count, data, position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
    return position


def check_tag_count(count: int, data: bytes | memoryview, position: int) -> None:
    """Reject more tagged fields than Kafka accepts or the remaining bytes can contain (each has at least two bytes)."""
    if count > MAX_TAGGED_FIELDS or 2 * count > len(data) - position:
        raise MalformedMessageError(f"{count} tagged fields before byte {position} of {len(data)}")


def write_tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a tag buffer with these fields (tag, encoded value), which must be in the order of their tags."""
    out = [write_uvarint(len(fields))]
    for tag, value in fields:
        out += (write_uvarint(tag), write_uvarint(len(value)), value)
    return b"".join(out)
