"""Kafka's record batches of format version 2: read headers, build and decode small batches.

The broker keeps a producer's batches as bytes and reads only their headers. This module builds and reads the broker's own
batches for ``__consumer_offsets``. The module reads producers' batches only if a look-up by timestamp must find a record in
such a batch.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence

import attrs

from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire.crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
#: The value of a marker: its version, and the epoch of the coordinator.
_MARKER = struct.Struct(">hi")
HEADER_SIZE = _HEADER.size  # 61
#: Size of base offset and length. The length counts the bytes that follow it, so a whole batch has this many more.
LOG_OVERHEAD = 12
#: Size of base offset, length and leader epoch: a broker writes these three, so the checksum leaves them out.
PREFIX_SIZE = 16
_MAGIC = 2
_CRC_FROM = 21
#: Offsets in a batch, in bytes, of the format version and of the lower byte of the attributes.
_MAGIC_AT = 16
_ATTRIBUTES_LOW = 22
_CODEC_MASK = 0x07
_TIMESTAMP_TYPE_MASK = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_GZIP = 1
_CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
#: Maximum size of a decompressed batch, in bytes, as a protection against decompression bombs.
_MAX_UNPACKED = 1 << 30


@attrs.frozen
class BatchHeader:
    """The header of a batch that has ``size`` bytes and begins at ``position`` of a buffer."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def codec(self) -> str:
        """The name of the batch's compression."""
        return _CODECS.get(self.attributes & _CODEC_MASK, "unknown")

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction; as in Kafka, the flag has no effect without a producer id."""
        return bool(self.attributes & _TRANSACTIONAL) and self.producer_id >= 0

    @property
    def control(self) -> bool:
        """Whether the batch contains a transaction marker instead of records."""
        return bool(self.attributes & _CONTROL)

    @property
    def last_sequence(self) -> int:
        """The producer's sequence number of the last record. Sequence numbers start again at 0 after 2**31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


@attrs.frozen
class Record:
    """A record with attributes of its batch. In a control batch, the record marks the end of a transaction."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    producer_id: int = -1
    transactional: bool = False
    control: bool = False
    committed: bool = False

    @property
    def coordinator_epoch(self) -> int:
        """The epoch of the coordinator that wrote this marker; -1 for other records."""
        marked = self.control and self.value is not None and len(self.value) >= _MARKER.size
        return _MARKER.unpack_from(self.value or b"")[1] if marked else -1


def read_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Read the header of the batch at ``position``.

    Raise :class:`~consumer_coord.errors.MalformedMessageError` if there is no complete batch, and
    :class:`~consumer_coord.errors.UnsupportedVersionError` for another format.
    """
    if len(data) - position < HEADER_SIZE:
        raise MalformedMessageError(
            f"a record batch needs at least {HEADER_SIZE} bytes, but the length of the data is {len(data) - position}"
        )
    base_offset, length, epoch, magic, crc, attributes, delta, base_ms, max_ms, producer, p_epoch, sequence, count = (
        _HEADER.unpack_from(data, position)
    )
    if magic != _MAGIC:
        raise UnsupportedVersionError(
            f"the record format is {magic}, but this broker supports only format 2 (Produce 3 and later)"
        )
    size = length + LOG_OVERHEAD
    if size < HEADER_SIZE or size > len(data) - position:
        raise MalformedMessageError(f"a record batch claims {size} bytes, but only {len(data) - position} bytes are left")
    if count < 0 or delta < 0 or delta + 1 < count:
        raise MalformedMessageError(f"a record batch has {count} records for {delta + 1} offsets")
    return BatchHeader(
        position, size, base_offset, epoch, crc, attributes, delta, base_ms, max_ms, producer, p_epoch, sequence, count
    )


def is_transactional(data: bytes | memoryview) -> bool:
    """Return whether data begin with a batch of a transaction; False for incomplete data, and for older formats."""
    return len(data) >= HEADER_SIZE and data[_MAGIC_AT] == _MAGIC and bool(data[_ATTRIBUTES_LOW] & _TRANSACTIONAL)


def has_valid_crc(data: bytes | memoryview, header: BatchHeader) -> bool:
    """Return whether the checksum of a batch is correct."""
    return crc32c(data[header.position + _CRC_FROM : header.position + header.size]) == header.crc


def build_batch(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int,
    timestamp_ms: int,
    leader_epoch: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    control: bool = False,
) -> bytes:
    """Build an uncompressed batch of (key, value) records; with a ``producer_id``, the batch is transactional."""
    body = bytearray()
    for delta, (key, value) in enumerate(records):
        record = bytearray(b"\0\0")  # Attributes 0, timestamp delta 0.
        _put_varint(record, delta)
        for part in (key, value):
            if part is None:
                record += b"\1"
            else:
                _put_varint(record, len(part))
                record += part
        record += b"\0"  # No headers.
        _put_varint(body, len(record))
        body += record
    attributes = (_TRANSACTIONAL if producer_id != -1 else 0) | (_CONTROL if control else 0)
    covered = (
        struct.pack(
            ">hiqqqhii",
            attributes,
            len(records) - 1,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            -1,
            len(records),
        )
        + body
    )
    return _sealed(base_offset, leader_epoch, covered)


def build_marker(
    *,
    base_offset: int,
    timestamp_ms: int,
    leader_epoch: int,
    producer: tuple[int, int],
    committed: bool,
    coordinator_epoch: int = 0,
) -> bytes:
    """Build the control batch that ends a transaction of ``producer`` (id, epoch)."""
    key = struct.pack(">hh", 0, committed)
    value = _MARKER.pack(0, coordinator_epoch)
    return build_batch(
        [(key, value)],
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
        leader_epoch=leader_epoch,
        producer_id=producer[0],
        producer_epoch=producer[1],
        control=True,
    )


def read_records(data: bytes | memoryview, header: BatchHeader) -> list[Record]:
    """Return the records of one batch.

    Raise :class:`~consumer_coord.errors.MalformedMessageError` for invalid data, and
    :class:`~consumer_coord.errors.UnsupportedVersionError` for a compression that Python's standard library does not support.
    """
    return [record for _, record in _parsed(data, header)]


def filtered(data: bytes | memoryview, header: BatchHeader, offsets: Collection[int]) -> bytes | None:
    """Return the batch with only the records at these offsets, uncompressed; None without a record.

    The offsets, times and sequence numbers of the batch stay, as in Kafka's log cleaner. Raise the errors of
    :func:`read_records`.
    """
    records = [raw for raw, record in _parsed(data, header) if record.offset in offsets]
    if not records:
        return None
    covered = (
        struct.pack(
            ">hiqqqhii",
            header.attributes & ~_CODEC_MASK,
            header.last_offset_delta,
            header.base_timestamp_ms,
            header.max_timestamp_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            len(records),
        )
    ) + b"".join(records)
    return _sealed(header.base_offset, header.leader_epoch, covered)


def _sealed(base_offset: int, leader_epoch: int, covered: bytes | bytearray) -> bytes:
    """Return a batch whose checksum covers these bytes."""
    return struct.pack(">qiibI", base_offset, len(covered) + 9, leader_epoch, _MAGIC, crc32c(covered)) + covered


def _parsed(data: bytes | memoryview, header: BatchHeader) -> Iterator[tuple[bytes, Record]]:
    """Iterate over the records of one batch, with their bytes."""
    body = bytes(data[header.position + HEADER_SIZE : header.position + header.size])
    codec = header.attributes & _CODEC_MASK
    if codec == _GZIP:
        body = _gunzip(body)
    elif codec:
        raise UnsupportedVersionError(f"this broker cannot read records compressed with {header.codec}")
    position = 0
    for _ in range(header.count):
        begin = position
        length, position = _take_varint(body, position)
        end = position + length
        if length < 0 or end > len(body):
            raise MalformedMessageError("a record reaches beyond its batch")
        timestamp_delta, at = _take_varint(body, position + 1)
        offset_delta, at = _take_varint(body, at)
        key, at = _take_bytes(body, at, end)
        value, at = _take_bytes(body, at, end)
        yield body[begin:end], _record(header, offset_delta, timestamp_delta, key, value)
        position = end


def _record(header: BatchHeader, offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None) -> Record:
    by_append_time = header.attributes & _TIMESTAMP_TYPE_MASK
    timestamp_ms = header.max_timestamp_ms if by_append_time else header.base_timestamp_ms + timestamp_delta
    committed = header.control and key is not None and len(key) >= 4 and key[2:4] == b"\0\1"
    return Record(
        header.base_offset + offset_delta,
        timestamp_ms,
        key,
        value,
        header.producer_id,
        header.transactional,
        header.control,
        committed,
    )


def _gunzip(data: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            unpacked = stream.read(_MAX_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise MalformedMessageError(f"a gzip batch is damaged: {error}") from error
    if len(unpacked) > _MAX_UNPACKED:
        raise MalformedMessageError("a gzip batch has more than a gigabyte when decompressed")
    return unpacked


def _put_varint(out: bytearray, value: int) -> None:
    value = value << 1 ^ value >> 63
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _take_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise MalformedMessageError("a varint does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position
        shift += 7


def _take_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _take_varint(data, position)
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise MalformedMessageError("a field reaches beyond its record")
    return data[position : position + length], position + length
