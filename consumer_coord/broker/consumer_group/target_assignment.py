"""Compute the target of a whole group by an assignor, and create the records (``TargetAssignmentBuilder``)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.assignors.spec import GroupSpec, MemberSpec, ServerAssignor
from consumer_coord.broker.consumer_group.context import Change
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, Partitions
from consumer_coord.broker.consumer_group.subscriptions import GroupSubscription, members_with
from consumer_coord.broker.consumer_group.topics_image import MetadataImage


def compute_target(
    change: Change,
    group: ConsumerGroup,
    subscription: GroupSubscription,
    updated: ConsumerGroupMember,
    assignor: ServerAssignor,
    image: MetadataImage,
    now_ms: int,
) -> Partitions:
    """Add the target of a new epoch to ``change``, for the group's members including ``updated``; return the member's target.

    A static member that returned with a new id inherits the target of the former member, which is no longer in the group. Raise
    :class:`~consumer_coord.broker.consumer_group.assignors.spec.AssignorFailedError` if the assignor fails.
    """
    former = group.static_members.get(updated.instance_id) if updated.instance_id is not None else None
    members = {member.member_id: member for member in members_with(group, updated)}
    target_of = {member_id: group.target_of(member_id) for member_id in members}
    known = dict(group.target)
    if former is not None:
        # Replace the target of the new member id, which may be the target of another member that had this id.
        target_of[updated.member_id] = known[updated.member_id] = group.target_of(former)
    specs = {
        member_id: MemberSpec(
            image.topic_ids(group.topics_of(member)), target_of[member_id], member.instance_id, member.rack_id
        )
        for member_id, member in members.items()
    }
    topic_ids = dict.fromkeys(topic_id for spec in specs.values() for topic_id in spec.topics)
    plan = assignor.assign(
        GroupSpec(
            members=specs,
            homogeneous=subscription.is_homogeneous(group),
            partitions={topic_id: len(image.partitions(topic_id)) for topic_id in topic_ids},
            racks={topic_id: image.racks(topic_id) for topic_id in topic_ids},
            assigned=_all_of(group.target.values()),
            epoch=group.assignment_epoch,
        )
    )
    targets: dict[str, Partitions] = {}
    for member_id in specs:
        targets[member_id] = {topic_id: numbers for topic_id, numbers in plan.get(member_id, {}).items() if numbers}
        if member_id not in known or targets[member_id] != known[member_id]:
            change.records.append(records.target_of_member(group.group_id, member_id, targets[member_id]))
    change.records.append(records.target_epoch(group.group_id, subscription.epoch, now_ms))
    return targets[updated.member_id]


def _all_of(targets: Iterable[Partitions]) -> Partitions:
    together: dict[uuid.UUID, frozenset[int]] = {}
    for target in targets:
        for topic_id, numbers in target.items():
            together[topic_id] = together.get(topic_id, frozenset()) | numbers
    return together
