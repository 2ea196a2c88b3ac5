"""Decode all records of a batch at once with numpy, for the Python kernel.

This module decodes only valid batches without unusually large numbers.
:mod:`consumer_coord.columns.python_columns` decodes any other batch record by record, and reports problems.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Maximum size of a varint that this module decodes, in bytes.
_VARINT_BYTES = 4
_MOST_MS = (2**63 - 1) // 1000

#: If a record of a batch has more headers than this number, the batch's headers are decoded record by record.
_MOST_HEADERS = 50

#: Values of a column: the position of each value's end in the joined bytes, the joined bytes, and the indexes of nulls.
Cells: TypeAlias = "tuple[Sequence[int], Buffer, list[int]]"


@attrs.frozen
class _Fields:
    """Positions of the records' keys or values in the payload."""

    start: Any
    end: Any
    is_null: Any


@attrs.frozen(eq=False)
class Headers:
    """The headers of all records, in order. ``ends`` has 0, then the number of headers up to the end of each record."""

    ends: Any
    key: _Fields
    value: _Fields


@attrs.frozen(eq=False)
class Records:
    """The records of one batch, in order, as one array for each field. ``_end`` has the position of each record's end."""

    payload: bytes
    _data: Any
    _end: Any
    _offset: Any
    _timestamp: Any
    _key: _Fields
    _value: _Fields
    _headers_at: Any
    _header_count: Any

    def place(self, offset: int) -> int:
        """Return the index of the first record whose offset is at least ``offset``."""
        return int(np.searchsorted(self._offset, offset))

    def offset_of(self, index: int) -> int:
        """Return the offset of the record ``index``; for -1, the offset before the first record."""
        return int(self._offset[index]) if index >= 0 else int(self._offset[0]) - 1

    def end_of(self, count: int) -> int:
        """Return the position after the first ``count`` records."""
        return int(self._end[count - 1]) if count else 0

    def count_within(self, start: int, size: int) -> int:
        """Return how many records of the batch begin before the position that is ``size`` bytes after ``start``."""
        return int(np.searchsorted(self._end, min(start + size, len(self.payload)))) + 1

    def keys(self, first: int, last: int) -> Cells:
        """Return the keys of the records from index ``first`` to ``last`` - 1."""
        return _cells(self.payload, self._key, first, last)

    def values(self, first: int, last: int) -> Cells:
        """Return the values of the records from index ``first`` to ``last`` - 1."""
        return _cells(self.payload, self._value, first, last)

    @functools.cached_property
    def headers(self) -> Headers | None:
        """The headers of the batch; None if the headers must be decoded record by record."""
        try:
            return _headers(self.payload, self._data, self._headers_at, self._end, self._header_count)
        except _UnusualError:
            return None

    def header_keys(self, first: int, last: int) -> Cells:
        """Return the header keys of the records from index ``first`` to ``last`` - 1."""
        assert self.headers is not None
        return _cells(self.payload, self.headers.key, *self.headers.ends[[first, last]])

    def header_values(self, first: int, last: int) -> Cells:
        """Return the header values of the records from index ``first`` to ``last`` - 1."""
        assert self.headers is not None
        return _cells(self.payload, self.headers.value, *self.headers.ends[[first, last]])

    def header_counts(self, first: int, last: int) -> list[int]:
        """Return how many headers each of the records from index ``first`` to ``last`` - 1 has."""
        counts: list[int] = self._header_count[first:last].tolist()
        return counts

    def offsets(self, first: int, last: int) -> memoryview:
        """Return the offsets of the records from index ``first`` to ``last`` - 1, as 64-bit integers."""
        return memoryview(self._offset[first:last]).cast("B")

    def micros(self, first: int, last: int, append_time: int | None) -> memoryview:
        """Return the records' timestamps in microseconds, as 64-bit integers; ``append_time`` (ms) replaces all of them."""
        millis = self._timestamp[first:last] if append_time is None else np.full(last - first, append_time, np.int64)
        return memoryview(1000 * np.clip(millis, -_MOST_MS, _MOST_MS)).cast("B")


def _cells(payload: bytes, fields: _Fields, first: int, last: int) -> Cells:
    count = int(last - first)
    if not count:
        return (), b"", []
    bounds = np.empty(2 * count, np.int32)
    bounds[::2], bounds[1::2] = fields.start[first:last], fields.end[first:last]
    # Every second item is a field; the other items are the bytes between two fields, and are not taken.
    items = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(payload)])
    _, ends, data = items.take(pa.array(np.arange(0, 2 * count, 2))).buffers()
    found = memoryview(ends).cast("i")[1 : count + 1]
    joined = memoryview(b"" if data is None else data)[: found[-1]]
    return found, joined, np.flatnonzero(fields.is_null[first:last]).tolist()


def decode(payload: bytes, count: int, base_offset: int, last_offset: int, base_timestamp: int) -> Records | None:
    """Return the records of a batch, or None if the batch is malformed or has a varint of more than four bytes."""
    bounds = _bounds(payload, count)
    if bounds is None:
        return None
    data = np.frombuffer(payload + bytes(_VARINT_BYTES), np.uint8)
    start, end = (np.array(each, np.int64) for each in bounds)
    # Before a position is used, the code checks that the position is not after the end of the record.
    try:
        timestamp_delta, at = _varints(data, start + 1, end)
        offset_delta, at = _varints(data, at, end)
        key, at = _fields(data, at, end)
        value, at = _fields(data, at, end)
        headers, at = _varints(data, at, end)
    except _UnusualError:
        return None
    offset = base_offset + offset_delta
    is_valid = (
        offset_delta[0] >= 0
        and offset[-1] <= last_offset
        and (offset[1:] > offset[:-1]).all()
        and (headers >= 0).all()
        and (2 * headers <= end - at).all()
        and ((headers > 0) | (at == end)).all()
    )
    if not is_valid:
        return None
    # The sum may overflow, as in Java, which also adds 64-bit integers.
    timestamp = np.int64(base_timestamp) + timestamp_delta
    return Records(payload, data, end, offset, timestamp, key, value, at, headers)


class _UnusualError(Exception):
    """Raised if a batch must be decoded record by record."""


def _bounds(payload: bytes, count: int) -> tuple[list[int], list[int]] | None:
    """Return the positions at which the records begin (after their lengths) and end."""
    starts, ends, at = [], [], 0
    try:
        for _ in range(count):
            byte = payload[at]
            at += 1
            size, shift = byte & 0x7F, 7
            while byte >= 0x80 and shift < 7 * _VARINT_BYTES:
                byte = payload[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            if byte >= 0x80 or size & 1:
                return None
            starts.append(at)
            at += size >> 1
            ends.append(at)
    except IndexError:
        return None
    return (starts, ends) if at == len(payload) else None


def _varints(data: Any, at: Any, end: Any) -> tuple[Any, Any]:
    """Return the zigzag varints at the positions ``at``, and the positions after the varints."""
    byte = data[_within(at, end)].astype(np.int64)
    value = byte & 0x7F
    more = byte >= 0x80
    for shift in range(7, 7 * _VARINT_BYTES, 7):
        if not more.any():
            break
        at = at + more
        byte = np.where(more, data[at], 0).astype(np.int64)
        value |= (byte & 0x7F) << shift
        more = byte >= 0x80
    if more.any():
        raise _UnusualError
    return value >> 1 ^ -(value & 1), _within(at + 1, end)


def _fields(data: Any, at: Any, end: Any) -> tuple[_Fields, Any]:
    size, start = _varints(data, at, end)
    if (size < -1).any():
        raise _UnusualError
    stop = _within(start + np.maximum(size, 0), end)
    return _Fields(start, stop, size < 0), stop


def _headers(payload: bytes, data: Any, at: Any, end: Any, counts: Any) -> Headers:
    """Return the headers of all records; ``at`` has the position of each record's first header."""
    most = int(counts.max())
    if most > _MOST_HEADERS:
        raise _UnusualError
    at, order, parts = at.copy(), [], []
    for number in range(most):
        rows = np.flatnonzero(counts > number)
        key, after = _fields(data, at[rows], end[rows])
        value, at[rows] = _fields(data, after, end[rows])
        order.append(rows)
        parts.append((key.start, key.end, key.is_null, value.start, value.end, value.is_null))
    if (at != end).any():
        raise _UnusualError
    empty = np.empty(0, np.int64)
    place = np.argsort(np.concatenate([empty, *order]), kind="stable")
    joined = [np.concatenate(column)[place] for column in zip(*parts, strict=True)] or [empty] * 6
    key, value = _Fields(*joined[:3]), _Fields(*joined[3:])
    if key.is_null.any() or not bytes(_cells(payload, key, 0, len(place))[1]).isascii():
        raise _UnusualError
    return Headers(np.concatenate([[0], np.cumsum(counts)]), key, value)


def _within(at: Any, end: Any) -> Any:
    if (at > end).any():
        raise _UnusualError
    return at
