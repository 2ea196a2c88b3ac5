"""Convert groups between the protocols: empty groups, and groups with members (online migration, KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from consumer_coord.broker.classic_group import CONSUMER_PROTOCOL_TYPE, GroupMember, GroupMetadata, GroupState, join_error
from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.context import Change, Coordination
from consumer_coord.broker.consumer_group.group import ConsumerGroup, subscribed_topics
from consumer_coord.broker.consumer_group.member import ConsumerGroupMember, Partitions, assigned_in
from consumer_coord.broker.consumer_group.topics_image import MetadataImage
from consumer_coord.broker.errors import GroupError
from consumer_coord.broker.group_store import group_record
from consumer_coord.errors import MalformedMessageError
from consumer_coord.wire import embedded_protocol as membership
from consumer_coord.wire import error_codes, offsets_topic
from consumer_coord.wire.consumer_group_records import ClassicMemberMetadata, ClassicProtocol
from consumer_coord.wire.messages.group import JoinGroupRequestProtocol, SyncGroupResponse

UPGRADE_POLICIES = ("bidirectional", "upgrade")
DOWNGRADE_POLICIES = ("bidirectional", "downgrade")


# -- classic -> consumer


def delete_empty_classic(coordination: Coordination, group: GroupMetadata, change: Change) -> None:
    """Delete an empty classic group, so that a consumer group can replace it; its offsets remain."""
    change.records.append((offsets_topic.GroupMetadataKey(group.group_id), None))
    change.before.append(lambda: _end_classic(coordination, group))


def to_consumer(coordination: Coordination, group: GroupMetadata, change: Change) -> ConsumerGroup:
    """Convert a classic group with members to the consumer protocol; the members remain classic members.

    Raise :class:`~consumer_coord.broker.errors.GroupError` with GROUP_ID_NOT_FOUND if the migration policy, the size of the
    group or its members' protocols forbid the conversion. Raise it with UNKNOWN_SERVER_ERROR, as Kafka does, if a member does
    not offer the group's last protocol.
    """
    config = coordination.config
    if config.group_consumer_migration_policy not in UPGRADE_POLICIES:
        why = f"group.consumer.migration.policy is {config.group_consumer_migration_policy}"
        raise _not_converted(group.group_id, why)
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _not_converted(group.group_id, "its members are not consumers")
    if len(group.members) > config.group_consumer_max_size:
        raise _not_converted(group.group_id, f"it has more than {config.group_consumer_max_size} members")
    # Members that wait for a response must rejoin to find the new group. Kafka sends these responses even if the conversion
    # fails.
    for member in group.members.values():
        group.complete_join(member, join_error(error_codes.REBALANCE_IN_PROGRESS, member.member_id))
        group.complete_sync(member, SyncGroupResponse(error_code=error_codes.REBALANCE_IN_PROGRESS))
    converted = _converted(group, coordination.image)
    change.records.append((offsets_topic.GroupMetadataKey(group.group_id), None))
    change.records += records.whole_group(converted)
    change.before.append(lambda: _end_classic(coordination, group))
    return converted


def _not_converted(group_id: str, why: str) -> GroupError:
    return GroupError(
        error_codes.GROUP_ID_NOT_FOUND, f"classic group {group_id} cannot become a group of the consumer protocol: {why}"
    )


def _end_classic(coordination: Coordination, group: GroupMetadata) -> None:
    coordination.rebalance.cancel_timers(group)
    group.transition_to(GroupState.DEAD, coordination.wall_clock_ms())


def _converted(group: GroupMetadata, image: MetadataImage) -> ConsumerGroup:
    """Return the converted group (``fromClassicGroup``): its epochs are the generation, its target is the last assignment."""
    converted = ConsumerGroup(group.group_id, epoch=group.generation_id)
    converted.set_assignment_epoch(group.generation_id, 0)
    for member in group.members.values():
        try:
            metadata = member.metadata(group.protocol_name)
        except KeyError as error:
            why = f"member {member.member_id} of classic group {group.group_id} does not offer {group.protocol_name}"
            raise GroupError(error_codes.UNKNOWN_SERVER_ERROR, why) from error
        try:
            assigned = _by_id(member.assignment, image)
            subscription = membership.decode_subscription(metadata)
        except MalformedMessageError as error:
            raise _not_converted(group.group_id, f"data of member {member.member_id} cannot be decoded: {error}") from error
        converted.target[member.member_id] = assigned
        converted.update_member(
            ConsumerGroupMember(
                member.member_id,
                member_epoch=group.generation_id,
                previous_member_epoch=group.generation_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topics=frozenset(subscription.topics),
                assigned=assigned_in(assigned, group.generation_id),
                classic=ClassicMemberMetadata(
                    session_timeout_ms=member.session_timeout_ms, supported_protocols=classic_protocols(member.protocols)
                ),
            )
        )
    converted.metadata_hash = image.group_hash(subscribed_topics(converted.members.values(), {}))
    return converted


def _by_id(data: bytes, image: MetadataImage) -> Partitions:
    """Decode a classic assignment; raise GROUP_ID_NOT_FOUND if the assignment has user data of a custom assignor."""
    if not data:
        return {}  # The member has just joined.
    assignment = membership.decode_assignment(data)
    if assignment.user_data:
        raise GroupError(
            error_codes.GROUP_ID_NOT_FOUND, "the group cannot be converted: its assignor's user data would be lost"
        )
    return image.by_id(assignment.partitions)


def classic_protocols(protocols: Sequence[JoinGroupRequestProtocol]) -> tuple[ClassicProtocol, ...]:
    """Return the protocols of a JoinGroup in their stored form; if two protocols have the same name, keep the last one."""
    offered = {protocol.name: protocol.metadata for protocol in protocols}
    return tuple(ClassicProtocol(name=name, metadata=metadata) for name, metadata in offered.items())


# -- consumer -> classic


def can_downgrade(coordination: Coordination, group: ConsumerGroup, remaining: int) -> bool:
    """Return whether the migration policy and ``group.max.size`` permit a classic group with ``remaining`` members."""
    config = coordination.config
    return config.group_consumer_migration_policy in DOWNGRADE_POLICIES and 0 < remaining <= config.group_max_size


def to_classic(
    coordination: Coordination,
    group: ConsumerGroup,
    change: Change,
    *,
    leaving: Iterable[str] = (),
    joining: ConsumerGroupMember | None = None,
    rebalance: str | None = None,
) -> None:
    """Convert a group whose members all use the classic protocol to a stable classic group with the current target.

    ``leaving`` are the ids of members that left, ``joining`` is the classic member that replaces a static member. ``rebalance``
    is the reason for a rebalance after the conversion; None if no rebalance is needed.
    """
    gone, ids = set(leaving), list(group.members)
    members = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
    targets = {member_id: group.target_of(member_id) for member_id in members}
    replaced = None if joining is None else group.static_member(joining.instance_id)
    if joining is not None and replaced is not None:
        # Earlier records of this change have already replaced the static member's id.
        ids = [joining.member_id if member_id == replaced.member_id else member_id for member_id in ids]
        del members[replaced.member_id]
        members[joining.member_id] = joining
        targets[joining.member_id] = group.target_of(replaced.member_id)
    change.records += records.group_tombstones(group, ids)
    classic = _classic(coordination, group, tuple(members.values()), targets)
    record = group_record(classic, {member.member_id: member.assignment for member in classic.members.values()})
    change.encoded.append(record)
    change.replayed = False

    def convert() -> None:
        shard = change.shard
        shard.consumer_groups.pop(group.group_id, None)
        shard.groups[group.group_id] = classic
        shard.stored_groups[group.group_id] = record[1]
        for member in classic.members.values():
            coordination.rebalance.reschedule_heartbeat(shard, classic, member)
        if rebalance is not None:
            coordination.rebalance.prepare(shard, classic, rebalance)

    change.after.append(convert)


def _classic(
    coordination: Coordination,
    group: ConsumerGroup,
    members: Sequence[ConsumerGroupMember],
    targets: Mapping[str, Partitions],
) -> GroupMetadata:
    """Do what ``ClassicGroup.fromConsumerGroup`` does: return the classic group with these members and targets."""
    classic = GroupMetadata(
        group.group_id,
        state=GroupState.STABLE,
        state_timestamp_ms=coordination.wall_clock_ms(),
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation_id=group.epoch,
        offsets=group.offsets,
    )
    for member in leader_first(members):
        assert member.classic is not None
        classic.add(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocols=tuple(
                    JoinGroupRequestProtocol(name=one.name, metadata=one.metadata) for one in member.classic.supported_protocols
                ),
            )
        )
    classic.protocol_name = classic.select_protocol()
    classic.remember_subscriptions()
    for classic_member in classic.members.values():
        classic_member.assignment = encode_target(
            targets[classic_member.member_id], classic_member.metadata(classic.protocol_name), coordination.image
        )
    return classic


def leader_first(members: Sequence[ConsumerGroupMember]) -> Sequence[ConsumerGroupMember]:
    """Return the members of a converted group, the leader first (Kafka uses the order of a hash map)."""
    return members


def encode_target(partitions: Partitions, metadata: bytes, image: MetadataImage) -> bytes:
    """Encode partitions for a classic member, in the version of the member's subscription."""
    named = {
        name: sorted(numbers) for topic_id, numbers in partitions.items() if (name := image.topic_name(topic_id)) is not None
    }
    return membership.encode_assignment(membership.Assignment(named), int.from_bytes(metadata[:2], "big", signed=True))
