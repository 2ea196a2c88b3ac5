"""Find or create the member that sent a request, and check its epoch and instance id (KIP-848, KIP-345)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

import attrs

from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, ConsumerGroupMember
from consumer_coord.broker.consumer_group.reconciliation import Owned
from consumer_coord.broker.errors import GroupError
from consumer_coord.wire import error_codes


def check_size(group: ConsumerGroup, member_id: str, instance_id: str | None, max_size: int) -> None:
    """Raise GROUP_MAX_SIZE_REACHED for a new member of a full group. A static member that returns is not new."""
    is_known = member_id in group.members or group.static_member(instance_id) is not None
    if len(group.members) >= max_size and not is_known:
        raise GroupError(
            error_codes.GROUP_MAX_SIZE_REACHED,
            f"the group already has {max_size} members, the maximum (group.consumer.max.size)",
        )


def member_of(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    """Return the member with this id; raise UNKNOWN_MEMBER_ID if there is no such member."""
    member = group.members.get(member_id)
    if member is None:
        raise GroupError(error_codes.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of group {group.group_id}")
    return member


def static_member_of(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerGroupMember:
    """Return the member with this instance id; raise UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if its member id differs."""
    member = group.static_member(instance_id)
    if member is None:
        raise GroupError(error_codes.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
    if member.member_id != member_id:
        raise GroupError(error_codes.FENCED_INSTANCE_ID, f"member {member.member_id} now has the instance id {instance_id}")
    return member


def find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """Return a dynamic or a static member; raise UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    return member_of(group, member_id) if instance_id is None else static_member_of(group, member_id, instance_id)


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned) -> None:
    """Raise FENCED_MEMBER_EPOCH if ``epoch`` is not valid for the member.

    The member's current epoch is valid. The previous epoch is also valid if the member owns only partitions that are still
    assigned to it, because the response with the current epoch may have been lost. Epoch 0 is valid, because with this epoch a
    member starts again.
    """
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    lost = epoch < member.member_epoch and epoch == member.previous_member_epoch
    if not lost or owned is None or not _is_subset(owned, member.assigned):
        raise GroupError(
            error_codes.FENCED_MEMBER_EPOCH,
            f"the member is in epoch {member.member_epoch}, not {epoch}: it must revoke its partitions and join again",
        )


def join_dynamic(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    """Return the dynamic member that joins: the existing member with this id, or a new member."""
    return group.members.get(member_id) or ConsumerGroupMember(member_id)


def join_static(
    group: ConsumerGroup, member_id: str, instance_id: str, classic: bool, made: list[records.Record]
) -> ConsumerGroupMember:
    """Return the static member that joins; it takes over the state of the former member that has the same instance id.

    If both members use the consumer protocol, the former member must have left temporarily (epoch -2); otherwise raise
    UNRELEASED_INSTANCE_ID.
    """
    former = group.static_member(instance_id)
    if former is None:
        return join_dynamic(group, member_id)
    if not classic and former.classic is None and former.member_epoch != LEAVE_STATIC_EPOCH:
        raise GroupError(
            error_codes.UNRELEASED_INSTANCE_ID, f"member {former.member_id} still has the instance id {instance_id}"
        )
    member = attrs.evolve(former, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    made += records.member_tombstones(group.group_id, former.member_id)
    made.append(records.member_metadata(group.group_id, member))
    made.append(records.target_of_member(group.group_id, member_id, group.target_of(former.member_id)))
    made.append(records.current_assignment(group.group_id, member))
    return member


def _is_subset(owned: Mapping[uuid.UUID, Collection[int]], assigned: Mapping[uuid.UUID, Mapping[int, int]]) -> bool:
    return all(number in assigned.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers)
