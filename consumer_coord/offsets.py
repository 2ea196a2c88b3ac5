"""Committed positions, and the outcome of a commit."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from consumer_coord.errors import CoordinatorError
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class OffsetAndMetadata:
    """A committed position: the next ``offset`` to read, the ``leader_epoch`` of the last record read (KIP-320, -1 if
    unknown), and any ``metadata`` of the application's."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


#: partition -> None when committed, else why not.
CommitResult = Mapping[TopicPartition, CoordinatorError | None]
