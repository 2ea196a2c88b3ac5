"""The member of a classic group as a value: states, events, and one table of transitions. No I/O, no time.

A :class:`Membership` has two states, which change independently:

* :class:`MemberState`: the member's state in the group. The states are Java's (``AbstractCoordinator.MemberState``), with
  one more for ``on_join_prepare``, which in Java runs inside a poll.
* :class:`Intent`: the application's intent for the membership.

:data:`TRANSITIONS` is the whole table: ``event -> state -> next state``. If an event has no rows for one of the two kinds of
state, the event does not change the state of that kind. If an event has rows for a kind of state, but no row for the current
state, the event is illegal, which is a bug of this library. The properties of :class:`Membership` derive everything else from
the two states, the generation and the reason to rejoin.

In ``join_and_sync.py``, a coroutine runs Kafka's steps and applies an event at each step. Other sources (an application's call,
a heartbeat response, a timeout) apply events at any time. So after each wait, the coroutine compares
:attr:`Membership.generation` by identity, to notice that the membership has changed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

from consumer_coord import lazy_attrs as attrs
from consumer_coord.group.generation import NO_GENERATION, Generation


class MemberState(enum.Enum):
    """A member's state in its group."""

    #: Not in the group, or a join failed and is retried (in that case the generation may remain).
    UNJOINED = "unjoined"
    #: During ``on_join_prepare``: partitions are revoked, commits are finished, and a transaction may delay the join.
    PREPARING_JOIN = "preparing join"
    #: JoinGroup is in flight and can no longer be delayed.
    PREPARING_REBALANCE = "preparing rebalance"
    #: The JoinGroup response has arrived, the SyncGroup response has not.
    COMPLETING_REBALANCE = "completing rebalance"
    #: In the group, with an assignment.
    STABLE = "stable"


class Intent(enum.Enum):
    """The application's intent for the membership."""

    #: No subscription.
    UNSUBSCRIBED = "unsubscribed"
    #: The application wants to be a member.
    SUBSCRIBED = "subscribed"
    #: The application did not poll for max.poll.interval.ms; the member left, and joins again at the next poll.
    SILENT = "silent"
    #: The application revokes its partitions to close or unsubscribe, so the member does not rejoin.
    ABOUT_TO_LEAVE = "about to leave"
    #: The member unsubscribes: last commits, then LeaveGroup.
    LEAVING = "leaving"
    #: The member closes: last commits, then LeaveGroup, with no rejoin.
    CLOSING = "closing"
    #: Closed.
    CLOSED = "closed"


class MemberEvent(enum.Enum):
    """The events of a member."""

    # The sequence of a rebalance.
    PREPARE = "a rebalance begins"
    JOIN = "prepared, JoinGroup is next"
    MEMBER_ID_GIVEN = "MEMBER_ID_REQUIRED"
    JOINED = "JoinGroup answered"
    SYNCED = "SyncGroup answered"
    FAIL = "a step failed"
    # The group.
    REJOIN = "a join is needed"
    LOSE = "generation lost"
    LEAVE = "left the group"
    # The application.
    SUBSCRIBE = "subscribe"
    POLL = "poll"
    POLL_TIMEOUT = "max.poll.interval.ms passed"
    PREPARE_TO_LEAVE = "prepare to leave"
    UNSUBSCRIBE = "unsubscribe"
    UNSUBSCRIBED = "unsubscribed"
    CLOSE = "close"
    CLOSED = "closed"
    CRASH = "a task crashed"


State: TypeAlias = MemberState | Intent


def _stay(*states: State) -> Mapping[State, State]:
    return {state: state for state in states}


def _all_to(target: State) -> Mapping[State, State]:
    return dict.fromkeys(type(target), target)


_OPEN = (Intent.UNSUBSCRIBED, Intent.SUBSCRIBED, Intent.SILENT, Intent.ABOUT_TO_LEAVE, Intent.LEAVING, Intent.CLOSING)

#: Event -> state -> next state; see the module's docstring.
TRANSITIONS: Mapping[MemberEvent, Mapping[State, State]] = {
    # Only a subscribed member that polls begins a rebalance.
    MemberEvent.PREPARE: {
        MemberState.UNJOINED: MemberState.PREPARING_JOIN,
        MemberState.STABLE: MemberState.PREPARING_JOIN,
        **_stay(Intent.SUBSCRIBED),
    },
    MemberEvent.JOIN: {MemberState.PREPARING_JOIN: MemberState.PREPARING_REBALANCE},
    MemberEvent.MEMBER_ID_GIVEN: _stay(MemberState.PREPARING_REBALANCE),
    MemberEvent.JOINED: {MemberState.PREPARING_REBALANCE: MemberState.COMPLETING_REBALANCE},
    MemberEvent.SYNCED: {MemberState.COMPLETING_REBALANCE: MemberState.STABLE},
    MemberEvent.FAIL: _all_to(MemberState.UNJOINED),
    MemberEvent.REJOIN: {},
    MemberEvent.LOSE: _all_to(MemberState.UNJOINED),
    MemberEvent.LEAVE: _all_to(MemberState.UNJOINED),
    MemberEvent.SUBSCRIBE: {**dict.fromkeys(_OPEN, Intent.SUBSCRIBED), **_stay(Intent.CLOSING)},
    MemberEvent.POLL: {
        **_stay(*Intent),
        Intent.SILENT: Intent.SUBSCRIBED,
        Intent.ABOUT_TO_LEAVE: Intent.SUBSCRIBED,
    },
    MemberEvent.POLL_TIMEOUT: {**_all_to(MemberState.UNJOINED), **_stay(*_OPEN), Intent.SUBSCRIBED: Intent.SILENT},
    MemberEvent.PREPARE_TO_LEAVE: {
        **_stay(*Intent),
        Intent.SUBSCRIBED: Intent.ABOUT_TO_LEAVE,
        Intent.SILENT: Intent.ABOUT_TO_LEAVE,
    },
    MemberEvent.UNSUBSCRIBE: dict.fromkeys((Intent.SUBSCRIBED, Intent.SILENT, Intent.ABOUT_TO_LEAVE), Intent.LEAVING),
    # The application may have subscribed again while the member left.
    MemberEvent.UNSUBSCRIBED: {**_stay(*_OPEN), Intent.LEAVING: Intent.UNSUBSCRIBED},
    MemberEvent.CLOSE: dict.fromkeys(_OPEN, Intent.CLOSING),
    MemberEvent.CLOSED: {Intent.CLOSING: Intent.CLOSED},
    MemberEvent.CRASH: {
        **_all_to(MemberState.UNJOINED),
        **dict.fromkeys(_OPEN, Intent.UNSUBSCRIBED),
        **_stay(Intent.CLOSING, Intent.CLOSED),
    },
}

# The states with a join in progress. These constants are tuples, which Python searches by identity, because the hash of an Enum
# member is a slow Python function.
_REBALANCING = (MemberState.PREPARING_JOIN, MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)
#: States in which a transaction can no longer delay the join.
_PAST_HOLD = (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)
#: Intents with a subscription, in which a reason to rejoin is kept until the member can rejoin.
_SUBSCRIBED = (Intent.SUBSCRIBED, Intent.SILENT, Intent.ABOUT_TO_LEAVE)
#: Intents in which no rebalance completes.
_ENDING = frozenset({Intent.LEAVING, Intent.CLOSING, Intent.CLOSED})
#: Intents of a member whose application has not polled in time; its next poll makes it ``SUBSCRIBED`` again.
_UNTIL_POLL = frozenset({Intent.SILENT, Intent.ABOUT_TO_LEAVE})


@attrs.frozen
class JoinHold:
    """A transaction's delay of joins, which ends after poll number ``polls``, or at time ``until`` (loop clock, s)."""

    polls: int
    until: float


@attrs.frozen
class Membership:
    """A member's relation to its group and its application, at one moment."""

    state: MemberState = MemberState.UNJOINED
    intent: Intent = Intent.UNSUBSCRIBED
    generation: Generation = NO_GENERATION
    is_leader: bool = False
    #: Reason for the needed join; None if no join is needed.
    rejoin_reason: str | None = None
    #: The last generation that was lost.
    lost_generation: Generation = NO_GENERATION
    #: The transaction's delay of joins; None if no transaction delays joins.
    hold: JoinHold | None = None
    #: The number of polls when the current intent began; a later poll ends the intents SILENT and ABOUT_TO_LEAVE.
    polls: int = 0

    # -- implications of the states --------------------------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """True while there is a subscription."""
        return self.intent in _SUBSCRIBED

    @property
    def join_wanted(self) -> bool:
        """True if a rebalance must begin."""
        return self.intent is Intent.SUBSCRIBED and self.rejoin_reason is not None

    @property
    def heartbeats_wanted(self) -> bool:
        """True while there is a generation, even while JoinGroup waits on a separate connection: heartbeats renew the lease."""
        return self.generation.generation_id >= 0

    @property
    def rebalancing(self) -> bool:
        """True when a join is needed or in progress."""
        return self.rejoin_reason is not None or self.state in _REBALANCING

    @property
    def joined(self) -> bool:
        """True in the group with an assignment, if no join is needed."""
        return self.state is MemberState.STABLE and self.rejoin_reason is None

    @property
    def past_hold(self) -> bool:
        """True if a transaction can no longer delay the join, so that it must wait for the response to JoinGroup."""
        return self.state in _PAST_HOLD

    @property
    def will_sync(self) -> bool:
        """True if a join is in progress, or the member will begin a join without waiting for its application."""
        return self.state in _REBALANCING or self.join_wanted

    @property
    def ending(self) -> bool:
        """True after a close, or between a leave and the next subscription; during this time no rebalance completes."""
        return self.intent in _ENDING

    @property
    def closed(self) -> bool:
        """True after the member was closed."""
        return self.intent is Intent.CLOSED

    @property
    def waits_for_poll(self) -> bool:
        """True if the next poll changes the membership."""
        return self.intent in _UNTIL_POLL or self.hold is not None

    def held_at(self, polls: int, moment: float) -> bool:
        """Return whether a transaction delays the join at poll number ``polls`` and loop time ``moment``."""
        return self.hold is not None and self.hold.polls == polls and moment < self.hold.until

    # -- events ----------------------------------------------------------------------------------------------------------

    def prepare(self) -> Membership:
        """Begin a rebalance, and clear the reason for it."""
        assert self.rejoin_reason is not None, "a rebalance needs a reason"
        return self._after(MemberEvent.PREPARE, rejoin_reason=None)

    def join(self) -> Membership:
        """Record that ``on_join_prepare`` ended except for the last commits; this also ends a transaction's delay."""
        return self._after(MemberEvent.JOIN, hold=None)

    def member_id_given(self, member_id: str) -> Membership:
        """Adopt the member id of a MEMBER_ID_REQUIRED response to JoinGroup (KIP-394)."""
        return self._after(MemberEvent.MEMBER_ID_GIVEN, generation=Generation(member_id=member_id))

    def joined_as(self, generation: Generation, *, leader: bool) -> Membership:
        """Adopt the generation of a JoinGroup response."""
        return self._after(MemberEvent.JOINED, generation=generation, is_leader=leader)

    def synced(self) -> Membership:
        """Record a successful SyncGroup response."""
        return self._after(MemberEvent.SYNCED)

    def failed(self, reason: str) -> Membership:
        """Record that a step of a rebalance failed; keep the generation, and request the join again for ``reason``."""
        return self._after(MemberEvent.FAIL, rejoin_reason=(self.rejoin_reason or reason) if self.subscribed else None)

    def rejoin(self, reason: str) -> Membership:
        """Request a join; the first reason is kept."""
        return self._after(MemberEvent.REJOIN, rejoin_reason=(self.rejoin_reason or reason) if self.subscribed else None)

    def lose(self, reason: str, *, keep_member_id: bool = False) -> Membership:
        """Lose the generation; with a subscription, join the group again for ``reason``."""
        return self._without_generation(MemberEvent.LOSE, reason, keep_member_id=keep_member_id)

    def leave(self) -> Membership:
        """Leave, and join again only for a new reason."""
        return self._without_generation(MemberEvent.LEAVE, None)

    def subscribe(self) -> Membership:
        """Set a new subscription; do nothing while the member closes."""
        return self._after(MemberEvent.SUBSCRIBE)

    def resubscribe(self) -> Membership:
        """Repeat the same subscription, which cancels a prepared leave."""
        return self._after(MemberEvent.SUBSCRIBE) if self.subscribed else self

    def polled(self, polls: int) -> Membership:
        """Record a poll of the application; ``polls`` is its count of polls."""
        hold = None if self.hold is not None and self.hold.polls != polls else self.hold
        if polls == self.polls:
            return attrs.evolve(self, hold=hold)
        return self._after(MemberEvent.POLL, hold=hold)

    def poll_timeout(self, polls: int, reason: str) -> Membership:
        """Record that the application did not poll for max.poll.interval.ms after poll number ``polls``."""
        return attrs.evolve(self._without_generation(MemberEvent.POLL_TIMEOUT, reason), polls=polls)

    def prepare_to_leave(self, polls: int) -> Membership:
        """Record that the application revokes everything after poll number ``polls``, to close or to unsubscribe."""
        return self._after(MemberEvent.PREPARE_TO_LEAVE, polls=polls)

    def unsubscribe(self) -> Membership:
        """End the subscription."""
        return self._after(MemberEvent.UNSUBSCRIBE, rejoin_reason=None)

    def unsubscribed(self) -> Membership:
        """Record the end of LeaveGroup."""
        return self._after(MemberEvent.UNSUBSCRIBED)

    def close(self) -> Membership:
        """Record that the member begins to close."""
        return self._after(MemberEvent.CLOSE, rejoin_reason=None)

    def close_completed(self) -> Membership:
        """Record that the member is closed."""
        return self._after(MemberEvent.CLOSED)

    def crash(self) -> Membership:
        """End the membership, because its state is unreliable after the crash of a background task."""
        return self._without_generation(MemberEvent.CRASH, None)

    def hold_joins(self, hold: JoinHold) -> Membership:
        """Let a transaction delay joins."""
        return attrs.evolve(self, hold=hold)

    def _without_generation(self, event: MemberEvent, reason: str | None, *, keep_member_id: bool = False) -> Membership:
        before = self.generation
        return self._after(
            event,
            generation=Generation(member_id=before.member_id) if keep_member_id else Generation(),
            is_leader=False,
            lost_generation=before if before.generation_id >= 0 else self.lost_generation,
            rejoin_reason=(self.rejoin_reason or reason) if reason is not None and self.subscribed else None,
        )

    def _after(self, event: MemberEvent, **changes: Any) -> Membership:
        """Return the membership after ``event``; raise AssertionError for an illegal event, which is a bug."""
        return attrs.evolve(self, state=_next(event, self.state), intent=_next(event, self.intent), **changes)


def _next(event: MemberEvent, state: Any) -> Any:
    rows = TRANSITIONS[event]
    after = rows.get(state)
    if after is None:
        concerned = any(type(before) is type(state) for before in rows)
        assert not concerned, f"illegal event for a member that is {state.value}: {event.value}"
        return state
    return after
