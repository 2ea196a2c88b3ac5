"""The log of one partition: the record batches as producers sent them, with offsets.

The log is in memory. With a :class:`Storage`, every batch is also on disk before its append returns. No append waits for
replicas, so the high watermark is the end of the log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from consumer_coord.broker import record_batch
from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.producers import ProducerStates
from consumer_coord.broker.record_batch import PREFIX_SIZE, BatchHeader, Record
from consumer_coord.broker.topic_settings import LogSettings
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.wire import error_codes
from consumer_coord.wire.crc32c import IS_NATIVE

_PREFIX = struct.Struct(">qii")
#: Timestamps of ListOffsets with a special meaning.
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3


class Storage(Protocol):
    """Stores a log on disk, in addition to memory."""

    def append(self, base_offset: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write one batch. After this call, the batch survives a crash of this process."""

    def trim(self, log_start_offset: int) -> None:
        """Store the log's start offset, and free the space of earlier records."""

    def rewrite(self, batches: Sequence[tuple[int, Sequence[bytes | memoryview]]]) -> None:
        """Replace all batches by these, with their base offsets, after a compaction."""


@attrs.frozen
class _Batch:
    """A batch in the log. The bytes that the broker rewrites are separate, so that the other bytes need not be copied."""

    base_offset: int
    last_offset: int
    size: int
    max_timestamp_ms: int
    prefix: bytes
    rest: bytes | memoryview

    def to_bytes(self) -> bytes:
        return self.prefix + bytes(self.rest)


@attrs.frozen
class AbortedTxn:
    """An aborted transaction: the offsets of its first record and of the control record that ended it (as in Kafka)."""

    producer_id: int
    first_offset: int
    last_offset: int


class PartitionLog:
    """The batches of one partition in the order of their offsets."""

    def __init__(
        self,
        settings: LogSettings | None = None,
        storage: Storage | None = None,
    ) -> None:
        #: The settings of the topic, which an administrator may change at any time.
        self.settings: LogSettings = settings or LogSettings()
        self.log_start_offset: int = 0
        self.end_offset: int = 0
        self.size: int = 0
        self.producers: ProducerStates = ProducerStates()
        #: Functions that are called after each append with its number of bytes, for requests that wait for records.
        self.on_append: dict[object, Callable[[int], None]] = {}
        self._storage = storage
        self._batches: list[_Batch] = []
        self._last_offsets: list[int] = []  # one entry per batch, for bisection
        #: (leader epoch, the first offset written in this epoch); both numbers ascend.
        self._epochs: list[tuple[int, int]] = []
        #: producer id -> the first offset of its open transaction, ordered by this offset.
        self._open_transactions: dict[int, int] = {}
        #: The aborted transactions, ordered by ``last_offset``.
        self._aborted: list[AbortedTxn] = []

    # -- writing

    def append(self, records: bytes, leader_epoch: int, *, verified: bool = False) -> int:
        """Append a producer's batch unchanged; return the offset of its first record.

        ``verified``: the transaction coordinator has this partition in the producer's transaction. Raise
        :class:`~consumer_coord.broker.errors.AppendError` if the batch is refused. For a duplicate from an idempotent producer,
        return the offset of the first append.
        """
        header = self._validated(records)
        duplicate = self.producers.duplicate_of(header)
        if duplicate is not None:
            return duplicate
        if self.settings.compacted:
            _check_keys(records, header)
        self._check_transaction(header, verified)
        self.producers.check(header)
        base_offset = self.end_offset
        # A view, so that the bytes of the request are not copied.
        self._store(header, memoryview(records)[PREFIX_SIZE:], leader_epoch)
        self._notify(header.size)
        self._apply_retention()
        return base_offset

    def append_records(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        timestamp_ms: int,
        leader_epoch: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> int:
        """Append the broker's own records as one batch; return the offset of the first record.

        Raise :class:`~consumer_coord.broker.errors.AppendError` if the batch cannot be written, or for a fenced producer.
        """
        self.producers.check_epoch(producer_id, producer_epoch)
        data = record_batch.build_batch(
            records,
            base_offset=self.end_offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        return self._append_own(data, leader_epoch)

    def append_marker(
        self,
        timestamp_ms: int,
        leader_epoch: int,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> int:
        """Append the marker that ends a transaction; return its offset.

        Raise :class:`~consumer_coord.broker.errors.AppendError` if the marker cannot be written.
        """
        data = record_batch.build_marker(
            base_offset=self.end_offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=leader_epoch,
            producer=(producer_id, producer_epoch),
            committed=committed,
            coordinator_epoch=coordinator_epoch,
        )
        return self._append_own(data, leader_epoch)

    def restore(self, data: bytes, header: BatchHeader) -> None:
        """Add a batch that was read from disk, with its offsets; write nothing, and notify no waiting request."""
        if self._batches and header.base_offset < self.end_offset:
            raise MalformedMessageError(f"a batch with offset {header.base_offset} comes after offset {self.end_offset - 1}")
        self.end_offset = header.base_offset
        rest = memoryview(data)[header.position + PREFIX_SIZE : header.position + header.size]
        self._keep(header, rest, header.leader_epoch)

    def delete_before(self, offset: int) -> None:
        """Delete the records before ``offset`` (DeleteRecords, retention). Only whole batches are removed."""
        self.log_start_offset = max(self.log_start_offset, offset)
        self.end_offset = max(self.end_offset, self.log_start_offset)
        gone = bisect_left(self._last_offsets, self.log_start_offset)
        if gone:
            self.size -= sum(batch.size for batch in self._batches[:gone])
            del self._batches[:gone], self._last_offsets[:gone]
            del self._aborted[: bisect_left(self._aborted, self.log_start_offset, key=lambda one: one.last_offset)]
        if self._storage is not None:
            self._storage.trim(self.log_start_offset)

    def truncate_to(self, offset: int, leader_epoch: int) -> None:
        """Remove the records at ``offset`` and above, as if a new leader never had them (unclean leader election).

        Later records reuse the offsets. Raise :class:`ValueError` for a log on disk, and for an offset within a batch.
        """
        if self._storage is not None:
            raise ValueError("a log on disk cannot be truncated: use a cluster without a data_dir")
        keep = bisect_left(self._last_offsets, offset)
        if keep < len(self._batches) and self._batches[keep].base_offset < offset:
            raise ValueError(f"offset {offset} lies within the batch that starts at {self._batches[keep].base_offset}")
        kept = self._batches[:keep]
        self._batches, self._last_offsets, self._epochs = [], [], []
        self._open_transactions, self._aborted, self.size = {}, [], 0
        self.producers = ProducerStates()
        self.log_start_offset = min(self.log_start_offset, offset)
        for batch in kept:
            self.end_offset = batch.base_offset
            header = record_batch.read_header(batch.to_bytes())
            self._keep(header, memoryview(batch.rest), header.leader_epoch, batch.prefix)
        self.end_offset = offset
        self._epochs.append((leader_epoch, offset))

    def _append_own(self, data: bytes, leader_epoch: int) -> int:
        header = record_batch.read_header(data)
        self._store(header, memoryview(data)[PREFIX_SIZE:], leader_epoch)
        self._notify(len(data))
        return self.end_offset - header.last_offset_delta - 1

    def _validated(self, records: bytes) -> BatchHeader:
        try:
            header = record_batch.read_header(records)
        except UnsupportedVersionError as error:
            raise AppendError(error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from error
        except MalformedMessageError as error:
            raise AppendError(error_codes.CORRUPT_MESSAGE, str(error)) from error
        if header.size > self.settings.max_batch_bytes:
            raise AppendError(
                error_codes.MESSAGE_TOO_LARGE,
                f"a batch has {header.size} bytes, but max.message.bytes is {self.settings.max_batch_bytes}",
            )
        if header.size != len(records):
            raise AppendError(error_codes.INVALID_RECORD, "the request has more than one batch for a partition")
        if header.control:
            raise AppendError(error_codes.INVALID_RECORD, "only brokers write transaction markers")
        if header.producer_id >= 0 and header.base_sequence < 0:
            raise AppendError(error_codes.INVALID_RECORD, "a batch of an idempotent producer has no sequence number")
        if header.base_offset:
            raise AppendError(error_codes.INVALID_RECORD, "a producer's batch must start at offset 0")
        if not header.count or header.count != header.last_offset_delta + 1:
            raise AppendError(error_codes.INVALID_RECORD, "a producer's batch must have no gaps between its offsets")
        # Check only with a checksum function in C: in Python, the checksum of a batch would cost more than all other steps
        # together.
        if IS_NATIVE and not record_batch.has_valid_crc(records, header):
            raise AppendError(error_codes.CORRUPT_MESSAGE, "the checksum of a batch is wrong")
        return header

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the log has records of an open transaction of a producer in this epoch."""
        return producer_id in self._open_transactions and self.producers.epoch_of(producer_id) == producer_epoch

    def transaction_start(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction in this partition; -1 without one."""
        return self._open_transactions.get(producer_id, -1)

    def _check_transaction(self, header: BatchHeader, verified: bool) -> None:
        """Raise an error for a batch outside of a transaction (``analyzeAndValidateProducerState``)."""
        if header.transactional:
            if verified or self.has_ongoing_transaction(header.producer_id, header.producer_epoch):
                return
            self.producers.check_epoch(header.producer_id, header.producer_epoch)
            raise AppendError(error_codes.INVALID_TXN_STATE, "the batch is not part of an open transaction")
        if header.producer_id in self._open_transactions:
            self.producers.check(header)
            raise AppendError(error_codes.INVALID_TXN_STATE, "the producer has an open transaction in this partition")

    def _store(self, header: BatchHeader, rest: memoryview, leader_epoch: int) -> None:
        prefix = _PREFIX.pack(self.end_offset, header.size - record_batch.LOG_OVERHEAD, leader_epoch)
        if self._storage is not None:
            try:
                self._storage.append(self.end_offset, (prefix, rest))
            except OSError as error:
                raise AppendError(error_codes.KAFKA_STORAGE_ERROR, f"cannot write to the log: {error}") from error
        self._keep(header, rest, leader_epoch, prefix)

    def _keep(self, header: BatchHeader, rest: memoryview, leader_epoch: int, prefix: bytes | None = None) -> None:
        first = self.end_offset
        if not self._epochs or self._epochs[-1][0] < leader_epoch:
            self._epochs.append((leader_epoch, first))
        last = first + header.last_offset_delta
        if prefix is None:
            prefix = _PREFIX.pack(first, header.size - record_batch.LOG_OVERHEAD, leader_epoch)
        self._batches.append(_Batch(first, last, header.size, header.max_timestamp_ms, prefix, rest))
        self._last_offsets.append(last)
        self.size += header.size
        self.end_offset = last + 1
        if header.producer_id >= 0:
            self.producers.appended(header, first)
        if header.transactional:
            self._keep_transaction(self._batches[-1], header)

    def _keep_transaction(self, batch: _Batch, header: BatchHeader) -> None:
        """Record the beginning or the end of a transaction (``ProducerStateManager``, ``TransactionIndex``)."""
        if not header.control:
            self._open_transactions.setdefault(header.producer_id, batch.base_offset)
            return
        data = batch.to_bytes()
        (marker,) = record_batch.read_records(data, record_batch.read_header(data))
        self.producers.marked(header.producer_id, marker.coordinator_epoch)
        first = self._open_transactions.pop(header.producer_id, None)
        if first is not None and not marker.committed:
            self._aborted.append(AbortedTxn(header.producer_id, first, batch.last_offset))

    def delete_older(self, now_ms: int) -> None:
        """Delete the batches at the beginning whose records are all older than ``retention.ms``."""
        if self.settings.retention_ms < 0:
            return
        keep_from = 0
        while (
            keep_from < len(self._batches)
            and self._batches[keep_from].last_offset < self.last_stable_offset
            and self._batches[keep_from].max_timestamp_ms < now_ms - self.settings.retention_ms
        ):
            keep_from += 1
        if keep_from:
            self.delete_before(self._last_offsets[keep_from - 1] + 1)

    def compact(self, now_ms: int) -> None:
        """Keep only the last record of each key, and no record of an aborted transaction (Kafka's ``Cleaner``).

        Records of open transactions, and records younger than ``min.compaction.lag.ms``, do not take part, nor does the last
        batch. Offsets do not change, so the log has gaps. A record without value is removed when it is older than
        ``delete.retention.ms``. Batches that this module cannot decompress stay as they are.
        """
        stable = bisect_left(self._last_offsets, self.last_stable_offset)
        if self.settings.min_compaction_lag_ms:
            youngest_ms = now_ms - self.settings.min_compaction_lag_ms
            young = (index for index in range(stable) if self._batches[index].max_timestamp_ms > youngest_ms)
            stable = next(young, stable)
        until = min(stable, len(self._batches) - 1)
        read = [self._for_compaction(batch) for batch in self._batches[:stable]]
        latest = {record.key: record.offset for _, _, records in read for record in records or ()}

        def is_kept(record: Record) -> bool:
            if record.key is None or latest[record.key] != record.offset:
                return False
            return record.value is not None or record.timestamp_ms >= now_ms - self.settings.delete_retention_ms

        kept: list[_Batch] = []
        for batch, (data, header, records) in zip(self._batches[: max(until, 0)], read, strict=False):
            if self._is_aborted(batch, header):
                continue
            offsets = None if records is None else {record.offset for record in records if is_kept(record)}
            if offsets is None or len(offsets) == header.count:
                kept.append(batch)
            elif rebuilt := record_batch.filtered(data, header, offsets):
                kept.append(attrs.evolve(batch, size=len(rebuilt), prefix=rebuilt[:PREFIX_SIZE], rest=rebuilt[PREFIX_SIZE:]))
        kept += self._batches[max(until, 0) :]
        if self._storage is not None:
            self._storage.rewrite([(batch.base_offset, (batch.prefix, batch.rest)) for batch in kept])
        self._batches = kept
        self._last_offsets = [batch.last_offset for batch in kept]
        self.size = sum(batch.size for batch in kept)

    def _for_compaction(self, batch: _Batch) -> tuple[bytes, BatchHeader, list[Record] | None]:
        """Return a batch with its records; None if they do not take part: markers, aborted and unreadable records."""
        data = batch.to_bytes()
        header = record_batch.read_header(data)
        if header.control or self._is_aborted(batch, header):
            return data, header, None
        try:
            return data, header, record_batch.read_records(data, header)
        except (UnsupportedVersionError, MalformedMessageError):
            return data, header, None

    def _is_aborted(self, batch: _Batch, header: BatchHeader) -> bool:
        return (
            header.transactional
            and not header.control
            and any(
                one.producer_id == header.producer_id and one.first_offset <= batch.base_offset
                for one in self.aborted_transactions(batch.last_offset)
            )
        )

    def _notify(self, size: int) -> None:
        for callback in tuple(self.on_append.values()):
            callback(size)

    def _apply_retention(self) -> None:
        limit = self.settings.retention_bytes
        if limit < 0 or self.size <= limit:
            return
        # Delete an eighth of the log at a time, because removing the beginning of a list takes time.
        excess = self.size - limit * 7 // 8
        keep_from = 0
        while excess > 0 and keep_from < len(self._batches) - 1:
            excess -= self._batches[keep_from].size
            keep_from += 1
        self.delete_before(self._batches[keep_from].base_offset)

    # -- reading

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; without an open transaction, the end of the log.

        Retention may delete records of an open transaction; then this offset is the log start offset, as in Kafka.
        """
        return max(next(iter(self._open_transactions.values()), self.end_offset), self.log_start_offset)

    def aborted_transactions(self, offset: int) -> Sequence[AbortedTxn]:
        """Return the aborted transactions that end at or after ``offset``, in the order of their ends, as in Kafka.

        (Kafka omits transactions that begin after the next entry of its index. A log of a few kilobytes has no such entry.)
        """
        return self._aborted[bisect_left(self._aborted, offset, key=lambda one: one.last_offset) :]

    def available(self, offset: int, limit: int, before: int) -> int:
        """Return the number of bytes from ``offset`` to the offset ``before``, but stop counting at ``limit`` bytes."""
        total = 0
        for index in range(bisect_left(self._last_offsets, offset), len(self._batches)):
            if self._batches[index].last_offset >= before:
                break
            total += self._batches[index].size
            if total >= limit:
                break
        return total

    def read(self, offset: int, max_bytes: int, at_least_one: bool, before: int | None = None) -> bytes:
        """Return whole batches from the batch that contains ``offset``, until the offset ``before`` if given.

        Return at most ``max_bytes``. With ``at_least_one``, include the first batch even if it is larger, so that a reader
        makes progress.
        """
        parts: list[bytes | memoryview] = []
        size = 0
        for index in range(bisect_left(self._last_offsets, offset), len(self._batches)):
            batch = self._batches[index]
            size += batch.size
            if (size > max_bytes and (parts or not at_least_one)) or (before is not None and batch.last_offset >= before):
                break
            parts += (batch.prefix, batch.rest)
        return b"".join(parts)

    def records(self, offset: int = 0) -> Iterator[Record | MalformedMessageError]:
        """Iterate over all records at ``offset`` and above; for an unreadable batch, yield the error instead."""
        for index in range(bisect_left(self._last_offsets, offset), len(self._batches)):
            data = self._batches[index].to_bytes()
            try:
                yield from record_batch.read_records(data, record_batch.read_header(data))
            except MalformedMessageError as error:
                yield error
            except UnsupportedVersionError as error:
                yield MalformedMessageError(str(error))

    def offset_for(self, timestamp_ms: int) -> tuple[int, int, int]:
        """Return (offset, timestamp, leader epoch) of the first record at or after ``timestamp_ms``.

        All three are -1 if there is no such record. The constants of this module select the start, the end, or the newest
        record of the log. If Python cannot unpack a batch, return the first record of the batch.
        """
        if timestamp_ms == LATEST_TIMESTAMP:
            return self.end_offset, -1, self.epoch_at(self.end_offset)
        if timestamp_ms == EARLIEST_TIMESTAMP:
            return self.log_start_offset, -1, self.epoch_at(self.log_start_offset)
        if timestamp_ms == MAX_TIMESTAMP:
            if not self._batches:
                return -1, -1, -1
            timestamp_ms = max(batch.max_timestamp_ms for batch in self._batches)
        for batch in self._batches:
            if batch.max_timestamp_ms >= timestamp_ms:
                found = self._find_in(batch, timestamp_ms)
                if found is not None:
                    return (*found, self.epoch_at(found[0]))
        return -1, -1, -1

    def _find_in(self, batch: _Batch, timestamp_ms: int) -> tuple[int, int] | None:
        data = batch.to_bytes()
        try:
            records = record_batch.read_records(data, record_batch.read_header(data))
        except (MalformedMessageError, UnsupportedVersionError):
            return max(batch.base_offset, self.log_start_offset), batch.max_timestamp_ms
        for record in records:
            if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                return record.offset, record.timestamp_ms
        return None

    # -- leader epochs (KIP-101, KIP-320)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which ``offset`` was or will be written; -1 if the log never had a record."""
        index = bisect_right(self._epochs, offset, key=lambda entry: entry[1]) - 1
        return self._epochs[index][0] if index >= 0 else -1

    def end_offset_for(self, leader_epoch: int, current_epoch: int) -> tuple[int, int]:
        """Return (the greatest epoch up to ``leader_epoch``, its end offset), as ``LeaderEpochFileCache.endOffsetFor`` does.

        For an epoch before all known epochs, return this epoch and the start of the first known epoch. Both numbers are -1 if
        no epoch is known, or if the epoch is after the leader's ``current_epoch``.
        """
        if leader_epoch > current_epoch:
            return -1, -1
        index = bisect_right(self._epochs, leader_epoch, key=lambda entry: entry[0]) - 1
        if index < 0:
            return (leader_epoch, self._epochs[0][1]) if self._epochs and leader_epoch >= 0 else (-1, -1)
        end = self._epochs[index + 1][1] if index + 1 < len(self._epochs) else self.end_offset
        return self._epochs[index][0], end


def _check_keys(data: bytes, header: BatchHeader) -> None:
    """Raise an error if a record has no key; accept a batch that this module cannot decompress."""
    try:
        if any(record.key is None for record in record_batch.read_records(data, header)):
            raise AppendError(error_codes.INVALID_RECORD, "a record of a compacted topic must have a key")
    except MalformedMessageError as error:
        raise AppendError(error_codes.CORRUPT_MESSAGE, str(error)) from error
    except UnsupportedVersionError:
        return
