"""A report on a group, as values and as JSON: the members, and the partitions with committed offsets and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from consumer_coord.admin.ask import patiently
from consumer_coord.admin.groups import GroupDescription, MemberDescription, describe_groups
from consumer_coord.admin.offset_access import Commits, committed_offsets, log_offsets
from consumer_coord.errors import CoordinatorError, UnknownTopicError
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST, ListedOffset
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class PartitionRow:
    """A partition that is assigned to a member or has a committed offset; unknown fields are None.

    ``beginning`` is the first offset of the log; it is looked up only if the partition has no commit. ``unknown``: why the lag
    is unknown, or None.
    """

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end: int | None
    member: MemberDescription | None
    beginning: int | None = None
    unknown: CoordinatorError | None = None

    @property
    def position(self) -> int | None:
        """The offset from which the lag counts: the committed offset, or the beginning of the log."""
        return self.beginning if self.committed is None else self.committed.offset

    @property
    def lag(self) -> int | None:
        """The number of offsets between :attr:`position` and the end of the log; None if unknown."""
        if self.position is None or self.end is None:
            return None
        return max(0, self.end - self.position)

    @property
    def deleted(self) -> bool:
        """True if the partition no longer exists."""
        return isinstance(self.unknown, UnknownTopicError)


@attrs.frozen
class GroupReport:
    """A group and its partitions, in the order of Kafka's tool: first the partitions that are assigned to a member."""

    group: GroupDescription
    rows: tuple[PartitionRow, ...]

    @property
    def lag(self) -> int:
        """The sum of the known lags of the group's partitions."""
        return sum(row.lag for row in self.rows if row.lag is not None)

    @property
    def left_out(self) -> Mapping[TopicPartition, CoordinatorError]:
        """The partitions that :attr:`lag` does not include, with the reason."""
        return {row.partition: row.unknown for row in self.rows if row.unknown is not None}

    @property
    def uncommitted(self) -> tuple[TopicPartition, ...]:
        """The partitions without a commit, whose lag counts from the beginning of the log."""
        return tuple(row.partition for row in self.rows if row.committed is None and row.lag is not None)

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
        "beginning": row.beginning,
        "end": row.end,
        "lag": row.lag,
        "member_id": None if row.member is None else row.member.member_id,
    }


async def report_groups(
    cluster: ClusterClient, group_ids: Iterable[str], deadline: Deadline, *, offsets: bool = True
) -> Mapping[str, GroupReport | CoordinatorError]:
    """Return for each group its report or its error; without ``offsets`` the rows are empty."""
    described = await describe_groups(cluster, group_ids, deadline)
    # Only consumer groups: share groups have no committed offsets, and streams groups assign tasks instead of partitions.
    groups = {
        group_id: found
        for group_id, found in described.items()
        if offsets and isinstance(found, GroupDescription) and found.is_consumer_group
    }
    committed = await patiently(
        groups,
        lambda group_id, limit: committed_offsets(cluster, group_id, limit, partitions=_assigned(groups[group_id])),
        deadline,
    )
    known = [found for found in committed.values() if isinstance(found, Results)]
    wanted = {partition for found in known for partition in (*found.found, *found.failed)}
    logs = await read_logs(cluster, wanted, known, deadline)
    reports: dict[str, GroupReport | CoordinatorError] = {}
    for group_id, found in described.items():
        commits = committed.get(group_id, Results())
        if isinstance(found, CoordinatorError):
            reports[group_id] = found
        elif isinstance(commits, CoordinatorError):
            reports[group_id] = commits
        else:
            reports[group_id] = GroupReport(found, _rows(found, commits, logs) if group_id in groups else ())
    return reports


def _assigned(group: GroupDescription) -> frozenset[TopicPartition]:
    return frozenset(partition for member in group.members for partition in member.partitions)


@attrs.frozen
class Logs:
    """The ends of logs, and the beginnings of those without a commit of some group."""

    ends: Results[ListedOffset]
    beginnings: Results[ListedOffset]


async def read_logs(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], commits: Iterable[Commits], deadline: Deadline
) -> Logs:
    """Look up the ends of ``partitions``, and the beginnings of the partitions without a commit in ``commits``."""
    uncommitted = {partition for group in commits for partition, found in group.found.items() if found is None}
    ends, beginnings = await asyncio.gather(
        log_offsets(cluster, dict.fromkeys(partitions, LATEST), deadline),
        log_offsets(cluster, dict.fromkeys(uncommitted, EARLIEST), deadline),
    )
    return Logs(ends, beginnings)


def _rows(group: GroupDescription, commits: Commits, logs: Logs) -> tuple[PartitionRow, ...]:
    def row(partition: TopicPartition, member: MemberDescription | None) -> PartitionRow:
        committed = commits.found.get(partition)
        end, beginning = logs.ends.found.get(partition), None
        unknown = commits.failed.get(partition) or logs.ends.failed.get(partition)
        if committed is None:
            beginning = logs.beginnings.found.get(partition)
            unknown = unknown or logs.beginnings.failed.get(partition)
        return PartitionRow(
            partition,
            committed,
            None if end is None else end.offset,
            member,
            None if beginning is None or partition in commits.failed else beginning.offset,
            unknown,
        )

    # As in Kafka's tool, the members with the most partitions are first.
    members = sorted(group.members, key=lambda one: -len(one.partitions))
    rows = [row(partition, member) for member in members for partition in sorted(member.partitions)]
    assigned = _assigned(group)
    others = (commits.found.keys() | commits.failed.keys()) - assigned
    rows += [row(partition, None) for partition in sorted(others)]
    return tuple(rows)
