"""The offsets that are finished above a committed offset, as text in the commit's metadata.

A group commits one offset per partition: the lowest that is not finished. With records processed in parallel, later ones may be
finished already, and the next owner must not process them again. So they travel in the metadata of the commit, a text of at
most ``offset.metadata.max.bytes`` (4,096 by default) that Kafka keeps and does not read.

The text is base64 of: three bytes of magic, the version, the form, the base (the committed offset, 8 bytes), the finished
offsets in one of two forms, and the CRC-32 of all this. The form *runs* has, for each run of finished offsets, two unsigned
varints: the number of unfinished offsets before it, and its length. The form *bits* has a bit for each offset from the base on.

Which offsets these are, decides ``process/work.py``.

A wrong text would make the next owner skip records, which nobody would notice. So :func:`decode` accepts only what
:func:`encode` can have written for the same committed offset, and only offsets that the log has.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire.varint import read_uvarint, write_uvarint

#: Finished offsets: (first, the offset after the last), in order, with an unfinished offset between two of them.
Ranges = Sequence[tuple[int, int]]

_MAGIC: Final = b"\xcc\xf0\x0f"
_VERSION: Final = 1
_RUNS, _BITS = 0, 1
_HEAD: Final = struct.Struct(">3sBBq")
_CHECKSUM: Final = struct.Struct(">I")
#: Bytes around the finished offsets.
_AROUND: Final = _HEAD.size + _CHECKSUM.size
#: The largest number in a varint of Kafka's.
_LARGEST: Final = 0x7FFFFFFF
#: Kafka's strings are no longer than this.
_LONGEST_TEXT: Final = 0x7FFF


class UnusableMetadataError(ValueError):
    """The metadata of a commit does not name finished offsets that can be trusted."""


def capacity(limit: int) -> int:
    """Return how many bytes of finished offsets fit into a text of ``limit`` characters; negative if nothing fits."""
    return limit // 4 * 3 - _AROUND


def encode(base: int, ranges: Ranges, limit: int) -> str:
    """Return the text for a commit of ``base``; empty if there is nothing to say, or ``limit`` characters have no room.

    If not all ranges fit, the text has the first ones. Then the next owner processes the others again.
    """
    room = capacity(limit)
    if not ranges or room < 1:
        return ""
    bits, by_bits = _bits(base, ranges, room)
    runs, by_runs = _runs(base, ranges, room)
    if (by_runs, -len(runs)) >= (by_bits, -len(bits)):
        form, body, count = _RUNS, runs, by_runs
    else:
        form, body, count = _BITS, bits, by_bits
    if not count:
        return ""
    data = _HEAD.pack(_MAGIC, _VERSION, form, base) + body
    return base64.b64encode(data + _CHECKSUM.pack(zlib.crc32(data))).decode("ascii")


def _runs(base: int, ranges: Ranges, room: int) -> tuple[bytes, int]:
    """Return as many of the first ranges as fit, and the number of offsets in them."""
    body, count, at = bytearray(), 0, base
    for first, end in ranges:
        if first - at > _LARGEST or end - first > _LARGEST:
            break
        one = write_uvarint(first - at) + write_uvarint(end - first)
        if len(body) + len(one) > room:
            break
        body += one
        count += end - first
        at = end
    return bytes(body), count


def _bits(base: int, ranges: Ranges, room: int) -> tuple[bytes, int]:
    """Return a bit for each offset, as far as there is room, and the number of finished offsets among them."""
    value, count, ends = 0, 0, base + 8 * room
    for first, end in ranges:
        if first >= ends:
            break
        end = min(end, ends)
        value |= ((1 << (end - first)) - 1) << (first - base)
        count += end - first
    return value.to_bytes((value.bit_length() + 7) // 8, "little"), count


def decode(metadata: str, committed: int, log_end: int) -> Ranges:
    """Return the finished offsets above ``committed`` that the metadata of its commit names; nothing if it is empty.

    ``log_end`` is the offset after the last record of the log. Raise :class:`UnusableMetadataError` if the text is another
    program's, damaged, belongs to another commit, or names offsets that the log does not have.
    """
    # confluent-kafka commits a zero byte after the text, for instance in a program that copies commits.
    metadata = metadata.removesuffix("\0")
    if not metadata:
        return ()
    if len(metadata) > _LONGEST_TEXT:
        raise UnusableMetadataError(f"it has {len(metadata)} characters, and Kafka's strings have at most {_LONGEST_TEXT}")
    try:
        data = base64.b64decode(metadata.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise UnusableMetadataError("another program wrote it") from None
    if len(data) <= _AROUND or data[: len(_MAGIC)] != _MAGIC:
        raise UnusableMetadataError("another program wrote it")
    body, (checksum,) = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])
    if zlib.crc32(body) != checksum:
        raise UnusableMetadataError("its checksum is wrong")
    _, version, form, base = _HEAD.unpack_from(body)
    if version != _VERSION or form not in (_RUNS, _BITS):
        raise UnusableMetadataError(f"its version {version} or form {form} is unknown")
    if base != committed:
        raise UnusableMetadataError(f"it belongs to the committed offset {base}, not to {committed}")
    return _checked(_read_runs(body, base) if form == _RUNS else _read_bits(body, base), base, log_end)


def _checked(found: Iterable[tuple[int, int]], base: int, log_end: int) -> Ranges:
    ranges, at = [], base
    for first, end in found:
        # The committed offset itself is not finished, and two runs without an offset between them are one run.
        if first <= at or end <= first:
            raise UnusableMetadataError(f"its runs are not in order at offset {first}")
        if end > log_end:
            raise UnusableMetadataError(f"it names offset {end - 1}, and the log ends at {log_end}")
        ranges.append((first, end))
        at = end
    return tuple(ranges)


def _read_runs(body: bytes, base: int) -> Iterator[tuple[int, int]]:
    position, at = _HEAD.size, base
    while position < len(body):
        try:
            before, position = read_uvarint(body, position)
            length, position = read_uvarint(body, position)
        except (IndexError, MalformedMessageError):
            raise UnusableMetadataError("a run of it is cut off") from None
        yield at + before, at + before + length
        at += before + length


def _read_bits(body: bytes, base: int) -> Iterator[tuple[int, int]]:
    value, at = int.from_bytes(body[_HEAD.size :], "little"), base
    while value:
        before = (value & -value).bit_length() - 1
        value >>= before
        length = (~value & (value + 1)).bit_length() - 1
        value >>= length
        yield at + before, at + before + length
        at += before + length
