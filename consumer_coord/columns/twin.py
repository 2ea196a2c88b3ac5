"""Decode record batches into Arrow arrays in Python, for installations without the compiled ``_kernel.c``.

This module has the same interface, rules and error texts as ``_kernel.c``; a test compares both on random input. pyarrow
exports the arrays. If numpy is installed, ``vectors.py`` decodes valid batches of many records at once.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.wire.crc32c import crc32c as crc32c
from consumer_coord.wire.crc32c import table_crc32c as table_crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from consumer_coord.columns.vectors import Records

READY, EXHAUSTED, COMPRESSED, FAILED = range(4)
(KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS) = range(8)

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
TOO_LARGE = "a record is too large for an Arrow column"

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OVERHEAD: Final = 12
_LEAST_RECORD: Final = 7
#: Batches of at least this number of records are decoded by numpy, all records at once.
MANY = 32
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_INT64_MAX: Final = 2**63 - 1
_MOST_MS: Final = _INT64_MAX // 1000
_NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


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


class _Problem(Exception):
    """Raised for malformed bytes; the argument is one of the error texts above."""


def _varint(data: memoryview, at: int, end: int, last_shift: int = 28, last_byte: int = 0x0F) -> tuple[int, int]:
    """Return a zigzag varint and the position after the varint."""
    raw = shift = 0
    while True:
        if at >= end:
            raise _Problem(VARINT)
        byte = data[at]
        at += 1
        if shift == last_shift and byte > last_byte:
            raise _Problem(VARINT)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw >> 1 ^ -(raw & 1), at
        shift += 7


def _field(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
    """Return the bytes of a key, value or header (None for null), and the position after the field."""
    size, at = _varint(data, at, end)
    if size == -1:
        return None, at
    if size < 0 or size > end - at:
        raise _Problem(FIELD_SIZE)
    return data[at : at + size], at + size


def _record(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return where the content of the record at ``at`` begins (after its length) and ends."""
    size, at = _varint(data, at, end)
    if size < 0 or size > end - at:
        raise _Problem(RECORD_SIZE)
    return at, at + size


@attrs.define
class _Batch:
    """A record batch; ``payload`` is None before it is decompressed."""

    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    attributes: int
    count: int
    span: tuple[int, int]
    payload: memoryview | None
    skipped: bool = False
    #: All records, if numpy decoded them at once.
    records: Records | None = None


@attrs.frozen
class _Row:
    """A record."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: memoryview | None
    value: memoryview | None
    headers: _Headers


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
        self.batches: list[_Batch] = []
        self.index: int = 0
        self.record: int = 0
        self.consumed: int = 0
        self.previous: int = -1
        pairs = array("q", bytes(aborted))
        transactions = sorted(zip(pairs[1::2], pairs[::2], strict=True))  # Sorted by first offset.
        try:
            self._scan(transactions if read_committed else [], read_committed, check_crcs)
        except _Problem as problem:
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
            if batch.attributes & _CONTROL:
                batch.skipped = True
                if read_committed and self._aborts(batch):
                    aborting.discard(producer_id)
            elif batch.attributes & _TRANSACTIONAL and producer_id >= 0:
                batch.skipped = producer_id in aborting
            self.batches.append(batch)

    def _whole_batch(self, at: int) -> int | None:
        """Return the size of the batch at ``at``, or None if the batch is incomplete."""
        data = self._data
        there = len(data) - at
        length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) if there >= _OVERHEAD else _HEADER.size - _OVERHEAD
        if length < 0:
            raise _Problem(BATCH_SIZE)
        if there >= 17 and data[at + 16] != 2:
            raise _Problem(OLD_FORMAT if data[at + 16] < 2 else UNKNOWN_FORMAT)
        size = length + _OVERHEAD
        if there >= 17 and size < _HEADER.size:
            raise _Problem(BATCH_SIZE)
        if size > there or size < _HEADER.size:
            if not self.batches:
                self.needs_bytes = max(size, _HEADER.size)
            return None
        return size

    def _batch(self, at: int, size: int, least: int, check_crcs: bool) -> tuple[_Batch, int]:
        data = self._data
        base, _, _, _, crc, attributes, delta, base_ms, max_ms, producer_id, _, _, count = _HEADER.unpack_from(data, at)
        if check_crcs and crc32c(data[at + 21 : at + size]) != crc:
            raise _Problem(WRONG_CRC)
        if base < 0 or delta < 0 or base >= _INT64_MAX - delta:
            raise _Problem(BATCH_OFFSETS)
        if base < least:
            raise _Problem(OFFSETS_GO_BACK)
        codec = attributes & _CODEC
        if not 0 <= count <= delta + 1 or (not codec and count * _LEAST_RECORD > size - _HEADER.size):
            raise _Problem(RECORD_COUNT)
        if codec > 4:
            raise _Problem(UNKNOWN_CODEC)
        if codec and attributes & _CONTROL:
            raise _Problem(CONTROL_BATCH)
        span = (at + _HEADER.size, at + size)
        payload = None if codec else data[slice(*span)]
        return _Batch(base, base + delta, base_ms, max_ms, attributes, count, span, payload), producer_id

    @staticmethod
    def _aborts(batch: _Batch) -> bool:
        """Return whether a control batch aborts a transaction."""
        if batch.count == 0 or batch.payload is None:
            return False
        try:
            at, end = _record(batch.payload, 0, len(batch.payload))
            _, at = _varint(batch.payload, at + 1, end, 63, 0x01)
            _, at = _varint(batch.payload, at, end)
            key, _ = _field(batch.payload, at, end)
        except _Problem:
            raise _Problem(CONTROL_BATCH) from None
        if key is None or len(key) < 4:
            raise _Problem(CONTROL_BATCH)
        return bytes(key[2:4]) == b"\0\0"

    def _compressed(self) -> Iterator[tuple[int, _Batch]]:
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
            found.append((batch.attributes & _CODEC, *batch.span))
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
                    batch.records = batch.records or _decode_at_once(batch)
                return
            self.next_batch()
        self.problem = self._behind
        self.state = FAILED if self.problem else EXHAUSTED

    def ended(self, end: int) -> bool:
        """Return whether all records before offset ``end`` have been read; advance ``next_offset`` over a gap before ``end``.

        An ``end`` of 2**63 - 1 means that there is no end. A position can also have this value, and a problem at this position
        must be reported.
        """
        if end == _INT64_MAX:
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


@functools.cache
def _vectors() -> Any:
    try:
        from consumer_coord.columns import vectors
    except ImportError:
        return None
    return vectors


def _decode_at_once(batch: _Batch) -> Records | None:
    """Return all records of a batch, or None if the records must be decoded one by one."""
    if batch.payload is None or batch.count < MANY or _vectors() is None:
        return None
    found: Records | None = _vectors().decode(
        bytes(batch.payload), batch.count, batch.base_offset, batch.last_offset, batch.base_timestamp
    )
    return found


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            "the columns kernel was not compiled, and the Python kernel needs pyarrow, which is not installed:"
            " install a wheel of consumer-coord, or pyarrow",
            name="pyarrow",
        ) from error
    return pyarrow


class _Strings:
    """Rows of strings or bytes: row i is the data from ends[i] to ends[i + 1]."""

    def __init__(self) -> None:
        self.ends = array("i", [0])
        self.data = bytearray()
        self.nulls: list[int] = []

    def put(self, value: Buffer | None) -> None:
        """Append a row."""
        if value is None:
            self.nulls.append(len(self.ends) - 1)
        else:
            self.data += value
        self.ends.append(len(self.data))

    def put_joined(self, ends: Sequence[int], data: Buffer, nulls: Sequence[int]) -> None:
        """Append several rows, whose bytes follow each other in ``data``; ``ends`` has the end of each row."""
        rows, used = len(self.ends) - 1, len(self.data)
        self.nulls += [rows + row for row in nulls]
        self.ends.extend(array("i", ends) if not used else array("i", [used + end for end in ends]))
        self.data += data

    def exported(self, kind: Any) -> Any:
        """Return the rows as a pyarrow array."""
        pa = _pyarrow()
        buffers = [_validity(len(self.ends), self.nulls), pa.py_buffer(self.ends), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(kind, len(self.ends) - 1, buffers, len(self.nulls))


def _validity(rows: int, nulls: Sequence[int]) -> Any:
    if not nulls:
        return None
    bits = bytearray(b"\xff") * (rows // 8 + 1)
    for row in nulls:
        bits[row >> 3] &= ~(1 << (row & 7)) & 0xFF
    return _pyarrow().py_buffer(bits)


_Headers = list[tuple[bytes, memoryview | None]]


class _Chunk:
    """An Arrow record batch."""

    def __init__(self, chosen: frozenset[int], limit: int) -> None:
        self._chosen = chosen
        self._limit = limit
        self.rows = 0
        self.strings = {column: _Strings() for column in (KEY, VALUE, TOPIC) if column in chosen}
        widths = {PARTITION: "i", OFFSET: "q", TIMESTAMP: "q", TIMESTAMP_TYPE: "i"}
        self.numbers = {column: array(width) for column, width in widths.items() if column in chosen}
        self.header_ends = array("i", [0])
        self.without_headers: list[int] = []
        self.header_key, self.header_value = _Strings(), _Strings()

    def fits(self, row: _Row, topic: bytes) -> bool:
        """Return whether every column has room for a record."""
        headers = row.headers
        sizes = (len(row.key or b""), len(row.value or b""), len(topic))
        used = [(len(strings.data), sizes[column]) for column, strings in self.strings.items()]
        if headers:
            used.append((self.header_ends[-1], len(headers)))
            used.append((len(self.header_key.data), 3 * sum(len(key) for key, _ in headers)))
            used.append((len(self.header_value.data), sum(len(value or b"") for _, value in headers)))
        return all(there + more <= self._limit or not more for there, more in used)

    def put(self, row: _Row, topic: bytes, partition: int) -> None:
        """Append a row."""
        micros = 1000 * max(-_MOST_MS, min(row.timestamp_ms, _MOST_MS))
        values = (row.key, row.value, topic)
        numbers = (partition, row.offset, micros, row.timestamp_type)
        for column, strings in self.strings.items():
            strings.put(values[column])
        for column, ints in self.numbers.items():
            ints.append(numbers[column - PARTITION])
        if HEADERS in self._chosen:
            self._put_headers(row.headers)
        self.rows += 1

    def fits_all(self, records: int, size: int, topic: bytes) -> bool:
        """Return whether every column has room for records of ``size`` bytes in total, whatever the records contain."""
        columns = (*self.strings.values(), self.header_key, self.header_value)
        # The kernel in C reserves three bytes for each byte of a header's key.
        return max(len(each.data) for each in columns) + max(3 * size, records * len(topic)) <= self._limit

    def put_many(self, records: Records, first: int, last: int, batch: _Batch, topic: bytes, partition: int) -> None:
        """Append the records from index ``first`` to ``last`` - 1."""
        chosen, count = self._chosen, last - first
        if KEY in chosen:
            self.strings[KEY].put_joined(*records.keys(first, last))
        if VALUE in chosen:
            self.strings[VALUE].put_joined(*records.values(first, last))
        if TOPIC in chosen:
            self.strings[TOPIC].put_joined(array("i", range(len(topic), len(topic) * count + 1, len(topic))), topic * count, ())
        if PARTITION in chosen:
            self.numbers[PARTITION].extend(array("i", [partition]) * count)
        if OFFSET in chosen:
            self.numbers[OFFSET].frombytes(records.offsets(first, last))
        by_append_time = batch.attributes & _APPEND_TIME
        if TIMESTAMP in chosen:
            self.numbers[TIMESTAMP].frombytes(records.micros(first, last, batch.max_timestamp if by_append_time else None))
        if TIMESTAMP_TYPE in chosen:
            self.numbers[TIMESTAMP_TYPE].extend(array("i", [1 if by_append_time else 0]) * count)
        if HEADERS in chosen:
            counts = records.header_counts(first, last)
            self.header_key.put_joined(*records.header_keys(first, last))
            self.header_value.put_joined(*records.header_values(first, last))
            self.header_ends.extend(itertools.accumulate(counts, initial=self.header_ends.pop()))
            if 0 in counts:
                self.without_headers += [self.rows + row for row, one in enumerate(counts) if not one]
        self.rows += count

    def _put_headers(self, headers: _Headers) -> None:
        for key, value in headers:
            self.header_key.put(key.decode("utf-8", "consumer_coord.java").encode())
            self.header_value.put(value)
        if not headers:
            self.without_headers.append(self.rows)
        self.header_ends.append(self.header_ends[-1] + len(headers))

    def exported(self, column: int, kind: Any) -> Any:
        """Return one column as a pyarrow array."""
        pa = _pyarrow()
        if column in self.strings:
            return self.strings[column].exported(kind)
        if column == HEADERS:
            count, struct_kind = self.header_ends[-1], kind.value_type
            children = [self.header_key.exported(pa.string()), self.header_value.exported(pa.binary())]
            pairs = pa.Array.from_buffers(struct_kind, count, [None], 0, children=children)
            buffers = [_validity(self.rows, self.without_headers), pa.py_buffer(self.header_ends)]
            return pa.Array.from_buffers(kind, self.rows, buffers, len(self.without_headers), children=[pairs])
        return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(self.numbers[column])], 0)


class Arrays:
    """Finished rows, as one or more Arrow record batches."""

    def __init__(self, order: Sequence[int], chunks: Sequence[_Chunk]) -> None:
        """Store the numbers of the columns, in their order, and the Arrow record batches."""
        self._order = order
        self._chunks = chunks

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self._chunks)

    @property
    def chunks(self) -> int:
        """Number of Arrow record batches."""
        return len(self._chunks)

    def _schema(self) -> Any:
        pa = _pyarrow()
        binary = pa.binary()
        headers = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", binary)])))
        kinds = (binary, binary, pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.int32(), headers)
        return pa.schema([(_NAMES[column], kinds[column]) for column in self._order])

    def _batch(self, index: int) -> Any:
        chunk = self._chunks[index] if index < len(self._chunks) else _Chunk(frozenset(self._order), 0)
        schema = self._schema()
        arrays = [chunk.exported(column, field.type) for column, field in zip(self._order, schema, strict=True)]
        return _pyarrow().RecordBatch.from_arrays(arrays, schema=schema)

    def schema(self) -> Any:
        """Return a capsule of an ArrowSchema."""
        return self._schema().__arrow_c_schema__()

    def array(self, index: int) -> Any:
        """Return a capsule of an ArrowArray with the Arrow record batch ``index``; after the last one, with an empty batch."""
        return self._batch(index).__arrow_c_array__()[1]

    def stream(self) -> Any:
        """Return a capsule of an ArrowArrayStream of all Arrow record batches."""
        batches = [self._batch(index) for index in range(len(self._chunks))]
        return _pyarrow().RecordBatchReader.from_batches(self._schema(), batches).__arrow_c_stream__()


class Builder:
    """Builds Arrow columns from the records of batches."""

    def __init__(self, columns: bytes, limit: int) -> None:
        """Set the columns by their numbers; ``limit`` is the maximum size of a column in one Arrow record batch, in bytes."""
        if len(set(columns)) < len(columns) or any(column > HEADERS for column in columns):
            raise ValueError("a column is unknown or named twice")
        if not 1 <= limit <= 2**31 - 1:
            raise ValueError("the limit of a column is from 1 to 2**31 - 1 bytes")
        self._order = tuple(columns)
        self._chosen = frozenset(columns)
        self._limit = limit
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self._chunks)

    def finish(self) -> Arrays:
        """Return the rows as :class:`Arrays`, and start again without rows."""
        chunks, self._chunks = self._chunks, []
        return Arrays(self._order, chunks)

    def append(
        self, batches: Batches, topic: bytes, partition: int, max_records: int, max_bytes: int, end: int = _INT64_MAX
    ) -> tuple[int, int]:
        """Decode records until a limit, the offset ``end``, a problem or a compressed batch; return (records, bytes)."""
        records = size = 0
        while not batches.ended(end) and batches.state == READY and records < max_records and size < max_bytes:
            if self._can_take_many(batches, topic):
                more = self._take_many(batches, topic, partition, max_records - records, max_bytes - size, end)
                records, size = records + more[0], size + more[1]
                continue
            try:
                for taken in self._decode(batches, topic, partition, end):
                    if taken == 0:
                        return records, size
                    records += 1
                    size += taken
                    if batches.record < batches.batches[batches.index].count and (records >= max_records or size >= max_bytes):
                        return records, size
            except _Problem as problem:
                batches.fail(str(problem))
            else:
                batches.advance()
        return records, size

    def _can_take_many(self, batches: Batches, topic: bytes) -> bool:
        batch = batches.batches[batches.index]
        if batch.records is None or (HEADERS in self._chosen and batch.records.headers is None):
            return False
        if not self._chunks:
            self._chunks.append(_Chunk(self._chosen, self._limit))
        return self._chunks[-1].fits_all(batch.count, len(batch.records.payload), topic)

    def _take_many(
        self, batches: Batches, topic: bytes, partition: int, max_records: int, max_bytes: int, stop: int
    ) -> tuple[int, int]:
        """Append records that numpy decoded until a limit or the offset ``stop``; return (records, bytes)."""
        batch = batches.batches[batches.index]
        assert batch.records is not None
        many = batch.records
        first = max(batches.record, many.place(batches.next_offset))
        start = many.end_of(first)
        most = min(batch.count - first, max_records, many.count_within(start, max_bytes) - first)
        last = min(first + most, max(first, many.place(stop)))
        if last > first:
            self._chunks[-1].put_many(many, first, last, batch, topic, partition)
            batches.next_offset = many.offset_of(last - 1) + 1
        if last < first + most:
            batches.next_offset = stop
        batches.record, batches.consumed, batches.previous = last, many.end_of(last), many.offset_of(last - 1)
        if last == batch.count:
            batches.next_batch()
        batches.advance()
        return last - first, many.end_of(last) - start

    def _decode(self, batches: Batches, topic: bytes, partition: int, stop: int) -> Iterator[int]:
        """Decode the rest of the current batch; yield the size in bytes of each appended record, and 0 at offset ``stop``."""
        batch = batches.batches[batches.index]
        payload = batch.payload
        assert payload is not None
        if batches.record == 0 and batch.count * _LEAST_RECORD > len(payload):
            raise _Problem(RECORD_COUNT)
        if not self._chunks:
            self._chunks.append(_Chunk(self._chosen, self._limit))
        while batches.record < batch.count:
            previous = batches.previous
            row, end = self._read(batches, batch, payload)
            size = end - batches.consumed
            if row is not None and row.offset >= stop:
                batches.previous, batches.next_offset = previous, stop
                yield 0
                return
            if row is not None:
                self._put(row, topic, partition)
                batches.next_offset = batches.previous + 1
            batches.record += 1
            batches.consumed = end
            if row is not None:
                yield size
        if batches.consumed != len(payload):
            raise _Problem(BYTES_REMAIN)
        batches.next_batch()

    def _read(self, batches: Batches, batch: _Batch, payload: memoryview) -> tuple[_Row | None, int]:
        """Return the next record (None if it is before the requested offset), and the position after this record."""
        at, end = _record(payload, batches.consumed, len(payload))
        if at == end:
            raise _Problem(RECORD_SIZE)
        timestamp_delta, at = _varint(payload, at + 1, end, 63, 0x01)
        offset_delta, at = _varint(payload, at, end)
        key, at = _field(payload, at, end)
        value, at = _field(payload, at, end)
        count, at = _varint(payload, at, end)
        if count < 0 or 2 * count > end - at:
            raise _Problem(HEADER_COUNT)
        offset = batch.base_offset + offset_delta
        if offset_delta < 0 or offset > batch.last_offset or offset <= batches.previous:
            raise _Problem(RECORD_OFFSET)
        if count == 0 and at != end:
            raise _Problem(RECORD_SIZE)
        headers = _headers(payload, at, end, count) if count and HEADERS in self._chosen else []
        batches.previous = offset
        if offset < batches.next_offset:
            return None, end
        by_append_time = batch.attributes & _APPEND_TIME
        timestamp_ms = batch.max_timestamp if by_append_time else _wrapped(batch.base_timestamp + timestamp_delta)
        return _Row(offset, timestamp_ms, 1 if by_append_time else 0, key, value, headers), end

    def _put(self, row: _Row, topic: bytes, partition: int) -> None:
        chunk = self._chunks[-1]
        if not chunk.fits(row, topic):
            if chunk.rows:
                chunk = _Chunk(self._chosen, self._limit)
                self._chunks.append(chunk)
            if not chunk.fits(row, topic):
                raise _Problem(TOO_LARGE)
        chunk.put(row, topic, partition)


def _headers(data: memoryview, at: int, end: int, count: int) -> _Headers:
    headers: _Headers = []
    for _ in range(count):
        key, at = _field(data, at, end)
        if key is None:
            raise _Problem(HEADER_KEY)
        value, at = _field(data, at, end)
        headers.append((bytes(key), value))
    if at != end:
        raise _Problem(RECORD_SIZE)
    return headers


def _wrapped(value: int) -> int:
    """Return ``value`` wrapped to 64 bits, like an overflow of Java's long."""
    return (value + 2**63) % 2**64 - 2**63
