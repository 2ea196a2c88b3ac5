"""The state of one transactional id, as a value: each request returns the next state, or raises the error for the client.

The rules are those of Kafka 4.4 (``TransactionCoordinator``, ``TransactionMetadata``) with ``transaction.version`` 2 (KIP-890).
A client of version 2 adds partitions implicitly, and every end of a transaction increments its epoch. An older client keeps its
epoch, and sends AddPartitionsToTxn.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from consumer_coord.broker.errors import TransactionError
from consumer_coord.topic_partition import grouped
from consumer_coord.wire import error_codes
from consumer_coord.wire.transaction_records import TransactionLogPartitions, TransactionLogValue

#: The versions of the feature ``transaction.version`` that clients use here: before KIP-890, and with it.
OLD_CLIENT = 0
NEW_CLIENT = 2

NO_ID = -1
NO_EPOCH = -1
#: Clients do not get the last epoch, so that the coordinator can always fence them.
_LAST_EPOCH = 32_766


class TransactionState(enum.Enum):
    """The states, with their numbers in the log (``TransactionState``)."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    #: States that Kafka never stores; here they are only names for the filters of ListTransactions.
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    @property
    def number(self) -> int:
        """The number in a record of ``__transaction_state``."""
        return self.value[0]

    @property
    def text(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return self.value[1]


_BY_NUMBER = {state.number: state for state in TransactionState}
_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@attrs.frozen
class ProducerEpoch:
    """The id and the epoch of a producer."""

    producer_id: int
    epoch: int


@attrs.frozen
class Transaction:
    """A transactional id, its producer, and the partitions of its open transaction. Times are in milliseconds."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    #: The producer id before the last change.
    previous_producer_id: int = NO_ID
    #: The producer id after the transaction, if its epochs are exhausted.
    next_producer_id: int = NO_ID
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[tuple[str, int]] = frozenset()
    start_ms: int = -1
    client_version: int = OLD_CLIENT

    @property
    def is_prepared(self) -> bool:
        """Whether the end of the transaction is decided, but some partitions do not have its marker yet."""
        return self.state in _PREPARED

    @property
    def is_committed(self) -> bool:
        """Whether the last transaction was committed; True as soon as this is decided."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def has_timed_out(self, now_ms: int) -> bool:
        """Return whether the coordinator must abort the open transaction."""
        return self.state is TransactionState.ONGOING and self.start_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Return whether the transactional id was not used for so long that the coordinator forgets it."""
        idle = self.state is not TransactionState.ONGOING and not self.is_prepared
        return idle and self.last_update_ms <= now_ms - expiration_ms

    # -- the requests

    def initialized(
        self, timeout_ms: int, expected: ProducerEpoch | None, now_ms: int, new_producer_id: Callable[[], int]
    ) -> Transaction:
        """Return the state after InitProducerId without an open transaction; ``expected`` is the producer in the request."""
        self.check_expected(expected)
        if self.is_prepared:
            raise _concurrent(self)
        if self._is_exhausted and (expected is None or expected.epoch == self.producer_epoch):
            producer_id, epoch = new_producer_id(), 0
            last = NO_EPOCH if expected is None else self.producer_epoch
        else:
            producer_id = self.producer_id
            epoch, last = self._incremented(expected)
        return self._to(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
        )

    def check_expected(self, expected: ProducerEpoch | None) -> None:
        """Raise :class:`~consumer_coord.broker.errors.TransactionError` if InitProducerId names an unknown producer."""
        if not (
            expected is None
            or self.producer_epoch == NO_EPOCH
            or expected.producer_id == self.producer_id
            # The repeated request of a producer that did not receive its new producer id.
            or (expected.producer_id == self.previous_producer_id and expected.epoch >= _LAST_EPOCH)
        ):
            raise _fenced(self, expected.epoch)

    def _incremented(self, expected: ProducerEpoch | None) -> tuple[int, int]:
        """Return (epoch, last epoch) after InitProducerId (``prepareIncrementProducerEpoch``)."""
        if self._is_exhausted:
            raise TransactionError(error_codes.UNKNOWN_SERVER_ERROR, f"no epoch is left for producer {self.producer_id}")
        if expected is None:
            return self.producer_epoch + 1, NO_EPOCH
        if self.producer_epoch in (NO_EPOCH, expected.epoch):
            return self.producer_epoch + 1, self.producer_epoch
        if expected.epoch == self.last_producer_epoch:
            return self.producer_epoch, self.last_producer_epoch  # A repeated request.
        raise _fenced(self, expected.epoch)

    def with_partitions(
        self, producer: ProducerEpoch, partitions: frozenset[tuple[str, int]], now_ms: int, client_version: int
    ) -> Transaction:
        """Return the state after AddPartitionsToTxn or AddOffsetsToTxn; ``self`` if the partitions were added before."""
        self.check(producer)
        if self.state is TransactionState.ONGOING and partitions <= self.partitions:
            return self
        return self._to(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            client_version=client_version,
        )

    def check(self, producer: ProducerEpoch) -> None:
        """Raise :class:`~consumer_coord.broker.errors.TransactionError` unless this producer may write in a transaction."""
        if self.producer_id != producer.producer_id:
            raise _of_other_producer(self, producer.producer_id)
        if self.producer_epoch != producer.epoch:
            raise _fenced(self, producer.epoch)
        if self.is_prepared:
            raise _concurrent(self)

    def fenced(self, now_ms: int, new_producer_id: Callable[[], int]) -> Transaction:
        """Return the state after the coordinator itself aborts the open transaction, whose producer it fences."""
        return self._prepared(False, NEW_CLIENT, now_ms, new_producer_id)

    def ended(
        self,
        producer: ProducerEpoch,
        committed: bool,
        now_ms: int,
        client_version: int,
        new_producer_id: Callable[[], int],
    ) -> Transaction:
        """Return the state after EndTxn; ``self`` for a repeated request."""
        if client_version == OLD_CLIENT:
            return self._ended_by_old_client(producer, committed, now_ms, new_producer_id)
        overflowed = (
            self.previous_producer_id == producer.producer_id and producer.epoch == _LAST_EPOCH and self.producer_epoch == 0
        )
        repeated = overflowed or self.producer_epoch == producer.epoch + 1
        if self.producer_id != producer.producer_id and not overflowed:
            raise _of_other_producer(self, producer.producer_id)
        is_complete = self.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        if not (
            (self.producer_epoch == producer.epoch and not self.is_prepared)
            or (self.producer_epoch == producer.epoch + 1 and self.is_prepared)
            or (repeated and is_complete)
        ):
            raise _fenced(self, producer.epoch)
        if self.state is TransactionState.ONGOING:
            return self._prepared(committed, client_version, now_ms, new_producer_id)
        if self.is_prepared and committed == self.is_committed:
            raise _concurrent(self)
        if repeated and is_complete and committed == self.is_committed:
            return self
        if repeated or committed:
            raise self._invalid_end(committed)
        # The client aborts a transaction to which the coordinator did not add a partition.
        return self._prepared(False, client_version, now_ms, new_producer_id, start_ms=now_ms)

    def _ended_by_old_client(
        self, producer: ProducerEpoch, committed: bool, now_ms: int, new_producer_id: Callable[[], int]
    ) -> Transaction:
        if self.producer_id != producer.producer_id:
            raise _of_other_producer(self, producer.producer_id)
        if self.producer_epoch != producer.epoch:
            raise _fenced(self, producer.epoch)
        if self.state is TransactionState.ONGOING:
            return self._prepared(committed, OLD_CLIENT, now_ms, new_producer_id)
        if self.state is TransactionState.EMPTY or committed != self.is_committed:
            raise self._invalid_end(committed)
        if self.is_prepared:
            raise _concurrent(self)
        return self

    def completed(self, now_ms: int) -> Transaction:
        """Return the state after all partitions have the marker."""
        overflowed = self.client_version == NEW_CLIENT and self.next_producer_id != NO_ID
        return self._to(
            TransactionState.COMPLETE_COMMIT if self.is_committed else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer_id=self.next_producer_id if overflowed else self.producer_id,
            producer_epoch=0 if overflowed else self.producer_epoch,
            next_producer_id=NO_ID,
            partitions=frozenset(),
        )

    def without(self, done: Iterable[tuple[str, int]]) -> Transaction:
        """Return the state after these partitions have the marker, which Kafka does not store."""
        return attrs.evolve(self, partitions=self.partitions.difference(done))

    # -- the record

    def to_value(self) -> TransactionLogValue:
        """Return the record's value."""
        by_topic = grouped(sorted(self.partitions))
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state.number,
            transaction_partitions=(
                None
                if self.state is TransactionState.EMPTY
                else tuple(TransactionLogPartitions(topic, tuple(indexes)) for topic, indexes in by_topic.items())
            ),
            transaction_last_update_timestamp_ms=self.last_update_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.client_version,
        )

    @classmethod
    def from_value(cls, transactional_id: str, value: TransactionLogValue) -> Transaction:
        """Return the state in a record; raise :class:`KeyError` for an unknown state."""
        return cls(
            transactional_id,
            value.producer_id,
            value.transaction_timeout_ms,
            value.transaction_last_update_timestamp_ms,
            producer_epoch=value.producer_epoch,
            # As in Kafka: the log does not have the last epoch.
            last_producer_epoch=NO_EPOCH,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            state=_BY_NUMBER[value.transaction_status],
            partitions=frozenset(
                (topic.topic, index) for topic in value.transaction_partitions or () for index in topic.partition_ids
            ),
            start_ms=value.transaction_start_timestamp_ms,
            client_version=value.client_transaction_version,
        )

    # -- helpers

    @property
    def _is_exhausted(self) -> bool:
        return self.producer_epoch >= _LAST_EPOCH

    def _prepared(
        self,
        committed: bool,
        client_version: int,
        now_ms: int,
        new_producer_id: Callable[[], int],
        start_ms: int | None = None,
    ) -> Transaction:
        bumps = client_version == NEW_CLIENT
        return self._to(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=min(self.producer_epoch + bumps, _LAST_EPOCH + 1),
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            next_producer_id=new_producer_id() if bumps and self._is_exhausted else NO_ID,
            client_version=client_version,
            start_ms=self.start_ms if start_ms is None else start_ms,
        )

    def _to(self, state: TransactionState, now_ms: int, **changes: Any) -> Transaction:
        return attrs.evolve(self, state=state, last_update_ms=now_ms, previous_producer_id=self.producer_id, **changes)

    def _invalid_end(self, committed: bool) -> TransactionError:
        end = "commit" if committed else "abort"
        return TransactionError(
            error_codes.INVALID_TXN_STATE, f"transaction {self.transactional_id} cannot {end} in the state {self.state.text}"
        )


def _concurrent(transaction: Transaction) -> TransactionError:
    return TransactionError(
        error_codes.CONCURRENT_TRANSACTIONS, f"the end of transaction {transaction.transactional_id} is not complete: retry"
    )


def _of_other_producer(transaction: Transaction, producer_id: int) -> TransactionError:
    return TransactionError(
        error_codes.INVALID_PRODUCER_ID_MAPPING,
        f"the transactional id has the producer id {transaction.producer_id}, but the request names {producer_id}",
    )


def _fenced(transaction: Transaction, epoch: int) -> TransactionError:
    return TransactionError(
        error_codes.PRODUCER_FENCED,
        f"transaction {transaction.transactional_id} has the epoch {transaction.producer_epoch}, not {epoch}",
    )
