"""Committed positions, and the outcome of a commit."""

from __future__ import annotations

from collections.abc import Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class OffsetAndMetadata:
    """A committed position: the next ``offset`` to read, with ``leader_epoch`` and ``metadata``.

    ``leader_epoch`` is the leader epoch of the last record read (KIP-320; -1 if unknown); ``metadata`` is any text of the
    application.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


#: Partition -> None if committed, otherwise the error.
CommitResult = Mapping[TopicPartition, CoordinatorError | None]
