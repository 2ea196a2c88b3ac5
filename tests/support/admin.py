"""The broker's view of groups and logs: the oracle for the reports of members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType

from tests.support.waiting import eventually

_DEADLINE_S = 90.0
#: (topic, partition) -> offset
Offsets: TypeAlias = Mapping[tuple[str, int], int]


@attrs.frozen
class MemberDescription:
    """A member as its coordinator describes it; ``assignment``: topic -> partition numbers."""

    member_id: str
    client_id: str
    instance_id: str | None
    assignment: Mapping[str, tuple[int, ...]]


@attrs.frozen
class GroupDescription:
    """A group as its coordinator describes it; ``state`` is in Kafka's spelling (``STABLE``), ``assignor`` may be empty."""

    group: str
    state: str
    assignor: str
    coordinator: int
    members: Mapping[str, MemberDescription]


def set_consumer_timeouts(admin: AdminClient, group: str, *, session_ms: int, heartbeat_ms: int) -> None:
    """Set the timeouts of a group of the consumer protocol, by default 45 and 5 s; the group need not exist yet."""
    values = {"consumer.session.timeout.ms": session_ms, "consumer.heartbeat.interval.ms": heartbeat_ms}
    entries = [ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(_DEADLINE_S)


def describe_group(admin: AdminClient, group: str) -> GroupDescription:
    """Return the description of a group by its coordinator."""
    described = admin.describe_consumer_groups([group], request_timeout=_DEADLINE_S)[group].result(_DEADLINE_S)
    members = {}
    for member in described.members:
        assignment: dict[str, list[int]] = {}
        if member.assignment is not None:
            for one in member.assignment.topic_partitions:
                assignment.setdefault(one.topic, []).append(one.partition)
        members[member.member_id] = MemberDescription(
            member.member_id,
            member.client_id,
            member.group_instance_id,
            {topic: tuple(sorted(numbers)) for topic, numbers in assignment.items()},
        )
    coordinator = described.coordinator.id
    return GroupDescription(group, described.state.name, described.partition_assignor, coordinator, members)


def await_group(
    admin: AdminClient, group: str, *, state: str = "STABLE", members: int | None = None, deadline_s: float = 60.0
) -> GroupDescription:
    """Wait until a group is in a state, with ``members`` members if given, and return its description."""
    if state not in ConsumerGroupState.__members__:
        raise ValueError(f"{state} is no state of a group: {', '.join(ConsumerGroupState.__members__)}")
    last: GroupDescription | None = None

    def reached() -> GroupDescription | None:
        nonlocal last
        try:
            last = describe_group(admin, group)
        except KafkaException as error:
            if error.args[0].retriable():
                return None  # the coordinator is moving to another broker, or loading the group
            raise
        return last if last.state == state and members in (None, len(last.members)) else None

    what = f"group {group} in state {state} with {members} members"
    found = eventually(reached, what, within_s=deadline_s, shows=lambda: last)
    assert found is not None
    return found


def committed_offsets(admin: AdminClient, group: str) -> Offsets:
    """Return all committed offsets of a group."""
    request = [ConsumerGroupTopicPartitions(group)]
    answer = admin.list_consumer_group_offsets(request, request_timeout=_DEADLINE_S)[group].result(_DEADLINE_S)
    for one in answer.topic_partitions:
        if one.error is not None:
            raise KafkaException(one.error)
    return {(one.topic, one.partition): one.offset for one in answer.topic_partitions if one.offset >= 0}


def log_offsets(admin: AdminClient, topic: str, partitions: int, *, at: OffsetSpec | None = None) -> Offsets:
    """Return the end of each partition's log, or another offset (``OffsetSpec.earliest()``)."""
    place = OffsetSpec.latest() if at is None else at
    request = {TopicPartition(topic, number): place for number in range(partitions)}
    answers = admin.list_offsets(request, request_timeout=_DEADLINE_S)
    return {(one.topic, one.partition): future.result(_DEADLINE_S).offset for one, future in answers.items()}


def delete_group(admin: AdminClient, group: str) -> None:
    """Delete an empty group with its offsets."""
    admin.delete_consumer_groups([group], request_timeout=_DEADLINE_S)[group].result(_DEADLINE_S)
