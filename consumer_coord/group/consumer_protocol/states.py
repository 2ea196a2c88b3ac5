"""The states of a member of the consumer protocol, as a table.  No I/O.

The states and what leads from one to the next are those of ``AbstractMembershipManager`` of the Java client, with the
differences that a failure ends with the application hearing of it (FATAL goes on), and that nothing waits for callbacks
before it joins again (what was lost is marked, and the application finds it at its next poll).
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where a member stands."""

    #: There is no subscription; nothing is sent.
    UNSUBSCRIBED = "unsubscribed"
    #: Heartbeats with epoch 0 ask the group to take the member in.
    JOINING = "joining"
    #: In the group; the application has still to revoke partitions, or to take some up.
    RECONCILING = "reconciling"
    #: The application holds what the group wants; the next heartbeat says so.
    ACKNOWLEDGING = "acknowledging"
    #: In the group, and the group knows what is held.
    STABLE = "stable"
    #: The group took the member out (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID): everything is lost.
    FENCED = "fenced"
    #: About to leave: the application gives up what it holds, and commits.
    PREPARE_LEAVING = "prepare leaving"
    #: The heartbeat that says goodbye (epoch -1 or -2) is under way.
    LEAVING = "leaving"
    #: A retry does not cure it; the application's next poll raises it.
    FATAL = "fatal"
    #: The application did not poll for ``max.poll.interval.ms``; the member left, and comes back at the next poll.
    STALE = "stale"

    @property
    def in_group(self) -> bool:
        """True while the group counts the member, so that heartbeats have to go out."""
        return self in _IN_GROUP

    @property
    def heartbeats(self) -> bool:
        """True while heartbeats go out: to join, or to stay."""
        return self in _IN_GROUP or self is State.JOINING

    @property
    def urgent(self) -> bool:
        """True when the next heartbeat has something to say, and is not to wait for the interval."""
        return self in (State.JOINING, State.ACKNOWLEDGING)

    @property
    def rebalancing(self) -> bool:
        """True while what the application holds is about to change, as far as the member knows."""
        return self in _REBALANCING


# Not sets: a tuple is searched by identity, and the hash of an Enum is a call of Python's.
_IN_GROUP = (State.STABLE, State.RECONCILING, State.ACKNOWLEDGING, State.PREPARE_LEAVING)
_REBALANCING = (State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.FENCED)


class Event(enum.Enum):
    """What happens to a member."""

    #: The application subscribed, to something for the first time.
    SUBSCRIBED = "subscribed"
    #: An answer brought a target that is not what is held, or one was found to be resolved now.
    ASSIGNED = "assigned"
    #: The application revoked and took up what the target asks for, and commits of what it revoked were answered.
    RECONCILED = "reconciled"
    #: The heartbeat that says what is held was answered.
    ACKNOWLEDGED = "acknowledged"
    #: The coordinator does not count this member, or not with this epoch.
    REFUSED = "refused"
    #: What was held is marked as lost.
    LOST = "lost"
    #: The application is about to leave.
    LEAVE = "leave"
    #: It gave up everything.
    GAVE_UP = "gave up"
    #: The goodbye was answered, or is not waited for.
    LEFT = "left"
    #: The application did not poll for ``max.poll.interval.ms``.
    POLL_EXPIRED = "poll expired"
    #: The goodbye for that reason was answered, or is not waited for.
    PARKED = "parked"
    #: The application polled again: after it had not for too long, had heard of a failure, or was about to leave.
    POLLED = "polled"
    #: Final until the application subscribes again.
    FAILED = "failed"


def _in_group(then: State, *, but: frozenset[State] = frozenset()) -> dict[State, State]:
    return dict.fromkeys((state for state in _IN_GROUP if state not in but), then)


_LEAVES = frozenset({State.PREPARE_LEAVING})

#: event -> state before -> state after.  What is not here cannot happen.
TRANSITIONS: dict[Event, dict[State, State]] = {
    Event.SUBSCRIBED: {State.UNSUBSCRIBED: State.JOINING, State.FATAL: State.JOINING},
    Event.ASSIGNED: {State.JOINING: State.RECONCILING, **_in_group(State.RECONCILING, but=_LEAVES)},
    Event.RECONCILED: {State.RECONCILING: State.ACKNOWLEDGING},
    Event.ACKNOWLEDGED: {State.ACKNOWLEDGING: State.STABLE},
    Event.REFUSED: {
        State.JOINING: State.FENCED,
        **_in_group(State.FENCED, but=_LEAVES),
        # It is out already; if the application polls again instead of leaving, it comes back.
        State.PREPARE_LEAVING: State.STALE,
    },
    Event.LOST: {State.FENCED: State.JOINING},
    Event.LEAVE: {
        **_in_group(State.PREPARE_LEAVING, but=_LEAVES),
        # Nothing is held that had to be given up first.
        State.JOINING: State.LEAVING,
        State.FENCED: State.LEAVING,
        State.STALE: State.LEAVING,
        State.FATAL: State.LEAVING,
    },
    Event.GAVE_UP: {State.PREPARE_LEAVING: State.LEAVING},
    Event.LEFT: {State.LEAVING: State.UNSUBSCRIBED},
    Event.POLL_EXPIRED: {State.JOINING: State.LEAVING, **_in_group(State.LEAVING, but=_LEAVES)},
    Event.PARKED: {State.LEAVING: State.STALE},
    Event.POLLED: {
        State.STALE: State.JOINING,
        State.FATAL: State.JOINING,
        # It does not leave after all.
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
    """The state that ``event`` leads to; a step that the table does not have is a bug of ours and an AssertionError."""
    following = TRANSITIONS[event].get(state)
    assert following is not None, f"illegal step of a member: {event.value} while {state.value}"
    return following
