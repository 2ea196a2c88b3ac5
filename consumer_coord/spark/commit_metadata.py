"""The metadata string of a commit: the id of the offset's topic (KIP-516), for members that join later.

Kafka itself keeps only the topic's name.
"""

from __future__ import annotations

import re
import uuid

from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.spark.ledger import PlannedCommit

_METADATA = re.compile(r"kafka_group id=([0-9a-f-]{36})")


def with_topic_id(commit: PlannedCommit) -> OffsetAndMetadata:
    """Return the commit with the id of its topic as metadata."""
    return OffsetAndMetadata(commit.offset, metadata=f"kafka_group id={commit.topic_id}")


def topic_id_of(metadata: str) -> uuid.UUID | None:
    """Return the id that :func:`with_topic_id` wrote, or None for a commit of another client."""
    found = _METADATA.fullmatch(metadata)
    return None if found is None else uuid.UUID(found[1])
