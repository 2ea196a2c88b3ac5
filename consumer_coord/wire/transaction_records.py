"""The records of ``__transaction_state`` in Kafka's format (``TransactionLogKey``, ``TransactionLogValue``)."""

from __future__ import annotations

from collections.abc import Sequence

from consumer_coord.wire.schema import INT8, INT16, INT32, INT64, STRING, Struct, array, field


class TransactionLogKey(Struct, versions="0"):
    """The key of a transaction's state."""

    transactional_id: str = field(STRING)


class TransactionLogPartitions(Struct):
    topic: str = field(STRING)
    partition_ids: Sequence[int] = field(array(INT32))


class TransactionLogValue(Struct, versions="0-1", flexible="1+"):
    """A transaction's state; the version of the client is that of the feature ``transaction.version``."""

    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, "1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = field(INT64, "1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = field(INT16)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: Sequence[TransactionLogPartitions] | None = field(
        array(TransactionLogPartitions), nullable="0+", default=None
    )
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, "1+", tag=2, ignorable=True)
