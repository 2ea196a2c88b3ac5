"""Messages in Python, for installations without the compiled ``_kernel.c``.

The interface is that of ``_messages.h``, but a message owns its bytes from the start, so nothing has to be let go later. If
the base has a constructor, as ``confluent_kafka.Message`` has since 2.13, a message is an instance of the base itself.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from consumer_coord.columns.python_batches import (
    APPEND_TIME,
    BYTES_REMAIN,
    INT64_MAX,
    LEAST_RECORD,
    READY,
    RECORD_COUNT,
    WITHOUT_TIME,
    Batch,
    Batches,
    Headers,
    Problem,
    java_text,
    wrapped,
)

#: The arguments of the constructor of ``confluent_kafka.Message``, in their order.
FIELDS: Final = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "headers",
    "error",
    "timestamp",
    "latency",
    "leader_epoch",
    "delivery_count",
)
_NO_TIMESTAMP, _CREATE_TIME, _LOG_APPEND_TIME = range(3)

#: The fields of a record that the decoder passes on: offset, timestamp, key, value, headers, leader epoch.
_Record = tuple[int, tuple[int, int], bytes | None, bytes | None, "list[tuple[str, bytes | None]] | None", int]


def message_type(base: Any, rebuild: Callable[..., Any]) -> Any:
    """Return a class of messages that are instances of ``base``; pickle calls ``rebuild`` with the fields."""
    try:
        base()
    except TypeError:
        return _without_constructor(base, rebuild)
    if base.__reduce__ is not object.__reduce__:
        return base

    return _subclass(base.__name__, (_Pickled, base), rebuild, ())


class _Pickled:
    """A message that pickle and copy create anew, in place of a method that the base does not have."""

    __slots__ = ()
    _rebuild: Callable[..., Any]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._rebuild, tuple(getattr(self, name, _no_field)() for name in FIELDS)


def _no_field() -> None:
    """Return None, for a field that this version of the base does not have."""


class _Fields(_Pickled):
    """The fields that no method of the base can set."""

    __slots__ = ()
    _topic: str | None
    _partition: int | None
    _offset: int | None
    _timestamp: tuple[int, int]
    _leader_epoch: int | None
    _error: Any

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def leader_epoch(self) -> int | None:
        return self._leader_epoch

    def error(self) -> Any:
        return self._error

    def latency(self) -> None:
        return None


def _subclass(name: str, bases: tuple[Any, ...], rebuild: Callable[..., Any], slots: tuple[str, ...]) -> Any:
    """Return a class that looks like the last of its bases in its ``repr`` and in errors."""
    base = bases[-1]
    names = {"__slots__": slots, "_rebuild": staticmethod(rebuild), "__module__": base.__module__, "__doc__": base.__doc__}
    return type(name, bases, names)


def _without_constructor(base: Any, rebuild: Callable[..., Any]) -> Any:
    """Return a class for older versions of confluent-kafka, whose messages cannot be created and pickled."""
    cls = _subclass(base.__name__, (_Fields, base), rebuild, tuple(_Fields.__annotations__))
    allocate = ctypes.pythonapi.PyType_GenericAlloc
    allocate.argtypes, allocate.restype = [ctypes.py_object, ctypes.c_ssize_t], ctypes.py_object

    def create(
        topic: Any = None,
        partition: Any = None,
        offset: Any = None,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        error: Any = None,
        timestamp: Any = (0, 0),
        latency: Any = None,
        leader_epoch: Any = None,
    ) -> Any:
        made = allocate(cls, 0)
        made._topic, made._partition, made._offset, made._timestamp = topic, partition, offset, timestamp
        made._leader_epoch = None if leader_epoch == -1 else leader_epoch
        made._error = error
        for setter, field in ((made.set_key, key), (made.set_value, value), (made.set_headers, headers)):
            if field is not None:
                setter(field)
        return made

    _creators[cls] = create
    return cls


#: Class without a constructor -> the function that creates an instance.
_creators: dict[Any, Callable[..., Any]] = {}


def _create(message_type: Any, topic: str, partition: int, records: Sequence[_Record]) -> list[Any]:
    create = _creators.get(message_type, message_type)
    # Positional arguments, which take less time: error is None, and a latency of -1 means that there is none.
    return [
        create(topic, partition, offset, key, value, headers, None, timestamp, -1.0, epoch)
        for offset, timestamp, key, value, headers, epoch in records
    ]


def message(message_type: Any, fields: Sequence[Any]) -> Any:
    """Return a message with these fields, in the order of :data:`FIELDS`."""
    there = {name: value for name, value in zip(FIELDS, fields, strict=True) if value is not None}
    return _creators.get(message_type, message_type)(**there)


def _usual(batches: Batches, batch: Batch, data: bytes) -> tuple[_Record, int] | None:
    """Return the next record and the position after it; None if :func:`_any` must read it.

    This function reads only valid records whose varints have at most two bytes, because it takes a quarter of the time. It
    reads without checks, and checks at the end that the record ends where its length says.
    """
    try:
        size, at = _short(data, batches.consumed)
        end = at + (size >> 1)
        timestamp_delta, at = _short(data, at + 1)
        offset_delta, at = _short(data, at)
        key_size, at = _short(data, at)
        key = None
        if key_size != 1:
            key = data[at : at + (key_size >> 1)]
            at += key_size >> 1
        value_size, at = _short(data, at)
        value = None
        if value_size != 1:
            value = data[at : at + (value_size >> 1)]
            at += value_size >> 1
        count = data[at]
    except IndexError:
        return None
    offset = batch.base_offset + (offset_delta >> 1)
    odd = (size | offset_delta | (key_size != 1 and key_size) | (value_size != 1 and value_size)) & 1
    if odd or count or at + 1 != end or end > len(data) or offset > batch.last_offset or offset <= batches.previous:
        return None
    if offset < batches.next_offset:
        return None
    timestamp = _timestamp(batch, wrapped(batch.base_timestamp + (timestamp_delta >> 1 ^ -(timestamp_delta & 1))))
    return (offset, timestamp, key, value, None, batch.leader_epoch), end


def _short(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint of one or two bytes without its sign, and the position after it; raise IndexError for longer ones."""
    raw = data[at]
    if raw < 0x80:
        return raw, at + 1
    more = data[at + 1]
    if more > 0x7F:
        raise IndexError
    return raw & 0x7F | more << 7, at + 2


def _any(batches: Batches, batch: Batch, data: bytes) -> tuple[_Record | None, int]:
    """Return the next record, and the position after it; None for a record before the requested offset."""
    row, end = batches.read(batch, memoryview(data), True)
    if row is None:
        return None, end
    key = None if row.key is None else bytes(row.key)
    value = None if row.value is None else bytes(row.value)
    timestamp = _timestamp(batch, row.timestamp_ms)
    return (row.offset, timestamp, key, value, _texts(row.headers) or None, batch.leader_epoch), end


def _timestamp(batch: Batch, created_ms: int) -> tuple[int, int]:
    """Return the type of a record's timestamp, and the timestamp; 0 without a timestamp, as in librdkafka."""
    if batch.attributes & APPEND_TIME:
        return _LOG_APPEND_TIME, batch.max_timestamp
    return (_NO_TIMESTAMP, 0) if batch.attributes & WITHOUT_TIME else (_CREATE_TIME, created_ms)


def _texts(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return headers as an application sees them. librdkafka's keys end at a NUL."""
    return [(java_text(key.partition(b"\0")[0]), None if value is None else bytes(value)) for key, value in headers]


def first_messages(messages: Sequence[Any]) -> dict[tuple[str, int], Any]:
    """Return the first message of each partition, without messages that report an error."""
    found: dict[tuple[str, int], Any] = {}
    for one in messages:
        if one.error() is None:
            found.setdefault((one.topic(), one.partition()), one)
    return found


class Kept:
    """The chunks of a consumer: here, only the records that were decoded but not taken."""

    def __init__(self, limit: int) -> None:
        """Ignore ``limit``, because finished chunks have no bytes of their own."""
        #: Size of the decoded records that were not taken, in bytes.
        self.chunk_bytes: int = 0
        #: Bytes that messages copied: none, because they own their bytes.
        self.copied_bytes: int = 0
        self.copied_total: int = 0

    def sweep(self) -> None:
        """Do nothing: no message keeps other bytes than its own."""

    def close(self) -> None:
        """Do nothing: no message keeps other bytes than its own."""


class Rows:
    """Records that are decoded, and then handed out one by one as messages."""

    def __init__(self, message_type: Any, kept: Kept, topic: str, partition: int) -> None:
        """Store what all messages have in common."""
        self.position: int = -1
        self.next_offset: int = -1
        self.leader_epoch: int = -1
        self._type = message_type
        self._kept = kept
        self._topic = topic
        self._partition = partition
        self._records: list[_Record] = []
        self._taken = 0
        self._bytes = 0
        self._closed = False
        self._taking = threading.Lock()

    def __len__(self) -> int:
        return len(self._records) - self._taken

    def append(
        self, batches: Batches, topic: bytes, partition: int, max_records: int, max_bytes: int, end: int = INT64_MAX
    ) -> tuple[int, int]:
        """Decode records until a limit, the offset ``end``, a problem or a compressed batch; return (records, bytes)."""
        if self._taken or self._closed:
            raise ValueError("rows were taken already")
        if self.position < 0:
            self.position = batches.next_offset
        before = len(self._records)
        size = 0
        while not batches.ended(end) and batches.state == READY and size < max_bytes:
            wanted = max_records - (len(self._records) - before)
            if wanted <= 0:
                break
            more, problem = self._decode(batches, wanted, max_bytes - size, end)
            size += more
            if problem:
                batches.fail(problem)
            else:
                batches.advance()
        self._bytes += size
        self._kept.chunk_bytes += size
        self.next_offset = batches.next_offset
        if not self._records:
            self.position = self.next_offset
        return len(self._records) - before, size

    def take(self, most: int) -> list[Any]:
        """Return a list of at most ``most`` messages; raise RuntimeError if another thread is taking."""
        if self._taking.locked():
            raise RuntimeError("another thread is using these columns or this response")
        # A signal handler may raise after any call, but not between the start of this block and the lock.
        with self._taking:
            return self._take(most)

    def _take(self, most: int) -> list[Any]:
        taken = self._taken
        records = self._records[taken : taken + max(most, 0)]
        messages = _create(self._type, self._topic, self._partition, records)
        if records:
            self._taken = taken + len(records)
            self.leader_epoch = records[-1][-1]
            self.position = records[-1][0] + 1
            if self._taken == len(self._records):
                self.close()
        return messages

    def take_one(self) -> Any:
        """Return the next message, or None after the last one."""
        messages = self.take(1)
        return messages[0] if messages else None

    def close(self) -> None:
        """Drop the messages that were not taken."""
        if self._records and self._taken == len(self._records):
            self.position = self.next_offset
        self._closed = True
        self._records = []
        self._taken = 0
        self._kept.chunk_bytes -= self._bytes
        self._bytes = 0

    def __del__(self) -> None:
        self.close()

    def _decode(self, batches: Batches, most: int, most_bytes: int, stop: int) -> tuple[int, str]:
        """Decode records of the current batch until a limit or the offset ``stop``; return their bytes, and the problem."""
        batch = batches.batches[batches.index]
        assert batch.payload is not None
        if batches.record == 0 and batch.count * LEAST_RECORD > len(batch.payload):
            return 0, RECORD_COUNT
        payload = bytes(batch.payload)
        size = 0
        most += len(self._records)
        try:
            while batches.record < batch.count:
                if len(self._records) >= most or size >= most_bytes:
                    return size, ""
                previous = batches.previous
                found, end = _usual(batches, batch, payload) or _any(batches, batch, payload)
                if found is not None:
                    if found[0] >= stop:
                        batches.previous, batches.next_offset = previous, stop
                        return size, ""
                    self._records.append(found)
                    size += end - batches.consumed
                    batches.previous, batches.next_offset = found[0], found[0] + 1
                batches.record += 1
                batches.consumed = end
        except Problem as problem:
            return size, str(problem)
        if batches.consumed != len(payload):
            return size, BYTES_REMAIN
        batches.next_batch()
        return size, ""
