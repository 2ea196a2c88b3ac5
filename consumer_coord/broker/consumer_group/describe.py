"""Handle the request ConsumerGroupDescribe of administrators."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from consumer_coord.broker.consumer_group.context import Coordination
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.wire.messages.consumer_group import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeGroup,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeTopicPartitions,
)

_CLASSIC, _CONSUMER = 0, 1


def describe_consumer_group(group: ConsumerGroup, coordination: Coordination) -> ConsumerGroupDescribeGroup:
    """Return the group with its members, their assignments and their targets."""
    return ConsumerGroupDescribeGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(coordination.default_assignor),
        members=tuple(_member(group, member, coordination.image) for member in group.members.values()),
    )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, image: MetadataImage) -> ConsumerGroupDescribeMember:
    # A member owns a partition until the member has revoked it.
    has: dict[uuid.UUID, set[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, numbers in partitions.items():
            has.setdefault(topic_id, set()).update(numbers)
    return ConsumerGroupDescribeMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topics)),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(has, image),
        target_assignment=_assignment(group.target_of(member.member_id), image),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(partitions: Mapping[uuid.UUID, Iterable[int]], image: MetadataImage) -> ConsumerGroupDescribeAssignment:
    return ConsumerGroupDescribeAssignment(
        topic_partitions=tuple(
            ConsumerGroupDescribeTopicPartitions(topic_id=topic_id, topic_name=name, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in partitions.items()
            if (name := image.topic_name(topic_id)) is not None
        )
    )
