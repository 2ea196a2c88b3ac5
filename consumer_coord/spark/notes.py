"""What a commit's metadata note for the members that come later: of which topic it is, and since when the group reads that."""

from __future__ import annotations

import re
import uuid

import attrs

from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.spark.planner import PlannedCommit


@attrs.frozen
class Note:
    """``count``: how many partitions the topic had when the group began to read it, 0 if it came later than the group.

    ``topic_id``: the topic that the committed offset is of (KIP-516); Kafka itself keeps the topic's name alone.
    """

    count: int
    topic_id: uuid.UUID


_NOTE = re.compile(r"kafka_group n=(\d{1,9}) id=([0-9a-f-]{36})")


def position(commit: PlannedCommit) -> OffsetAndMetadata:
    """A commit as Kafka has it, with its note."""
    return OffsetAndMetadata(commit.offset, metadata=f"kafka_group n={commit.count} id={commit.topic_id}")


def note_of(metadata: str) -> Note | None:
    """What :func:`position` noted, None in a commit of another client."""
    found = _NOTE.fullmatch(metadata)
    return None if found is None else Note(int(found[1]), uuid.UUID(found[2]))
