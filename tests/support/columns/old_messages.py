"""Messages of the record formats 0 and 1, from before Kafka 0.11, for tests."""

from __future__ import annotations

import struct
import zlib

from tests.support.columns.batches import CODECS, compress


def _field(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def old_message(
    offset: int, magic: int, key: bytes | None, value: bytes | None, timestamp: int = 0, attributes: int = 0
) -> bytes:
    """Return one message with a correct CRC."""
    body = (
        struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"") + _field(key) + _field(value)
    )
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapped(offset: int, magic: int, codec: str, inner: bytes, timestamp: int = 0, attributes: int = 0) -> bytes:
    """Return a message that contains compressed messages; ``offset`` is that of the last one."""
    return old_message(offset, magic, None, compress(codec, inner), timestamp, attributes | CODECS[codec])


def each_kind() -> list[bytes]:
    """Return messages of both formats, some with compressed messages inside, at the offsets 0 to 22 with gaps."""
    absolute = b"".join(old_message(at, 0, b"k%d" % at, b"v" * at) for at in (3, 4, 6))
    relative = b"".join(old_message(at, 1, b"k%d" % at, b"v" * at, 1000 + at) for at in (0, 1, 3))
    return [
        old_message(0, 0, None, None),
        old_message(1, 0, b"", b""),
        old_message(2, 1, b"a", b"b", 1234),
        wrapped(6, 0, "gzip", absolute),
        wrapped(10, 1, "gzip", relative, 1003),
        wrapped(14, 1, "snappy", relative, 7777, 8),  # the broker's time, for all of them
        old_message(15, 1, b"x", b"y", 55, 8),
        old_message(16, 1, b"x", None, 56, 8),
        wrapped(22, 1, "lz4", relative, 1003),
    ]


def every_kind() -> bytes:
    """Return all messages of :func:`each_kind`."""
    return b"".join(each_kind())


OFFSETS = [0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 15, 16, 19, 20, 22]
