"""The table of a partition's phases."""

from __future__ import annotations

import itertools

import pytest

from consumer_coord.consumer.partitions import (
    ABSENT,
    TRANSITIONS,
    Partition,
    PartitionEvent,
    Phase,
    Refused,
    after,
    moved,
    read_of,
)
from consumer_coord.offsets import OffsetAndMetadata

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
