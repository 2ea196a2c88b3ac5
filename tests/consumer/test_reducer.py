"""The reducer alone: what becomes of one partition in each phase, and histories of a group that keep its rules."""

from __future__ import annotations

import uuid
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.consumer.partitions import Origin, Partition, PartitionEvent, Phase, Table, applied, begun, in_phase, reads
from consumer_coord.consumer.reading.chunks import OutOfRange
from consumer_coord.consumer.reducer import (
    Accept,
    Add,
    AskTracker,
    Call,
    Drop,
    Facts,
    Group,
    LastCommit,
    Recreated,
    Release,
    Request,
    Steps,
    Warn,
    look,
)
from consumer_coord.consumer.start_lookups import LookUp, LookUpResults, Rules, WakeAt, error_to_raise
from consumer_coord.consumer.start_offsets import Start
from consumer_coord.errors import AuthorizationError, CoordinatorError, RequestTimedOutError
from consumer_coord.group.assignment import AssignmentState, Change, Target
from consumer_coord.net.answers import Results
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
HERE = frozenset({ONE})
NOWHERE: frozenset[TopicPartition] = frozenset()
START = OffsetAndMetadata(7)
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)

KEPT = Change(Target(1, 1, HERE), NOWHERE, NOWHERE, NOWHERE, False)
REVOKED = attrs.evolve(KEPT, target=Target(2, 2, NOWHERE), revoked=HERE)
LOST = attrs.evolve(KEPT, target=Target(2, 2, NOWHERE), lost=HERE)
ADDED = attrs.evolve(KEPT, added=HERE, first=True)
EMPTY = attrs.evolve(KEPT, target=Target(2, 2, NOWHERE), first=True)

BEGIN = Steps()
FACTS = Facts(rules=Rules("earliest", 60_000, lambda failures: 100.0 * 2**failures), moment=10.0, serial=5)

OWNED = (Phase.TAKEN, Phase.LOCATING, Phase.UNLOCATED, Phase.READING)
ENDING = (Phase.STOPPING, Phase.COMMITTING)


def partition(phase: Phase, **fields: Any) -> Partition:
    return Partition(**{"phase": phase, "ownership": 1, "serial": 1, "start": START, "notified": True, **fields})


def looked(
    phase: Phase, change: Change, steps: Steps = BEGIN, *, is_applied: bool = True, **group: Any
) -> tuple[Phase | None, Request | None]:
    """Return the phase after one look at a partition that this member holds, unless it was lost, and the request."""
    table: Table = {ONE: partition(phase)}
    stopped = {one: attrs.evolve(each, on=False) for one, each in reads(table).items()}
    given = {"applied": stopped if is_applied else {}, "held": HERE - change.lost, **group}
    table, request = look(table, Group(change=change, **given), FACTS, steps)
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
    assert look({}, Group(ADDED, NOWHERE, {}, leaving=True), FACTS, BEGIN) == ({}, None)


def test_a_partition_that_was_lost_before_the_application_saw_it_is_released_without_a_call() -> None:
    assert look({}, Group(LOST, NOWHERE, {}), FACTS, BEGIN) == ({}, Release(HERE))


@pytest.mark.parametrize("phase", OWNED)
def test_the_group_s_assignment_is_accepted_last_and_then_nothing_is_left(phase: Phase) -> None:
    assert looked(phase, KEPT) == (phase, Accept(KEPT))
    table: Table = {ONE: partition(phase, awaits=object())}
    table, request = look(table, Group(KEPT, HERE, {}), FACTS, Steps(accepted=True))
    assert (table[ONE].phase, request) == (Phase.READING if phase is Phase.LOCATING else phase, None)


@pytest.mark.parametrize(
    ("phase", "after", "request_"),
    [
        (Phase.TAKEN, Phase.READING, None),
        (Phase.REVOKED, Phase.RELEASING, LastCommit(HERE, called=True)),
        (Phase.LOST, None, Release(HERE)),
    ],
)
def test_a_callback_that_ended_was_called_whatever_it_did(phase: Phase, after: Phase | None, request_: Request | None) -> None:
    call = Call(phase)
    facts, group = attrs.evolve(FACTS, called=call), Group(KEPT, NOWHERE, {})
    table, request = look({ONE: partition(phase, awaits=call)}, group, facts, Steps(accepted=True))
    assert (table[ONE].phase if ONE in table else None, request) == (after, request_)
    table, request = look({ONE: partition(phase, awaits=Call(phase))}, None, facts, BEGIN)
    assert (table[ONE].phase, request) == (phase, None), "another callback was called"


@pytest.mark.parametrize("group", [None, Group(REVOKED, HERE, {})])
def test_a_recreated_topic_is_noticed_before_the_group_s_wishes(group: Group | None) -> None:
    facts = attrs.evolve(FACTS, topics={ONE: NEW})
    table, request = look({ONE: partition(Phase.READING, topic_id=OLD)}, group, facts, BEGIN)
    assert (table[ONE].phase, table[ONE].serial, request) == (Phase.LOCATING, 6, Recreated((ONE,)))
    table, request = look(table, group, facts, BEGIN)
    assert not isinstance(request, Recreated)


def test_a_start_is_looked_up_while_the_commit_of_another_partition_is_awaited() -> None:
    table: Table = {ONE: partition(Phase.COMMITTING), OTHER: partition(Phase.LOCATING, start=None)}
    stopped = {one: attrs.evolve(each, on=False) for one, each in reads(table).items()}
    group = Group(REVOKED, HERE | {OTHER}, stopped, committing=HERE)
    table, request = look(table, group, FACTS, Steps(may_release=True))
    assert isinstance(request, LookUp)
    assert request.wanted.keys() == {OTHER}
    assert table[OTHER].awaits is request
    assert look(table, group, FACTS, Steps(may_release=True)) == (table, None)


def test_an_application_that_assigns_itself_has_starts_looked_up_and_nothing_else() -> None:
    table, request = look({ONE: partition(Phase.LOCATING, ownership=None, start=None)}, None, FACTS, BEGIN)
    assert isinstance(request, LookUp)
    found = attrs.evolve(FACTS, found={request: Results({ONE: Start(Origin.COMMIT, START)})})
    table, nothing = look(table, None, found, BEGIN)
    assert (table[ONE].phase, table[ONE].start, table[ONE].serial, nothing) == (Phase.READING, START, 6, None)


def test_an_added_partition_enters_the_table_and_on_assign_is_called_with_it() -> None:
    accepted = Steps(accepted=True, first=True)
    assert look({}, Group(ADDED, HERE, {}), FACTS, accepted) == ({}, Add(HERE))
    table, request = look({ONE: partition(Phase.TAKEN, notified=False)}, Group(KEPT, HERE, {}), FACTS, accepted)
    assert called(request) is Phase.TAKEN
    assert (table[ONE].awaits, table[ONE].notified) == (request, True)


def test_on_assign_is_called_for_a_rebalance_that_changes_nothing() -> None:
    table, request = look({}, Group(EMPTY, NOWHERE, {}), FACTS, Steps(accepted=True, first=True))
    assert (table, called(request)) == ({}, Phase.TAKEN)


def test_a_partition_that_the_application_had_added_itself_is_dropped_when_the_group_assigns_it() -> None:
    table: Table = {ONE: partition(Phase.READING, ownership=None)}
    assert look(table, Group(KEPT, HERE, {}), FACTS, Steps(accepted=True)) == (table, Drop(HERE))


class Member:
    """A member whose requests are done as the engine does them; commits and look-ups end when the test says so."""

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
        self.moment = 0.0
        self.topic_id = 1
        #: The look-ups in progress; what the others have found; and when the timer will ring.
        self.pending: list[LookUp] = []
        self.found: LookUpResults = {}
        self.timer = 0.0
        self.ended: dict[TopicPartition, tuple[OutOfRange, int]] = {}
        self.called: Call | None = None

    def wants(self, leaving: bool) -> Group:
        return Group(self.group.change(), self.group.held, self.applied, leaving, self.committing, self.sealed)

    def facts(self) -> Facts:
        """What is true now; positions are never known, so no recreated topic is."""
        awaited = self.awaited()
        self.found = {one: result for one, result in self.found.items() if one in awaited}
        now: dict[str, Any] = {
            "moment": self.moment,
            "serial": self.serial,
            "called": self.called,
            "ended": self.ended,
            "found": self.found,
        }
        return attrs.evolve(FACTS, topics=dict.fromkeys(self.table, uuid.UUID(int=self.topic_id)), **now)

    def poll(self, leaving: bool = False) -> None:
        """Look, and do what is asked, until there is nothing to do now."""
        facts, steps = self.facts(), Steps(timer=self.timer)
        for _ in range(1_000):
            self.table, request = look(self.table, self.wants(leaving), facts, steps)
            self.serial = max([self.serial, *(one.serial for one in self.table.values())])
            self.sealed &= self.table.keys()
            self.committing &= self.table.keys()
            if request is None and self.applied == reads(self.table):
                self.called = None
                for one in self.table.values():
                    backs_off = one.retry is not None and self.timer > self.moment
                    assert one.phase is not Phase.LOCATING or backs_off or one.awaits in self.pending, "a forgotten start"
                return
            match request:
                case None:
                    self.applied, steps = reads(self.table), Steps(timer=self.timer)
                case Call(phase):
                    self.call(phase, frozenset(one for one, value in self.table.items() if value.awaits is request))
                    self.called = request
                    facts, steps = self.facts(), Steps(timer=self.timer)
                case WakeAt(moment):
                    assert moment > self.moment
                    self.timer = moment
                    steps = attrs.evolve(steps, timer=moment)
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
                made = Partition(phase=Phase.TAKEN, ownership=self.serial, serial=self.serial, topic_id=uuid.UUID(int=1))
                self.table = {**self.table, **dict.fromkeys(partitions, made)}
            case LookUp():
                self.pending.append(request)
            case Recreated() | Warn():
                pass
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

    def undergo(self, event: str) -> None:
        """Let something happen that the group knows nothing of."""
        match event:
            case "answer" | "time out" | "refuse":
                self.answer({"time out": RequestTimedOutError("late"), "refuse": AuthorizationError("no")}.get(event))
            case "fall behind":
                self.fall_behind()
            case "seek":
                self.seek()
            case "recreate":
                self.topic_id += 1
            case "wait":
                self.moment += 0.25

    def awaited(self) -> set[object]:
        return {one.awaits for one in self.table.values()}

    def answer(self, error: CoordinatorError | None) -> None:
        """End all look-ups, with a position or with an error."""
        pending, self.pending = self.pending, []
        start = Start(Origin.COMMIT, START)
        self.found = {**self.found, **{one: error or Results(dict.fromkeys(one.wanted, start)) for one in pending}}

    def fall_behind(self) -> None:
        """Let retention delete what is read."""
        reading = {one: value for one, value in self.table.items() if value.phase is Phase.READING}
        self.ended = {one: (OutOfRange("deleted", 0), value.serial) for one, value in reading.items()}

    def seek(self) -> None:
        """Seek in every partition that the application may seek in."""
        at = dict.fromkeys(self.table.keys() - in_phase(self.table, Phase.RELEASING, Phase.LOST), START)
        self.table = begun(self.table, at, NOWHERE, self.serial)
        self.serial += len(at)


def raised(table: Table) -> Table:
    """Return the table after a poll has raised the error that is due, if any."""
    due = error_to_raise(table)
    return table if due is None else applied(table, PartitionEvent.RETRY, due[1])


PARTITIONS = [TopicPartition("orders", number) for number in range(4)]
EVENTS = st.one_of(
    st.tuples(st.just("assign"), st.frozensets(st.sampled_from(PARTITIONS))),
    st.tuples(st.sampled_from(["lose", "revoke all", "commits end", "hold on", "let go", "poll", "leave"]), st.none()),
    st.tuples(st.sampled_from(["answer", "time out", "refuse", "fall behind", "seek", "recreate", "wait"]), st.none()),
)


@given(st.lists(EVENTS, max_size=40))
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
            case "poll" | "leave":
                one.poll(leaving=event == "leave")
            case _:
                one.undergo(event)
    for _ in range(8):
        one.committing = NOWHERE
        one.moment += 1e12  # beyond every back-off
        one.table = raised(one.table)
        one.answer(None)
        one.poll()
    assert one.table.keys() == one.group.held == one.told == frozenset(PARTITIONS[:2])
    assert in_phase(one.table, Phase.READING) == one.told
