"""The reducer alone: what becomes of one partition in each phase, and histories of a group that keep its rules."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.consumer.partitions import Partition, PartitionEvent, Phase
from consumer_coord.consumer.reducer import (
    Accept,
    Add,
    AskTracker,
    Call,
    Drop,
    Facts,
    LastCommit,
    Release,
    Request,
    Steps,
    Table,
    applied,
    in_phase,
    look,
    reads,
)
from consumer_coord.group.assignment import AssignmentState, Change, Target
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

ONE = TopicPartition("orders", 0)
HERE = frozenset({ONE})
NOWHERE: frozenset[TopicPartition] = frozenset()
START = OffsetAndMetadata(7)

KEPT = Change(Target(1, 1, HERE), NOWHERE, NOWHERE, NOWHERE, False)
REVOKED = attrs.evolve(KEPT, target=Target(2, 2, NOWHERE), revoked=HERE)
LOST = attrs.evolve(KEPT, target=Target(2, 2, NOWHERE), lost=HERE)
ADDED = attrs.evolve(KEPT, added=HERE, first=True)
EMPTY = attrs.evolve(KEPT, target=Target(2, 2, NOWHERE), first=True)

BEGIN = Steps()

OWNED = (Phase.TAKEN, Phase.LOCATING, Phase.UNLOCATED, Phase.READING)
ENDING = (Phase.STOPPING, Phase.COMMITTING)


def partition(phase: Phase, **fields: Any) -> Partition:
    return Partition(**{"phase": phase, "ownership": 1, "serial": 1, "start": START, "notified": True, **fields})


def looked(
    phase: Phase, change: Change, steps: Steps = BEGIN, *, is_applied: bool = True, **facts: Any
) -> tuple[Phase | None, Request | None]:
    """Return the phase after one look at a partition that this member holds, unless it was lost, and the request."""
    table: Table = {ONE: partition(phase)}
    stopped = {one: attrs.evolve(each, on=False) for one, each in reads(table).items()}
    given = {"applied": stopped if is_applied else None, "held": HERE - change.lost, **facts}
    table, request = look(table, Facts(change=change, **given), steps)
    return (table[ONE].phase if ONE in table else None), request


def called(request: Request | None) -> Phase | None:
    assert request is None or isinstance(request, Call)
    return None if request is None else request.phase


@pytest.mark.parametrize("phase", OWNED)
def test_a_revoked_partition_is_stopped_before_anything_else(phase: Phase) -> None:
    assert looked(phase, REVOKED, is_applied=False) == (Phase.STOPPING, None)


@pytest.mark.parametrize("phase", [*OWNED, Phase.STOPPING])
def test_a_stopped_partition_waits_for_the_tracker_then_for_its_last_commit(phase: Phase) -> None:
    assert looked(phase, REVOKED) == (Phase.STOPPING, AskTracker(HERE))
    assert looked(phase, REVOKED, Steps(may_release=False)) == (Phase.STOPPING, None)
    assert looked(phase, REVOKED, Steps(may_release=True)) == (Phase.COMMITTING, LastCommit(HERE, called=False))


def test_on_revoke_is_called_after_the_last_commit() -> None:
    asked = Steps(may_release=True)
    assert looked(Phase.COMMITTING, REVOKED) == (Phase.COMMITTING, AskTracker(NOWHERE))
    assert looked(Phase.COMMITTING, REVOKED, asked, committing=HERE) == (Phase.COMMITTING, None)
    phase, request = looked(Phase.COMMITTING, REVOKED, asked)
    assert (phase, called(request)) == (Phase.REVOKED, Phase.REVOKED)


@pytest.mark.parametrize("phase", ENDING)
def test_a_partition_that_the_group_gives_back_before_on_revoke_is_read_again(phase: Phase) -> None:
    assert looked(phase, KEPT) == (Phase.LOCATING, Accept(KEPT))


@pytest.mark.parametrize("phase", [*OWNED, *ENDING, Phase.LOST])
def test_a_lost_partition_is_reported_and_neither_committed_nor_revoked(phase: Phase) -> None:
    after, request = looked(phase, LOST, is_applied=False)
    assert (after, called(request)) == (Phase.LOST, Phase.LOST)


@pytest.mark.parametrize("change", [KEPT, REVOKED, LOST])
def test_a_partition_that_can_no_longer_be_kept_is_revoked_whatever_the_group_says(change: Change) -> None:
    after, request = looked(Phase.REVOKED, change)
    assert (after, called(request)) == (Phase.REVOKED, Phase.REVOKED)


@pytest.mark.parametrize("change", [KEPT, REVOKED, LOST])
def test_what_on_revoke_stored_is_committed_before_the_partition_is_released(change: Change) -> None:
    assert looked(Phase.RELEASING, change) == (Phase.RELEASING, LastCommit(HERE, called=True))
    assert looked(Phase.RELEASING, change, sealed=HERE) == (None, Release(HERE))


def test_only_a_partition_that_is_lost_does_not_wait_for_the_commit_after_on_revoke() -> None:
    assert looked(Phase.RELEASING, REVOKED, sealed=HERE, committing=HERE) == (Phase.RELEASING, None)
    assert looked(Phase.RELEASING, LOST, sealed=HERE, committing=HERE) == (None, Release(HERE))


def test_a_member_that_leaves_revokes_what_it_holds_and_accepts_nothing() -> None:
    assert looked(Phase.READING, KEPT, leaving=True, is_applied=False) == (Phase.STOPPING, None)
    assert look({}, Facts(ADDED, NOWHERE, {}, leaving=True), Steps()) == ({}, None)


def test_a_partition_that_was_lost_before_the_application_saw_it_is_released_without_a_call() -> None:
    assert look({}, Facts(LOST, NOWHERE, {}), Steps()) == ({}, Release(HERE))


@pytest.mark.parametrize("phase", OWNED)
def test_the_group_s_assignment_is_accepted_last_and_then_nothing_is_left(phase: Phase) -> None:
    assert looked(phase, KEPT) == (phase, Accept(KEPT))
    table: Table = {ONE: partition(phase, awaits=object())}
    assert look(table, Facts(KEPT, HERE, {}), Steps(accepted=True)) == (table, None)


def test_an_added_partition_enters_the_table_and_on_assign_is_called_with_it() -> None:
    accepted = Steps(accepted=True, first=True)
    assert look({}, Facts(ADDED, HERE, {}), accepted) == ({}, Add(HERE))
    table, request = look({ONE: partition(Phase.TAKEN, notified=False)}, Facts(KEPT, HERE, {}), accepted)
    assert called(request) is Phase.TAKEN
    assert (table[ONE].awaits, table[ONE].notified) == (request, True)


def test_on_assign_is_called_for_a_rebalance_that_changes_nothing() -> None:
    table, request = look({}, Facts(EMPTY, NOWHERE, {}), Steps(accepted=True, first=True))
    assert (table, called(request)) == ({}, Phase.TAKEN)


def test_a_partition_that_the_application_had_added_itself_is_dropped_when_the_group_assigns_it() -> None:
    table: Table = {ONE: partition(Phase.READING, ownership=None)}
    assert look(table, Facts(KEPT, HERE, {}), Steps(accepted=True)) == (table, Drop(HERE))


class Member:
    """A member whose requests are done as the engine does them; commits end, and trackers let go, when the test says so."""

    def __init__(self) -> None:
        self.group = AssignmentState()
        self.table: Table = {}
        self.applied = reads({})
        self.sealed: frozenset[TopicPartition] = NOWHERE
        self.committing: frozenset[TopicPartition] = NOWHERE
        self.lets_go = True
        #: What the application was told that it has.
        self.told: frozenset[TopicPartition] = NOWHERE
        self.serial = 0

    def facts(self, leaving: bool) -> Facts:
        return Facts(self.group.change(), self.group.held, self.applied, leaving, self.committing, self.sealed)

    def poll(self, leaving: bool = False) -> None:
        """Look, and do what is asked, until there is nothing to do now."""
        steps = Steps()
        for _ in range(1_000):
            self.table, request = look(self.table, self.facts(leaving), steps)
            self.sealed &= self.table.keys()
            self.committing &= self.table.keys()
            if request is None and self.applied == reads(self.table):
                return
            match request:
                case None:
                    self.applied, steps = reads(self.table), Steps()
                case Call(phase):
                    self.call(phase, frozenset(one for one, value in self.table.items() if value.awaits is request))
                    steps = Steps()
                case Accept(change):
                    assert not in_phase(self.table, *ENDING, Phase.REVOKED, Phase.RELEASING, Phase.LOST)
                    self.group.accept(change)
                    steps = attrs.evolve(steps, accepted=True, first=change.first and not self.group.change().first)
                case AskTracker():
                    steps = attrs.evolve(steps, may_release=self.lets_go)
                case _:
                    self.carry_out(request)
        raise AssertionError("the member never comes to rest")

    def carry_out(self, request: Request) -> None:
        match request:
            case LastCommit(partitions, after_call):
                assert not any(self.applied[one].on for one in partitions if one in self.applied)
                self.committing |= partitions
                self.sealed |= partitions if after_call else NOWHERE
            case Release(partitions):
                self.group.release(partitions)
            case Add(partitions):
                self.serial += 1
                made = Partition(phase=Phase.TAKEN, ownership=self.serial, serial=self.serial)
                self.table = {**self.table, **dict.fromkeys(partitions, made)}
            case _:
                raise AssertionError(f"this application adds nothing itself: {request}")

    def call(self, phase: Phase, partitions: frozenset[TopicPartition]) -> None:
        if phase is Phase.TAKEN:
            assert not partitions & self.told, "on_assign twice"
            self.told |= partitions
        else:
            notified = frozenset(one for one in partitions if self.table[one].notified)
            assert notified <= self.told, "on_revoke or on_lost twice, or without on_assign"
            self.told -= notified
        if phase is Phase.LOST:
            self.group.release(partitions)
        self.table = applied(self.table, PartitionEvent.CALLED, partitions)
        located = in_phase(self.table, Phase.LOCATING)
        self.table = applied(self.table, PartitionEvent.LOCATED, located)


PARTITIONS = [TopicPartition("orders", number) for number in range(4)]
EVENTS = st.one_of(
    st.tuples(st.just("assign"), st.frozensets(st.sampled_from(PARTITIONS))),
    st.tuples(st.sampled_from(["lose", "revoke all", "commits end", "hold on", "let go", "poll", "leave"]), st.none()),
)


@given(st.lists(EVENTS, max_size=30))
def test_whatever_the_group_does_each_partition_is_revoked_or_lost_once_before_another_is_taken(events: list[Any]) -> None:
    one, generation = Member(), 0
    for event, partitions in [*events, ("assign", frozenset(PARTITIONS[:2])), ("let go", None)]:
        match event:
            case "assign":
                generation += 1
                one.group.publish(generation, partitions)
            case "lose":
                one.group.lose()
            case "revoke all":
                one.group.revoke_all()
            case "commits end":
                one.committing = NOWHERE
            case "hold on" | "let go":
                one.lets_go = event == "let go"
            case _:
                one.poll(leaving=event == "leave")
    for _ in range(8):
        one.committing = NOWHERE
        one.poll()
    assert one.table.keys() == one.group.held == one.told == frozenset(PARTITIONS[:2])
    assert in_phase(one.table, Phase.READING, Phase.LOCATING) == one.told
