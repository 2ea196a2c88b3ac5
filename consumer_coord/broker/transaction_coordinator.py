"""The transaction coordinator of one broker: it stores transactions in ``__transaction_state``, and writes their markers.

In Kafka, this is ``TransactionCoordinator``, ``TransactionStateManager`` and ``TransactionMarkerChannelManager``. All code runs
on one event loop, and an append takes no time. So a transaction usually ends within one request; only if a marker cannot be
written at once, because a partition has no leader or the disk is full, the transaction stays prepared until a retry succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Protocol

import attrs

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.errors import AppendError, TransactionError
from consumer_coord.broker.group_store import response_error
from consumer_coord.broker.java_hash import partition_for
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import DelayedOperation, Purgatory
from consumer_coord.broker.transaction import ProducerEpoch, Transaction, TransactionState
from consumer_coord.errors import CoordinatorError, MalformedMessageError
from consumer_coord.log_text import get_logger
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_at
from consumer_coord.wire.offsets_topic import decode_versioned, encode_versioned, version_of
from consumer_coord.wire.transaction_records import TransactionLogKey, TransactionLogValue

logger: Final = get_logger(__name__)

TRANSACTION_STATE_TOPIC = "__transaction_state"

_KEY_VERSION = 0
_VALUE_VERSION = 1
_VERSION_BYTES = 2
_MARKER_RETRY_MS = 100
#: A partition of ``__transaction_state`` is compacted when its size exceeds twice its last compacted size plus this number of
#: bytes.
_COMPACT_AT = 4 << 20


class Cluster(Protocol):
    """What the coordinator needs from its cluster."""

    def next_producer_id(self) -> int:
        """Return a new producer id."""

    def append_error(self) -> int:
        """Return the error code with which every append fails at present, or 0."""

    def write_marker(self, topic: str, partition: int, ended: Transaction, coordinator_epoch: int) -> bool:
        """Write the marker of a prepared transaction; return False if this is not possible at present."""


@attrs.define(eq=False)
class _Shard:
    """A partition of ``__transaction_state`` that this broker leads, and its transactions by transactional id."""

    log: PartitionLog
    leader_epoch: int
    transactions: dict[str, Transaction] = attrs.field(factory=dict)
    compact_at: int = _COMPACT_AT


class TransactionCoordinator:
    """The transactions of one broker; refused requests raise :class:`~consumer_coord.broker.errors.TransactionError`."""

    def __init__(self, config: BrokerConfig, cluster: Cluster, purgatory: Purgatory, wall_clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._cluster = cluster
        self._purgatory = purgatory
        self._wall_clock_ms = wall_clock_ms
        self._shards: dict[int, _Shard] = {}
        self._check: DelayedOperation | None = None
        self._retry: DelayedOperation | None = None

    # -- partitions of __transaction_state

    def on_election(self, partition: int, log: PartitionLog, leader_epoch: int) -> None:
        """Begin to lead a partition: load its transactions, and complete those whose end was decided."""
        shard = self._shards[partition] = _Shard(log, leader_epoch)
        for record in log.records():
            if isinstance(record, MalformedMessageError):
                self._skipped(partition, record)
                continue
            try:
                _replay(shard.transactions, record.key, record.value)
            except (CoordinatorError, KeyError) as error:
                self._skipped(partition, error)
        for transaction in tuple(shard.transactions.values()):
            if transaction.is_prepared:
                self._complete(shard, transaction)
        self._watch()

    def _skipped(self, partition: int, error: Exception) -> None:
        logger.warning("skipped a record of %s-%d: %s", TRANSACTION_STATE_TOPIC, partition, error)

    def on_resignation(self, partition: int) -> None:
        """Stop leading a partition."""
        self._shards.pop(partition, None)

    def close(self) -> None:
        """Stop leading all partitions, and stop all timers."""
        self._shards.clear()
        for operation in (self._check, self._retry):
            self._purgatory.cancel(operation)
        self._check = self._retry = None

    # -- requests of producers

    def init_producer_id(self, transactional_id: str, timeout_ms: int, expected: ProducerEpoch | None) -> ProducerEpoch:
        """Handle InitProducerId: fence former producers of the transactional id, and return the new producer's id and epoch."""
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise TransactionError(
                error_codes.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms must be between 1 and {self._config.transaction_max_timeout_ms}, not {timeout_ms}",
            )
        shard = self._shard(transactional_id)
        now_ms = self._wall_clock_ms()
        present = shard.transactions.get(transactional_id)
        if present is None:
            present = Transaction(transactional_id, self._cluster.next_producer_id(), timeout_ms, now_ms)
        if present.state is TransactionState.ONGOING:
            present.check_expected(expected)
            self._end(shard, present.fenced(now_ms, self._cluster.next_producer_id))
            raise TransactionError(error_codes.CONCURRENT_TRANSACTIONS, "an open transaction was aborted: retry")
        initialized = present.initialized(timeout_ms, expected, now_ms, self._cluster.next_producer_id)
        self._store(shard, initialized)
        self._watch()
        return ProducerEpoch(initialized.producer_id, initialized.producer_epoch)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: Collection[tuple[str, int]],
        client_version: int,
    ) -> None:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn: begin a transaction, or add partitions to it."""
        shard, present = self._find(transactional_id)
        added = present.with_partitions(producer, frozenset(partitions), self._wall_clock_ms(), client_version)
        if added is not present:
            self._store(shard, added)

    def verify(
        self, transactional_id: str, producer: ProducerEpoch, partitions: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], int]:
        """Return for each partition 0 if it is in the transaction, otherwise an error code (KIP-890)."""
        _, present = self._find(transactional_id)
        present.check(producer)
        return {one: error_codes.NONE if one in present.partitions else error_codes.TRANSACTION_ABORTABLE for one in partitions}

    def end(self, transactional_id: str, producer: ProducerEpoch, committed: bool, client_version: int) -> ProducerEpoch:
        """Handle EndTxn; return the producer's id and epoch for its next transaction."""
        shard, present = self._find(transactional_id)
        ended = present.ended(producer, committed, self._wall_clock_ms(), client_version, self._cluster.next_producer_id)
        if ended is not present:
            self._end(shard, ended)
            ended = ended.completed(0)
        return ProducerEpoch(ended.producer_id, ended.producer_epoch)

    # -- requests of administrators

    def describe(self, transactional_id: str) -> Transaction:
        """Return the state of a transactional id."""
        if not transactional_id:
            raise TransactionError(error_codes.INVALID_REQUEST, "the transactional id is empty")
        found = self._shard(transactional_id).transactions.get(transactional_id)
        if found is None:
            raise TransactionError(error_codes.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id}")
        return found

    def list(
        self, states: Collection[str], producer_ids: Collection[int], duration_ms: int, pattern: str | None
    ) -> Iterator[Transaction]:
        """Iterate over the transactions of this broker that match all filters; an empty filter matches every transaction."""
        try:
            matches = re.compile(pattern or ".*", re.DOTALL).fullmatch
        except re.error as error:
            raise TransactionError(error_codes.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is no pattern: {error}") from error
        now_ms = self._wall_clock_ms()
        for transaction in self._all():
            if (
                (not states or transaction.state.text in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
                and matches(transaction.transactional_id)
            ):
                yield transaction

    # -- finding

    def _shard(self, transactional_id: str) -> _Shard:
        partition = partition_for(transactional_id, self._config.transaction_state_log_num_partitions)
        shard = self._shards.get(partition)
        if shard is None:
            raise TransactionError(
                error_codes.NOT_COORDINATOR, f"this broker is not the coordinator of {transactional_id}: find the coordinator"
            )
        return shard

    def _find(self, transactional_id: str) -> tuple[_Shard, Transaction]:
        if not transactional_id:
            raise TransactionError(error_codes.INVALID_REQUEST, "the transactional id is empty")
        shard = self._shard(transactional_id)
        found = shard.transactions.get(transactional_id)
        if found is None:
            raise TransactionError(
                error_codes.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id}: send InitProducerId"
            )
        return shard, found

    def _all(self) -> Sequence[Transaction]:
        return [one for shard in self._shards.values() for one in shard.transactions.values()]

    # -- writing

    def _store(self, shard: _Shard, transaction: Transaction) -> None:
        self._append(shard, [_record(transaction)])
        shard.transactions[transaction.transactional_id] = transaction
        if shard.log.size > shard.compact_at:
            self._compact(shard)

    def _append(self, shard: _Shard, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records; raise :class:`~consumer_coord.broker.errors.TransactionError` if this fails."""
        code = self._cluster.append_error()
        try:
            if code:
                raise AppendError(code, "the disk is full")
            shard.log.append_records(records, self._wall_clock_ms(), shard.leader_epoch)
        except AppendError as error:
            raise TransactionError(response_error(error.code), str(error)) from error

    def _compact(self, shard: _Shard) -> None:
        """Append the current state of all transactions again, and delete all earlier records."""
        start = shard.log.end_offset
        try:
            self._append(shard, [_record(transaction) for transaction in shard.transactions.values()])
        except TransactionError as error:
            logger.warning("a partition of %s was not compacted: %s", TRANSACTION_STATE_TOPIC, error)
            return
        shard.log.delete_before(start)
        shard.compact_at = 2 * shard.log.size + _COMPACT_AT

    def _end(self, shard: _Shard, prepared: Transaction) -> None:
        self._store(shard, prepared)
        self._complete(shard, prepared)

    def _complete(self, shard: _Shard, prepared: Transaction) -> None:
        """Write the markers of a prepared transaction; if one cannot be written now, retry later."""
        left = prepared.without(
            [one for one in sorted(prepared.partitions) if self._cluster.write_marker(*one, prepared, shard.leader_epoch)]
        )
        shard.transactions[prepared.transactional_id] = left
        if not left.partitions:
            try:
                self._store(shard, left.completed(self._wall_clock_ms()))
            except TransactionError as error:
                logger.debug("transaction %s is not complete yet: %s", prepared.transactional_id, error)
            else:
                return
        if self._retry is None:
            self._retry = self._purgatory.schedule(_MARKER_RETRY_MS, self._retry_all)

    def _retry_all(self) -> None:
        self._retry = None
        for shard in self._shards.values():
            for transaction in tuple(shard.transactions.values()):
                if transaction.is_prepared:
                    self._complete(shard, transaction)

    # -- time-outs

    def _watch(self) -> None:
        """Look for time-outs from time to time, while there are transactional ids."""
        if self._check is None and any(shard.transactions for shard in self._shards.values()):
            interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            self._check = self._purgatory.schedule(interval_ms, self._abort_timed_out)

    def _abort_timed_out(self) -> None:
        self._check = None
        now_ms = self._wall_clock_ms()
        for shard in self._shards.values():
            for transaction in tuple(shard.transactions.values()):
                try:
                    if transaction.has_timed_out(now_ms):
                        self._end(shard, transaction.fenced(now_ms, self._cluster.next_producer_id))
                    elif transaction.has_expired(now_ms, self._config.transactional_id_expiration_ms):
                        self._append(shard, [(_key(transaction.transactional_id), None)])
                        del shard.transactions[transaction.transactional_id]
                except TransactionError as error:
                    logger.warning("transaction %s was not aborted or removed: %s", transaction.transactional_id, error)
        self._watch()


def _key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id), _KEY_VERSION)


def _record(transaction: Transaction) -> tuple[bytes, bytes | None]:
    return _key(transaction.transactional_id), encode_versioned(transaction.to_value(), _VALUE_VERSION)


def _replay(transactions: dict[str, Transaction], key: bytes | None, value: bytes | None) -> None:
    """Apply a record; raise an error for an invalid record, or a record of a later version."""
    if key is None:
        raise MalformedMessageError("the record has no key")
    transactional_id = decode_at(TransactionLogKey, version_of(key), key, _VERSION_BYTES)[0].transactional_id
    if value is None:
        transactions.pop(transactional_id, None)
    else:
        transactions[transactional_id] = Transaction.from_value(transactional_id, decode_versioned(TransactionLogValue, value))
