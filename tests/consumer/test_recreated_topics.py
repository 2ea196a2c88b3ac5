"""What becomes of a partition whose topic was deleted and created again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from consumer_coord.consumer.partitions import Origin, Partition, Phase
from consumer_coord.consumer.recreated_topics import look_at_topics
from consumer_coord.offsets import OFFSET_BEGINNING, OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("payments", 0)
OLD, NEW, NEWEST = (uuid.UUID(int=number) for number in (1, 2, 3))
START = OffsetAndMetadata(7)


def partition(phase: Phase, **fields: Any) -> Partition:
    given: dict[str, Any] = {
        "ownership": 1,
        "serial": 5,
        "topic_id": OLD,
        "start": START,
        "origin": Origin.CHOSEN,
        "committed": START,
    }
    return Partition(phase=phase, **given | fields)


@pytest.mark.parametrize(
    ("phase", "after"),
    [
        (Phase.LOCATING, Phase.LOCATING),
        (Phase.UNLOCATED, Phase.LOCATING),
        (Phase.READING, Phase.LOCATING),
        (Phase.STOPPING, Phase.STOPPING),
        (Phase.COMMITTING, Phase.COMMITTING),
        (Phase.REVOKED, Phase.REVOKED),
        (Phase.RELEASING, Phase.RELEASING),
        (Phase.LOST, Phase.LOST),
    ],
)
def test_a_partition_of_the_new_topic_is_read_from_its_first_record(phase: Phase, after: Phase) -> None:
    other = partition(Phase.READING)
    present = {ONE: NEW, OTHER: OLD}
    table, recreated = look_at_topics({ONE: partition(phase, paused=True), OTHER: other}, present, frozenset(), 8)
    one = table[ONE]
    assert recreated == (ONE,)
    assert (one.phase, one.serial, one.topic_id, one.former_topic_id) == (after, 9, NEW, OLD)
    assert (one.start, one.origin, one.logical, one.committed) == (None, None, OFFSET_BEGINNING, None)
    assert one.paused, "the application's pause is one of the topic's name"
    assert table[OTHER] is other


def test_a_partition_without_a_position_is_looked_up_as_any_other() -> None:
    table, recreated = look_at_topics({ONE: partition(Phase.TAKEN)}, {ONE: NEW}, frozenset(), 8)
    assert recreated == (ONE,)
    assert (table[ONE].start, table[ONE].logical, table[ONE].former_topic_id) == (START, None, None)
    table, _ = look_at_topics({ONE: partition(Phase.LOCATING, start=None)}, {ONE: NEW}, frozenset(), 8)
    assert (table[ONE].logical, table[ONE].former_topic_id) == (None, None)


@pytest.mark.parametrize(("known", "former"), [(frozenset(), OLD), (frozenset({ONE}), NEW)])
def test_the_former_topic_is_that_of_the_application_s_position(known: frozenset[TopicPartition], former: uuid.UUID) -> None:
    before = partition(Phase.READING, topic_id=NEW, former_topic_id=OLD)
    table, _ = look_at_topics({ONE: before}, {ONE: NEWEST}, known, 8)
    assert (table[ONE].topic_id, table[ONE].former_topic_id) == (NEWEST, former)


def test_a_topic_id_that_becomes_known_starts_no_new_reading_but_a_new_look_up() -> None:
    look_up = object()
    asked = partition(Phase.LOCATING, topic_id=None, start=None, awaits=look_up)
    called = partition(Phase.TAKEN, topic_id=None, awaits=look_up)
    table, recreated = look_at_topics({ONE: asked, OTHER: called}, {ONE: NEW, OTHER: NEW}, frozenset(), 8)
    assert recreated == ()
    assert [(each.topic_id, each.serial, each.awaits) for each in table.values()] == [(NEW, 5, None), (NEW, 5, look_up)]


def test_a_topic_that_is_missing_for_a_while_is_the_same_topic() -> None:
    table = {ONE: partition(Phase.READING)}
    assert look_at_topics(table, {ONE: None}, frozenset(), 8) == (table, ())
