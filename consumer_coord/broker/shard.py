"""A partition of ``__consumer_offsets`` with its groups, and the replay of records of consumer groups.

Records are replayed when a log is read, and also when the broker has just written them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.committed import GroupOffsets
from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.purgatory import DelayedOperation
from consumer_coord.wire import consumer_group_records as wire
from consumer_coord.wire import offsets_topic


class ShardState(enum.Enum):
    """The state of a partition's groups: only active groups can be used."""

    LOADING = "loading"
    ACTIVE = "active"
    UNLOADED = "unloaded"


@attrs.frozen
class LoadReport:
    """The numbers of records, by kind, that were read while loading a partition."""

    records: int = 0
    foreign: int = 0
    corrupt: int = 0
    future: int = 0


#: Called when an append ends, with an error code and the offset of the first record (-1 after an error).
Appended = Callable[[int, int], None]


@attrs.frozen
class PendingAppend:
    """An append that is not acknowledged yet."""

    appended: Appended
    operation: DelayedOperation


@attrs.define(eq=False)
class Shard:
    """A partition of ``__consumer_offsets`` that this broker leads, with its groups in the order of their creation."""

    partition: int
    log: PartitionLog
    leader_epoch: int
    state: ShardState = ShardState.LOADING
    groups: dict[str, GroupMetadata] = attrs.field(factory=dict)
    #: Groups of the consumer protocol (KIP-848). A group id is either here or in ``groups``, but not in both.
    consumer_groups: dict[str, ConsumerGroup] = attrs.field(factory=dict)
    #: The timers of members of consumer groups, by (kind, group id, member id).
    timers: dict[tuple[str, str, str], DelayedOperation] = attrs.field(factory=dict)
    #: Appends in progress, oldest first, by number.
    appending: dict[int, PendingAppend] = attrs.field(factory=dict)
    #: Group id -> the record value of its last stored generation (classic groups).
    stored_groups: dict[str, bytes] = attrs.field(factory=dict)
    #: Size in bytes above which the log is compacted.
    compact_at: int = 0
    report: LoadReport = LoadReport()

    def group_of(self, group_id: str) -> GroupMetadata | ConsumerGroup | None:
        """Return a group of either protocol; None if the group does not exist."""
        return self.groups.get(group_id) or self.consumer_groups.get(group_id)

    def all_groups(self) -> tuple[GroupMetadata | ConsumerGroup, ...]:
        """Return the groups of both protocols."""
        return (*self.groups.values(), *self.consumer_groups.values())

    def apply(self, record: records.Record) -> None:
        """Apply a record to its group. Offsets of a removed group remain, in a simple group or in the group's successor."""
        key, value = record
        if isinstance(key, offsets_topic.GroupMetadataKey):
            classic = self.groups.pop(key.group, None)
            if classic is not None and classic.offsets:
                self.groups[key.group] = GroupMetadata(key.group, offsets=classic.offsets)
            return
        group_id = key.group_id
        group = self.consumer_groups.get(group_id)
        if group is None:
            if value is None:
                return
            former = self.groups.pop(group_id, None)
            group = ConsumerGroup(group_id, offsets=GroupOffsets() if former is None else former.offsets)
            self.consumer_groups[group_id] = group
        if isinstance(key, wire.ConsumerGroupMetadataKey) and value is None:
            del self.consumer_groups[group_id]
            if group.offsets:
                self.groups[group_id] = GroupMetadata(group_id, offsets=group.offsets)
            return
        records.apply(group, key, value)
