"""A classic consumer group in the broker: its members, generation and leader, and its state with legal transitions.

In Kafka, these are ``ClassicGroup`` and ``ClassicGroupMember`` (before 4.0 ``GroupMetadata`` and ``MemberMetadata``). This
module uses no timers, no log and no clock, and only stores the group, in a deterministic order; ``group_coordinator`` decides
what a member may do in each state.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import attrs

from consumer_coord.broker.committed import GroupOffsets
from consumer_coord.broker.java_hash import hash_map_order
from consumer_coord.broker.purgatory import DelayedOperation, complete
from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_at
from consumer_coord.wire.embedded_protocol import ConsumerProtocolSubscription
from consumer_coord.wire.messages.group import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

#: The protocol type of consumers. Groups of other types (such as Kafka Connect's) work in the same way.
CONSUMER_PROTOCOL_TYPE = "consumer"
#: The member id in the first JoinGroup of a dynamic member.
UNKNOWN_MEMBER_ID = ""


class GroupState(enum.Enum):
    """The five states of a classic group (``ClassicGroupState``); the values are those of DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


#: Every legal transition with its cause. The picture in ``docs/embedded-kafka.md`` is drawn from this table.
TRANSITIONS: Mapping[tuple[GroupState, GroupState], str] = {
    (GroupState.EMPTY, GroupState.PREPARING_REBALANCE): "a first member joins",
    (GroupState.PREPARING_REBALANCE, GroupState.EMPTY): "the join phase ends without members",
    (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE): "all members joined, or the rebalance timeout passed",
    (GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE): "a member joins, leaves, or fails to sync",
    (GroupState.COMPLETING_REBALANCE, GroupState.STABLE): "the leader's assignment is stored",
    (GroupState.STABLE, GroupState.PREPARING_REBALANCE): "a member joins, leaves or fails; the leader joins again",
    (GroupState.EMPTY, GroupState.DEAD): "deleted, expired, or unloaded",
    (GroupState.PREPARING_REBALANCE, GroupState.DEAD): "unloaded",
    (GroupState.COMPLETING_REBALANCE, GroupState.DEAD): "unloaded",
    (GroupState.STABLE, GroupState.DEAD): "unloaded",
    (GroupState.DEAD, GroupState.DEAD): "unloaded again",
}


class IllegalTransitionError(RuntimeError):
    """Raised for a transition that is not in ``TRANSITIONS``, which is a bug of the coordinator."""


@attrs.define(eq=False)
class GroupMember:
    """A member of a group (``ClassicGroupMember``).

    ``awaiting_join`` and ``awaiting_sync`` are the responses that the member waits for, if any.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    awaiting_join: asyncio.Future[JoinGroupResponse] | None = None
    awaiting_sync: asyncio.Future[SyncGroupResponse] | None = None
    heartbeat: DelayedOperation | None = None

    @property
    def protocol_names(self) -> tuple[str, ...]:
        """The assignors that the member offers, in its order of preference."""
        return tuple(protocol.name for protocol in self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's subscription for this protocol; raise :class:`KeyError` if the member does not offer it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise KeyError(protocol_name)

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether the member needs no heartbeat now, because it is not new and waits for a JoinGroup or SyncGroup response."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


@attrs.define(eq=False)
class GroupMetadata:
    """A group. The dictionaries keep the order in which members joined, so that all runs with the same seed are equal."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    state_timestamp_ms: int | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    generation_id: int = 0
    leader_id: str | None = None
    members: dict[str, GroupMember] = attrs.field(factory=dict)
    static_members: dict[str, str] = attrs.field(factory=dict)
    #: Member ids that the broker assigned (MEMBER_ID_REQUIRED) but that have not joined yet -> the timer of their expiry.
    pending_join_members: dict[str, DelayedOperation] = attrs.field(factory=dict)
    pending_sync_members: dict[str, None] = attrs.field(factory=dict)
    awaiting_join_count: int = 0
    #: Whether a member joined during the initial rebalance delay. Such a member extends the delay.
    new_member_added: bool = False
    join_operation: DelayedOperation | None = None
    sync_operation: DelayedOperation | None = None
    offsets: GroupOffsets = attrs.field(factory=GroupOffsets)
    _protocol_counts: dict[str, int] = attrs.field(factory=dict)
    _preferences: dict[tuple[str, ...], int] = attrs.field(factory=dict)
    _subscriptions: tuple[bytes, ...] | None = None
    _subscribed_topics: frozenset[str] | None = None

    # -- states

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Change to ``state``; raise :class:`IllegalTransitionError` if the table does not have this transition."""
        if (self.state, state) not in TRANSITIONS:
            raise IllegalTransitionError(f"group {self.group_id} cannot change from {self.state.value} to {state.value}")
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start from the current state."""
        return (self.state, GroupState.PREPARING_REBALANCE) in TRANSITIONS

    @property
    def is_empty(self) -> bool:
        """Whether the group is in the state ``Empty``, in which it has no members."""
        return self.state is GroupState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether the group has only committed offsets, because its consumers assign partitions themselves."""
        return self.protocol_type is None and self.state is GroupState.EMPTY and not self.pending_join_members

    # -- members

    def add(self, member: GroupMember, awaiting_join: asyncio.Future[JoinGroupResponse] | None = None) -> None:
        """Add a member. The first member determines the protocol type and becomes the leader."""
        if member.group_instance_id is not None:
            if member.group_instance_id in self.static_members:
                raise ValueError(f"instance id {member.group_instance_id} is in group {self.group_id} already")
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self._await_join(member, awaiting_join)
        self.pending_join_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id. If the leader is removed, the oldest remaining member becomes leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.leader_candidates()), None)
        self.pending_join_members.pop(member_id, None)
        self.pending_sync_members.pop(member_id, None)

    def update_member(
        self,
        member: GroupMember,
        protocols: tuple[JoinGroupRequestProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        awaiting_join: asyncio.Future[JoinGroupResponse] | None,
    ) -> None:
        """Replace the protocols and timeouts of a member that joins again."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._await_join(member, awaiting_join)

    def replace_static_member(self, instance_id: str, old_member_id: str, new_member_id: str) -> GroupMember:
        """Replace a static member by the member that returned with its instance id; fence the former member's requests."""
        old = self.members.pop(old_member_id)
        self.complete_join(old, join_error(error_codes.FENCED_INSTANCE_ID, old_member_id))
        self.complete_sync(old, SyncGroupResponse(error_code=error_codes.FENCED_INSTANCE_ID))
        new = attrs.evolve(old, member_id=new_member_id, is_new=False, awaiting_join=None, awaiting_sync=None, heartbeat=None)
        self.members[new_member_id] = new
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        self.static_members[instance_id] = new_member_id
        return new

    def validate_member(self, member_id: str, instance_id: str | None) -> int:
        """Return 0, or the error code for an unknown member or for a member whose instance id now belongs to another member."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                return error_codes.UNKNOWN_MEMBER_ID
            if current != member_id:
                return error_codes.FENCED_INSTANCE_ID
        return error_codes.NONE if member_id in self.members else error_codes.UNKNOWN_MEMBER_ID

    def elect_joined_leader(self) -> bool:
        """If the leader has not joined, choose a leader among the members that have joined; return whether this succeeded."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for member_id in self.leader_candidates():
            if self.members[member_id].awaiting_join is not None:
                self.leader_id = member_id
                return True
        return False

    def leader_candidates(self) -> Iterable[str]:
        """Return the candidates for the next leader in the order of joining (Kafka uses the order of a hash map)."""
        return self.members

    @property
    def all_members_joined(self) -> bool:
        """Whether all known members have joined, so that the join phase can end."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- responses

    def join_response(self, member: GroupMember, leader_id: str | None = None) -> JoinGroupResponse:
        """Return the response to a member's JoinGroup in this generation; only the leader's response has all members.

        ``leader_id`` replaces the leader's id in the response.
        """
        name, leader = self.protocol_name, leader_id or self.leader_id or ""
        members = self.members.values() if member.member_id == leader else ()
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=name,
            leader=leader,
            member_id=member.member_id,
            members=tuple(
                JoinGroupResponseMember(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, metadata=one.metadata(name)
                )
                for one in members
            ),
        )

    def sync_response(self, member: GroupMember) -> SyncGroupResponse:
        """Return the response to a member's SyncGroup, with the member's assignment."""
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def complete_join(self, member: GroupMember, response: JoinGroupResponse) -> bool:
        """Respond to a member's waiting JoinGroup; return whether a JoinGroup was waiting."""
        waiter = member.awaiting_join
        if waiter is None:
            return False
        self._await_join(member, None)
        complete(waiter, response)
        return True

    def complete_sync(self, member: GroupMember, response: SyncGroupResponse) -> bool:
        """Respond to a member's waiting SyncGroup; return whether a SyncGroup was waiting."""
        waiter = member.awaiting_sync
        if waiter is None:
            return False
        member.awaiting_sync = None
        complete(waiter, response)
        return True

    def _await_join(self, member: GroupMember, waiter: asyncio.Future[JoinGroupResponse] | None) -> None:
        self.awaiting_join_count += (waiter is not None) - (member.awaiting_join is not None)
        member.awaiting_join = waiter

    # -- protocols and generations

    def supports_protocols(self, protocol_type: str, protocols: Sequence[JoinGroupRequestProtocol]) -> bool:
        """Return whether at least one of these protocols is offered by all members of the group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self._protocol_counts.get(protocol.name, 0) == len(self.members) for protocol in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes. Each member votes for the first of its protocols that all members offer.

        Members with the same list of protocols are counted together, so the cost is O(different lists) instead of O(members).
        As in Kafka, a tie goes to the first name in the order of a Java hash map.
        """
        members = len(self.members)
        votes: dict[str, int] = {}
        for names, count in self._preferences.items():
            vote = next(name for name in names if self._protocol_counts[name] == members)
            votes[vote] = votes.get(vote, 0) + count
        return max(hash_map_order(votes), key=votes.__getitem__)

    def init_next_generation(self, now_ms: int) -> None:
        """End the join phase: start a generation with the members that joined, or change to Empty if there are no members."""
        self.generation_id += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.remember_subscriptions()
        self.pending_sync_members.clear()

    def remember_subscriptions(self) -> None:
        """Store the members' subscriptions in this generation, because offsets of subscribed topics do not expire."""
        self._subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or (self.members and self.protocol_name is None):
            self._subscriptions = None
        else:
            self._subscriptions = tuple(member.metadata(self.protocol_name) for member in self.members.values())

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that this generation subscribes to; None for another protocol type or invalid subscriptions."""
        if self._subscribed_topics is None and self._subscriptions is not None:
            try:
                self._subscribed_topics = frozenset(
                    topic for metadata in self._subscriptions for topic in _topics_of_subscription(metadata)
                )
            except MalformedMessageError:
                self._subscriptions = None
        return self._subscribed_topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the group subscribes to a topic; if the topics of a consumer group are unknown, return True."""
        topics = self.subscribed_topics()
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE if topics is None else topic in topics

    def _count_protocols(self, member: GroupMember, sign: int) -> None:
        names = member.protocol_names
        for name in dict.fromkeys(names):
            self._protocol_counts[name] = self._protocol_counts.get(name, 0) + sign
        count = self._preferences.get(names, 0) + sign
        if count:
            self._preferences[names] = count
        else:
            self._preferences.pop(names, None)


def join_error(error_code: int, member_id: str = UNKNOWN_MEMBER_ID) -> JoinGroupResponse:
    """Return the response to a JoinGroup that failed."""
    return JoinGroupResponse(error_code=error_code, protocol_name=None, member_id=member_id)


def generate_member_id(random: Random, client_id: str, instance_id: str | None) -> str:
    """Return a new member id: the instance id (without one, the client id), followed by a random UUID."""
    return f"{client_id if instance_id is None else instance_id}-{uuid.UUID(int=random.getrandbits(128), version=4)}"


def _topics_of_subscription(metadata: bytes) -> Sequence[str]:
    """Return the topics of an encoded subscription. Read version 0, because every version begins with these fields.

    Raise :class:`~consumer_coord.errors.MalformedMessageError` for an invalid subscription.
    """
    if metadata[:1] >= b"\x80":
        raise MalformedMessageError("the subscription has a negative version")
    return decode_at(ConsumerProtocolSubscription, 0, metadata, 2)[0].topics
