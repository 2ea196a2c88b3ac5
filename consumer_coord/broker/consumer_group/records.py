"""The records of a consumer group, and their replay (``GroupCoordinatorRecordHelpers``, ``replay``)."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from consumer_coord.broker.consumer_group.group import NO_ASSIGNMENT_EPOCH, ConsumerGroup, ResolvedRegex
from consumer_coord.broker.consumer_group.member import LEAVE_EPOCH, ConsumerGroupMember, Partitions
from consumer_coord.wire import consumer_group_records as wire
from consumer_coord.wire import offsets_topic

#: A key and its value, or None for a tombstone. A record with the key of a classic group is always a tombstone here.
Record = tuple[wire.Key | offsets_topic.GroupMetadataKey, wire.Value | None]


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Encode a record."""
    key, value = record
    if isinstance(key, offsets_topic.GroupMetadataKey):
        return offsets_topic.encode_group_key(key), None
    return wire.encode_key(key), None if value is None else wire.encode_value(value)


# -- making


def member_metadata(group_id: str, member: ConsumerGroupMember) -> Record:
    """Return the record of a member's subscription and settings."""
    return wire.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), member.metadata_value()


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> Record:
    """Return the record of the group epoch."""
    value = wire.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return wire.ConsumerGroupMetadataKey(group_id=group_id), value


def target_of_member(group_id: str, member_id: str, partitions: Partitions) -> Record:
    """Return the record of a member's target."""
    value = wire.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            wire.TargetTopicPartition(topic_id=topic_id, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in partitions.items()
        )
    )
    return wire.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def target_epoch(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    """Return the record of the target's epoch and time."""
    value = wire.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return wire.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def current_assignment(group_id: str, member: ConsumerGroupMember) -> Record:
    """Return the record of a member's epochs and partitions."""
    key = wire.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return key, member.assignment_value()


def regex(group_id: str, expression: str, resolved: ResolvedRegex) -> Record:
    """Return the record of a resolved regular expression."""
    value = wire.ConsumerGroupRegularExpressionValue(
        topics=tuple(sorted(resolved.topics)), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return wire.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression), value


def regex_tombstone(group_id: str, expression: str) -> Record:
    """Return the tombstone of a regular expression without subscribers."""
    return wire.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression), None


def partition_metadata_tombstone(group_id: str) -> Record:
    """Return the tombstone of the topics' partition metadata, which brokers before 4.1 wrote."""
    return wire.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Return the tombstones of a member."""
    return [
        (wire.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        (wire.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        (wire.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group: ConsumerGroup, member_ids: Iterable[str] | None = None) -> list[Record]:
    """Return the tombstones of a group and its members (by default, the current members)."""
    group_id = group.group_id
    ids = tuple(group.members if member_ids is None else member_ids)
    by_member = [member_tombstones(group_id, member_id) for member_id in ids]
    return [
        *(assignment for assignment, _, _ in by_member),
        *(target for _, target, _ in by_member),
        (wire.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(metadata for _, _, metadata in by_member),
        *(regex_tombstone(group_id, expression) for expression in group.resolved_regexes),
        partition_metadata_tombstone(group_id),
        (wire.ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


def whole_group(group: ConsumerGroup) -> list[Record]:
    """Return the records of a whole group (``createConsumerGroupRecords``)."""
    group_id = group.group_id
    return [
        *(member_metadata(group_id, member) for member in group.members.values()),
        group_epoch(group_id, group.epoch, group.metadata_hash),
        *(target_of_member(group_id, member_id, target) for member_id, target in group.target.items()),
        *(
            [target_epoch(group_id, group.assignment_epoch, group.assignment_timestamp_ms)]
            if group.assignment_epoch != NO_ASSIGNMENT_EPOCH
            else []
        ),
        *(current_assignment(group_id, member) for member in group.members.values()),
        *(regex(group_id, expression, resolved) for expression, resolved in group.resolved_regexes.items()),
    ]


# -- applying


def apply(group: ConsumerGroup, key: wire.Key, value: wire.Value | None) -> None:
    """Apply a record to a group; the caller handles the tombstone of the group itself."""
    if isinstance(key, wire.ConsumerGroupPartitionMetadataKey):
        group.has_partition_metadata = value is not None
    elif value is None:
        _apply_tombstone(group, key)
    else:
        _apply_value(group, key, value)


def _apply_value(group: ConsumerGroup, key: wire.Key, value: wire.Value) -> None:
    match key, value:
        case wire.ConsumerGroupMetadataKey(), wire.ConsumerGroupMetadataValue():
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        case wire.ConsumerGroupMemberMetadataKey(), wire.ConsumerGroupMemberMetadataValue():
            group.update_member(_member(group, key.member_id).with_metadata(value))
        case wire.ConsumerGroupTargetAssignmentMetadataKey(), wire.ConsumerGroupTargetAssignmentMetadataValue():
            group.set_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)
        case wire.ConsumerGroupTargetAssignmentMemberKey(), wire.ConsumerGroupTargetAssignmentMemberValue():
            group.target[key.member_id] = {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}
        case wire.ConsumerGroupCurrentMemberAssignmentKey(), wire.ConsumerGroupCurrentMemberAssignmentValue():
            group.update_member(_member(group, key.member_id).with_assignment(value))
        case wire.ConsumerGroupRegularExpressionKey(), wire.ConsumerGroupRegularExpressionValue():
            group.resolved_regexes[key.regular_expression] = ResolvedRegex(
                frozenset(value.topics), value.version, value.timestamp
            )
        case _:
            raise TypeError(f"a record cannot have the key {type(key).__name__} and the value {type(value).__name__}")


def _apply_tombstone(group: ConsumerGroup, key: wire.Key) -> None:
    match key:
        case wire.ConsumerGroupMemberMetadataKey():
            group.remove_member(key.member_id)
        case wire.ConsumerGroupTargetAssignmentMetadataKey():
            group.set_assignment_epoch(NO_ASSIGNMENT_EPOCH, 0)
        case wire.ConsumerGroupTargetAssignmentMemberKey():
            group.target.pop(key.member_id, None)
        case wire.ConsumerGroupCurrentMemberAssignmentKey():
            if key.member_id in group.members:
                group.update_member(
                    attrs.evolve(
                        group.members[key.member_id],
                        member_epoch=LEAVE_EPOCH,
                        previous_member_epoch=LEAVE_EPOCH,
                        assigned={},
                        pending_revocation={},
                    )
                )
        case wire.ConsumerGroupRegularExpressionKey():
            group.resolved_regexes.pop(key.regular_expression, None)
        case _:
            raise TypeError(f"a record with the key {type(key).__name__} must have a value")


def _member(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    return group.members.get(member_id) or ConsumerGroupMember(member_id)
