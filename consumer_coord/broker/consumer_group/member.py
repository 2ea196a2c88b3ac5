"""A member of a consumer group, an immutable value (``ConsumerGroupMember``)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping

import attrs

from consumer_coord.wire.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)

#: topic id -> partitions
Partitions = Mapping[uuid.UUID, frozenset[int]]
#: topic id -> partition -> the member epoch in which the partition was assigned (KIP-1251)
EpochPartitions = Mapping[uuid.UUID, Mapping[int, int]]

#: Member epochs with a special meaning in ConsumerGroupHeartbeat.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
#: A static member leaves temporarily. The broker keeps its place and its target for the session timeout.
LEAVE_STATIC_EPOCH = -2


class MemberState(enum.IntEnum):
    """The progress of a member towards its target (``MemberState``). Records contain these values."""

    #: The member has its target, or its next heartbeat will start the change to a newer target.
    STABLE = 0
    #: The member must first revoke partitions, and stays in its epoch until it has revoked them.
    UNREVOKED_PARTITIONS = 1
    #: The member is in the target's epoch; other members still have some of its partitions.
    UNRELEASED_PARTITIONS = 2
    #: Any other value, from a record of a later version.
    UNKNOWN = 127


@attrs.frozen
class ConsumerGroupMember:
    """A member: its subscription and settings, its epochs, and its partitions.

    The member may use ``assigned``, and must revoke ``pending_revocation``. ``classic`` has data from the JoinGroup of a member
    of the classic protocol, and is None for other members. ``rebalance_timeout_ms`` is -1 until the member has sent its
    rebalance timeout.
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topics: frozenset[str] = frozenset()
    subscribed_regex: str | None = ""
    server_assignor: str | None = None
    assigned: EpochPartitions = attrs.field(factory=dict)
    pending_revocation: EpochPartitions = attrs.field(factory=dict)
    classic: ClassicMemberMetadata | None = None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member has its whole target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def at_epoch(self, epoch: int) -> ConsumerGroupMember:
        """Return the member in another epoch.

        The current epoch becomes the previous epoch and remains valid, because the response with the new epoch may get lost.
        """
        return attrs.evolve(self, member_epoch=epoch, previous_member_epoch=self.member_epoch)

    def assignment_epoch(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """Return the member epoch in which the member got a partition; None if the member does not have the partition."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.pending_revocation.get(topic_id, {}).get(partition) if epoch is None else epoch

    # -- records

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        """Return the member's subscription and settings as a record."""
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=tuple(sorted(self.subscribed_topics)),
            subscribed_topic_regex=self.subscribed_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        """Return the member with the subscription and settings of a record."""
        return attrs.evolve(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topics=frozenset(value.subscribed_topic_names),
            subscribed_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        """Return the member's epochs and partitions as a record."""
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_stored(self.assigned),
            partitions_pending_revocation=_stored(self.pending_revocation),
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerGroupMember:
        """Return the member with the epochs and partitions of a record."""
        known = value.state in MemberState.__members__.values()
        return attrs.evolve(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_read(value.assigned_partitions, value.member_epoch),
            pending_revocation=_read(value.partitions_pending_revocation, value.member_epoch),
        )


def assigned_in(partitions: Partitions, epoch: int) -> EpochPartitions:
    """Return the partitions, each with the assignment epoch ``epoch``."""
    return {topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in partitions.items()}


def without_epochs(partitions: EpochPartitions) -> Partitions:
    """Return the partitions without their epochs."""
    return {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items()}


def _stored(partitions: EpochPartitions) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(
            topic_id=topic_id, partitions=tuple(sorted(epochs)), assignment_epochs=tuple(epochs[one] for one in sorted(epochs))
        )
        for topic_id, epochs in partitions.items()
    )


def _read(stored: Iterable[CurrentTopicPartitions], member_epoch: int) -> EpochPartitions:
    # Records of brokers before 4.3 have no epochs. Replace a missing epoch by the member's epoch, or by 0 for a static member
    # that left.
    default = max(member_epoch, 0)
    partitions = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = (default,) * len(topic.partitions)
        partitions[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return partitions
