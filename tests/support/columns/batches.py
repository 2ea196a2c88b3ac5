"""Record batches for tests: an encoder that shares no code with the package, and deliberate damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import attrs
import cramjam

from consumer_coord.wire.crc32c import crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


@attrs.frozen
class Rec:
    """A record: its offset and timestamp relative to its batch."""

    delta: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_delta: int = 0


def varint(value: int) -> bytes:
    raw = (value << 1 ^ value >> 63) & (2**64 - 1)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(rec: Rec) -> bytes:
    body = b"\0" + varint(rec.timestamp_delta) + varint(rec.delta) + field(rec.key) + field(rec.value)
    body += varint(len(rec.headers)) + b"".join(field(key) + field(value) for key, value in rec.headers)
    return varint(len(body)) + body


def xerial(data: bytes, block: int = 64) -> bytes:
    """Return Snappy in the framing of snappy-java."""
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), block):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out += struct.pack(">i", len(packed)) + packed
    return out


def compress(codec: str, data: bytes) -> bytes:
    if codec == "none":
        return data
    if codec == "snappy":
        return xerial(data)
    return bytes(getattr(cramjam, codec).compress(data))


def batch(
    records: Sequence[Rec | bytes] = (Rec(),),
    base: int = 0,
    *,
    codec: str = "none",
    flags: int = 0,
    producer_id: int = -1,
    timestamp: int = 1_700_000_000_000,
    max_timestamp: int | None = None,
    last_delta: int | None = None,
    count: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """Return one batch of format 2 with a correct CRC; ``count``, ``last_delta`` and ``payload`` replace correct values."""
    deltas = [one.delta for one in records if isinstance(one, Rec)]
    body = b"".join(one if isinstance(one, bytes) else record(one) for one in records)
    covered = struct.pack(
        ">hiqqqhii",
        CODECS[codec] | flags,
        (max(deltas, default=0)) if last_delta is None else last_delta,
        timestamp,
        timestamp if max_timestamp is None else max_timestamp,
        producer_id,
        0,
        -1,
        len(records) if count is None else count,
    ) + (compress(codec, body) if payload is None else payload)
    return struct.pack(">qiibI", base, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def marker(base: int, producer_id: int, *, commit: bool, **other: Any) -> bytes:
    """Return the control batch that ends a transaction."""
    rec = Rec(key=struct.pack(">hh", 0, commit), value=struct.pack(">hi", 0, 0))
    return batch([rec], base, flags=TRANSACTIONAL | CONTROL, producer_id=producer_id, **other)


def with_crc(data: bytes) -> bytes:
    """Return one batch with a corrected CRC."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Return one batch with other bytes at ``at``, and a correct CRC."""
    return with_crc(data[:at] + new + data[at + len(new) :])
