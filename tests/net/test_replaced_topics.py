"""Metadata of a topic that was deleted and created again: brokers with old metadata report the former id."""

from __future__ import annotations

import uuid

import pytest

from consumer_coord.net.metadata import NO_TOPIC_ID, Metadata, read_metadata
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import encode_response
from consumer_coord.wire.messages.cluster import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

FORMER, PRESENT, NEXT = (uuid.UUID(int=number) for number in (1, 2, 3))


def _read(previous: Metadata, at: float, *topics: MetadataResponseTopic, asked: frozenset[str] | None = None) -> Metadata:
    """Return the metadata after a response with ``topics`` to a request that was sent at ``at``."""
    response = MetadataResponse(cluster_id="cluster", topics=[*topics])
    return read_metadata(12, encode_response(response, 12, 1), previous, asked, at)[1]


def _known(name: str, topic_id: uuid.UUID, partitions: int = 1) -> MetadataResponseTopic:
    rows = [
        MetadataResponsePartition(partition_index=number, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1])
        for number in range(partitions)
    ]
    return MetadataResponseTopic(name=name, topic_id=topic_id, partitions=rows)


def _unknown(name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=name, error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)


def _after(previous: Metadata, *ids: uuid.UUID | None, name: str = "orders") -> Metadata:
    """Return the metadata after responses with these ids of a topic; None means that the topic is missing for a second."""
    for topic_id in ids:
        for at in (0.0, 1.0) if topic_id is None else (0.0,):
            topic = _unknown(name) if topic_id is None else _known(name, topic_id)
            previous = _read(previous, at, topic, asked=frozenset({name}))
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


@pytest.mark.parametrize("asked", [frozenset({"orders"}), None], ids=["by name", "all topics"])
def test_a_topic_is_removed_when_brokers_call_it_unknown_for_a_second(asked: frozenset[str] | None) -> None:
    """A broker that has just started, or cannot reach the controller, does not know the latest topics."""
    missing = [] if asked is None else [_unknown("orders")]
    metadata = _read(Metadata(), 0.0, _known("orders", FORMER), asked=asked)
    for at in (10.0, 10.9):
        metadata = _read(metadata, at, *missing, asked=asked)
        assert metadata.topics["orders"].id == FORMER
    # A broker that knows the topic ends the doubt.
    metadata = _read(metadata, 11.0, _known("orders", FORMER), asked=asked)
    for at in (12.0, 12.9):
        metadata = _read(metadata, at, *missing, asked=asked)
        assert metadata.topics["orders"].id == FORMER
    assert not _read(metadata, 13.0, *missing, asked=asked).topics


def test_a_topic_that_was_not_requested_is_removed_at_once() -> None:
    metadata = _read(Metadata(), 0.0, _known("orders", FORMER), asked=frozenset({"orders"}))
    assert not _read(metadata, 1.0, asked=frozenset()).topics


@pytest.mark.parametrize(
    ("before", "present", "count"), [(FORMER, FORMER, 3), (FORMER, PRESENT, 2), (NO_TOPIC_ID, NO_TOPIC_ID, 2)]
)
def test_a_topic_never_loses_partitions(before: uuid.UUID, present: uuid.UUID, count: int) -> None:
    """Fewer partitions with the same topic id are outdated metadata; another topic, or an unknown one, may have fewer."""
    metadata = _read(Metadata(), 0.0, _known("orders", before, 3))
    assert _read(metadata, 1.0, _known("orders", present, 2)).topics["orders"].partition_count == count


def test_partitions_that_one_response_had_too_many_are_dropped() -> None:
    """A response was wrong, not outdated, if the others still have fewer partitions a second later."""
    metadata = _read(Metadata(), 0.0, _known("orders", FORMER, 1_001))
    metadata = _read(metadata, 1.0, _known("orders", FORMER, 2))
    metadata = _read(metadata, 1.9, _known("orders", FORMER, 2))
    assert metadata.topics["orders"].partition_count == 1_001
    assert _read(metadata, 2.0, _known("orders", FORMER, 2)).topics["orders"].partition_count == 2
    again = _read(metadata, 1.95, _known("orders", FORMER, 1_001))
    assert _read(again, 2.0, _known("orders", FORMER, 2)).topics["orders"].partition_count == 1_001
