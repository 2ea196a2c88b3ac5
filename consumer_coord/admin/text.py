"""Tables for a terminal, with the columns of ``kafka-consumer-groups``, so that scripts for that tool still work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from consumer_coord.admin.groups import CONSUMER, SHARE, STREAMS, Listing
from consumer_coord.admin.report import GroupReport, PartitionRow
from consumer_coord.errors import NoOffsetError
from consumer_coord.log_text import printable
from consumer_coord.topic_partition import TopicPartition

N = TypeVar("N", int, float)

MISSING = "-"
#: Cells for a value that a broker did not answer, and for a partition that no longer exists.
UNKNOWN = "unknown"
DELETED = "deleted"

#: A column: its name, its minimum width, and its cells. If the last column has width 0, it is not padded.
Column = tuple[str, int, Sequence[object]]


def table(columns: Iterable[Column]) -> str:
    """Return the lines of a table with a header.

    Unprintable characters are escaped, because names come from other clients and must not look like another row.
    """
    padded = []
    for name, least, cells in columns:
        texts = [name, *(MISSING if cell is None else printable(str(cell)) for cell in cells)]
        width = max(least, *map(len, texts)) if least else 0
        padded.append([text.ljust(width) for text in texts])
    return "\n".join(map(" ".join, zip(*padded, strict=True)))


def offsets_table(report: GroupReport, *, verbose: bool, seconds: bool) -> str:
    """Return the table of ``--describe --offsets``, as Kafka's tool for this kind of group prints it.

    ``seconds`` adds a column that Kafka's tools do not have.
    """
    rows, kind = report.rows, report.group.type
    committed = [row.lag.committed for row in rows]
    members = [row.member for row in rows]
    offsets = [None if one is None else one.offset for one in committed]
    epochs: Column = (
        "LEADER-EPOCH",
        15,
        [None if one is None or one.leader_epoch < 0 else one.leader_epoch for one in committed],
    )
    ends: Column = ("LOG-END-OFFSET", 15, [_known(row, row.lag.end) for row in rows])
    lags = [_known(row, row.lag.records) for row in rows]
    if kind == SHARE:
        counts: list[Column] = [*([epochs] if verbose else []), ("START-OFFSET", 13, offsets), ("LAG", 15, lags)]
    elif kind == STREAMS:
        counts = [*([("CURRENT-OFFSET", 15, offsets), epochs, ends] if verbose else []), ("OFFSET-LAG", 15, lags)]
    else:
        counts = [*([epochs] if verbose else []), ("CURRENT-OFFSET", 15, offsets), ends, ("LAG", 15, lags)]
    owners: list[Column] = [
        ("CONSUMER-ID", 15, [None if one is None else one.member_id for one in members]),
        ("HOST", 15, [None if one is None else one.host for one in members]),
        ("CLIENT-ID", 0, [None if one is None else one.client_id for one in members]),
    ]
    return table(
        [
            ("GROUP", 15, [report.group.group_id] * len(rows)),
            ("TOPIC", 15, [row.partition.topic for row in rows]),
            ("PARTITION", 10, [row.partition.partition for row in rows]),
            *counts,
            *([("LAG-SECONDS", 15, [seconds_cell([row]) for row in rows])] if seconds else []),
            *(owners if kind not in (SHARE, STREAMS) else []),
        ]
    )


def members_table(report: GroupReport, *, verbose: bool) -> str:
    """Return the table of ``--describe --members``. ``verbose`` adds the subscription, which Kafka's tool does not show."""
    group, members = report.group, report.group.members
    columns: list[Column] = [
        ("GROUP", 15, [group.group_id] * len(members)),
        ("CONSUMER-ID", 15, [member.member_id for member in members]),
        ("HOST", 15, [member.host for member in members]),
        ("CLIENT-ID", 15, [member.client_id for member in members]),
        ("#PARTITIONS", 15, [len(member.partitions) for member in members]),
    ]
    if any(member.instance_id for member in members):
        columns.insert(2, ("GROUP-INSTANCE-ID", 17, [member.instance_id or "" for member in members]))
    if verbose:
        target_epoch = group.target_epoch if group.type == CONSUMER else None
        target = [None if member.target is None else _assigned(member.target) for member in members]
        subscriptions = [member.subscription for member in members]
        subscribed = [MISSING if one is None else one.pattern or ",".join(one.topics) for one in subscriptions]
        columns += [
            ("CURRENT-EPOCH", 15, [member.epoch for member in members]),
            ("CURRENT-ASSIGNMENT", 20, [_assigned(member.assignment) for member in members]),
            ("TARGET-EPOCH", 15, [target_epoch] * len(members)),
            ("TARGET-ASSIGNMENT", 19, target),
            ("SUBSCRIPTION", 0, subscribed),
        ]
    return table(columns)


def _assigned(assignment: Mapping[str, Sequence[int]]) -> str:
    """Format an assignment as ``orders:0,1;bills:2``."""
    topics = (f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in sorted(assignment.items()) if numbers)
    return ";".join(topics) or MISSING


def state_table(report: GroupReport, *, verbose: bool) -> str:
    """Return the table of ``--describe --state``."""
    group = report.group
    epochs: list[Column] = [
        ("GROUP-EPOCH", 15, [group.epoch]),
        ("TARGET-ASSIGNMENT-EPOCH", 25, [group.target_epoch]),
    ]
    return table(
        [
            ("GROUP", 15, [group.group_id]),
            ("COORDINATOR (ID)", 25, [f"{group.coordinator.host}:{group.coordinator.port}  ({group.coordinator.id})"]),
            ("ASSIGNMENT-STRATEGY", 20, [group.assignor]),
            ("STATE", 20, [group.state]),
            *(epochs if verbose else []),
            ("#MEMBERS", 0, [len(group.members)]),
        ]
    )


def reset_table(plans: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return the table of ``--reset-offsets``."""
    rows = [
        (group, partition, offset) for group, offsets in sorted(plans.items()) for partition, offset in sorted(offsets.items())
    ]
    return table(
        [
            ("GROUP", 15, [group for group, _, _ in rows]),
            ("TOPIC", 15, [partition.topic for _, partition, _ in rows]),
            ("PARTITION", 10, [partition.partition for _, partition, _ in rows]),
            ("NEW-OFFSET", 15, [offset for _, _, offset in rows]),
        ]
    )


def deletion_table(outcome: Mapping[TopicPartition, str]) -> str:
    """Return the table of ``--delete-offsets``: the outcome for each partition."""
    return table(
        [
            ("TOPIC", 15, [one.topic for one in outcome]),
            ("PARTITION", 10, [one.partition for one in outcome]),
            ("STATUS", 0, list(outcome.values())),
        ]
    )


def listing_table(listings: Sequence[Listing], *, state: bool, type_: bool) -> str:
    """Return the table of ``--list``, with ``--state`` and ``--type``."""
    if not state and not type_:
        return "\n".join(printable(listing.group_id) for listing in listings)
    longest = max([15, *(len(printable(listing.group_id)) for listing in listings)])
    columns: list[Column] = [("GROUP", longest + 10, [listing.group_id for listing in listings])]
    if type_:
        columns.append(("TYPE", 20, [listing.type for listing in listings]))
    if state:
        columns.append(("STATE", 20, [listing.state for listing in listings]))
    return table(columns)


def _known(row: PartitionRow, value: int | None) -> int | str | None:
    """Return a value, or why it is not known; None if that is because the group has no commit."""
    if value is not None or row.lag.unknown is None or isinstance(row.lag.unknown, NoOffsetError):
        return value
    return DELETED if row.lag.deleted else UNKNOWN


def lag_cell(rows: Sequence[PartitionRow], combine: Callable[[Iterable[int]], int] = sum) -> int | str:
    """Return the lag of partitions; "unknown" or, if the lag of some is known, at least that lag. Deleted ones have none."""
    return _combined([row.lag.records for row in rows if not row.lag.deleted], combine, rows)


def seconds_cell(rows: Sequence[PartitionRow]) -> float | str:
    """Return the largest lag of partitions in seconds, in the same way."""
    return _combined([row.lag.seconds for row in rows if not row.lag.deleted], max, rows)


def _combined(values: Sequence[N | None], combine: Callable[[Iterable[N]], N], rows: Sequence[PartitionRow]) -> N | int | str:
    if rows and not values:
        return DELETED
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN if values else 0
    return combine(known) if len(known) == len(values) else f">={combine(known)}"


def lag_table(reports: Iterable[GroupReport], unknown: Iterable[str] = (), *, seconds: bool) -> str:
    """Return the table of ``lag``: one line for each group and topic, and for each group that is unknown."""
    lines = [
        (report.group, topic, [row for row in report.rows if row.partition.topic == topic])
        for report in reports
        for topic in sorted({row.partition.topic for row in report.rows})
    ]
    names = [group.group_id for group, _, _ in lines]
    left = list(unknown)
    none, untold = [None] * len(left), [UNKNOWN] * len(left)
    ages: list[Column] = [("LAG-SECONDS", 15, [*(seconds_cell(rows) for _, _, rows in lines), *untold])]
    return table(
        [
            ("GROUP", 15, [*names, *left]),
            ("TOPIC", 15, [*(topic for _, topic, _ in lines), *none]),
            ("#PARTITIONS", 11, [*(len(rows) for _, _, rows in lines), *none]),
            ("LAG", 15, [*(lag_cell(rows) for _, _, rows in lines), *untold]),
            ("MAX-LAG", 15, [*(lag_cell(rows, max) for _, _, rows in lines), *untold]),
            *(ages if seconds else []),
            ("STATE", 0, [*(group.state for group, _, _ in lines), *untold]),
        ]
    )
