"""Errors of the Spark source."""

from __future__ import annotations

from consumer_coord.errors import FatalError


class CheckpointError(FatalError):
    """Raised if a checkpoint belongs to another group, cluster, version or source."""


class DataLossError(FatalError):
    """Raised if unread records no longer exist, and ``failOnDataLoss`` is on."""


class MissingTopicError(FatalError):
    """Raised if a run that ends (Trigger.AvailableNow, Trigger.Once), or a bounded read, names a topic that does not exist."""


class ReadStalledError(FatalError):
    """Raised if a task received no record for ``kafkaConsumer.pollTimeoutMs``, although the broker has records to read."""


class AsyncProgressError(FatalError):
    """Raised if Spark runs batches that are not in the checkpoint, because asynchronous progress tracking is on."""
