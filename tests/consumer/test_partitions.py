"""The table of a partition's phases."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from consumer_coord.consumer.partitions import (
    ABSENT,
    TRANSITIONS,
    Origin,
    Partition,
    PartitionEvent,
    Phase,
    Refused,
    after,
    begun,
    moved,
    not_assigned,
    read_of,
)
from consumer_coord.errors import ConfigurationError
from consumer_coord.offsets import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    OFFSET_TAIL_BASE,
    OffsetAndMetadata,
)
from consumer_coord.topic_partition import TopicPartition

START = OffsetAndMetadata(7)


def _in(phase: Phase, **fields: object) -> Partition:
    return Partition(phase=phase, ownership=1, serial=1, start=START, **fields)  # type: ignore[arg-type]


def test_every_event_has_an_answer_in_every_phase() -> None:
    assert TRANSITIONS.keys() == set(PartitionEvent)
    assert all(row.keys() == {ABSENT, *Phase} for row in TRANSITIONS.values())


def test_every_phase_is_reached_and_left() -> None:
    steps = {
        (source, to) for row in TRANSITIONS.values() for source, to in row.items() if to is ABSENT or isinstance(to, Phase)
    }
    for phase in Phase:
        assert any(to is phase and source is not phase for source, to in steps)
        assert any(source is phase and to is not phase for source, to in steps)


@pytest.mark.parametrize("phase", [Phase.REVOKED, Phase.RELEASING, Phase.LOST])
def test_after_on_revoke_and_on_lost_there_is_no_way_back(phase: Phase) -> None:
    reached = {row[phase] for row in TRANSITIONS.values()}
    assert {to for to in reached if to is ABSENT or isinstance(to, Phase)} <= {phase, Phase.REVOKED, Phase.RELEASING, ABSENT}
    assert Phase.REVOKED not in {row[Phase.RELEASING] for row in TRANSITIONS.values()}, "on_revoke is called once"


def test_an_illegal_transition_is_an_error() -> None:
    with pytest.raises(AssertionError, match="'keep' in phase 'revoked'"):
        after(PartitionEvent.KEEP, Phase.REVOKED)
    with pytest.raises(AssertionError, match="'add' in phase 'reading'"):
        after(PartitionEvent.ADD, Phase.READING)
    assert after(PartitionEvent.SEEK, ABSENT) is Refused.NOT_ASSIGNED
    assert after(PartitionEvent.LOCATED, Phase.READING) is Refused.STALE


@pytest.mark.parametrize(("paused", "declined"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("phase", Phase)
def test_a_partition_is_fetched_in_one_phase_and_not_while_the_application_stops_it(
    phase: Phase, paused: bool, declined: bool
) -> None:
    one = _in(phase, paused=paused, declined=declined)
    assert one.fetched == (phase is Phase.READING and not paused and not declined)
    assert read_of(one).on == one.fetched


def test_a_phase_ends_its_pending_work() -> None:
    look_up = object()
    one = _in(Phase.LOCATING, awaits=look_up)
    assert moved(one, Phase.LOCATING).awaits is look_up
    assert moved(one, Phase.READING).awaits is None
    assert moved(one, Phase.LOCATING, serial=one.serial + 1).awaits is None, "the look-up is for a former start"
    taken = _in(Phase.TAKEN, awaits=look_up)
    assert moved(taken, Phase.TAKEN, serial=one.serial + 1).awaits is look_up, "the callback is still due"


ONE = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("offset", "phase", "logical"),
    [
        (0, Phase.READING, None),
        (OFFSET_INVALID, Phase.LOCATING, None),
        (OFFSET_STORED, Phase.LOCATING, None),
        (OFFSET_BEGINNING, Phase.LOCATING, OFFSET_BEGINNING),
        (OFFSET_END, Phase.LOCATING, OFFSET_END),
        (OFFSET_TAIL_BASE, Phase.LOCATING, OFFSET_TAIL_BASE),
        (OFFSET_TAIL_BASE - 5, Phase.LOCATING, OFFSET_TAIL_BASE - 5),
    ],
)
def test_a_seek_begins_a_reading_at_the_position_or_looks_it_up(offset: int, phase: Phase, logical: int | None) -> None:
    at = OffsetAndMetadata(offset)
    table = begun({ONE: _in(Phase.READING, out_of_range="gone", declined=True)}, {ONE: at}, frozenset(), 8)
    one = table[ONE]
    assert (one.phase, one.serial, one.logical, one.out_of_range, one.declined) == (phase, 9, logical, None, False)
    assert (one.start, one.origin) == ((at, Origin.CHOSEN) if offset == 0 else (None, None))


@pytest.mark.parametrize("offset", [-3, -1999])
def test_a_negative_number_that_is_no_logical_offset_is_a_mistake(offset: int) -> None:
    with pytest.raises(ConfigurationError, match=f"orders-0.*{offset} is not an offset"):
        begun({ONE: _in(Phase.READING)}, {ONE: OffsetAndMetadata(offset)}, frozenset(), 8)


@pytest.mark.parametrize(("known", "former"), [(frozenset(), "former"), (frozenset({ONE}), None)])
def test_a_seek_leaves_the_former_topic_only_if_the_application_knows_the_present_one(known: Any, former: Any) -> None:
    table = begun({ONE: _in(Phase.READING, former_topic_id="former")}, {ONE: START}, known, 8)
    assert table[ONE].former_topic_id == former


@pytest.mark.parametrize("phase", Phase)
def test_an_application_can_seek_until_the_partition_is_revoked_or_lost(phase: Phase) -> None:
    missing = not_assigned({ONE: _in(phase)}, PartitionEvent.SEEK, [ONE])
    assert missing == ([ONE] if phase in (Phase.RELEASING, Phase.LOST) else [])
    assert not_assigned({}, PartitionEvent.SEEK, [ONE]) == [ONE]
    assert not_assigned({}, PartitionEvent.PAUSE, [ONE]) == []


@pytest.mark.parametrize("declined", [False, True])
@pytest.mark.parametrize("phase", Phase)
def test_a_start_is_waited_for_only_if_it_is_unknown_and_wanted(phase: Phase, declined: bool) -> None:
    one = _in(phase, declined=declined)
    assert one.waits_for_start == (phase in (Phase.LOCATING, Phase.UNLOCATED) and not declined)
