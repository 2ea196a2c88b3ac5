"""Apply the group's changes for a member that fetches no records: a Spark query, or a member of a simulation.

No progress is stored: each call of :func:`apply_changes` compares the target with the partitions that the member owns.
Consumers do the same for each partition in ``consumer/reducer.py``, because their commits and look-ups take time.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.topic_partition import TopicPartition

T = TypeVar("T")


class Holder:
    """The application that owns a member's partitions. The methods of this base class do nothing."""

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop using partitions that another member may own already."""

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Stop using partitions, because the group will assign them to another member."""

    async def may_hold(self, partitions: frozenset[TopicPartition]) -> bool:
        """Return whether the member may add these partitions now; if not, the next :func:`apply_changes` checks this again."""
        return True

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Use partitions that the member now owns."""


async def apply_changes(member: ConsumerCoordinator, holder: Holder, *, leaving: bool = False) -> bool:
    """Apply the group's changes: lost, revoked and added partitions. Return False if the partitions to add must wait.

    If ``leaving`` is True, release every partition, and add none. If ``holder`` raises, the partitions of that call are still
    released, and the next call applies the remaining changes.
    """
    assignment = member.assignment
    change = assignment.change()
    revoked = assignment.held if leaving else change.revoked
    if change.lost:
        await _end(member, "lost", holder.lost(change.lost), change.lost)
    if revoked:
        await _end(member, "revoked", holder.revoked(revoked), revoked)
    if leaving:
        return True
    if change.added and not await holder.may_hold(change.added):
        return False
    if taken := assignment.accept(change):
        await _timed(member, "assigned", holder.assigned(taken))
    return True


async def _end(
    member: ConsumerCoordinator, kind: str, work: Coroutine[Any, Any, None], partitions: Iterable[TopicPartition]
) -> None:
    try:
        await _timed(member, kind, work)
    finally:
        member.release(partitions)


async def _timed(member: ConsumerCoordinator, kind: str, work: Coroutine[Any, Any, None]) -> None:
    began = member.application.clock()
    try:
        await work
    finally:
        member.application.called_back(kind, began)


def run_through(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a coroutine that must never suspend has suspended")
