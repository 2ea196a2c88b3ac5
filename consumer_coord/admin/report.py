"""A report on a group, as values and as JSON: the members, and the partitions with committed offsets and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from consumer_coord.admin.groups import GroupDescription, MemberDescription, describe_groups
from consumer_coord.admin.offset_access import Ends, committed_offsets, end_offsets
from consumer_coord.errors import AuthorizationError, CoordinatorError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class PartitionRow:
    """A partition that is assigned to a member or has a committed offset; unknown fields are None."""

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """The number of records between the committed offset and the end of the log; None if unknown."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed.offset)


@attrs.frozen
class GroupReport:
    """A group and its partitions, in the order of Kafka's tool: first the partitions that are assigned to a member.

    ``left_out``: the partitions of ``rows`` whose end offset is unknown, with the error; the lag does not include them.
    """

    group: GroupDescription
    rows: tuple[PartitionRow, ...]
    left_out: Mapping[TopicPartition, CoordinatorError] = attrs.field(factory=dict)

    @property
    def lag(self) -> int:
        """The sum of the known lags of the group's partitions."""
        return sum(row.lag for row in self.rows if row.lag is not None)

    def as_json(self) -> dict[str, Any]:
        """Return the whole report as values that JSON can represent; ``docs/commands.md`` describes the fields."""
        group = self.group
        return {
            "group": group.group_id,
            "type": group.type,
            "protocol_type": group.protocol_type,
            "state": group.state,
            "assignor": group.assignor,
            "coordinator": attrs.asdict(group.coordinator, filter=lambda field, _: field.name != "rack"),
            "epoch": group.epoch,
            "target_epoch": group.target_epoch,
            "members": [attrs.asdict(member) for member in group.members],
            "lag": self.lag,
            "partitions": [_row_as_json(row) for row in self.rows],
            "left_out": self.left_out_as_json(),
        }

    def left_out_as_json(self) -> list[dict[str, Any]]:
        """Return the partitions that the lag does not include, and the reasons."""
        return [{**partition._asdict(), "error": str(error), "code": error.code} for partition, error in self.left_out.items()]


def _row_as_json(row: PartitionRow) -> dict[str, Any]:
    return {
        **row.partition._asdict(),
        "offset": None if row.committed is None else row.committed.offset,
        "leader_epoch": None if row.committed is None or row.committed.leader_epoch < 0 else row.committed.leader_epoch,
        "metadata": None if row.committed is None else row.committed.metadata,
        "end": row.end,
        "lag": row.lag,
        "member_id": None if row.member is None else row.member.member_id,
    }


async def report_groups(
    cluster: ClusterClient, group_ids: Iterable[str], deadline: Deadline, *, offsets: bool = True
) -> Mapping[str, GroupReport | CoordinatorError]:
    """Return for each group its report or its error; without ``offsets`` the rows are empty."""
    described = dict(await describe_groups(cluster, group_ids, deadline))
    # Only consumer groups: share groups have no committed offsets, and streams groups assign tasks instead of partitions.
    groups = [found for found in described.values() if isinstance(found, GroupDescription) and found.is_consumer_group]
    if not offsets:
        return {
            group_id: GroupReport(found, ()) if isinstance(found, GroupDescription) else found
            for group_id, found in described.items()
        }
    fetched = await asyncio.gather(*(_committed(cluster, group.group_id, deadline) for group in groups))
    committed = {group.group_id: found for group, found in zip(groups, fetched, strict=True)}
    wanted = {partition for found in fetched if not isinstance(found, CoordinatorError) for partition in found}
    wanted |= {partition for group in groups for member in group.members for partition in member.partitions}
    ends = await end_offsets(cluster, wanted, deadline)
    return {group_id: _report(found, committed.get(group_id, {}), ends) for group_id, found in described.items()}


async def _committed(
    cluster: ClusterClient, group_id: str, deadline: Deadline
) -> Mapping[TopicPartition, OffsetAndMetadata] | CoordinatorError:
    """Return a group's committed offsets, or an authorization error, so that other groups are still reported."""
    try:
        return await committed_offsets(cluster, group_id, deadline)
    except AuthorizationError as error:
        return error


def _report(
    found: GroupDescription | CoordinatorError,
    committed: Mapping[TopicPartition, OffsetAndMetadata] | CoordinatorError,
    ends: Ends,
) -> GroupReport | CoordinatorError:
    if isinstance(found, CoordinatorError):
        return found
    if isinstance(committed, CoordinatorError):
        return committed
    if not found.is_consumer_group:
        return GroupReport(found, ())
    rows = _rows(found, committed, ends.offsets)
    mine = {row.partition for row in rows}
    return GroupReport(found, rows, {partition: why for partition, why in ends.unknown.items() if partition in mine})


def _rows(
    group: GroupDescription, committed: Mapping[TopicPartition, OffsetAndMetadata], ends: Mapping[TopicPartition, int]
) -> tuple[PartitionRow, ...]:
    rows: list[PartitionRow] = []
    # As in Kafka's tool, the members with the most partitions are first.
    for member in sorted(group.members, key=lambda one: -len(one.partitions)):
        rows += (
            PartitionRow(partition, committed.get(partition), ends.get(partition), member)
            for partition in sorted(member.partitions)
        )
    assigned = {row.partition for row in rows}
    rows += (
        PartitionRow(partition, found, ends.get(partition), None)
        for partition, found in sorted(committed.items())
        if partition not in assigned
    )
    return tuple(rows)
