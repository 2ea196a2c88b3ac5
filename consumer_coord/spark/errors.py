"""Errors between Spark's bookkeeping and Kafka's."""

from __future__ import annotations

from consumer_coord.errors import FatalError


class CheckpointError(FatalError):
    """A checkpoint does not belong to this query: another group, cluster, version, or another source."""


class DataLossError(FatalError):
    """Records that the group has not read are gone, and ``failOnDataLoss`` is on."""


class ReadStalledError(FatalError):
    """A task waited ``kafkaConsumer.pollTimeoutMs`` for records that the broker had promised."""


class AsyncProgressError(FatalError):
    """Spark runs batches that its checkpoint does not hold: asynchronous progress tracking is on."""
