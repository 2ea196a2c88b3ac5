"""Which offsets a consumer commits by itself."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from consumer_coord.consumer import commit_before_revoke, offsets_to_commit
from consumer_coord.consumer.partitions import Origin, Partition, Phase
from consumer_coord.consumer.reading.chunks import Cursor
from consumer_coord.errors import CoordinatorError, RequestTimedOutError
from consumer_coord.group.commits import Entry, Ticket
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

A, B, C = (TopicPartition("orders", number) for number in range(3))
FIVE, SEVEN, NINE = (OffsetAndMetadata(offset) for offset in (5, 7, 9))
FAILED = RequestTimedOutError("late")
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def partition(**fields: Any) -> Partition:
    return Partition(**{"phase": Phase.READING, "ownership": 3, "serial": 4, **fields})


def ticket(at: OffsetAndMetadata, answers: Mapping[TopicPartition, CoordinatorError | None] | None = None) -> Ticket:
    return Ticket({A: Entry(at)}, 0.0, 1.0, answers=dict(answers or {}))


@pytest.mark.parametrize("origin", Origin)
def test_a_start_counts_by_how_it_was_found(origin: Origin) -> None:
    table = {A: partition(start=SEVEN, origin=origin), B: partition(origin=origin)}
    assert offsets_to_commit.starts(table, Origin.RESET, Origin.CHOSEN) == (
        {A: SEVEN} if origin in (Origin.RESET, Origin.CHOSEN) else {}
    )


def test_a_tracker_decides_from_the_first_record_on() -> None:
    table = {one: partition(start=FIVE, origin=Origin.RESET, serial=serial) for serial, one in enumerate((A, B, C))}
    answers = {(A, 0): SEVEN, (B, 1): None}
    found = offsets_to_commit.tracked(table, {A: NINE, B: NINE}, lambda one, serial, position: answers[one, serial])
    assert found == {A: SEVEN, C: FIVE}


def test_commits_of_earlier_readings_say_nothing_about_the_present_one() -> None:
    commit = ticket(FIVE)
    table = {A: partition(serial=4), B: partition(serial=4)}
    assert offsets_to_commit.of_this_reading(table, {A: (4, commit), B: (3, commit), C: (4, commit)}) == {A: commit}


@pytest.mark.parametrize(
    ("unfinished", "began", "committed"),
    [
        ({A: SEVEN}, {A: 5}, SEVEN),
        ({A: SEVEN}, {A: 7}, SEVEN),
        ({A: SEVEN}, {A: 8}, NINE),
        ({A: SEVEN}, {A: None}, NINE),
        ({A: NINE}, {A: 5}, NINE),
        ({B: SEVEN}, {}, NINE),
    ],
)
def test_an_unfinished_record_of_this_reading_holds_the_offset_back(unfinished: Any, began: Any, committed: Any) -> None:
    assert offsets_to_commit.before_unfinished({A: NINE}, unfinished, began) == {A: committed}


@pytest.mark.parametrize(
    ("commit", "again"),
    [
        (None, True),
        (ticket(FIVE), True),
        (ticket(SEVEN), False),
        (ticket(NINE), False),
        (ticket(SEVEN, {A: None}), False),
        (ticket(NINE, {A: FAILED}), True),
    ],
)
def test_what_the_application_commits_is_not_committed_again_unless_it_failed(commit: Ticket | None, again: bool) -> None:
    found = offsets_to_commit.without_committed({A: SEVEN}, {} if commit is None else {A: commit})
    assert found == ({A: SEVEN} if again else {})


@pytest.mark.parametrize(
    ("committed", "commit", "new"),
    [
        (None, None, True),
        (FIVE, None, True),
        (SEVEN, None, False),
        (SEVEN, ticket(SEVEN), False),
        (SEVEN, ticket(SEVEN, {A: None}), False),
        (SEVEN, ticket(SEVEN, {A: FAILED}), True),
    ],
)
def test_an_offset_is_new_unless_it_is_committed_or_on_the_way(committed: Any, commit: Any, new: bool) -> None:
    table = {A: partition(committed=committed, commit=commit)}
    assert offsets_to_commit.new_offsets(table, {A: SEVEN}) == ({A: SEVEN} if new else {})


@pytest.mark.parametrize(("called", "expected"), [(False, {A: SEVEN, B: NINE}), (True, {B: NINE})])
def test_after_on_revoke_only_what_it_stored_is_committed(called: bool, expected: Any) -> None:
    table = {one: partition(committed=SEVEN) for one in (A, B, C)}
    assert commit_before_revoke.finished_in(table, {A: SEVEN, B: NINE, C: NINE}, {A, B}, called) == expected


@pytest.mark.parametrize(("former", "heard", "topic_id"), [(None, set(), NEW), (OLD, set(), OLD), (OLD, {A}, NEW)])
def test_a_commit_is_for_the_topic_of_which_the_application_has_read_last(former: Any, heard: Any, topic_id: Any) -> None:
    table = {A: partition(topic_id=NEW, former_topic_id=former)}
    found = offsets_to_commit.entries(table, {A: SEVEN, B: NINE}, frozenset(heard))
    assert found == {A: Entry(SEVEN, 3, topic_id), B: Entry(NINE)}


def test_a_cursor_that_passed_markers_has_reached_an_offset_and_no_record() -> None:
    passed = Cursor(0, 1).moved(7, 2)
    assert (passed.first, passed.record) == (0, None)
    assert passed.moved(9, 2, 7) == Cursor(9, 2, 0, 7)
    assert passed.moved(9, 2, 7).moved(11, 2, 9).record == 7
