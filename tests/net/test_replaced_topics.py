"""Metadata of a topic that was deleted and created again: brokers with old metadata report the former id."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, read_metadata
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import encode_response
from consumer_coord.wire.messages.cluster import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

FORMER, PRESENT, NEXT = (uuid.UUID(int=number) for number in (1, 2, 3))


def _after(previous: Metadata, *ids: uuid.UUID | None, name: str = "orders") -> Metadata:
    """Return the metadata after responses with these ids of a topic; None means that the topic is missing."""
    for topic_id in ids:
        row: dict[str, Any] = {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION}
        if topic_id is not None:
            leader = MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1])
            row = {"error_code": error_codes.NONE, "topic_id": topic_id, "partitions": [leader]}
        response = MetadataResponse(cluster_id="cluster", topics=[MetadataResponseTopic(name=name, **row)])
        previous = read_metadata(12, encode_response(response, 12, 1), previous, frozenset({name}))[1]
    return previous


@pytest.mark.parametrize(
    ("ids", "present"),
    [
        ([FORMER, PRESENT, FORMER], PRESENT),
        ([FORMER, None, PRESENT, FORMER, None], None),
        ([FORMER, PRESENT, None, FORMER], None),
        ([FORMER, PRESENT, NEXT, PRESENT, FORMER], NEXT),
        ([FORMER, None, FORMER], FORMER),
        ([NO_TOPIC_ID, None, NO_TOPIC_ID], NO_TOPIC_ID),
        ([NO_TOPIC_ID, FORMER, PRESENT], PRESENT),
    ],
)
def test_the_id_of_a_deleted_topic_never_comes_back(ids: list[uuid.UUID | None], present: uuid.UUID | None) -> None:
    topic = _after(Metadata(), *ids).topics.get("orders")
    assert (None if topic is None else topic.id) == present


def test_each_new_id_is_one_recreation() -> None:
    metadata = Metadata()
    counts = []
    for topic_id in (FORMER, FORMER, PRESENT, FORMER, None, PRESENT, None, NEXT, PRESENT, NEXT):
        metadata = _after(metadata, topic_id)
        counts.append(metadata.recreations)
    assert counts == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]


def test_few_ids_are_remembered() -> None:
    metadata = Metadata()
    for number in range(1, 1_200):
        metadata = _after(metadata, uuid.UUID(int=number), None, name=f"topic-{number}")
    assert len(metadata.ids) == 1_000
    metadata = _after(Metadata(), *(uuid.UUID(int=number) for number in range(1, 100)))
    assert [len(ids) for ids in metadata.ids.values()] == [8]
