"""The record batches of a Fetch response in Python, for installations without the compiled ``_kernel.c``.

:mod:`consumer_coord.columns.python_columns` turns these batches into Arrow arrays,
:mod:`consumer_coord.columns.python_messages` into messages.
"""

from __future__ import annotations

import codecs
import struct
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.wire.crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from consumer_coord.columns.numpy_columns import Records

READY, EXHAUSTED, COMPRESSED, FAILED = range(4)

OLD_FORMAT = "the record format is 0 or 1, older than Kafka 0.11; only format 2 can be read"
UNKNOWN_FORMAT = "the record format is unknown; only format 2 can be read"
BATCH_SIZE = "the length of the batch is smaller than its header"
WRONG_CRC = "the CRC-32C of the batch is wrong"
BATCH_OFFSETS = "the offsets of the batch are out of range"
OFFSETS_GO_BACK = "the batch begins before the end of the previous batch"
RECORD_COUNT = "the batch cannot hold as many records as its header says"
UNKNOWN_CODEC = "the compression codec is unknown"
CONTROL_BATCH = "the control batch is malformed"
DECOMPRESSION = "the batch cannot be decompressed"
RECORD_SIZE = "the length of a record does not fit its content or its batch"
VARINT = "a varint is too long or does not end within its record"
RECORD_OFFSET = "the offset of a record is outside its batch or not behind the previous record"
FIELD_SIZE = "a key, value or header is longer than its record, or has a negative length"
HEADER_COUNT = "a record cannot hold as many headers as it says"
HEADER_KEY = "a header has no key"
BYTES_REMAIN = "bytes remain behind the last record of the batch"

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD: Final = 12
LEAST_RECORD: Final = 7
CODEC, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
#: Kafka does not use this attribute; ``old_formats.py`` sets it for records of format 0, which had no timestamps.
WITHOUT_TIME = 0x4000
INT64_MAX: Final = 2**63 - 1


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Replace an encoded surrogate by one U+FFFD, as Java does, and any other malformed part as Python does."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    end = error.end
    if data[start] == 0xED and 0xA0 <= data[start + 1 : start + 2].ljust(1, b"\0")[0] <= 0xBF:
        end = start + 2 + (0x80 <= data[start + 2 : start + 3].ljust(1, b"\0")[0] <= 0xBF)
    return "\ufffd", end


codecs.register_error("consumer_coord.java", _replace_as_java)


def java_text(data: Buffer) -> str:
    """Decode UTF-8 like Java, which replaces malformed parts."""
    return str(data, "utf-8", "consumer_coord.java")


class Problem(Exception):
    """Raised for malformed bytes; the argument is one of the error texts above."""


def varint(data: memoryview, at: int, end: int, last_shift: int = 28, last_byte: int = 0x0F) -> tuple[int, int]:
    """Return a zigzag varint and the position after the varint."""
    raw = shift = 0
    while True:
        if at >= end:
            raise Problem(VARINT)
        byte = data[at]
        at += 1
        if shift == last_shift and byte > last_byte:
            raise Problem(VARINT)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw >> 1 ^ -(raw & 1), at
        shift += 7


def field(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
    """Return the bytes of a key, value or header (None for null), and the position after the field."""
    size, at = varint(data, at, end)
    if size == -1:
        return None, at
    if size < 0 or size > end - at:
        raise Problem(FIELD_SIZE)
    return data[at : at + size], at + size


def record(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return where the content of the record at ``at`` begins (after its length) and ends."""
    size, at = varint(data, at, end)
    if size < 0 or size > end - at:
        raise Problem(RECORD_SIZE)
    return at, at + size


@attrs.define
class Batch:
    """A record batch; ``payload`` is None before it is decompressed."""

    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    attributes: int
    count: int
    leader_epoch: int
    span: tuple[int, int]
    payload: memoryview | None
    skipped: bool = False
    #: All records, if numpy decoded them at once.
    records: Records | None = None


Headers = list[tuple[bytes, memoryview | None]]


@attrs.frozen
class Row:
    """A record."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: memoryview | None
    value: memoryview | None
    headers: Headers


class Batches:
    """The record batches of one partition in a Fetch response, and the position of the decoder."""

    def __init__(self, records: Buffer, offset: int, aborted: Buffer, read_committed: bool, check_crcs: bool) -> None:
        """Check and list the batches; ``aborted`` holds pairs of int64: producer id and first offset."""
        self._data = memoryview(records).cast("B").toreadonly()
        self.next_offset: int = offset
        self.needs_bytes: int = 0
        self.state: int = READY
        self.problem: str = ""
        self._behind = ""  # The problem in the bytes after the last valid batch.
        self.batches: list[Batch] = []
        self.index: int = 0
        self.record: int = 0
        self.consumed: int = 0
        self.previous: int = -1
        pairs = array("q", bytes(aborted))
        transactions = sorted(zip(pairs[1::2], pairs[::2], strict=True))  # Sorted by first offset.
        try:
            self._scan(transactions if read_committed else [], read_committed, check_crcs)
        except Problem as problem:
            self._behind = str(problem)
        self.advance()

    def _scan(self, transactions: list[tuple[int, int]], read_committed: bool, check_crcs: bool) -> None:
        data, at = self._data, 0
        begun = least = 0
        aborting: set[int] = set()
        while at < len(data):
            size = self._whole_batch(at)
            if size is None:
                return
            batch, producer_id = self._batch(at, size, least, check_crcs)
            at += size
            least = batch.last_offset + 1
            while begun < len(transactions) and transactions[begun][0] <= batch.last_offset:
                aborting.add(transactions[begun][1])
                begun += 1
            if batch.attributes & CONTROL:
                batch.skipped = True
                if read_committed and self._aborts(batch):
                    aborting.discard(producer_id)
            elif batch.attributes & TRANSACTIONAL and producer_id >= 0:
                batch.skipped = producer_id in aborting
            self.batches.append(batch)

    def _whole_batch(self, at: int) -> int | None:
        """Return the size of the batch at ``at``, or None if the batch is incomplete."""
        data = self._data
        there = len(data) - at
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) if there >= _OVERHEAD else _HEADER.size - _OVERHEAD
        if length < 0:
            raise Problem(BATCH_SIZE)
        if there >= 17 and data[at + 16] != 2:
            raise Problem(OLD_FORMAT if data[at + 16] < 2 else UNKNOWN_FORMAT)
        size = length + _OVERHEAD
        if there >= 17 and size < _HEADER.size:
            raise Problem(BATCH_SIZE)
        if size > there or size < _HEADER.size:
            if not self.batches:
                self.needs_bytes = max(size, _HEADER.size)
            return None
        return size

    def _batch(self, at: int, size: int, least: int, check_crcs: bool) -> tuple[Batch, int]:
        data = self._data
        base, _, epoch, _, crc, attributes, delta, base_ms, max_ms, producer_id, _, _, count = _HEADER.unpack_from(data, at)
        if check_crcs and crc32c(data[at + 21 : at + size]) != crc:
            raise Problem(WRONG_CRC)
        if base < 0 or delta < 0 or base >= INT64_MAX - delta:
            raise Problem(BATCH_OFFSETS)
        if base < least:
            raise Problem(OFFSETS_GO_BACK)
        codec = attributes & CODEC
        if not 0 <= count <= delta + 1 or (not codec and count * LEAST_RECORD > size - _HEADER.size):
            raise Problem(RECORD_COUNT)
        if codec > 4:
            raise Problem(UNKNOWN_CODEC)
        if codec and attributes & CONTROL:
            raise Problem(CONTROL_BATCH)
        span = (at + _HEADER.size, at + size)
        payload = None if codec else data[slice(*span)]
        return Batch(base, base + delta, base_ms, max_ms, attributes, count, epoch, span, payload), producer_id

    @staticmethod
    def _aborts(batch: Batch) -> bool:
        """Return whether a control batch aborts a transaction."""
        if batch.count == 0 or batch.payload is None:
            return False
        try:
            at, end = record(batch.payload, 0, len(batch.payload))
            _, at = varint(batch.payload, at + 1, end, 63, 0x01)
            _, at = varint(batch.payload, at, end)
            key, _ = field(batch.payload, at, end)
        except Problem:
            raise Problem(CONTROL_BATCH) from None
        if key is None or len(key) < 4:
            raise Problem(CONTROL_BATCH)
        return bytes(key[2:4]) == b"\0\0"

    def _compressed(self) -> Iterator[tuple[int, Batch]]:
        for index in range(self.index, len(self.batches)):
            batch = self.batches[index]
            if batch.payload is None and not batch.skipped and batch.count:
                yield index, batch

    def compressed(self, most: int) -> list[tuple[int, int, int]]:
        """Return (codec, start, end) of the next compressed batches, until they have ``most`` bytes."""
        found = []
        for _, batch in self._compressed():
            if most <= 0:
                break
            found.append((batch.attributes & CODEC, *batch.span))
            most -= batch.span[1] - batch.span[0] + 1
        return found

    def supply(self, payload: Buffer, ends: Buffer, failed: bool) -> None:
        """Set the decompressed bytes of the next batches; ``failed``: the batch after them could not be decompressed."""
        if self.state != COMPRESSED:
            raise ValueError("no batch waits to be decompressed")
        data, places = memoryview(payload).toreadonly(), array("q", bytes(ends))
        if any(not start <= end <= len(data) for start, end in zip([0, *places], places, strict=False)):
            raise ValueError("the ends of the batches are out of order, or beyond the payload")
        waiting = list(self._compressed())
        start = 0
        for (_, batch), end in zip(waiting, places, strict=False):
            batch.payload = data[start:end]
            start = end
        if failed and len(waiting) > len(places):
            del self.batches[waiting[len(places)][0] :]
            self._behind = DECOMPRESSION
        self.advance()

    def advance(self) -> None:
        """Skip batches that have no record for the application, and set :attr:`state`."""
        while self.index < len(self.batches):
            batch = self.batches[self.index]
            empty = batch.count == 0 and not batch.payload
            if not batch.skipped and not empty and batch.last_offset >= self.next_offset:
                self.state = READY if batch.payload is not None else COMPRESSED
                if self.record == 0:
                    self.previous = batch.base_offset - 1
                return
            self.next_batch()
        self.problem = self._behind
        self.state = FAILED if self.problem else EXHAUSTED

    def ended(self, end: int) -> bool:
        """Return whether all records before offset ``end`` have been read; advance ``next_offset`` over a gap before ``end``.

        An ``end`` of 2**63 - 1 means that there is no end. A position can also have this value, and a problem at this position
        must be reported.
        """
        if end == INT64_MAX:
            return False
        if self.next_offset < end and self.state in (READY, COMPRESSED) and self.batches[self.index].base_offset >= end:
            self.next_offset = end
        return self.next_offset >= end

    def next_batch(self) -> None:
        """Skip the current batch."""
        self.next_offset = max(self.next_offset, self.batches[self.index].last_offset + 1)
        self.batches[self.index].payload = self.batches[self.index].records = None
        self.index += 1
        self.record = self.consumed = 0

    def fail(self, problem: str) -> None:
        """Report ``problem`` for the rest of the current batch and all later batches."""
        del self.batches[self.index :]
        self._behind = problem
        self.advance()

    def read(self, batch: Batch, payload: memoryview, with_headers: bool) -> tuple[Row | None, int]:
        """Return the next record (None if it is before the requested offset), and the position after this record."""
        at, end = record(payload, self.consumed, len(payload))
        if at == end:
            raise Problem(RECORD_SIZE)
        timestamp_delta, at = varint(payload, at + 1, end, 63, 0x01)
        offset_delta, at = varint(payload, at, end)
        key, at = field(payload, at, end)
        value, at = field(payload, at, end)
        count, at = varint(payload, at, end)
        if count < 0 or 2 * count > end - at:
            raise Problem(HEADER_COUNT)
        offset = batch.base_offset + offset_delta
        if offset_delta < 0 or offset > batch.last_offset or offset <= self.previous:
            raise Problem(RECORD_OFFSET)
        if count == 0 and at != end:
            raise Problem(RECORD_SIZE)
        headers = read_headers(payload, at, end, count) if count and with_headers else []
        self.previous = offset
        if offset < self.next_offset:
            return None, end
        by_append_time = batch.attributes & APPEND_TIME
        timestamp_ms = batch.max_timestamp if by_append_time else wrapped(batch.base_timestamp + timestamp_delta)
        return Row(offset, timestamp_ms, 1 if by_append_time else 0, key, value, headers), end


def read_headers(data: memoryview, at: int, end: int, count: int) -> Headers:
    """Return the headers of a record, which must end at ``end``."""
    headers: Headers = []
    for _ in range(count):
        key, at = field(data, at, end)
        if key is None:
            raise Problem(HEADER_KEY)
        value, at = field(data, at, end)
        headers.append((bytes(key), value))
    if at != end:
        raise Problem(RECORD_SIZE)
    return headers


def wrapped(value: int) -> int:
    """Return ``value`` wrapped to 64 bits, like an overflow of Java's long."""
    return (value + 2**63) % 2**64 - 2**63
