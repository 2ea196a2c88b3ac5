"""The rules ``overdue`` and ``lease`` as far as a member does too late, or not at all, what it may and must do.

The requests of a member and the answers that it receives say what it owes:

* in its group, a heartbeat in each interval (``Heartbeat``, ``ConsumerGroupHeartbeat``);
* after the news of a rebalance, or if its application enforces one, a JoinGroup; after the answer to JoinGroup, a SyncGroup;
* in the consumer protocol, after an assignment without partitions that it owns, a heartbeat without them;
* after answers that prove its membership, records: its lease must not have expired.

As long as a fault may delay requests, callbacks or polls, nothing is overdue.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from consumer_coord.group.lease import Lease
from consumer_coord.simulation.checkers import Violation
from consumer_coord.simulation.consumer import SimulatedConsumer
from consumer_coord.simulation.member_spec import MemberSpec
from consumer_coord.simulation.process import Process
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_request, decode_response
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from consumer_coord.wire.messages.offsets import OffsetCommitResponse

_JOIN_GROUP, _HEARTBEAT, _LEAVE_GROUP, _SYNC_GROUP, _CONSUMER_GROUP_HEARTBEAT = 11, 12, 13, 14, 68
_RESPONSES: Final[Mapping[int, Any]] = {
    _JOIN_GROUP: JoinGroupResponse,
    _HEARTBEAT: HeartbeatResponse,
    _SYNC_GROUP: SyncGroupResponse,
    _CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeatResponse,
}
_OFFSET_COMMIT: Final = 8
#: After these answers to a commit, a member gives up its generation, as in Kafka (``OffsetCommitResponseHandler``).
_ENDS_MEMBERSHIP: Final = frozenset({error_codes.ILLEGAL_GENERATION, error_codes.UNKNOWN_MEMBER_ID})
_OF_GROUPS: Final = frozenset({*_RESPONSES, _LEAVE_GROUP})

#: How often members are looked at, in seconds.
_EVERY_S: Final = 0.5
#: How long requests take without a fault, and what a loop may do before, in seconds.
_SLACK_S: Final = 2.0
#: The part of a timeout that a member need not use, because clocks differ.
_UNUSED: Final = 0.002

_Rows = frozenset[tuple[uuid.UUID, int]]


class Debtor(Protocol):
    """What the rules must know of a member (:class:`~consumer_coord.simulation.application.MemberProcess`)."""

    name: str
    spec: MemberSpec
    process: Process

    @property
    def consumer(self) -> SimulatedConsumer | None:
        """The member's consumer; None before it was created."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""

    @property
    def leaves(self) -> bool:
        """Whether the member is leaving its group."""


@attrs.define(eq=False)
class _Membership:
    """What one member and its coordinator have said to each other since the member joined."""

    #: Whether the member must send heartbeats.
    in_group: bool = False
    #: Whether a JoinGroup has no answer yet.
    joining: bool = False
    #: The request that the member owes, and since when.
    owes: str = ""
    since: float = 0.0
    #: What the last heartbeat of the consumer protocol named as owned, and what the last assignment contains.
    owned: _Rows = frozenset()
    assigned: _Rows = frozenset()
    #: When the requests were sent whose answers prove that the session was alive, and that no rebalance had begun; and when the
    #: last answer arrived that proves this.
    session_from: float = -math.inf
    stable_from: float = -math.inf
    proven_at: float = -math.inf
    #: The begin of the time in which only the time limit of the session counts: the last rebalance is over for the member, and
    #: for its coordinator. Infinite in a rebalance.
    settled_at: float = -math.inf
    #: When the member last asked to join a group of the consumer protocol. Then it also asks for the session timeout, once.
    joined_at: float = math.inf
    #: API key -> the time at which the last request was sent.
    sent_at: dict[int, float] = attrs.field(factory=dict)

    @property
    def spoke_at(self) -> float:
        """When the member last sent a request of the group."""
        return max(self.sent_at.values(), default=0.0)

    def owe(self, what: str, moment: float) -> None:
        if self.owes != what:
            self.owes, self.since = what, moment


class Duties:
    """What all members of one simulation run owe. Moments are those of the loop's clock, in seconds."""

    def __init__(self) -> None:
        self._memberships: dict[str, _Membership] = {}
        self._looked_at = 0.0

    def sent(self, client: str, frame: bytes, moment: float) -> None:
        """Record a request that a member sends."""
        api_key = int.from_bytes(frame[:2], "big")
        if api_key not in _OF_GROUPS:
            return
        one = self._memberships.setdefault(client, _Membership())
        one.sent_at[api_key] = moment
        if api_key == _CONSUMER_GROUP_HEARTBEAT:
            request: Any = decode_request(frame).message
            if request.member_epoch == 0:
                one.joined_at = moment
            if request.member_epoch < 0:
                self._forget(client)
            elif request.topic_partitions is not None:
                one.owned = _rows(request.topic_partitions)
                if one.owes and one.owned <= one.assigned:
                    one.owes, one.settled_at = "", moment
        elif api_key == _LEAVE_GROUP:
            self._forget(client)
        elif api_key != _HEARTBEAT:
            one.owes, one.in_group, one.joining = "", False, api_key == _JOIN_GROUP
            one.settled_at = math.inf

    def left(self, client: str) -> None:
        """Record that a member has left the group; if it is static, it has sent no request."""
        self._forget(client)

    def enforced(self, client: str, moment: float) -> None:
        """Record that an application has enforced a rebalance. In the consumer protocol, members cannot do that."""
        one = self._memberships.get(client)
        if one is not None and one.in_group and not one.owes and _JOIN_GROUP in one.sent_at:
            one.owe("JoinGroup", moment)

    def _forget(self, client: str) -> None:
        self._memberships[client] = _Membership()

    def answered(self, client: str, request: bytes, answer: bytes, moment: float) -> None:
        """Record a response that a member is about to receive."""
        api_key, version = int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big")
        one, kind = self._memberships.get(client), _RESPONSES.get(api_key)
        if one is None:
            return
        if api_key == _OFFSET_COMMIT and self._ends_membership(answer, version):
            self._memberships[client] = _Membership(sent_at=one.sent_at)
        elif kind is not None and api_key in one.sent_at:
            self._answered(client, one, api_key, decode_response(kind, version, answer)[1], moment)

    def _answered(self, client: str, one: _Membership, api_key: int, said: Any, moment: float) -> None:
        if api_key == _JOIN_GROUP:
            one.joining = False
        if said.error_code == error_codes.REBALANCE_IN_PROGRESS and api_key in (_HEARTBEAT, _SYNC_GROUP):
            if api_key == _HEARTBEAT:
                one.proven_at, one.session_from = moment, max(one.session_from, one.sent_at[api_key])
            if not one.joining:
                # Otherwise the heartbeat was sent before JoinGroup, or while JoinGroup waits.
                one.in_group = one.in_group or api_key == _HEARTBEAT
                one.owe("JoinGroup", moment)
        elif said.error_code != error_codes.NONE:
            self._memberships[client] = _Membership(sent_at=one.sent_at)
        elif api_key == _JOIN_GROUP:
            one.owe("SyncGroup", moment)
            one.session_from = max(one.session_from, one.sent_at[api_key])
        else:
            self._proves(one, api_key, moment)
            if api_key == _CONSUMER_GROUP_HEARTBEAT and said.assignment is not None:
                one.assigned = _rows(said.assignment.topic_partitions)
                if one.owned <= one.assigned:
                    one.owes = ""
                else:
                    one.owe("a heartbeat without the revoked partitions", moment)

    @staticmethod
    def _ends_membership(answer: bytes, version: int) -> bool:
        said = decode_response(OffsetCommitResponse, version, answer)[1]
        return any(row.error_code in _ENDS_MEMBERSHIP for topic in said.topics for row in topic.partitions)

    @staticmethod
    def _proves(one: _Membership, api_key: int, moment: float) -> None:
        one.in_group, one.proven_at = True, moment
        if api_key == _SYNC_GROUP:
            one.settled_at = moment
        one.stable_from = max(one.stable_from, one.sent_at[api_key])
        if api_key != _SYNC_GROUP:
            one.session_from = max(one.session_from, one.sent_at[api_key])

    def look(self, members: Iterable[Debtor], moment: float, calm_since: float) -> None:
        """Check all members, if the last look was half a second ago; raise :class:`Violation`.

        ``calm_since``: the time from which on no fault delays anything.
        """
        if moment - self._looked_at < _EVERY_S:
            return
        self._looked_at = moment
        for member in members:
            one = self._memberships.get(member.name)
            if one is not None and member.alive and not member.leaves and member.process.is_steady:
                self._must_be_in_time(member, one, moment, calm_since)
                self._must_deliver(member, one, moment, calm_since)

    @staticmethod
    def _must_be_in_time(member: Debtor, one: _Membership, moment: float, calm_since: float) -> None:
        spec = member.spec
        # A member of the consumer protocol keeps its epoch while a transaction sends offsets (``hold_joins``).
        held_s = spec.rebalance_timeout_ms / 2000 if spec.transactions else 0.0
        late_s, bound_s = moment - max(one.spoke_at, calm_since), spec.heartbeat_interval_s + held_s + _EVERY_S
        if one.in_group and late_s > bound_s:
            raise Violation("overdue", f"{member.name} has sent no heartbeat for {late_s:.1f} s; {bound_s:.1f} s suffice")
        late_s, bound_s = moment - max(one.since, calm_since), spec.rebalances_within_s + _SLACK_S
        polls = not spec.process and not spec.transactions
        if one.owes and late_s > bound_s and (polls or one.owes == "SyncGroup"):
            raise Violation("overdue", f"{member.name} has owed {one.owes} for {late_s:.1f} s; {bound_s:.1f} s suffice")

    @staticmethod
    def _must_deliver(member: Debtor, one: _Membership, moment: float, calm_since: float) -> None:
        consumer = member.consumer
        if consumer is None or moment - max(one.proven_at, calm_since) < _EVERY_S:
            return
        spec = member.spec
        until = min(one.session_from + spec.session_s, one.stable_from + spec.rebalance_timeout_ms / 1000)
        lease: Lease = consumer.engine.core.lease
        # In a rebalance, another time limit counts.
        plain = not one.owes and one.session_from == one.stable_from > one.settled_at
        known = plain and lease.enabled and consumer.subscribed
        # Without an answer, the member assumes that a session lasts for three heartbeat intervals.
        assumed_s = 3 * spec.heartbeat_interval_s if one.joined_at < calm_since else spec.session_s
        shorter_s = max(0.0, spec.session_s - assumed_s)
        tolerance_s = _UNUSED * (until - one.session_from) + _EVERY_S
        if known and not -tolerance_s - shorter_s <= lease.until - until <= tolerance_s:
            raise Violation(
                "lease", f"{member.name} has a lease until {lease.until:.3f} s; its session was proven until {until:.3f} s"
            )
        if moment < until - _UNUSED * (until - one.session_from) - _EVERY_S and consumer.engine.suspended:
            raise Violation(
                "lease",
                f"{member.name} delivers nothing since {lease.until:.3f} s, although its coordinator has proven its membership"
                f" until {until:.3f} s",
            )


def _rows(topics: Iterable[Any]) -> _Rows:
    return frozenset((row.topic_id, number) for row in topics for number in row.partitions)
