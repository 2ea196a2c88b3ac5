"""Tables for a terminal, with the columns of ``kafka-consumer-groups``, so that scripts for that tool work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from consumer_coord.admin.groups import CONSUMER, Listing
from consumer_coord.admin.report import GroupReport
from consumer_coord.printable import printable
from consumer_coord.topic_partition import TopicPartition

MISSING = "-"


def table(widths: Sequence[int], rows: Iterable[Sequence[object]]) -> str:
    """Return columns padded to at least these widths; a last column of width 0 is not padded.

    Unprintable characters are escaped, because names come from other clients and must not imitate a row.
    """
    lines = []
    for row in rows:
        cells = [MISSING if cell is None else printable(str(cell)) for cell in row]
        lines.append(" ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
    return "\n".join(lines)


def _longest(least: int, values: Iterable[str | None]) -> int:
    return max([least, *(len(printable(value)) for value in values if value is not None)])


def offsets_table(report: GroupReport, *, verbose: bool) -> str:
    """Return the table of ``--describe --offsets``."""
    header = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    rows: list[list[object]] = []
    for row in report.rows:
        member, committed = row.member, row.committed
        rows.append(
            [
                report.group.group_id,
                row.partition.topic,
                row.partition.partition,
                None if committed is None else committed.offset,
                row.end,
                row.lag,
                None if member is None else member.member_id,
                None if member is None else member.host,
                None if member is None else member.client_id,
            ]
        )
    members = [row.member for row in report.rows if row.member is not None]
    widths = [
        _longest(15, [report.group.group_id]),
        _longest(15, (row.partition.topic for row in report.rows)),
        10,
        15,
        15,
        15,
        _longest(15, (member.member_id for member in members)),
        _longest(15, (member.host for member in members)),
        0,
    ]
    if verbose:
        header.insert(3, "LEADER-EPOCH")
        widths.insert(3, 15)
        for cells, row in zip(rows, report.rows, strict=True):
            known = row.committed is not None and row.committed.leader_epoch >= 0
            cells.insert(3, row.committed.leader_epoch if known and row.committed is not None else None)
    return table(widths, [header, *rows])


def members_table(report: GroupReport, *, verbose: bool) -> str:
    """Return the table of ``--describe --members``; verbose adds the subscription, which Kafka's tool does not show."""
    group = report.group
    static = any(member.instance_id for member in group.members)
    header = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    widths = [
        _longest(15, [group.group_id]),
        _longest(15, (member.member_id for member in group.members)),
        _longest(15, (member.host for member in group.members)),
        _longest(15, (member.client_id for member in group.members)),
        15,
    ]
    rows: list[list[object]] = [
        [group.group_id, member.member_id, member.host, member.client_id, len(member.partitions)] for member in group.members
    ]
    if static:
        header.insert(2, "GROUP-INSTANCE-ID")
        widths.insert(2, _longest(17, (member.instance_id for member in group.members)))
        for cells, member in zip(rows, group.members, strict=True):
            cells.insert(2, member.instance_id or "")
    if verbose:
        current = [_assigned(member.assignment) for member in group.members]
        target = [None if member.target is None else _assigned(member.target) for member in group.members]
        subscribed = [
            MISSING if member.subscription is None else member.subscription.pattern or ",".join(member.subscription.topics)
            for member in group.members
        ]
        header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "SUBSCRIPTION"]
        widths += [15, _longest(20, current), 15, _longest(19, target), 0]
        target_epoch = group.target_epoch if group.type == CONSUMER else None
        for cells, member, now, later, topics in zip(rows, group.members, current, target, subscribed, strict=True):
            cells += [member.epoch, now, target_epoch, later, topics]
    return table(widths, [header, *rows])


def _assigned(assignment: Mapping[str, Sequence[int]]) -> str:
    """Format an assignment as ``orders:0,1;bills:2``."""
    topics = (f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()) if numbers)
    return ";".join(topics) or MISSING


def state_table(report: GroupReport, *, verbose: bool) -> str:
    """Return the table of ``--describe --state``."""
    group = report.group
    coordinator = f"{group.coordinator.host}:{group.coordinator.port}  ({group.coordinator.id})"
    header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    row: list[object] = [group.group_id, coordinator, group.assignor, group.state, len(group.members)]
    widths = [_longest(15, [group.group_id]), _longest(25, [coordinator]), 20, 20, 0]
    if verbose:
        header[4:4] = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row[4:4] = [group.epoch, group.target_epoch]
        widths[4:4] = [15, 25]
    return table(widths, [header, row])


def reset_table(plans: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return the table of ``--reset-offsets``."""
    rows: list[Sequence[object]] = [
        [group, partition.topic, partition.partition, offset]
        for group, offsets in sorted(plans.items())
        for partition, offset in sorted(offsets.items())
    ]
    topics = (partition.topic for offsets in plans.values() for partition in offsets)
    return table([_longest(15, plans), _longest(15, topics), 10, 15], [["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], *rows])


def deletion_table(outcome: Mapping[TopicPartition, str]) -> str:
    """Return the table of ``--delete-offsets``: the outcome for each partition."""
    rows: list[Sequence[object]] = [[one.topic, one.partition, status] for one, status in outcome.items()]
    return table([_longest(15, (one.topic for one in outcome)), 10, 0], [["TOPIC", "PARTITION", "STATUS"], *rows])


def listing_table(listings: Sequence[Listing], *, state: bool, type_: bool) -> str:
    """Return the table of ``--list``, with ``--state`` and ``--type``."""
    if not state and not type_:
        return "\n".join(printable(listing.group_id) for listing in listings)
    header: list[object] = ["GROUP"]
    widths = [_longest(15, (listing.group_id for listing in listings)) + 10]
    if type_:
        header.append("TYPE")
        widths.append(20)
    if state:
        header.append("STATE")
        widths.append(20)
    rows = [[listing.group_id, *([listing.type] if type_ else []), *([listing.state] if state else [])] for listing in listings]
    return table(widths, [header, *rows])


def lag_table(reports: Iterable[GroupReport]) -> str:
    """Return the table of ``lag``: one line for each group and topic."""
    rows: list[Sequence[object]] = []
    for report in reports:
        for topic in sorted({row.partition.topic for row in report.rows}):
            mine = [row for row in report.rows if row.partition.topic == topic]
            known = [row.lag for row in mine if row.lag is not None]
            behind = sum(known) if known else None
            rows.append([report.group.group_id, topic, len(mine), behind, max(known, default=None), report.group.state])
    widths = [_longest(15, (str(row[0]) for row in rows)), _longest(15, (str(row[1]) for row in rows)), 11, 15, 15, 0]
    return table(widths, [["GROUP", "TOPIC", "#PARTITIONS", "LAG", "MAX-LAG", "STATE"], *rows])
