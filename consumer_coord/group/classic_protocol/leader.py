"""The leader's computation: from the members' subscriptions to the bytes of every member's assignment.  Pure, no I/O.

It runs where ``Environment.run_blocking`` puts it (a worker thread), since it may take seconds for a large group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.verify import InvalidPlanError, verify
from consumer_coord.errors import AssignorError, MalformedMessageError
from consumer_coord.net.metadata import Metadata
from consumer_coord.wire.embedded_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from consumer_coord.wire.messages.group import JoinGroupResponseMember, SyncGroupRequestAssignment

#: What travels in SyncGroup: v1 is what Java sends; v0 to v3 have the same bytes after the version.
_ASSIGNMENT_VERSION = 3


@attrs.frozen
class GroupView:
    """What the leader knows of the group after the join."""

    members: Mapping[str, Member]
    #: Members whose subscription could not be read, with the reason; they subscribe to nothing.
    unreadable: Mapping[str, str] = attrs.field(factory=dict)
    #: Members whose subscription names a generation that the group has not had, with that generation.
    ahead: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that at least one member subscribes to."""
        distinct = {tuple(member.topics) for member in self.members.values()}
        return frozenset(topic for topics in distinct for topic in topics)


@attrs.frozen
class ClusterView:
    """What a leader's assignment was based on: when it changes, the group has to be assigned anew (KIP-429, KIP-881)."""

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]]

    @classmethod
    def of(cls, metadata: Metadata, topics: frozenset[str], *, with_racks: bool) -> ClusterView:
        """The part of ``metadata`` that an assignment of ``topics`` depends on."""
        partitions = metadata.partitions(sorted(topics))
        racks = {topic: metadata.racks(topic) for topic in partitions} if with_racks else {}
        return cls(partitions, {topic: sets for topic, sets in racks.items() if any(sets)})


#: How many generations a coordinator may have begun and not written; joins that fail are a tenth of a second apart, or more.
_MOST_AHEAD = 100_000


def read_members(answered: Sequence[JoinGroupResponseMember], generation: int) -> GroupView:
    """Decode every member's subscription, of any version (v0 to v3).

    One member must not stop the group: a subscription that cannot be read counts as empty.  ``generation`` is the one that
    begins now.  A member may name a later one: a coordinator that could not write its last generations to
    ``__consumer_offsets`` is followed by one that goes on from the last that was written.  No sync completed in what was
    not written, so such a claim is one of the generation before this.  A claim far ahead is not believed: it would outbid
    every honest one.
    """
    cache: dict[bytes, Subscription] = {}
    members: dict[str, Member] = {}
    unreadable: dict[str, str] = {}
    ahead: dict[str, int] = {}
    for entry in answered:
        subscription = cache.get(entry.metadata)
        if subscription is None:
            try:
                subscription = decode_subscription(entry.metadata)
            except MalformedMessageError as error:
                unreadable[entry.member_id] = str(error)
                members[entry.member_id] = Member(topics=(), instance_id=entry.group_instance_id)
                continue
            cache[entry.metadata] = subscription
        believed = subscription.generation_id < generation + _MOST_AHEAD
        if not believed:
            ahead[entry.member_id] = subscription.generation_id
        members[entry.member_id] = Member(
            topics=subscription.topics,
            owned=subscription.owned_partitions if believed else {},
            generation=min(subscription.generation_id, generation - 1) if believed else -1,
            instance_id=entry.group_instance_id,
            rack=subscription.rack_id,
            user_data=subscription.user_data,
        )
    return GroupView(members, unreadable, ahead)


def assigned_partitions(assignments: Iterable[bytes]) -> Mapping[str, int]:
    """topic -> how many of its partitions these assignments give away.

    Raises :class:`~consumer_coord.errors.MalformedMessageError`.
    """
    given: dict[str, set[int]] = {}
    for data in assignments:
        if data:
            for topic, numbers in decode_assignment(data).partitions.items():
                given.setdefault(topic, set()).update(numbers)
    return {topic: len(numbers) for topic, numbers in given.items()}


def assign(assignor: Assignor, cluster: Cluster, group: GroupView) -> tuple[tuple[SyncGroupRequestAssignment, ...], int]:
    """Call the assignor, check its plan, encode it; with it, how many partitions the plan withholds.

    Raises :class:`~consumer_coord.errors.AssignorError`, which names the assignor and what was wrong.
    """
    try:
        plan = assignor.assign(cluster, group.members)
    except Exception as error:
        raise AssignorError(f"assignor {assignor.name!r} raised {type(error).__name__}: {error}") from error
    check_plan(assignor, cluster, group, plan)
    return encode_plan(plan), withheld(cluster, group, plan) if RebalanceProtocol.COOPERATIVE in assignor.protocols else 0


def withheld(cluster: Cluster, group: GroupView, plan: Plan) -> int:
    """How many partitions the plan gives nobody because a member names them as owned: they wait for another rebalance."""
    planned: dict[str, int] = {}
    for topics in plan.values():
        for topic, numbers in topics.items():
            planned[topic] = planned.get(topic, 0) + len(numbers)
    partitions = cluster.partitions
    short = {topic for topic in group.topics & partitions.keys() if planned.get(topic, 0) < partitions[topic]}
    waiting: set[tuple[str, int]] = set()
    for member in group.members.values() if short else ():
        for topic in short & member.owned.keys():
            waiting.update((topic, number) for number in member.owned[topic] if number < partitions[topic])
    for topics in plan.values() if waiting else ():
        for topic in short & topics.keys():
            waiting.difference_update((topic, number) for number in topics[topic])
    return len(waiting)


def check_plan(assignor: Assignor, cluster: Cluster, group: GroupView, plan: Plan) -> None:
    """Raise :class:`AssignorError` for a plan that no group may follow, whatever shape it has.

    What the assignor can do decides, not the protocol of this member: in a rolling upgrade an eager leader's plan goes to
    members that are cooperative already, and leaves out what they have to let go of first.
    """
    try:
        verify(cluster, group.members, plan, max(assignor.protocols))
    except InvalidPlanError as error:
        raise AssignorError(f"assignor {assignor.name!r} returned a plan that must not be sent: {error}") from error
    except Exception as error:
        raise AssignorError(
            f"assignor {assignor.name!r} returned {type(plan).__name__!r}, which is no plan"
            f" (member -> topic -> partition numbers): {error}"
        ) from error


def encode_plan(plan: Plan) -> tuple[SyncGroupRequestAssignment, ...]:
    """The plan as SyncGroup carries it; members with nothing get an empty assignment."""
    return tuple(
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=encode_assignment(
                Assignment({topic: numbers for topic, numbers in topics.items() if len(numbers)}), _ASSIGNMENT_VERSION
            ),
        )
        for member_id, topics in plan.items()
    )
