"""The states of a member of the consumer protocol, as a table. No I/O.

States and transitions are those of ``AbstractMembershipManager`` of the Java client, with two differences. FATAL is not final:
the member continues after the application has received the error. And a rejoin does not wait for callbacks: the member only
marks the partitions as lost, and the application's next poll calls the callbacks.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """A member's state in its group."""

    #: No subscription; no heartbeats.
    UNSUBSCRIBED = "unsubscribed"
    #: The member sends heartbeats with epoch 0, which request membership.
    JOINING = "joining"
    #: The target assignment differs from what the application holds; it revokes and adds partitions at its next polls.
    RECONCILING = "reconciling"
    #: The application owns the partitions of its target. The next heartbeat reports this.
    ACKNOWLEDGING = "acknowledging"
    #: In the group, and the coordinator knows the owned partitions.
    STABLE = "stable"
    #: The group removed the member (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID): all partitions are lost.
    FENCED = "fenced"
    #: About to leave: the application revokes its partitions, and commits.
    PREPARE_LEAVING = "prepare leaving"
    #: The leave heartbeat (epoch -1 or -2) is in flight.
    LEAVING = "leaving"
    #: An error occurred that a retry does not resolve; the application's next poll raises the error.
    FATAL = "fatal"
    #: The application did not poll for ``max.poll.interval.ms``; the member left, and joins again at the next poll.
    STALE = "stale"

    @property
    def in_group(self) -> bool:
        """True while the group has the member, so that heartbeats are needed."""
        return self in _IN_GROUP

    @property
    def heartbeats(self) -> bool:
        """True while the member sends heartbeats, to join the group or to stay in it."""
        return self in _IN_GROUP or self is State.JOINING

    @property
    def urgent(self) -> bool:
        """True if the next heartbeat must not wait for the interval."""
        return self in (State.JOINING, State.ACKNOWLEDGING)

    @property
    def rebalancing(self) -> bool:
        """True while the member expects a change of the owned partitions."""
        return self in _REBALANCING


# These constants are tuples, which Python searches by identity, because the hash of an Enum member is a slow Python function.
_IN_GROUP = (State.STABLE, State.RECONCILING, State.ACKNOWLEDGING, State.PREPARE_LEAVING)
_REBALANCING = (State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.FENCED)


class Event(enum.Enum):
    """The events of a member."""

    #: The application subscribed for the first time.
    SUBSCRIBED = "subscribed"
    #: A response contained a target that differs from the owned partitions, or a target can be resolved now.
    ASSIGNED = "assigned"
    #: The application applied the target, and the commits of revoked partitions completed.
    RECONCILED = "reconciled"
    #: The coordinator responded to the heartbeat that reports the owned partitions.
    ACKNOWLEDGED = "acknowledged"
    #: The coordinator does not know this member, or refused its epoch.
    REFUSED = "refused"
    #: The owned partitions are marked as lost.
    LOST = "lost"
    #: The application is about to leave.
    LEAVE = "leave"
    #: The application revoked everything.
    REVOKED = "revoked"
    #: The leave heartbeat was answered, or the member does not wait for the answer.
    LEFT = "left"
    #: The application did not poll for ``max.poll.interval.ms``.
    POLL_EXPIRED = "poll expired"
    #: After POLL_EXPIRED, the leave heartbeat was answered, or the member does not wait for the answer.
    PARKED = "parked"
    #: The application polled again: after a missed poll interval, after a failure, or instead of leaving.
    POLLED = "polled"
    #: An error occurred that a retry does not resolve.
    FAILED = "failed"


def _in_group(then: State, *, but: frozenset[State] = frozenset()) -> dict[State, State]:
    return dict.fromkeys((state for state in _IN_GROUP if state not in but), then)


_LEAVES = frozenset({State.PREPARE_LEAVING})

#: Event -> state before -> state after. Other transitions are impossible.
TRANSITIONS: dict[Event, dict[State, State]] = {
    Event.SUBSCRIBED: {State.UNSUBSCRIBED: State.JOINING, State.FATAL: State.JOINING},
    Event.ASSIGNED: {State.JOINING: State.RECONCILING, **_in_group(State.RECONCILING, but=_LEAVES)},
    Event.RECONCILED: {State.RECONCILING: State.ACKNOWLEDGING},
    Event.ACKNOWLEDGED: {State.ACKNOWLEDGING: State.STABLE},
    Event.REFUSED: {
        State.JOINING: State.FENCED,
        **_in_group(State.FENCED, but=_LEAVES),
        # The group no longer has the member. If the application polls again instead of leaving, the member joins again.
        State.PREPARE_LEAVING: State.STALE,
    },
    Event.LOST: {State.FENCED: State.JOINING},
    Event.LEAVE: {
        **_in_group(State.PREPARE_LEAVING, but=_LEAVES),
        # In these states, there are no owned partitions to revoke before the leave.
        State.JOINING: State.LEAVING,
        State.FENCED: State.LEAVING,
        State.STALE: State.LEAVING,
        State.FATAL: State.LEAVING,
    },
    Event.REVOKED: {State.PREPARE_LEAVING: State.LEAVING},
    Event.LEFT: {State.LEAVING: State.UNSUBSCRIBED},
    Event.POLL_EXPIRED: {State.JOINING: State.LEAVING, **_in_group(State.LEAVING, but=_LEAVES)},
    Event.PARKED: {State.LEAVING: State.STALE},
    Event.POLLED: {
        State.STALE: State.JOINING,
        State.FATAL: State.JOINING,
        # The application polled, so the member does not leave.
        State.PREPARE_LEAVING: State.RECONCILING,
    },
    Event.FAILED: {
        State.JOINING: State.FATAL,
        **_in_group(State.FATAL),
        State.FENCED: State.FATAL,
        State.STALE: State.FATAL,
    },
}


def after(state: State, event: Event) -> State:
    """Return the state after ``event``; raise AssertionError for an illegal transition, which is a bug."""
    following = TRANSITIONS[event].get(state)
    assert following is not None, f"illegal step of a member: {event.value} while {state.value}"
    return following
