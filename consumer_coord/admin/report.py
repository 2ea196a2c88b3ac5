"""A report on a group, as values and as JSON: the members, and the partitions with committed offsets and lag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from consumer_coord.admin.ask import patiently
from consumer_coord.admin.documents import DescribedGroup, DescribedPartition, LeftOutPartition, Member
from consumer_coord.admin.groups import SHARE, STREAMS, GroupDescription, MemberDescription, describe_groups
from consumer_coord.admin.offset_access import committed_offsets
from consumer_coord.errors import CoordinatorError
from consumer_coord.lag.group_lag import read_lags
from consumer_coord.lag.log_offsets import topics_metadata
from consumer_coord.lag.partition_lag import Commits, LagPolicy, PartitionLag
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition


@attrs.frozen
class PartitionRow:
    """A partition that is assigned to a member or has a committed offset."""

    partition: TopicPartition
    lag: PartitionLag
    member: MemberDescription | None


@attrs.frozen
class GroupReport:
    """A group and its partitions, in the order of Kafka's tool: first the partitions that are assigned to a member."""

    group: GroupDescription
    rows: tuple[PartitionRow, ...]

    @property
    def lag(self) -> int:
        """The sum of the known lags of the group's partitions; each counts once, even if two members claim to read it."""
        return sum({row.partition: row.lag.records or 0 for row in self.rows}.values())

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest first unread record, among those that are known; None if none is."""
        return max((row.lag.seconds for row in self.rows if row.lag.seconds is not None), default=None)

    @property
    def left_out(self) -> Mapping[TopicPartition, CoordinatorError]:
        """The partitions that :attr:`lag` does not include, with the reason."""
        return {row.partition: row.lag.unknown for row in self.rows if row.lag.unknown is not None}

    @property
    def seconds_left_out(self) -> Mapping[TopicPartition, CoordinatorError]:
        """The partitions whose lag in seconds is unknown although their lag is known, with the reason."""
        return {
            row.partition: row.lag.seconds_unknown
            for row in self.rows
            if row.lag.seconds_unknown is not None and row.lag.unknown is None
        }

    @property
    def uncommitted(self) -> tuple[TopicPartition, ...]:
        """The partitions without a commit whose lag is known."""
        return tuple(row.partition for row in self.rows if row.lag.committed is None and row.lag.records is not None)

    def as_json(self) -> DescribedGroup:
        """Return the whole report as values that JSON can represent."""
        group = self.group
        return {
            "group": group.group_id,
            "type": group.type,
            "protocol_type": group.protocol_type,
            "state": group.state,
            "assignor": group.assignor,
            "coordinator": {"id": group.coordinator.id, "host": group.coordinator.host, "port": group.coordinator.port},
            "epoch": group.epoch,
            "target_epoch": group.target_epoch,
            "members": [_member_as_json(member) for member in group.members],
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "partitions": [_row_as_json(row) for row in self.rows],
            "left_out": left_out_as_json(self.left_out),
            "seconds_left_out": left_out_as_json(self.seconds_left_out),
        }


def left_out_as_json(left_out: Mapping[TopicPartition, CoordinatorError]) -> list[LeftOutPartition]:
    """Return a row for each partition that a lag does not include, with the reason."""
    return [
        {"topic": one.topic, "partition": one.partition, "error": str(error), "code": error.code}
        for one, error in left_out.items()
    ]


def _member_as_json(member: MemberDescription) -> Member:
    told = member.subscription
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "assignment": _lists(member.assignment),
        "subscription": None
        if told is None
        else {
            "topics": list(told.topics),
            "owned": _lists(told.owned),
            "generation": told.generation,
            "rack": told.rack,
            "pattern": told.pattern,
        },
        "epoch": member.epoch,
        "target": None if member.target is None else _lists(member.target),
    }


def _lists(of: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {name: list(numbers) for name, numbers in of.items()}


def _row_as_json(row: PartitionRow) -> DescribedPartition:
    committed = row.lag.committed
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "offset": None if committed is None else committed.offset,
        "leader_epoch": None if committed is None or committed.leader_epoch < 0 else committed.leader_epoch,
        "metadata": None if committed is None else committed.metadata,
        "start": row.lag.start,
        "end": row.lag.end,
        "lag": row.lag.records,
        "lag_seconds": row.lag.seconds,
        "member_id": None if row.member is None else row.member.member_id,
    }


async def report_groups(
    cluster: ClusterClient, group_ids: Iterable[str], deadline: Deadline, policy: LagPolicy | None
) -> Mapping[str, GroupReport | CoordinatorError]:
    """Return for each group its report or its error; without a ``policy`` for the lag, the rows are empty."""
    described = await describe_groups(cluster, group_ids, deadline)
    groups = {
        group_id: found for group_id, found in described.items() if policy is not None and isinstance(found, GroupDescription)
    }
    committed = await patiently(groups, lambda group_id, limit: _offsets_of(cluster, groups[group_id], limit), deadline)
    known = {group_id: found for group_id, found in committed.items() if isinstance(found, Results)}
    lags = await read_lags(cluster, known, policy or LagPolicy(), deadline)
    reports: dict[str, GroupReport | CoordinatorError] = {}
    for group_id, found in described.items():
        commits = committed.get(group_id, Results())
        if isinstance(found, CoordinatorError):
            reports[group_id] = found
        elif isinstance(commits, CoordinatorError):
            reports[group_id] = commits
        else:
            reports[group_id] = GroupReport(found, _rows(found, lags.groups.get(group_id, {})))
    return reports


async def _offsets_of(cluster: ClusterClient, group: GroupDescription, deadline: Deadline) -> Commits:
    """Return the commits or the start offsets of a group, also of assigned partitions without any."""
    assigned = frozenset(partition for member in group.members for partition in group.reads(member))
    if group.type == STREAMS and assigned:
        # The topics of a subtopology may have different numbers of partitions.
        topics = {partition.topic for partition in assigned}
        counts = (await topics_metadata(cluster, topics, deadline)).partitions(topics)
        assigned = frozenset(one for one in assigned if one.partition < counts.get(one.topic, one.partition + 1))
    return await committed_offsets(cluster, group.group_id, deadline, partitions=assigned, share=group.type == SHARE)


def _rows(group: GroupDescription, lags: Mapping[TopicPartition, PartitionLag]) -> tuple[PartitionRow, ...]:
    # As in Kafka's tool, the members with the most partitions are first.
    members = sorted(group.members, key=lambda one: -len(one.partitions))
    if group.type == SHARE:
        # Several members may read a partition, so a partition has no member.
        members = []
    rows = [
        PartitionRow(partition, lags[partition], member)
        for member in members
        for partition in sorted(group.reads(member))
        if partition in lags
    ]
    rows += [PartitionRow(one, lags[one], None) for one in sorted(lags.keys() - {row.partition for row in rows})]
    return tuple(rows)
