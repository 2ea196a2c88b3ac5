"""Records of Fetch responses as Arrow columns.

A :class:`CompletedFetch` has the records of one partition in one Fetch response, and the position of the next record.
:class:`Columns` appends records of any number of responses, and returns :class:`ArrowColumns`, which every Arrow library
imports without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.column_names import COLUMNS
from consumer_coord.columns import kernel
from consumer_coord.columns.decompress import decompress
from consumer_coord.columns.old_formats import converted, is_old
from consumer_coord.errors import ConfigurationError, MalformedMessageError
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Maximum size of one batch after decompression, in bytes, unless the caller sets another limit.
MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
_INT64_MAX: Final = 2**63 - 1
#: Maximum size of a column's data in one Arrow record batch, in bytes, because Arrow's offsets are 32-bit integers.
_MAX_COLUMN_BYTES: Final = 2**31 - 1
#: One call decompresses batches until it has written this number of bytes, or read this number of compressed bytes.
_AHEAD_BYTES: Final = 4 * 1024 * 1024
_AHEAD_COMPRESSED_BYTES: Final = 1024 * 1024
#: A pool of buffers for decompressed batches, the maximum number of buffers, and the maximum size of a buffer in bytes.
_spare_buffers: list[bytearray] = []
_MOST_SPARES: Final = 2
_MOST_SPARE_BYTES: Final = 4 * _AHEAD_BYTES
#: The problem that a kernel reports after :mod:`consumer_coord.columns.decompress` failed; the reason is in ``_damage``.
_DECOMPRESSION: Final = "the batch cannot be decompressed"
#: The problem that a kernel reports at a message that :mod:`consumer_coord.columns.old_formats` could not convert.
_OLD_FORMAT: Final = "the record format is 0 or 1, older than Kafka 0.11; only format 2 can be read"
#: The values of ``Batches.state`` in both kernels.
_EXHAUSTED, _COMPRESSED, _FAILED = 1, 2, 3


class UnreadableRecordError(MalformedMessageError):
    """Raised if the records from an offset on cannot be read; earlier records were delivered.

    The cause is damage (CRC, lengths, counts, offsets), a batch that cannot be decompressed, or an unknown record
    format. To skip the damage, seek to a later offset.
    """

    def __init__(self, topic: str, partition: int, offset: int, problem: str) -> None:
        super().__init__(
            f"{topic}-{partition} cannot be read at offset {offset}: {problem}. Seek to a later offset to skip these records"
        )
        #: The partition, with the first offset that cannot be read.
        self.partition: TopicPartition = TopicPartition(topic, partition, offset)


@attrs.frozen
class Appended:
    """The result of one call of :meth:`Columns.append`."""

    #: Number of appended records.
    records: int
    #: Size of these records, as encoded in their decompressed batches, in bytes.
    bytes: int


class CompletedFetch:
    """The records of one partition in one Fetch response, and the position of the next record (Java's ``CompletedFetch``).

    CRCs are checked once, when the object is created. Batches are decompressed once, in order. The object refers to the
    response's buffer, which must not change. Only one thread may use an object at a time.
    """

    def __init__(
        self,
        records: Buffer,
        *,
        topic: str,
        partition: int,
        offset: int,
        aborted: Sequence[tuple[int, int]] = (),
        read_committed: bool = False,
        check_crcs: bool = True,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """Store the response's ``records`` field.

        ``offset`` is the requested offset; records before this offset are skipped. ``aborted`` has the (producer id, first
        offset) of aborted transactions, in any order; with ``read_committed``, the records of these transactions are skipped.
        If a batch decompresses to more than ``max_batch_bytes``, its records cannot be read.
        """
        self.topic = topic
        self.partition = partition
        self._records = memoryview(records).cast("B")
        self._max_batch_bytes = max_batch_bytes
        self._topic_bytes = topic.encode()
        self._buffer: bytearray | None = None
        #: True while a call reads records. If this attribute is still True after a call, a signal handler raised an exception,
        #: so create another object.
        self.interrupted = False
        self._damage = self._old_problem = ""
        if is_old(self._records):
            self._records, self._old_problem = converted(
                self._records, check_crcs=check_crcs, max_batch_bytes=max_batch_bytes, crc32c=kernel.kernel.crc32c
            )
        pairs = array("q", chain.from_iterable(aborted))
        self._batches = kernel.kernel.Batches(self._records, offset, pairs, read_committed, check_crcs)

    @property
    def next_offset(self) -> int:
        """The position: the offset after the last record that was read or skipped."""
        return self._batches.next_offset

    @property
    def exhausted(self) -> bool:
        """True if no record and no error remains to be read."""
        return self._batches.state == _EXHAUSTED

    @property
    def needs_bytes(self) -> int:
        """Size of the first batch in bytes, if the response has only the beginning of this batch, otherwise 0.

        If the size is not 0, no record can be read, and the partition must be fetched again with at least that number of bytes.
        """
        return self._batches.needs_bytes

    def append_to(self, builder: Any, max_records: int, max_bytes: int, end_offset: int) -> Appended:
        """Append records to a kernel's builder; see :meth:`Columns.append` for the limits and errors."""
        batches = self._batches
        records = size = 0
        self.interrupted = True
        while True:
            more = builder.append(
                batches, self._topic_bytes, self.partition, max_records - records, max_bytes - size, end_offset
            )
            records += more[0]
            size += more[1]
            ended = batches.next_offset >= end_offset and end_offset != _INT64_MAX
            if ended or records >= max_records or size >= max_bytes:
                break
            if batches.state != _COMPRESSED:
                break
            self._decompress(min(max_bytes - size, _AHEAD_BYTES))
        self.interrupted = False
        if batches.state == _EXHAUSTED:
            self._keep_buffer()
        if batches.state == _FAILED and not records and not ended:
            problem = batches.problem
            if problem == _DECOMPRESSION:
                problem += f" ({self._damage})"
            elif problem == _OLD_FORMAT and self._old_problem:
                problem = self._old_problem
            raise UnreadableRecordError(self.topic, self.partition, batches.next_offset, problem)
        return Appended(records, size)

    def _decompress(self, most: int) -> None:
        """Decompress the next batches, up to ``most`` bytes, into the memory of earlier batches, which were read already."""
        found = decompress(
            self._records,
            self._batches.compressed(_AHEAD_COMPRESSED_BYTES),
            most=most,
            limit=self._max_batch_bytes,
            buffer=self._buffer or _spare_buffer(),
        )
        self._buffer = found.buffer
        self._damage = found.problem
        self._batches.supply(found.buffer, found.ends, bool(found.problem))

    def _keep_buffer(self) -> None:
        """Return the buffer to the pool, because allocating memory takes as long as decompressing into it."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None and len(buffer) <= _MOST_SPARE_BYTES and len(_spare_buffers) < _MOST_SPARES:
            _spare_buffers.append(buffer)


def _spare_buffer() -> bytearray:
    try:
        return _spare_buffers.pop()
    except IndexError:
        return bytearray()


class ArrowColumns:
    """Records as columns, for any library that supports Arrow's PyCapsule interface: pyarrow, Polars, DuckDB, pandas.

    =============  ================================  =====================================================================
    column         Arrow type
    =============  ================================  =====================================================================
    key            binary                            null without a key
    value          binary                            null for a tombstone
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, tz=UTC]             as Spark shows it; Kafka's milliseconds times 1000
    timestampType  int32                             0 CreateTime, 1 LogAppendTime
    headers        list<struct<key: string,          null without headers; bytes of a header key that are not UTF-8
                   value: binary>>                   are replaced by U+FFFD, as Java does
    =============  ================================  =====================================================================

    Exported arrays own their buffers, so the arrays stay valid after this object is deleted. Each export is independent.
    """

    def __init__(self, arrays: Any, positions: Mapping[TopicPartition, int]) -> None:
        self._arrays = arrays
        #: Partition -> the offset after the last record that was appended or skipped.
        self.positions: Mapping[TopicPartition, int] = MappingProxyType(dict(positions))
        #: Partition -> its ownership number at the time of the Fetch. The consumer's ``commit`` compares this number.
        self.fetched_under: Mapping[TopicPartition, Any] = MappingProxyType({})

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._arrays)

    def __arrow_c_schema__(self) -> object:
        """Return a PyCapsule of an ArrowSchema."""
        return self._arrays.schema()

    @property
    def __arrow_c_array__(self) -> Callable[..., tuple[object, object]]:
        """Export the columns as one array: PyCapsules of an ArrowSchema and an ArrowArray.

        If a column has more than 2 GiB, this attribute does not exist, so that libraries import the stream instead.
        """
        if self._arrays.chunks > 1:
            raise AttributeError("__arrow_c_array__: a column has more than 2 GiB; only the stream contains all records")
        return self._export_array

    def _export_array(self, requested_schema: object = None) -> tuple[object, object]:
        return self._arrays.schema(), self._arrays.array(0)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a PyCapsule of an ArrowArrayStream; ``requested_schema`` is ignored, as Arrow permits."""
        return self._arrays.stream()


class Columns:
    """Arrow columns to which records of Fetch responses are appended. Only one thread may use an object at a time."""

    def __init__(self, columns: Sequence[str] = COLUMNS, *, max_column_bytes: int = _MAX_COLUMN_BYTES) -> None:
        """Set the columns to build, and their order.

        ``max_column_bytes``: maximum size of a column in one Arrow record batch. A larger column continues in another record
        batch.
        """
        if not columns:
            raise ConfigurationError(f"columns: choose at least one of {', '.join(COLUMNS)}")
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown or isinstance(columns, str):
            named = columns if isinstance(columns, str) else unknown[0]
            raise ConfigurationError(f"columns: there is no column {named!r}; choose a list from {', '.join(COLUMNS)}")
        if len(set(columns)) < len(columns):
            raise ConfigurationError(f"columns: a column is named twice: {', '.join(columns)}")
        self._builder = kernel.kernel.Builder(bytes(map(COLUMNS.index, columns)), max_column_bytes)
        self._positions: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        """Return the number of records so far."""
        return len(self._builder)

    def append(
        self,
        fetch: CompletedFetch,
        *,
        max_records: int = _INT64_MAX,
        max_bytes: int = _INT64_MAX,
        end_offset: int = _INT64_MAX,
    ) -> Appended:
        """Append records of a response until ``max_records``, ``max_bytes`` or the end of the response.

        Also stop at ``end_offset``. When every record before ``end_offset`` was read, ``fetch.next_offset`` is at least
        ``end_offset``, even if no record has this offset. An error at or after ``end_offset`` is not raised.

        The last record may exceed ``max_bytes``, so every call makes progress.  Raise :class:`UnreadableRecordError` if the
        next record cannot be read; if there are records before it, return them first, without an error.
        """
        if max_records < 1 or max_bytes < 1:
            raise ValueError(f"max_records and max_bytes must be at least 1, not {max_records} and {max_bytes}")
        try:
            return fetch.append_to(self._builder, max_records, max_bytes, end_offset)
        finally:
            # Set the position even after an error, because records before the error may have been read.
            self._positions[TopicPartition(fetch.topic, fetch.partition)] = fetch.next_offset

    def finish(self) -> ArrowColumns:
        """Return the columns with all records, and start again without records."""
        finished = ArrowColumns(self._builder.finish(), self._positions)
        self._positions = {}
        return finished
