"""The states of a member of the consumer protocol: the table, and every path through it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumer_coord.group.consumer_protocol.states import TRANSITIONS, Event, State, after


def _reachable(start: State) -> set[State]:
    found, open_ones = {start}, [start]
    while open_ones:
        state = open_ones.pop()
        for steps in TRANSITIONS.values():
            following = steps.get(state)
            if following is not None and following not in found:
                found.add(following)
                open_ones.append(following)
    return found


@pytest.mark.behaviour(134)
@pytest.mark.parametrize("state", list(State))
def test_every_state_is_reached_and_every_member_can_leave_and_be_stable_again(state: State) -> None:
    assert state in _reachable(State.UNSUBSCRIBED)
    assert {State.UNSUBSCRIBED, State.STABLE} <= _reachable(state)


@pytest.mark.behaviour(133)
def test_a_member_that_subscribes_joins_reconciles_acknowledges_and_is_stable() -> None:
    state = State.UNSUBSCRIBED
    path = [Event.SUBSCRIBED, Event.ASSIGNED, Event.RECONCILED, Event.ACKNOWLEDGED]
    seen = []
    for event in path:
        state = after(state, event)
        seen.append(state)
    assert seen == [State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.STABLE]


def test_a_refused_member_joins_again() -> None:
    for state in (State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.STABLE):
        assert after(after(state, Event.REFUSED), Event.LOST) is State.JOINING


def test_a_member_that_did_not_poll_leaves_and_joins_at_the_next_poll() -> None:
    state = after(State.STABLE, Event.POLL_EXPIRED)
    assert state is State.LEAVING
    assert not state.heartbeats
    state = after(state, Event.PARKED)
    assert state is State.STALE
    assert after(state, Event.POLLED) is State.JOINING


@pytest.mark.behaviour(135)
def test_a_transition_that_the_table_does_not_have_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="acknowledged while stable"):
        after(State.STABLE, Event.ACKNOWLEDGED)


class Member(RuleBasedStateMachine):
    """A member with any legal sequence of events, next to a simple model of what the coordinator knows."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State.UNSUBSCRIBED
        #: Whether this member believes that the coordinator counts it.
        self.counted = False
        self.subscribed = False

    @rule(event=st.sampled_from(list(Event)))
    @precondition(lambda self: True)
    def something_happens(self, event: Event) -> None:
        before = self.state
        if before not in TRANSITIONS[event]:
            with pytest.raises(AssertionError):
                after(before, event)
            return
        self.state = after(before, event)
        if event in (Event.ASSIGNED,):
            self.counted = True
        if event in (Event.REFUSED, Event.REVOKED, Event.POLL_EXPIRED, Event.FAILED):
            self.counted = False
        if event is Event.SUBSCRIBED:
            self.subscribed = True
        if event is Event.LEFT:
            self.subscribed = False

    @invariant()
    def heartbeats_go_out_while_the_coordinator_counts_the_member(self) -> None:
        if self.counted:
            assert self.state.heartbeats
            assert self.state.in_group

    @invariant()
    def a_member_that_is_not_counted_is_not_stable(self) -> None:
        if not self.counted:
            assert self.state not in (State.RECONCILING, State.ACKNOWLEDGING, State.STABLE)

    @invariant()
    def nothing_is_sent_without_a_subscription(self) -> None:
        if not self.subscribed:
            assert self.state is State.UNSUBSCRIBED
            assert not self.state.heartbeats

    @invariant()
    def what_is_urgent_is_sent(self) -> None:
        assert not self.state.urgent or self.state.heartbeats


TestMember = Member.TestCase
