"""The leader's computation, from the members' subscriptions to every member's encoded assignment. This module uses no I/O.

``Environment.run_blocking`` runs the computation in a worker thread, because it may take seconds for a large group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from assignors.base import Assignor, Cluster, Member, Plan, RebalanceProtocol
from assignors.verification import InvalidPlanError, verify
from consumer_coord import lazy_attrs as attrs
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

#: Version of the assignments in SyncGroup. Java sends version 1; versions 0 to 3 differ only in the version number.
_ASSIGNMENT_VERSION = 3


@attrs.frozen
class GroupView:
    """The group after the join, as the leader knows it."""

    members: Mapping[str, Member]
    #: Member with an unreadable subscription -> the reason. Such a member is treated as subscribed to no topic.
    unreadable: Mapping[str, str] = attrs.field(factory=dict)
    #: Member whose subscription names a generation that the group cannot have had -> that generation.
    implausible: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that at least one member subscribes to."""
        distinct = {tuple(member.topics) for member in self.members.values()}
        return frozenset(topic for topics in distinct for topic in topics)


@attrs.frozen
class ClusterView:
    """The metadata from which a leader assigns; if the metadata changes, the leader must assign again (KIP-429, KIP-881)."""

    partitions: Mapping[str, int]
    racks: Mapping[str, Sequence[frozenset[str]]]

    @classmethod
    def of(cls, metadata: Metadata, topics: frozenset[str], *, with_racks: bool) -> ClusterView:
        """Return the part of ``metadata`` that affects an assignment of ``topics``."""
        partitions = metadata.partitions(sorted(topics))
        racks = {topic: metadata.racks(topic) for topic in partitions} if with_racks else {}
        return cls(partitions, {topic: sets for topic, sets in racks.items() if any(sets)})


#: Maximum number of generations that a coordinator may have begun without writing them. Failed joins are at least 0.1 s apart,
#: so a coordinator needs hours to begin this number.
_MOST_AHEAD = 100_000


def read_members(answered: Sequence[JoinGroupResponseMember], generation: int) -> GroupView:
    """Decode every member's subscription, of any version (v0 to v3).

    An unreadable subscription is treated as empty, because one member must not stop the group. ``generation`` is the new
    generation. A member may name an even later generation: if a coordinator could not write its last generations to
    ``__consumer_offsets``, the next coordinator continues from the last written generation. No sync completed in the unwritten
    generations, so such a later generation is treated as the generation before this rebalance. A generation that is later by
    100,000 or more is ignored, because its member would otherwise be regarded as the owner before all others.
    """
    cache: dict[bytes, Subscription] = {}
    members: dict[str, Member] = {}
    unreadable: dict[str, str] = {}
    implausible: dict[str, int] = {}
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
            implausible[entry.member_id] = subscription.generation_id
        members[entry.member_id] = Member(
            topics=subscription.topics,
            owned=subscription.owned_partitions if believed else {},
            generation=min(subscription.generation_id, generation - 1) if believed else -1,
            instance_id=entry.group_instance_id,
            rack=subscription.rack_id,
            user_data=subscription.user_data,
        )
    return GroupView(members, unreadable, implausible)


def assigned_partitions(assignments: Iterable[bytes]) -> Mapping[str, int]:
    """Return topic -> the number of its partitions in these assignments.

    Raise :class:`~consumer_coord.errors.MalformedMessageError`.
    """
    given: dict[str, set[int]] = {}
    for data in assignments:
        if data:
            for topic, numbers in decode_assignment(data).partitions.items():
                given.setdefault(topic, set()).update(numbers)
    return {topic: len(numbers) for topic, numbers in given.items()}


def assign(assignor: Assignor, cluster: Cluster, group: GroupView) -> tuple[tuple[SyncGroupRequestAssignment, ...], int]:
    """Call the assignor, check and encode its plan; return the encoded plan and the number of withheld partitions.

    If the assignor raises, raise :class:`~consumer_coord.errors.AssignorError` with the names of the assignor and the error.
    """
    try:
        plan = assignor.assign(cluster, group.members)
    except Exception as error:
        raise AssignorError(f"assignor {assignor.name!r} raised {type(error).__name__}: {error}") from error
    check_plan(assignor, cluster, group, plan)
    return encode_plan(plan), withheld(cluster, group, plan) if RebalanceProtocol.COOPERATIVE in assignor.protocols else 0


def withheld(cluster: Cluster, group: GroupView, plan: Plan) -> int:
    """Return the number of partitions that the plan assigns to no member until their owners revoke these partitions."""
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
    """Raise :class:`AssignorError` if ``plan``, which may be any object, is not a valid plan.

    The check depends on the protocols that the assignor supports, not on this member's protocol. In a rolling upgrade, an eager
    leader may assign to members that are cooperative already. Its plan then omits the partitions that these members must revoke
    first.
    """
    try:
        verify(cluster, group.members, plan, max(assignor.protocols))
    except InvalidPlanError as error:
        raise AssignorError(f"assignor {assignor.name!r} returned an invalid plan: {error}") from error
    except Exception as error:
        raise AssignorError(
            f"assignor {assignor.name!r} returned {type(plan).__name__!r}, which is not a plan (member -> topic -> partition"
            f" numbers): {error}"
        ) from error


def encode_plan(plan: Plan) -> tuple[SyncGroupRequestAssignment, ...]:
    """Return the assignments for SyncGroup; members without partitions get an empty assignment."""
    return tuple(
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=encode_assignment(
                Assignment({topic: numbers for topic, numbers in topics.items() if len(numbers)}), _ASSIGNMENT_VERSION
            ),
        )
        for member_id, topics in plan.items()
    )
