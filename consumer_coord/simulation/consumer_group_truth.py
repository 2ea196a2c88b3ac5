"""The state of a consumer-protocol group according to the log: the epochs of the group and of its members (KIP-848)."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from consumer_coord.errors import MalformedMessageError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import consumer_group_records as records


class ConsumerGroupTruth:
    """The state of one group, from the records that the coordinator writes (types 3, 5 and 8)."""

    def __init__(
        self,
        group_id: str,
        topic_name: Callable[[uuid.UUID], str | None],
        on_member: Callable[[str, int, frozenset[TopicPartition]], None],
    ) -> None:
        """Start without any record of the group.

        At the first record of a member, ``on_member`` receives the member's id, epoch and partitions, with the topic names of
        ``topic_name``.
        """
        self._group_id = group_id
        self._topic_name = topic_name
        self._on_member = on_member
        #: The group epoch; None if the group does not use the consumer protocol.
        self.epoch: int | None = None
        #: member id -> the member's epoch, and the previous epoch, which the member uses until it receives the new epoch.
        self.members: dict[str, tuple[int, int]] = {}
        #: member id -> the member's last epoch, even after the member has left. A group that becomes a classic group continues
        #: from this epoch.
        self.last_epochs: dict[str, int] = {}
        #: member id -> the member's instance id, even after the member has left.
        self._instances: dict[str, str] = {}

    def on_record(self, key: bytes, value: bytes | None) -> str | None:
        """Apply a record; return a text for the run's timeline, or None.

        Raise ValueError for an epoch that does not increase.
        """
        try:
            decoded = records.decode_key(key)
        except MalformedMessageError:
            return None
        if isinstance(decoded, records.ConsumerGroupMetadataKey) and decoded.group_id == self._group_id:
            return self._on_group(decoded, value)
        if isinstance(decoded, records.ConsumerGroupCurrentMemberAssignmentKey) and decoded.group_id == self._group_id:
            if value is None:
                self.members.pop(decoded.member_id, None)
                return f"member {decoded.member_id} left the group"
            current = records.decode_value(decoded, value)
            assert isinstance(current, records.ConsumerGroupCurrentMemberAssignmentValue)
            if decoded.member_id not in self.members:
                self._on_member(decoded.member_id, current.member_epoch, self._assigned(current))
            self.members[decoded.member_id] = (current.member_epoch, current.previous_member_epoch)
            self.last_epochs[decoded.member_id] = current.member_epoch
            return f"member {decoded.member_id} is in epoch {current.member_epoch}, state {current.state}"
        if isinstance(decoded, records.ConsumerGroupMemberMetadataKey) and decoded.group_id == self._group_id:
            member = None if value is None else records.decode_value(decoded, value)
            if isinstance(member, records.ConsumerGroupMemberMetadataValue) and member.instance_id is not None:
                self._instances[decoded.member_id] = member.instance_id
        return None

    def _assigned(self, current: records.ConsumerGroupCurrentMemberAssignmentValue) -> frozenset[TopicPartition]:
        named = ((self._topic_name(one.topic_id), one.partitions) for one in current.assigned_partitions)
        return frozenset(TopicPartition(name, number) for name, numbers in named if name is not None for number in numbers)

    def _on_group(self, key: records.ConsumerGroupMetadataKey, value: bytes | None) -> str:
        if value is None:
            self.epoch = None
            self.members.clear()
            return "the group no longer uses the consumer protocol"
        found = records.decode_value(key, value)
        assert isinstance(found, records.ConsumerGroupMetadataValue)
        if self.epoch is not None and found.epoch < self.epoch:
            raise ValueError(f"group epoch {self.epoch} is followed by {found.epoch}")
        self.epoch = found.epoch
        return f"group epoch {found.epoch}"

    def has_replaced(self, member_id: str, instance_id: str, epoch: int) -> bool:
        """Return whether another member with this instance id was in the group in ``epoch`` or a later epoch."""
        return any(
            other != member_id and instance == instance_id and self.last_epochs.get(other, 0) >= epoch
            for other, instance in self._instances.items()
        )

    def instance_of(self, member_id: str) -> str | None:
        """Return the instance id of a member, even after the member has left."""
        return self._instances.get(member_id)

    def counts(self, member_id: str, epoch: int) -> bool:
        """Return True if the member is in the group, and ``epoch`` is the member's epoch or its previous epoch."""
        return epoch > 0 and epoch in self.members.get(member_id, ())
