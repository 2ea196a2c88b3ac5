"""Reconcile a member with its target, by a pure function (``CurrentAssignmentBuilder``).

A member first revokes the partitions that are not in its target. The member stays in its epoch until its heartbeat no longer
reports these partitions. Then the member moves to the target's epoch and receives the free partitions. The member receives the
other partitions of its target with later heartbeats, after their owners have revoked them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Set

import attrs

from consumer_coord.broker.consumer_group.group import has_any
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, EpochPartitions, MemberState, Partitions
from consumer_coord.broker.errors import GroupError
from consumer_coord.wire import error_codes

#: topic id -> the partitions that the member reports as owned in a heartbeat; None if the heartbeat does not report them.
Owned = Mapping[uuid.UUID, Collection[int]] | None


@attrs.frozen
class Target:
    """The target of a member, and the epoch of the target."""

    epoch: int
    partitions: Partitions


def reconcile(
    member: ConsumerGroupMember,
    target: Target,
    subscribed_topic_ids: Set[uuid.UUID],
    partition_epoch: Callable[[uuid.UUID, int], int],
    owned: Owned,
    subscription_changed: bool,
) -> ConsumerGroupMember:
    """Return the member as it is after this heartbeat; the same object if nothing changed.

    ``partition_epoch`` returns the epoch of the member that has a partition, -1 for a free partition. Topics that the member
    does not subscribe to are ignored in its target. Raise :class:`~consumer_coord.broker.errors.GroupError` for a member in an
    unknown state that still owns partitions, because it must join again.
    """
    if not subscription_changed and member.is_reconciled_to(target.epoch):
        return member
    match member.state:
        case MemberState.STABLE if member.member_epoch == target.epoch:
            return _drop_unsubscribed(member, subscribed_topic_ids, owned)
        case MemberState.UNREVOKED_PARTITIONS if _still_owned(member.pending_revocation, owned):
            return _drop_unsubscribed(member, subscribed_topic_ids, owned) if subscription_changed else member
        case MemberState.UNKNOWN:
            if owned is None or owned:
                raise GroupError(error_codes.FENCED_MEMBER_EPOCH, "the member's state is unknown: it must join again")
            member = attrs.evolve(member, member_epoch=target.epoch)
    return _next_assignment(member, target, subscribed_topic_ids, partition_epoch, owned)


def _still_owned(revoked: EpochPartitions, owned: Owned) -> bool:
    return owned is None or has_any(revoked, owned)


def _drop_unsubscribed(member: ConsumerGroupMember, subscribed_topic_ids: Set[uuid.UUID], owned: Owned) -> ConsumerGroupMember:
    """Keep the member in its epoch, but remove partitions of topics that the member no longer subscribes to."""
    dropped = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id not in subscribed_topic_ids}
    # In Kafka, the loss of the last subscription is a change even for a member without partitions. So the member's previous
    # epoch becomes invalid.
    if not dropped and (subscribed_topic_ids or member.pending_revocation):
        return member
    kept = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id not in dropped}
    pending = dict(member.pending_revocation)
    for topic_id, numbers in dropped.items():
        pending[topic_id] = {**pending.get(topic_id, {}), **numbers}
    member = member.at_epoch(member.member_epoch)
    if pending and _still_owned(pending, owned):
        return attrs.evolve(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=pending)
    return attrs.evolve(member, assigned=kept)


def _next_assignment(
    member: ConsumerGroupMember,
    target: Target,
    subscribed_topic_ids: Set[uuid.UUID],
    partition_epoch: Callable[[uuid.UUID, int], int],
    owned: Owned,
) -> ConsumerGroupMember:
    assigned: dict[uuid.UUID, dict[int, int]] = {}
    revoked: dict[uuid.UUID, dict[int, int]] = {}
    free: dict[uuid.UUID, list[int]] = {}
    unreleased = False
    for topic_id in dict.fromkeys((*target.partitions, *member.assigned)):
        wanted = target.partitions.get(topic_id, frozenset()) if topic_id in subscribed_topic_ids else frozenset()
        present = member.assigned.get(topic_id, {})
        kept = {number: epoch for number, epoch in present.items() if number in wanted}
        surplus = {number: epoch for number, epoch in present.items() if number not in wanted}
        if kept:
            assigned[topic_id] = kept
        if surplus:
            revoked[topic_id] = surplus
        # A partition that this member itself must still revoke is free for this member.
        own = member.pending_revocation.get(topic_id, {})
        for number in sorted(wanted.difference(kept)):
            if partition_epoch(topic_id, number) != -1 and number not in own:
                unreleased = True
            else:
                free.setdefault(topic_id, []).append(number)
    if revoked and _still_owned(revoked, owned):
        return attrs.evolve(
            member.at_epoch(member.member_epoch),
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=assigned,
            pending_revocation=revoked,
        )
    for topic_id, numbers in free.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(numbers, target.epoch))
    return attrs.evolve(
        member.at_epoch(target.epoch),
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        assigned=assigned,
        pending_revocation={},
    )
