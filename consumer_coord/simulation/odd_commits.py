"""Commits that also name partitions which do not exist, and what a consumer must say about each partition of such a commit.

The rule ``answered``: a partition that does not exist is never confirmed. If no fault delays anything, each of them is answered
with UNKNOWN_TOPIC_OR_PARTITION within :data:`ANSWERED_S`, instead of being sent again until the call ends, and every other
partition of the same commit is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from consumer_coord.confluent.topic_partitions import partition_of
from consumer_coord.confluent.types import TopicPartition as Row
from consumer_coord.group.commits import Ticket
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.simulation.checkers import Violation
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes

#: Time within which an undisturbed commit with such partitions is answered, in seconds. The client retries for half a second.
ANSWERED_S: Final = 2.0

#: In place of the error code of an error that no broker answered.
_NO_CODE: Final = -1

#: A topic that no run creates, and a number that no partition has.
_NO_TOPIC: Final = "absent"
_NO_NUMBER: Final = 10_000


def is_absent(partition: TopicPartition) -> bool:
    """Return whether no run ever has this partition."""
    return partition.topic == _NO_TOPIC or partition.partition == _NO_NUMBER


def with_absent(positions: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions, and those of partitions that do not exist, of an absent topic and of an existing one."""
    odd = [TopicPartition(_NO_TOPIC, 0), *(TopicPartition(one.topic, _NO_NUMBER) for one in sorted(positions)[:1])]
    return {**positions, **dict.fromkeys(odd, OffsetAndMetadata(7))}


def codes_in(rows: Iterable[Row]) -> dict[TopicPartition, int]:
    """Return the error code of each partition in the answer to a synchronous commit; 0 if it was confirmed."""
    return {partition_of(row): error_codes.NONE if row.error is None else row.error.code() for row in rows}


def codes_of(ticket: Ticket) -> dict[TopicPartition, int]:
    """Return the error code of each partition in the outcome of an asynchronous commit, like :func:`codes_in`."""
    return {one: error_codes.NONE if error is None else error.code or _NO_CODE for one, error in ticket.answers.items()}


def must_be_answered(name: str, codes: Mapping[TopicPartition, int], *, undisturbed: bool) -> None:
    """Check the error codes of the partitions of one commit, 0 for a confirmed one; raise :class:`Violation`."""
    for partition, code in sorted(codes.items()):
        if is_absent(partition):
            if code == error_codes.NONE:
                raise Violation("answered", f"{name}: a commit of {partition}, which does not exist, was confirmed")
            if undisturbed and code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                said = error_codes.error_name(code)
                raise Violation("answered", f"{name}: a commit of {partition}, which does not exist, failed with {said}")
        elif undisturbed and code != error_codes.NONE:
            said = error_codes.error_name(code)
            raise Violation("answered", f"{name}: beside partitions that do not exist, {partition} failed with {said}")
