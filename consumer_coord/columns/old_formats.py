"""Record formats 0 and 1, which Kafka wrote before 0.11, and which old logs still have: convert them to batches of format 2.

Old logs are read seldom, so conversion in Python is fast enough, and the kernels know one format only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns.decompress import CODECS, decompress
from consumer_coord.wire.varint import write_uvarint

#: Offset and size; the size does not include these bytes. Then CRC, magic and attributes.
_OVERHEAD: Final = struct.Struct(">qi")
_HEAD: Final = struct.Struct(">Ibb")
_SIZE: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")
#: A batch of format 2 from its attributes on, and before them.
_COVERED: Final = struct.Struct(">Hiqqqhii")
_UNCOVERED: Final = struct.Struct(">qiibI")
_MAGIC_AT: Final = 16
_CODEC, _APPEND_TIME = 0x07, 0x08
#: An attribute that Kafka does not use: the records of the batch have no timestamp, because format 0 had none.
NO_TIMESTAMP: Final = 0x4000  # WITHOUT_TIME of the kernels
#: Maximum number of messages that become one batch.
_MOST_IN_BATCH: Final = 1000
#: Maximum number of offsets in one batch, in which offsets are differences of 32 bits.
_MOST_OFFSETS: Final = 2**31


class _DamagedError(Exception):
    """Raised for malformed bytes, with the reason."""


@attrs.frozen
class _Message:
    """A message; ``attributes`` are those of its batch in format 2: the kind of its timestamp."""

    offset: int
    timestamp: int
    attributes: int
    key: bytes | None
    value: bytes | None


def is_old(records: memoryview) -> bool:
    """Return whether a response begins with a message of format 0 or 1."""
    return len(records) > _MAGIC_AT and records[_MAGIC_AT] < 2


def converted(
    records: memoryview, *, check_crcs: bool, max_batch_bytes: int, crc32c: Callable[[bytes], int]
) -> tuple[memoryview, str]:
    """Return the response with its leading old messages as batches of format 2, and the problem after these, or "".

    An incomplete last message is left out. If the first one is incomplete, its head is returned, which says how many bytes are
    needed. The checksum of a new batch is right only with ``check_crcs``.
    """
    out = bytearray()
    waiting: list[_Message] = []
    at, problem = 0, ""
    while is_old(records[at:]):
        offset, size = _OVERHEAD.unpack_from(records, at)
        end = at + _OVERHEAD.size + size
        if end > len(records):
            break
        try:
            found = list(_messages(records[at:end], offset, check_crcs, max_batch_bytes))
        except _DamagedError as error:
            problem = str(error)
            break
        for message in found:
            if waiting and not _continues(waiting, message):
                out += _batch(waiting, crc32c if check_crcs else None)
                waiting = []
            waiting.append(message)
        at = end
    if waiting:
        out += _batch(waiting, crc32c if check_crcs else None)
    rest = records[at:]
    if is_old(rest) and not problem:
        rest = rest[:0] if out else rest[:_MAGIC_AT]
    return memoryview(bytes(out) + rest), problem


def _continues(batch: Sequence[_Message], message: _Message) -> bool:
    """Return whether a message can be in the same batch, whose records share the kind of timestamp."""
    first, last = batch[0], batch[-1]
    return (
        len(batch) < _MOST_IN_BATCH
        and message.attributes == first.attributes
        and last.offset < message.offset < first.offset + _MOST_OFFSETS
        and (message.timestamp == first.timestamp or not first.attributes & _APPEND_TIME)
    )


def _messages(data: memoryview, offset: int, check_crcs: bool, max_batch_bytes: int) -> Iterator[_Message]:
    """Yield a message, or the messages that it contains in compressed form."""
    outer, magic, codec = _message(data, offset, check_crcs)
    if not codec:
        yield outer
        return
    inner = memoryview(_decompressed(outer.value or b"", codec, max_batch_bytes))
    found: list[_Message] = []
    at = 0
    while at < len(inner):
        if len(inner) - at < _OVERHEAD.size:
            raise _DamagedError("a compressed message is cut off")
        inner_offset, size = _OVERHEAD.unpack_from(inner, at)
        end = at + _OVERHEAD.size + size
        if end > len(inner):
            raise _DamagedError("a compressed message is cut off")
        message, inner_magic, inner_codec = _message(inner[at:end], inner_offset, check_crcs)
        if inner_magic != magic or inner_codec:
            raise _DamagedError("a message inside a compressed message has another format, or is compressed itself")
        found.append(message)
        at = end
    # In format 1, the offset of the outer message is that of the last inner one; the inner offsets are relative (KIP-31).
    first = outer.offset - found[-1].offset if magic and found else 0
    for message in found:
        by_broker = outer.attributes & _APPEND_TIME
        time, kind = (outer.timestamp, outer.attributes) if by_broker else (message.timestamp, message.attributes)
        yield _Message(first + message.offset, time, kind, message.key, message.value)


def _message(data: memoryview, offset: int, check_crcs: bool) -> tuple[_Message, int, int]:
    """Return a message, its format and its codec."""
    at = _OVERHEAD.size
    try:
        crc, magic, attributes = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        timestamp, kind = -1, NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIME.unpack_from(data, at)
            kind = attributes & _APPEND_TIME
            at += _TIME.size
        key, at = _field(data, at)
        value, at = _field(data, at)
    except struct.error:
        raise _DamagedError("a message of an old format is too short") from None
    if at != len(data) or magic not in (0, 1) or offset < 0:
        raise _DamagedError("the length or the offset of a message of an old format is wrong")
    if check_crcs and zlib.crc32(data[_MAGIC_AT:]) != crc:
        raise _DamagedError("the CRC-32 of a message of an old format is wrong")
    return _Message(offset, timestamp, kind, key, value), magic, attributes & _CODEC


def _field(data: memoryview, at: int) -> tuple[bytes | None, int]:
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    if size == -1:
        return None, at
    if size < 0 or size > len(data) - at:
        raise _DamagedError("a key or value is longer than its message, or has a negative length")
    return bytes(data[at : at + size]), at + size


def _decompressed(data: bytes, codec: int, max_batch_bytes: int) -> memoryview:
    if codec >= len(CODECS):
        raise _DamagedError("the compression codec is unknown")
    view = memoryview(data)
    found = decompress(view, [(codec, 0, len(view))], most=1, limit=max_batch_bytes, buffer=bytearray())
    if found.problem:
        raise _DamagedError(f"a message cannot be decompressed ({found.problem})")
    return memoryview(found.buffer)[: found.ends[0]]


def _batch(messages: list[_Message], crc32c: Callable[[bytes], int] | None) -> bytes:
    """Return messages as one batch of format 2."""
    first, last = messages[0], messages[-1]
    most = max(one.timestamp for one in messages)
    covered = _COVERED.pack(
        first.attributes, last.offset - first.offset, first.timestamp, most, -1, -1, -1, len(messages)
    ) + b"".join(_record(one, first) for one in messages)
    crc = 0 if crc32c is None else crc32c(covered)
    return _UNCOVERED.pack(first.offset, len(covered) + 9, -1, 2, crc) + covered


def _record(message: _Message, first: _Message) -> bytes:
    body = b"\0" + _varint(message.timestamp - first.timestamp) + _varint(message.offset - first.offset)
    for field in (message.key, message.value):
        body += _varint(-1) if field is None else _varint(len(field)) + field
    body += _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    """Encode a signed number. A difference of more than 64 bits is wrapped, as the decoder's sum is."""
    value = (value + 2**63) % 2**64 - 2**63
    return write_uvarint((value << 1 ^ value >> 63) & (2**64 - 1))
