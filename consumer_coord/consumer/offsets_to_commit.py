"""Which offsets a consumer commits by itself: pure functions of its table of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consumer_coord.consumer.callback_types import Partitions
from consumer_coord.consumer.partitions import Origin, Partition, Positions, Table
from consumer_coord.group.commits import Entry, Ticket
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition


def starts(table: Table, *origins: Origin) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the starts that were found in one of these ways."""
    return {partition: one.start for partition, one in table.items() if one.start is not None and one.origin in origins}


def tracked(
    table: Table, delivered: Positions, finished: Callable[[TopicPartition, int, OffsetAndMetadata], OffsetAndMetadata | None]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what a tracker has ``finished`` of the delivered records, and the chosen starts of partitions without a record."""
    found = {one: finished(one, table[one].serial, position) for one, position in delivered.items()}
    both = {**starts(table, Origin.CHOSEN, Origin.RESET), **found}
    return {partition: at for partition, at in both.items() if at is not None}


def of_this_reading(table: Table, commits: Mapping[TopicPartition, tuple[int, Ticket]]) -> dict[TopicPartition, Ticket]:
    """Return the application's last commits that it made in the present readings, by the serial numbers in ``commits``."""
    return {one: ticket for one, (serial, ticket) in commits.items() if one in table and table[one].serial == serial}


def before_unfinished(finished: Positions, unfinished: Positions, began: Mapping[TopicPartition, int | None]) -> Positions:
    """Go back to the first record that the application still works on.

    ``began`` has the first offset of the present reading: an unfinished record of an earlier reading may lie before it.
    """
    back = {
        partition: at
        for partition, at in unfinished.items()
        if (first := began.get(partition)) is not None and first <= at.offset and at.offset < finished[partition].offset
    }
    return {**finished, **back}


def without_committed(finished: Positions, commits: Mapping[TopicPartition, Ticket]) -> Positions:
    """Omit the partitions of which the application has committed this offset or a later one, unless its commit failed."""
    return {
        partition: at
        for partition, at in finished.items()
        if (ticket := commits.get(partition)) is None
        or at.offset > ticket.entries[partition].position.offset
        or ticket.answers.get(partition) is not None
    }


def new_offsets(table: Table, finished: Positions) -> Positions:
    """Omit the offsets that are committed, or whose commit is in flight."""
    return {partition: at for partition, at in finished.items() if not _is_committed(table[partition], partition, at)}


def _is_committed(one: Partition, partition: TopicPartition, at: OffsetAndMetadata) -> bool:
    return one.committed == at and (one.commit is None or one.commit.answers.get(partition) is None)


def entries(table: Table, wanted: Positions, heard: Partitions) -> dict[TopicPartition, Entry]:
    """Return positions with the present ownership numbers and topic ids.

    Until a record of a recreated topic is delivered (``heard``), a position belongs to the former topic.
    """
    found = {}
    for partition, at in wanted.items():
        one = table.get(partition)
        topic_id = None
        if one is not None:
            of_former = one.former_topic_id is not None and partition not in heard
            topic_id = one.former_topic_id if of_former else one.topic_id
        found[partition] = Entry(at) if one is None else Entry(at, one.ownership, topic_id)
    return found
