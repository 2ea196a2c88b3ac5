"""Decode record batches into Arrow arrays in Python, for installations without the compiled ``_kernel.c``.

This module has the same interface, rules and error texts as ``_kernel.c``; a test compares both on random input. pyarrow
exports the arrays. If numpy is installed, ``numpy_columns.py`` decodes valid batches of many records at once.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from consumer_coord.columns.python_at_hand import AtHand
from consumer_coord.columns.python_batches import (
    APPEND_TIME,
    BYTES_REMAIN,
    INT64_MAX,
    LEAST_RECORD,
    READY,
    RECORD_COUNT,
    Batch,
    Batches,
    Headers,
    Problem,
    Row,
    java_text,
)
from consumer_coord.columns.python_messages import Kept, Rows, first_messages, message, message_type
from consumer_coord.wire.crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from consumer_coord.columns.numpy_columns import Records

#: What a kernel has.
__all__ = ["Arrays", "AtHand", "Batches", "Builder", "Kept", "Rows", "crc32c", "first_messages", "message", "message_type"]

(KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS) = range(8)

TOO_LARGE = "a record is too large for an Arrow column"

#: Batches of at least this number of records are decoded by numpy, all records at once.
MANY = 32
_MOST_MS: Final = INT64_MAX // 1000
_NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@functools.cache
def _vectors() -> Any:
    try:
        from consumer_coord.columns import numpy_columns
    except ImportError:
        return None
    return numpy_columns


def decode_at_once(batch: Batch) -> Records | None:
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

    def fits(self, row: Row, topic: bytes) -> bool:
        """Return whether every column has room for a record."""
        headers = row.headers
        sizes = (len(row.key or b""), len(row.value or b""), len(topic))
        used = [(len(strings.data), sizes[column]) for column, strings in self.strings.items()]
        if headers:
            used.append((self.header_ends[-1], len(headers)))
            used.append((len(self.header_key.data), 3 * sum(len(key) for key, _ in headers)))
            used.append((len(self.header_value.data), sum(len(value or b"") for _, value in headers)))
        return all(there + more <= self._limit or not more for there, more in used)

    def put(self, row: Row, topic: bytes, partition: int) -> None:
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

    def put_many(self, records: Records, first: int, last: int, batch: Batch, topic: bytes, partition: int) -> None:
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
        by_append_time = batch.attributes & APPEND_TIME
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

    def _put_headers(self, headers: Headers) -> None:
        for key, value in headers:
            self.header_key.put(java_text(key).encode())
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
        self, batches: Batches, topic: bytes, partition: int, max_records: int, max_bytes: int, end: int = INT64_MAX
    ) -> tuple[int, int]:
        """Decode records until a limit, the offset ``end``, a problem or a compressed batch; return (records, bytes)."""
        records = size = 0
        while not batches.ended(end) and batches.state == READY and records < max_records and size < max_bytes:
            batch = batches.batches[batches.index]
            if batches.record == 0:
                batch.records = batch.records or decode_at_once(batch)
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
                    if batches.record < batch.count and (records >= max_records or size >= max_bytes):
                        return records, size
            except Problem as problem:
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
        if batches.record == 0 and batch.count * LEAST_RECORD > len(payload):
            raise Problem(RECORD_COUNT)
        if not self._chunks:
            self._chunks.append(_Chunk(self._chosen, self._limit))
        while batches.record < batch.count:
            previous = batches.previous
            row, end = batches.read(batch, payload, HEADERS in self._chosen)
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
            raise Problem(BYTES_REMAIN)
        batches.next_batch()

    def _put(self, row: Row, topic: bytes, partition: int) -> None:
        chunk = self._chunks[-1]
        if not chunk.fits(row, topic):
            if chunk.rows:
                chunk = _Chunk(self._chosen, self._limit)
                self._chunks.append(chunk)
            if not chunk.fits(row, topic):
                raise Problem(TOO_LARGE)
        chunk.put(row, topic, partition)
