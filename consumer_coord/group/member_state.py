"""Who this member is to the group, and the states it goes through.  No I/O.

The states are Java's (``AbstractCoordinator.MemberState``) and the legal transitions are the table below.  A value of
:class:`Generation` is replaced, never changed, so code that waited can compare what it knew with what holds now.
"""

from __future__ import annotations

import enum

import attrs

UNKNOWN_MEMBER_ID = ""
NO_GENERATION_ID = -1


@attrs.frozen
class Generation:
    """Generation id, member id and the assignor's name that the group agreed on."""

    generation_id: int = NO_GENERATION_ID
    member_id: str = UNKNOWN_MEMBER_ID
    protocol_name: str | None = None

    @property
    def has_member_id(self) -> bool:
        """True once the coordinator gave us an id."""
        return self.member_id != UNKNOWN_MEMBER_ID


NO_GENERATION = Generation()


class MemberState(enum.Enum):
    """Where a member stands."""

    #: Not in the group, and not joining.
    UNJOINED = "unjoined"
    #: JoinGroup is under way, or prepared.
    PREPARING_REBALANCE = "preparing rebalance"
    #: JoinGroup was answered, SyncGroup not yet.
    COMPLETING_REBALANCE = "completing rebalance"
    #: In the group, with an assignment.
    STABLE = "stable"


_ANY_TO = {MemberState.UNJOINED, MemberState.PREPARING_REBALANCE}

#: state -> the states that may follow it.
TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    MemberState.UNJOINED: frozenset(_ANY_TO),
    MemberState.PREPARING_REBALANCE: frozenset({*_ANY_TO, MemberState.COMPLETING_REBALANCE}),
    MemberState.COMPLETING_REBALANCE: frozenset({*_ANY_TO, MemberState.STABLE}),
    MemberState.STABLE: frozenset(_ANY_TO),
}


def check_transition(before: MemberState, after: MemberState) -> MemberState:
    """``after``, if it may follow ``before``; an illegal step is a bug of ours and an AssertionError."""
    assert after in TRANSITIONS[before], f"illegal step of a member: {before.value} -> {after.value}"
    return after
