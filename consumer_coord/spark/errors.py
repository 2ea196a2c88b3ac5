"""Errors of the Spark source."""

from __future__ import annotations

from consumer_coord.errors import FatalError


class CheckpointError(FatalError):
    """Raised if a checkpoint belongs to another group, cluster, version or source."""


class DataLossError(FatalError):
    """Raised if unread records no longer exist, and ``failOnDataLoss`` is on."""


class ReadStalledError(FatalError):
    """Raised if a task waited ``kafkaConsumer.pollTimeoutMs`` for records that exist according to the broker."""


class AsyncProgressError(FatalError):
    """Raised if Spark runs batches that are not in the checkpoint: asynchronous progress tracking is on."""
