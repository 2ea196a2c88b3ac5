"""The idempotent and transactional producers of one partition: detect duplicate, missing and fenced batches.

In Kafka, this is ``ProducerStateManager`` with ``ProducerAppendInfo`` and ``VerificationStateEntry``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TypeVar

import attrs

from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.record_batch import BatchHeader
from consumer_coord.wire import error_codes

T = TypeVar("T")

#: Number of batches that an idempotent producer may have in flight on one connection. The broker detects a duplicate of each
#: such batch.
_REMEMBERED_BATCHES = 5
#: Maximum number of producers. Above this number, the producer whose last write is the oldest is removed.
_MAX_PRODUCERS = 10_000
_NO_PRODUCER = -1


@attrs.define
class _Producer:
    epoch: int
    last_sequence: int = -1
    last_timestamp_ms: int = -1
    #: The epoch of the coordinator that wrote the last marker.
    coordinator_epoch: int = -1
    #: (first sequence number, last sequence number, base offset) of the last batches
    batches: deque[tuple[int, int, int]] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))


@attrs.define
class _Verification:
    """A producer's first batch of a transaction, from the request to the transaction coordinator to the append (KIP-890)."""

    epoch: int
    lowest_sequence: int
    #: Whether the request also added the partition to the transaction.
    adds_partition: bool


@attrs.frozen
class DescribedProducer:
    """What DescribeProducers tells about a producer; without a value, -1."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int


class ProducerStates:
    """The state of the producers that write to a partition."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._verifications: OrderedDict[int, _Verification] = OrderedDict()

    def epoch_of(self, producer_id: int) -> int:
        """Return the epoch of a producer's last write; -1 for an unknown producer."""
        producer = self._producers.get(producer_id)
        return -1 if producer is None else producer.epoch

    def described(self) -> Iterator[DescribedProducer]:
        """Iterate over all producers that have written."""
        for producer_id, one in self._producers.items():
            yield DescribedProducer(producer_id, one.epoch, one.last_sequence, one.last_timestamp_ms, one.coordinator_epoch)

    def duplicate_of(self, header: BatchHeader) -> int | None:
        """Return the base offset of a batch if it was already appended; return None for a new batch."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        for first, last, base_offset in producer.batches:
            if first == header.base_sequence and last == header.last_sequence:
                return base_offset
        return None

    def begin_verification(self, producer_id: int, epoch: int, sequence: int, adds_partition: bool) -> None:
        """Record that the broker asks the transaction coordinator about a producer's batch.

        Raise :class:`~consumer_coord.broker.errors.AppendError` for a fenced producer.
        """
        self.check_epoch(producer_id, epoch)
        entry = self._verifications.get(producer_id)
        if entry is None:
            entry = self._verifications[producer_id] = _Verification(epoch, sequence, adds_partition)
            _limit(self._verifications)
        elif epoch > entry.epoch or (epoch == entry.epoch and sequence < entry.lowest_sequence):
            entry.epoch, entry.lowest_sequence = epoch, sequence

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise :class:`~consumer_coord.broker.errors.AppendError` for a fenced producer."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise AppendError(
                error_codes.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {producer.epoch}, not {epoch}: it was fenced",
            )

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Raise :class:`~consumer_coord.broker.errors.AppendError` for a fenced producer, and for a former coordinator."""
        self.check_epoch(producer_id, epoch)
        producer = self._producers.get(producer_id)
        if producer is not None and coordinator_epoch < producer.coordinator_epoch:
            raise AppendError(
                error_codes.TRANSACTION_COORDINATOR_FENCED,
                f"a coordinator of epoch {producer.coordinator_epoch} wrote the last marker, not {coordinator_epoch}",
            )

    def marked(self, producer_id: int, coordinator_epoch: int) -> None:
        """Record the epoch of the coordinator that wrote a producer's marker, which is in the log."""
        self._producers[producer_id].coordinator_epoch = coordinator_epoch

    def check(self, header: BatchHeader) -> None:
        """Raise :class:`~consumer_coord.broker.errors.AppendError` for a fenced producer or a wrong sequence number."""
        if header.producer_id == _NO_PRODUCER:
            return
        self.check_epoch(header.producer_id, header.producer_epoch)
        producer = self._producers.get(header.producer_id)
        sequence = header.base_sequence
        verification = self._verifications.get(header.producer_id)
        if verification is not None:
            is_new = producer is None or not producer.batches
            if (verification.adds_partition and is_new and sequence) or sequence > verification.lowest_sequence:
                raise _out_of_order(header, 0 if is_new else verification.lowest_sequence)
        if producer is None or producer.epoch < 0:
            return  # The producer is new or was removed, or has no epoch: accept any sequence number.
        expected = 0 if header.producer_epoch > producer.epoch else (producer.last_sequence + 1) & 0x7FFFFFFF
        if sequence != expected:
            raise _out_of_order(header, expected)

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Record that a batch is in the log."""
        if header.producer_id == _NO_PRODUCER:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            before = -1 if producer is None else producer.coordinator_epoch
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, coordinator_epoch=before)
        producer.last_timestamp_ms = header.max_timestamp_ms
        if header.base_sequence >= 0:
            producer.last_sequence = header.last_sequence
            producer.batches.append((header.base_sequence, header.last_sequence, base_offset))
        self._producers.move_to_end(header.producer_id)
        _limit(self._producers)
        if self._verifications and header.transactional:
            self._end_verification(header)

    def _end_verification(self, header: BatchHeader) -> None:
        entry = self._verifications.get(header.producer_id)
        # The marker of a transaction may come after the first request of the next transaction, which has the marker's epoch.
        if entry is not None and not (entry.adds_partition and header.control and header.producer_epoch == entry.epoch):
            del self._verifications[header.producer_id]


def _limit(states: OrderedDict[int, T]) -> None:
    if len(states) > _MAX_PRODUCERS:
        states.popitem(last=False)


def _out_of_order(header: BatchHeader, expected: int) -> AppendError:
    return AppendError(
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence number {header.base_sequence} instead of {expected}",
    )
