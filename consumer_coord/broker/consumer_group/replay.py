"""The replay of records on the groups of a shard: records read from a log, and records just written."""

from __future__ import annotations

from typing import Protocol

from consumer_coord.broker.classic_group import GroupMetadata
from consumer_coord.broker.committed import GroupOffsets
from consumer_coord.broker.consumer_group import records
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.wire import consumer_group_records as wire
from consumer_coord.wire import offsets_topic


class Groups(Protocol):
    """The groups of a partition of ``__consumer_offsets``; a group id is in at most one of the two."""

    groups: dict[str, GroupMetadata]
    consumer_groups: dict[str, ConsumerGroup]


def offsets_of(shard: Groups, group_id: str) -> GroupOffsets | None:
    """Return the committed offsets of a group of either protocol; None if there is no such group."""
    group = shard.consumer_groups.get(group_id) or shard.groups.get(group_id)
    return None if group is None else group.offsets


def apply(shard: Groups, record: records.Record) -> None:
    """Apply one record to its group. Offsets outlive the group, in a simple group or in the next one."""
    key, value = record
    if isinstance(key, offsets_topic.GroupMetadataKey):
        classic = shard.groups.pop(key.group, None)
        if classic is not None and classic.offsets:
            shard.groups[key.group] = GroupMetadata(key.group, offsets=classic.offsets)
        return
    group_id = key.group_id
    group = shard.consumer_groups.get(group_id)
    if group is None:
        if value is None:
            return
        former = shard.groups.pop(group_id, None)
        group = ConsumerGroup(group_id, offsets=GroupOffsets() if former is None else former.offsets)
        shard.consumer_groups[group_id] = group
    if isinstance(key, wire.ConsumerGroupMetadataKey) and value is None:
        del shard.consumer_groups[group_id]
        if group.offsets:
            shard.groups[group_id] = GroupMetadata(group_id, offsets=group.offsets)
        return
    records.apply(group, key, value)
