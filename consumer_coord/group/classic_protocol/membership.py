"""The member of a classic group as a value: states, events, and one table of transitions.  No I/O, no time.

A :class:`Membership` is in two states at once, which change independently of each other:

* :class:`MemberState`: where it stands in the group.  These are Java's states (``AbstractCoordinator.MemberState``), with one
  more for ``on_join_prepare``, which in Java runs inside a poll.
* :class:`Intent`: what its application wants of the membership.

:data:`TRANSITIONS` is the whole table: ``event -> state -> next state``.  An event with no row for one of the two kinds of
states leaves that one alone; an event whose rows leave out the present state is illegal in it, and a bug of ours.  Everything
else follows from the two states, the generation and the reason to rejoin: see the properties of :class:`Membership`.

How to think about it: ``group/classic_protocol/member.py`` is a coroutine in Kafka's steps; at each step it applies an
event.  What comes from elsewhere (an application's call, a heartbeat's answer, a timeout) is an event too, at any time, and
the coroutine compares
:attr:`Membership.generation` by identity to notice that the ground moved while it waited.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from consumer_coord.group.generation import NO_GENERATION, Generation


class MemberState(enum.Enum):
    """Where a member stands in its group."""

    #: Not in the group, or a join failed and is tried again (then the generation may stand).
    UNJOINED = "unjoined"
    #: ``on_join_prepare``: partitions are revoked, commits are finished, a transaction may hold the join.
    PREPARING_JOIN = "preparing join"
    #: JoinGroup is under way; nothing holds it any more.
    PREPARING_REBALANCE = "preparing rebalance"
    #: JoinGroup was answered, SyncGroup not yet.
    COMPLETING_REBALANCE = "completing rebalance"
    #: In the group, with an assignment.
    STABLE = "stable"


class Intent(enum.Enum):
    """What the application wants of the membership."""

    #: No subscription.
    UNSUBSCRIBED = "unsubscribed"
    #: To be a member.
    SUBSCRIBED = "subscribed"
    #: It did not poll for max.poll.interval.ms; the member left, and joins again at the next poll.
    SILENT = "silent"
    #: It is about to close or unsubscribe, and gives its partitions up: no rejoin for that.
    ABOUT_TO_LEAVE = "about to leave"
    #: Unsubscribing: the last commits, and LeaveGroup.
    LEAVING = "leaving"
    #: Closing: the same, for good.
    CLOSING = "closing"
    #: The end.
    CLOSED = "closed"


class MemberEvent(enum.Enum):
    """What can happen to a member."""

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

#: event -> state -> next state; see the module's text.
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
    # It may have subscribed again while it left.
    MemberEvent.UNSUBSCRIBED: {**_stay(*_OPEN), Intent.LEAVING: Intent.UNSUBSCRIBED},
    MemberEvent.CLOSE: dict.fromkeys(_OPEN, Intent.CLOSING),
    MemberEvent.CLOSED: {Intent.CLOSING: Intent.CLOSED},
    MemberEvent.CRASH: {
        **_all_to(MemberState.UNJOINED),
        **dict.fromkeys(_OPEN, Intent.UNSUBSCRIBED),
        **_stay(Intent.CLOSING, Intent.CLOSED),
    },
}

#: Events that end the generation: the partitions are lost, and nothing more is committed under it.
LOSES_PARTITIONS = frozenset({MemberEvent.LOSE, MemberEvent.LEAVE, MemberEvent.POLL_TIMEOUT, MemberEvent.CRASH})

# Looked up by identity: tuples, since the hash of an Enum is a call of Python's.
#: In these states a join is under way.
_REBALANCING = (MemberState.PREPARING_JOIN, MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)
#: In these states it is too late to hold the join.
_PAST_HOLD = (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE)
#: With these intents there is a subscription, and a reason to rejoin is kept until it can be followed.
_SUBSCRIBED = (Intent.SUBSCRIBED, Intent.SILENT, Intent.ABOUT_TO_LEAVE)
#: With these no rebalance is completed any more.
_ENDING = frozenset({Intent.LEAVING, Intent.CLOSING, Intent.CLOSED})
#: With these the next poll changes the intent.
_UNTIL_POLL = frozenset({Intent.SILENT, Intent.ABOUT_TO_LEAVE})


@attrs.frozen
class JoinHold:
    """A transaction holds joins: until the poll after poll number ``polls``, at most until ``until`` (seconds, the loop's)."""

    polls: int
    until: float


@attrs.frozen
class Membership:
    """What a member is to its group and its application, at one moment."""

    state: MemberState = MemberState.UNJOINED
    intent: Intent = Intent.UNSUBSCRIBED
    generation: Generation = NO_GENERATION
    is_leader: bool = False
    #: Why a join is needed; None when none is.
    rejoin_reason: str | None = None
    #: The last generation that was lost.
    lost_generation: Generation = NO_GENERATION
    #: The transaction that holds joins; None when none does.
    hold: JoinHold | None = None
    #: The count of polls when the present intent began; a later poll ends SILENT and ABOUT_TO_LEAVE.
    polls: int = 0

    # -- what the states imply -------------------------------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """There is a subscription."""
        return self.intent in _SUBSCRIBED

    @property
    def join_wanted(self) -> bool:
        """The sequence of a rebalance has to begin."""
        return self.intent is Intent.SUBSCRIBED and self.rejoin_reason is not None

    @property
    def heartbeats_wanted(self) -> bool:
        """In a generation; also while JoinGroup waits on its own connection, to prove the lease of what is held."""
        return self.generation.generation_id >= 0

    @property
    def rebalancing(self) -> bool:
        """A join is known to be needed, or is under way."""
        return self.rejoin_reason is not None or self.state in _REBALANCING

    @property
    def joined(self) -> bool:
        """In the group with an assignment, and no join is needed."""
        return self.state is MemberState.STABLE and self.rejoin_reason is None

    @property
    def past_hold(self) -> bool:
        """It is too late to hold the join: its answer has to be waited for."""
        return self.state in _PAST_HOLD

    @property
    def will_sync(self) -> bool:
        """A join is under way, or the member will begin one without waiting for its application."""
        return self.state in _REBALANCING or self.join_wanted

    @property
    def ending(self) -> bool:
        """The member leaves for good or until it subscribes again: no rebalance is completed any more."""
        return self.intent in _ENDING

    @property
    def closed(self) -> bool:
        """The end."""
        return self.intent is Intent.CLOSED

    @property
    def waits_for_poll(self) -> bool:
        """The next poll changes something."""
        return self.intent in _UNTIL_POLL or self.hold is not None

    def held_at(self, polls: int, moment: float) -> bool:
        """A transaction holds the join, with the application at poll number ``polls`` and the loop's clock at ``moment``."""
        return self.hold is not None and self.hold.polls == polls and moment < self.hold.until

    # -- events ----------------------------------------------------------------------------------------------------------

    def prepare(self) -> Membership:
        """A rebalance begins; the reason for it is used up."""
        assert self.rejoin_reason is not None, "a rebalance begins for a reason"
        return self._after(MemberEvent.PREPARE, rejoin_reason=None)

    def join(self) -> Membership:
        """``on_join_prepare`` is over but for the last commits: no transaction holds the join any more."""
        return self._after(MemberEvent.JOIN, hold=None)

    def member_id_given(self, member_id: str) -> Membership:
        """JoinGroup was answered MEMBER_ID_REQUIRED (KIP-394)."""
        return self._after(MemberEvent.MEMBER_ID_GIVEN, generation=Generation(member_id=member_id))

    def joined_as(self, generation: Generation, *, leader: bool) -> Membership:
        """JoinGroup was answered."""
        return self._after(MemberEvent.JOINED, generation=generation, is_leader=leader)

    def synced(self) -> Membership:
        """SyncGroup was answered."""
        return self._after(MemberEvent.SYNCED)

    def failed(self, reason: str) -> Membership:
        """A step of the rebalance that began for ``reason`` failed: the generation stands, the join begins anew."""
        return self._after(MemberEvent.FAIL, rejoin_reason=(self.rejoin_reason or reason) if self.subscribed else None)

    def rejoin(self, reason: str) -> Membership:
        """A join is needed; the first reason counts."""
        return self._after(MemberEvent.REJOIN, rejoin_reason=(self.rejoin_reason or reason) if self.subscribed else None)

    def lose(self, reason: str, *, keep_member_id: bool = False) -> Membership:
        """The generation is gone; with a subscription the group is joined anew, for ``reason``."""
        return self._without_generation(MemberEvent.LOSE, reason, keep_member_id=keep_member_id)

    def leave(self) -> Membership:
        """The member leaves, and joins again only for a new reason."""
        return self._without_generation(MemberEvent.LEAVE, None)

    def subscribe(self) -> Membership:
        """A new subscription; without effect on a member that closes."""
        return self._after(MemberEvent.SUBSCRIBE)

    def resubscribe(self) -> Membership:
        """The same subscription again: the application does not leave after all."""
        return self._after(MemberEvent.SUBSCRIBE) if self.subscribed else self

    def polled(self, polls: int) -> Membership:
        """The application polled; ``polls`` is its count of polls."""
        hold = None if self.hold is not None and self.hold.polls != polls else self.hold
        if polls == self.polls:
            return attrs.evolve(self, hold=hold)
        return self._after(MemberEvent.POLL, hold=hold)

    def poll_timeout(self, polls: int, reason: str) -> Membership:
        """The application did not poll for max.poll.interval.ms since poll number ``polls``."""
        return attrs.evolve(self._without_generation(MemberEvent.POLL_TIMEOUT, reason), polls=polls)

    def prepare_to_leave(self, polls: int) -> Membership:
        """The application gives everything up after poll number ``polls``, to close or to unsubscribe."""
        return self._after(MemberEvent.PREPARE_TO_LEAVE, polls=polls)

    def unsubscribe(self) -> Membership:
        """The subscription ends."""
        return self._after(MemberEvent.UNSUBSCRIBE, rejoin_reason=None)

    def unsubscribed(self) -> Membership:
        """LeaveGroup is over."""
        return self._after(MemberEvent.UNSUBSCRIBED)

    def close(self) -> Membership:
        """The member begins to close."""
        return self._after(MemberEvent.CLOSE, rejoin_reason=None)

    def close_completed(self) -> Membership:
        """It is closed."""
        return self._after(MemberEvent.CLOSED)

    def crash(self) -> Membership:
        """A task of ours crashed: nothing can be relied on."""
        return self._without_generation(MemberEvent.CRASH, None)

    def hold_joins(self, hold: JoinHold) -> Membership:
        """A transaction begins to hold joins."""
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
        """This value after ``event``, by the table; an illegal event is a bug of ours and an AssertionError."""
        return attrs.evolve(self, state=_next(event, self.state), intent=_next(event, self.intent), **changes)


def _next(event: MemberEvent, state: Any) -> Any:
    rows = TRANSITIONS[event]
    after = rows.get(state)
    if after is None:
        concerned = any(type(before) is type(state) for before in rows)
        assert not concerned, f"illegal for a member that is {state.value}: {event.value}"
        return state
    return after
