"""Offsets in Spark's checkpoint, version 1. An offset contains everything that a replay of a recorded batch needs.

    {"v": 1, "group": "billing", "cluster": "<cluster id>",
     "topics": {"orders": {"id": "<topic id>", "p": {"0": [from, to, generation]}}}}

The *end* offset of a batch names every partition that the query owned when it planned the batch, with the group's generation.
The range is ``[from, to)`` if the partition had data, and ``[to, to]`` if it had no data. Spark compares offsets as text, so
keys are sorted. The offset before the first batch has no topics, and no cluster, because no request to the cluster precedes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.spark.errors import CheckpointError
from consumer_coord.topic_partition import TopicPartition

VERSION = 1


@attrs.frozen
class Span:
    """Offsets ``start`` (included) to ``end`` (not included) of one partition, planned in ``generation``."""

    start: int
    end: int
    generation: int


@attrs.frozen
class TopicSpans:
    """A topic of an offset: the topic's id (KIP-516), and partition number -> :class:`Span` of each owned partition."""

    id: uuid.UUID
    spans: Mapping[int, Span]


@attrs.frozen
class Offsets:
    """An offset of a query, as Spark writes the offset to its log."""

    group: str
    cluster: str | None = None
    topics: Mapping[str, TopicSpans] = attrs.field(factory=dict)

    def spans(self) -> Iterator[tuple[TopicPartition, Span]]:
        """Return every partition of the offset with its span, in order."""
        for topic, part in sorted(self.topics.items()):
            for number, span in sorted(part.spans.items()):
                yield TopicPartition(topic, number), span

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON for Spark; keys are in the order of ``json.dumps(sort_keys=True)`` on every level."""
        return {
            "cluster": self.cluster,
            "group": self.group,
            "topics": {
                topic: {
                    "id": str(part.id),
                    "p": {
                        str(number): [span.start, span.end, span.generation]
                        for number, span in sorted(part.spans.items(), key=lambda item: str(item[0]))
                    },
                }
                for topic, part in sorted(self.topics.items())
            },
            "v": VERSION,
        }


def from_json(read: Any, group: str) -> Offsets:
    """Parse an offset of a checkpoint, for a query of ``group``.

    Raise :class:`~consumer_coord.spark.errors.CheckpointError` if the offset is of another source, group or version, or is
    damaged.
    """
    if not isinstance(read, dict) or "v" not in read:
        kind = "Spark's own Kafka source" if _is_of_sparks_source(read) else "another source"
        raise CheckpointError(
            f"checkpointLocation holds an offset of {kind}, {_shown(read)}: give this query a separate checkpoint"
            " (to continue at the offsets of the other checkpoint, commit them to the group first; see docs/spark.md)"
        )
    if read["v"] != VERSION:
        raise CheckpointError(
            f"checkpointLocation holds offsets of version {read['v']!r}, but this release reads version {VERSION}: use the"
            " release that wrote them, or start from a fresh checkpoint"
        )
    if read.get("group") != group:
        raise CheckpointError(
            f"checkpointLocation belongs to group {read.get('group')!r}, but the option group.id is {group!r}:"
            " set group.id back, or give this query a separate checkpoint"
        )
    try:
        topics = {topic: _topic(part) for topic, part in read["topics"].items()}
        cluster = read["cluster"]
        if not (isinstance(cluster, str) or (cluster is None and not topics)):
            raise ValueError(f"cluster={cluster!r}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(group, _shown(read), error) from error
    return Offsets(group, cluster, topics)


def damaged(group: str, what: str, why: object) -> CheckpointError:
    """Return the error for an offset that no release of this source has written."""
    return CheckpointError(
        f"checkpointLocation of group {group!r} holds a damaged offset in its last file of offsets/: {what} ({why!r}); restore"
        " that file, or start from a fresh checkpoint: the query then continues at the group's commits"
    )


def _topic(part: Mapping[str, Any]) -> TopicSpans:
    spans = {}
    for number, triple in part["p"].items():
        start, end, generation = triple
        if not all(type(value) is int for value in triple) or not 0 <= start <= end:
            raise ValueError(f"{number}: {triple!r}")
        spans[int(number)] = Span(start, end, generation)
    return TopicSpans(uuid.UUID(part["id"]), spans)


def _is_of_sparks_source(read: Any) -> bool:
    return isinstance(read, dict) and all(
        isinstance(numbers, dict) and all(isinstance(offset, int) for offset in numbers.values()) for numbers in read.values()
    )


def _shown(read: Any) -> str:
    try:
        text = repr(read)
    except RecursionError:
        text = "a value that is nested too deeply"
    return text if len(text) <= 200 else text[:200] + "…"


def check_cluster(offsets: Offsets, cluster: str | None, bootstrap_servers: str) -> None:
    """Raise an exception for a checkpoint of another cluster, because offsets are valid in one cluster only."""
    if offsets.cluster is not None and cluster is not None and offsets.cluster != cluster:
        raise CheckpointError(
            f"checkpointLocation belongs to the cluster {offsets.cluster}, but kafka.bootstrap.servers={bootstrap_servers!r}"
            f" leads to {cluster}: restore the former setting, or give this query a separate checkpoint"
        )
