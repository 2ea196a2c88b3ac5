"""The idempotent producers of one partition: detect duplicate and missing batches (``ProducerStateManager``)."""

from __future__ import annotations

from collections import OrderedDict, deque

import attrs

from consumer_coord.broker.errors import AppendError
from consumer_coord.broker.record_batch import BatchHeader
from consumer_coord.wire import error_codes

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
    #: (first sequence number, last sequence number, base offset) of the last batches
    batches: deque[tuple[int, int, int]] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))


class ProducerStates:
    """The state of the idempotent producers that write to a partition."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def duplicate_of(self, header: BatchHeader) -> int | None:
        """Return the base offset of a batch if it was already appended; return None for a new batch."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        for first, last, base_offset in producer.batches:
            if first == header.base_sequence and last == header.last_sequence:
                return base_offset
        return None

    def check(self, header: BatchHeader) -> None:
        """Raise :class:`~consumer_coord.broker.errors.AppendError` for a fenced producer or a wrong sequence number."""
        if header.producer_id == _NO_PRODUCER:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return  # The producer is new or was removed: accept any sequence number.
        if header.producer_epoch < producer.epoch:
            raise AppendError(
                error_codes.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {producer.epoch}, not {header.producer_epoch}",
            )
        expected = 0 if header.producer_epoch > producer.epoch else (producer.last_sequence + 1) & 0x7FFFFFFF
        if header.base_sequence != expected:
            raise AppendError(
                error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence number {header.base_sequence} instead of {expected}",
            )

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Record that a batch is in the log."""
        if header.producer_id == _NO_PRODUCER or header.base_sequence < 0:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        producer.last_sequence = header.last_sequence
        producer.batches.append((header.base_sequence, header.last_sequence, base_offset))
        self._producers.move_to_end(header.producer_id)
        if len(self._producers) > _MAX_PRODUCERS:
            self._producers.popitem(last=False)
