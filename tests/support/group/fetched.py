"""Responses to OffsetFetch."""

from __future__ import annotations

from collections.abc import Mapping

from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from consumer_coord.wire.schema import Struct


def fetch_answer(
    request: OffsetFetchRequest,
    committed: Mapping[TopicPartition, int],
    errors: Mapping[TopicPartition, int] | None = None,
) -> Struct:
    """Return a response to OffsetFetch, in a version with groups, with errors for some partitions."""
    errors = errors or {}
    group = request.groups[0]
    wanted = {topic.name: list(topic.partition_indexes) for topic in group.topics or ()}
    if group.topics is None:
        for partition in sorted(committed):
            wanted.setdefault(partition.topic, []).append(partition.partition)
    return OffsetFetchResponse(
        groups=(
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=tuple(
                    OffsetFetchResponseTopics(
                        name=name,
                        partitions=tuple(
                            OffsetFetchResponsePartitions(
                                partition_index=number,
                                committed_offset=committed.get(TopicPartition(name, number), -1),
                                metadata="",
                                error_code=errors.get(TopicPartition(name, number), codes.NONE),
                            )
                            for number in numbers
                        ),
                    )
                    for name, numbers in wanted.items()
                ),
            ),
        )
    )
