"""The table of a member's transitions, without network, time, or loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumer_coord.group.classic_protocol.membership import (
    TRANSITIONS,
    Intent,
    JoinHold,
    MemberEvent,
    Membership,
    MemberState,
    State,
)
from consumer_coord.group.generation import Generation

#: The function that applies each event.
APPLY: dict[MemberEvent, Callable[[Membership], Membership]] = {
    MemberEvent.PREPARE: lambda member: member.prepare(),
    MemberEvent.JOIN: lambda member: member.join(),
    MemberEvent.MEMBER_ID_GIVEN: lambda member: member.member_id_given("a"),
    MemberEvent.JOINED: lambda member: member.joined_as(Generation(7, "a", "range"), leader=False),
    MemberEvent.SYNCED: lambda member: member.synced(),
    MemberEvent.FAIL: lambda member: member.failed("why"),
    MemberEvent.REJOIN: lambda member: member.rejoin("why"),
    MemberEvent.LOSE: lambda member: member.lose("why"),
    MemberEvent.LEAVE: lambda member: member.leave(),
    MemberEvent.SUBSCRIBE: lambda member: member.subscribe(),
    MemberEvent.POLL: lambda member: member.polled(member.polls + 1),
    MemberEvent.POLL_TIMEOUT: lambda member: member.poll_timeout(member.polls, "why"),
    MemberEvent.PREPARE_TO_LEAVE: lambda member: member.prepare_to_leave(member.polls),
    MemberEvent.UNSUBSCRIBE: lambda member: member.unsubscribe(),
    MemberEvent.UNSUBSCRIBED: lambda member: member.unsubscribed(),
    MemberEvent.CLOSE: lambda member: member.close(),
    MemberEvent.CLOSED: lambda member: member.close_completed(),
    MemberEvent.CRASH: lambda member: member.crash(),
}


def next_state(event: MemberEvent, state: State) -> State | None:
    """Return the next state by the table; None if the event is illegal."""
    rows = {before: after for before, after in TRANSITIONS[event].items() if type(before) is type(state)}
    after = rows.get(state) if rows else state
    assert after is None or isinstance(after, type(state))
    return after


#: Events that end the generation: the partitions are lost, and no later commit uses the generation.
LOSES_PARTITIONS = {MemberEvent.LOSE, MemberEvent.LEAVE, MemberEvent.POLL_TIMEOUT, MemberEvent.CRASH}


@pytest.mark.parametrize("event", MemberEvent)
@pytest.mark.parametrize("intent", Intent)
@pytest.mark.parametrize("state", MemberState)
def test_every_event_in_every_state_does_what_the_table_says(state: MemberState, intent: Intent, event: MemberEvent) -> None:
    before = Membership(state, intent, Generation(6, "a", "range"), rejoin_reason="a reason")
    states, intents = next_state(event, state), next_state(event, intent)
    if states is None or intents is None:
        with pytest.raises(AssertionError, match="illegal event for a member"):
            APPLY[event](before)
        return
    after = APPLY[event](before)
    assert (after.state, after.intent) == (states, intents)
    if event in LOSES_PARTITIONS:
        assert after.generation.generation_id < 0
        assert after.lost_generation == before.generation
        assert not after.heartbeats_wanted


def test_the_generation_that_was_lost_last_is_remembered_whatever_its_number_and_however_often_nothing_is_lost() -> None:
    lost = Generation(0, "a", "range")
    member = Membership(MemberState.STABLE, Intent.SUBSCRIBED, lost).lose("why")
    assert member.generation.generation_id < 0
    assert member.lose("again").lost_generation == lost


class MemberModel(RuleBasedStateMachine):
    """A member next to a model of flags: the flags that each event sets and clears, and their consequences."""

    def __init__(self) -> None:
        super().__init__()
        self.member = Membership()
        self.polls = 0
        self.epoch = 0
        self.subscribed = False
        self.needs_join = False
        self.closing = False
        #: The number of polls when the member became silent, or began to leave.
        self.silent_at: int | None = None
        self.leaving_at: int | None = None
        self.in_group = False

    # -- the application -------------------------------------------------------------------------------------------------

    @rule()
    def poll(self) -> None:
        """Poll later: this ends silence and an intended leave."""
        self.polls += 1
        self.member = self.member.polled(self.polls)
        self.silent_at = self.leaving_at = None

    @rule()
    def same_poll(self) -> None:
        """Repeat the same poll: a state that began at this poll lasts until the next one."""
        self.member = self.member.polled(self.polls)

    @precondition(lambda self: not self.member.closed)
    @rule()
    def subscribe(self) -> None:
        """Subscribe, and request the join for the new subscription."""
        self.member = self.member.subscribe().rejoin("subscribed")
        if not self.closing:
            self.subscribed = self.needs_join = True
            self.silent_at = self.leaving_at = None

    @rule()
    def prepare_to_leave(self) -> None:
        """Prepare to leave: the application revokes all partitions."""
        self.member = self.member.prepare_to_leave(self.polls)
        if self.subscribed:
            self.leaving_at, self.silent_at = self.polls, None

    @precondition(lambda self: self.member.subscribed)
    @rule()
    def unsubscribe(self) -> None:
        """Unsubscribe: the subscription ends at once, the membership later."""
        self.member = self.member.unsubscribe()
        assert self.member.ending
        self.subscribed = self.needs_join = False
        self.silent_at = self.leaving_at = None

    @precondition(lambda self: self.member.intent is not Intent.CLOSED)
    @rule()
    def unsubscribed(self) -> None:
        """Finish the unsubscription; the application may have subscribed again since it began."""
        self.member = self.member.unsubscribed()

    @precondition(lambda self: not self.member.closed)
    @rule(completely=st.sampled_from([False, False, True]))
    def close(self, completely: bool) -> None:
        """Begin to close: no rebalance starts from here on."""
        if self.closing and not completely:
            return
        self.member = self.member.close()
        self.closing, self.subscribed, self.needs_join = True, False, False
        self.silent_at = self.leaving_at = None
        if completely:
            self.member = self.member.close_completed()

    @rule(until=st.floats(0, 10))
    def hold(self, until: float) -> None:
        """Hold joins for a transaction from this poll until a time."""
        self.member = self.member.hold_joins(JoinHold(self.polls, until))
        assert self.member.held_at(self.polls, until - 1)
        assert not self.member.held_at(self.polls, until)
        assert not self.member.held_at(self.polls + 1, until - 1)
        assert self.member.waits_for_poll

    # -- the sequence ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.member.join_wanted and self.member.state in (MemberState.UNJOINED, MemberState.STABLE))
    @rule()
    def prepare(self) -> None:
        """Begin a rebalance, and consume the reason for it."""
        self.member = self.member.prepare()
        self.needs_join = False
        assert self.member.rebalancing

    @precondition(lambda self: self.member.state is MemberState.PREPARING_JOIN)
    @rule()
    def join(self) -> None:
        """Send JoinGroup: a transaction can no longer hold the join."""
        self.member = self.member.join()
        assert self.member.past_hold
        assert self.member.hold is None

    @precondition(lambda self: self.member.state is MemberState.PREPARING_REBALANCE)
    @rule(leader=st.booleans())
    def joined(self, leader: bool) -> None:
        """Receive the response to JoinGroup."""
        self.epoch += 1
        self.member = self.member.joined_as(Generation(self.epoch, "a", "range"), leader=leader)
        self.in_group = True

    @precondition(lambda self: self.member.state is MemberState.COMPLETING_REBALANCE)
    @rule()
    def synced(self) -> None:
        """Receive the response to SyncGroup; a reason to rejoin that came since the join is kept."""
        self.member = self.member.synced()
        assert self.member.joined is not self.needs_join

    @rule()
    def failed(self) -> None:
        """Fail a step: the generation stays, and the join restarts if there is a reason for it."""
        before = self.member
        self.member = self.member.failed("failed")
        self.needs_join = self.needs_join or self.subscribed
        assert self.member.generation is before.generation

    # -- the group -------------------------------------------------------------------------------------------------------

    @rule()
    def rejoin(self) -> None:
        """Request a rejoin; the first reason counts."""
        before = self.member.rejoin_reason
        self.member = self.member.rejoin("again")
        self.needs_join = self.needs_join or self.subscribed
        assert before is None or self.member.rejoin_reason == before

    @rule(keep=st.booleans())
    def lose(self, keep: bool) -> None:
        """Lose the generation: the coordinator does not know it."""
        before = self.member.generation
        self.member = self.member.lose("lost", keep_member_id=keep)
        self.needs_join, self.in_group = self.needs_join or self.subscribed, False
        assert self.member.generation is not before, "a waiting step notices"
        assert self.member.generation.member_id == (before.member_id if keep else "")

    @rule()
    def leave(self) -> None:
        """Leave the group; the member joins again only for a new reason."""
        self.member = self.member.leave()
        self.needs_join = self.in_group = False

    @precondition(lambda self: not self.member.closed)
    @rule()
    def poll_timeout(self) -> None:
        """Pass max.poll.interval.ms: the application is silent."""
        self.member = self.member.poll_timeout(self.polls, "silent")
        self.needs_join, self.in_group = self.needs_join or self.subscribed, False
        if self.subscribed and self.leaving_at is None:
            self.silent_at = self.polls

    @precondition(lambda self: not self.closing)
    @rule()
    def crash(self) -> None:
        """Crash a task by a bug."""
        self.member = self.member.crash()
        self.subscribed = self.needs_join = self.in_group = False
        self.silent_at = self.leaving_at = None

    # -- what follows ----------------------------------------------------------------------------------------------------

    @invariant()
    def the_flags_agree(self) -> None:
        """Check that the flags match the consequences of the two states."""
        member = self.member
        polls = self.silent_at is None and self.leaving_at is None
        assert member.subscribed is self.subscribed
        assert (member.rejoin_reason is not None) is self.needs_join
        assert member.join_wanted is (self.subscribed and self.needs_join and polls)
        assert member.heartbeats_wanted is self.in_group
        assert (member.intent is Intent.SILENT) is (self.silent_at is not None)
        assert (member.intent is Intent.ABOUT_TO_LEAVE) is (self.leaving_at is not None)
        assert member.generation.generation_id in (-1, self.epoch)

    @invariant()
    def an_assignment_has_a_generation(self) -> None:
        """Check that without a generation there is no assignment, no leader, and no SyncGroup."""
        if not self.member.heartbeats_wanted:
            assert self.member.state not in (MemberState.STABLE, MemberState.COMPLETING_REBALANCE)
            assert not self.member.is_leader
        if self.member.joined:
            assert not self.member.rebalancing


MemberModel.TestCase.settings = settings(max_examples=300, stateful_step_count=60)
TestMember = pytest.mark.slow(MemberModel.TestCase)
