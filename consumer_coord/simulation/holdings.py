"""Records of the checkers: each uninterrupted ownership of a partition by a member, and the true state of each partition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import attrs

from consumer_coord.topic_partition import TopicPartition


class Owner(Protocol):
    """The properties of a member that the checkers use."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def reset(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def member_id(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def lease_slack_s(self) -> float:
        """How long after the end of its session a member may still deliver, because its clock is not the brokers'."""

    def holds(self, partition: TopicPartition) -> bool:
        """Return whether the member owns a partition and has not lost the partition."""

    def was_assigned(self, partition: TopicPartition, generation: int) -> bool:
        """Return whether the member knows the assignment of ``generation``, and this assignment contains the partition."""


@attrs.define(eq=False)
class Holding:
    """The period in which one member owns a partition without interruption.

    ``start`` is None while the position is unknown. The records ``[start, position)`` were delivered, and ``[start,
    processed)`` were processed. ``acknowledged`` is the highest offset of a confirmed commit. ``ended`` says how the period
    ended; None before the end.
    """

    owner: Owner
    partition: TopicPartition
    began: float
    number: int
    #: Whether the owner knew the group's current generation when it became the owner; False for a member that was replaced.
    rightful: bool
    #: The group's committed offset in the log when the member became the owner.
    committed_before: int = -1
    #: The highest number of a log whose records were delivered; see :class:`RecordedLog`.
    log_number: int = -1
    #: The time of the last delivery.
    delivered_at: float = -math.inf
    #: The time of the application's last seek.
    sought_at: float = -math.inf
    #: True if no record has been delivered since the application's last seek.
    sought_only: bool = False
    #: True if the application went back to records that it had read.
    went_back: bool = False
    start: int | None = None
    position: int = 0
    #: Delivered records that are not processed yet, in order: (the partition at the time of the delivery, first offset, end
    #: offset). The partition is None for records of a deleted topic.
    in_hand: list[InHand] = attrs.field(factory=list)
    #: The offset after the last processed record, ignoring seeks. The position may be lower after a seek.
    furthest: int = 0
    #: The offset of the first record that the application may not have finished: the last call delivered this record, or an
    #: earlier call of another task.
    delivery: int = 0
    acknowledged: int = -1
    ended: str | None = None
    #: How many times the member may still start with the first record of a recreated topic: once if its position is not in the
    #: new log, and once when the member notices that the topic was recreated.
    may_begin: int = 0
    #: True after this sequence: 1. The last classic assignment gives the partition to another member. 2. The group changes to
    #: the consumer protocol before this owner learns of that assignment, before it revokes the partition, or before its last
    #: commit is answered. 3. Kafka takes the assigned partitions for the owned partitions, so another member gets the partition
    #: at once. The same happens if a full disk prevents the coordinator from storing the last classic assignment.
    forgotten: bool = False
    #: The offset at which the owner must continue, because a truncation removed delivered records; None if there is no such
    #: offset.
    resumes_at: int | None = None
    #: Earlier values of ``resumes_at``, replaced by a later truncation to a lower offset. The owner may have continued at such
    #: an offset, and then delivers records that the later truncation removed.
    replaced_resumes: frozenset[int] = frozenset()
    #: The highest position that a truncation removed, also of records that were fetched before it and delivered after it. A
    #: waiting commit of this position or a lower one may be replaced by a later commit with a lower offset.
    truncated_position: int = 0
    #: True after this sequence: 1. The application seeks, so no leader epoch is known. 2. The log is truncated. The owner
    #: notices the truncation only if its offset is out of range.
    adrift: bool = False

    @property
    def processed(self) -> int:
        """The offset after the last processed record."""
        return self.in_hand[0][1] if self.in_hand else self.position

    def cut(self, offset: int) -> None:
        """Remove the delivered records from ``offset`` on, because a truncation removed them from the log."""
        if self.position > offset:
            if self.resumes_at is not None and self.resumes_at > offset:
                self.replaced_resumes |= {self.resumes_at}
            self.resumes_at = min(offset, self.position if self.resumes_at is None else self.resumes_at)
            self.truncated_position = max(self.truncated_position, self.position)
            self.adrift = self.adrift or self.sought_only
        self.committed_before = min(self.committed_before, offset)
        self.acknowledged = min(self.acknowledged, offset)
        self.furthest = min(self.furthest, offset)
        self.delivery = min(self.delivery, offset)
        in_hand, self.in_hand = self.in_hand, []
        for truth, start, end in in_hand:
            self.in_hand += split(truth, start, end, offset)

    @property
    def clean(self) -> bool:
        """True if the ownership ended normally, with a confirmed commit of all processed records."""
        return self.ended in ("revoked", "closed") and (self.start is None or self.acknowledged >= self.position)


@attrs.frozen
class Run:
    """Delivered records of one partition: from ``start`` up to ``end``.

    ``present``: the records belong to the topic that exists now. ``cut_at``: after the fetch, a truncation removed the records
    at this offset and above; infinite without a truncation.
    """

    start: int
    end: int
    present: bool
    cut_at: float = math.inf


#: Delivered records; see :attr:`Holding.in_hand`.
InHand = tuple["PartitionTruth | None", int, int]


def split(truth: PartitionTruth | None, start: int, end: int, cut: float) -> list[InHand]:
    """Split delivered records at offset ``cut``. The records from ``cut`` on do not belong to the current topic."""
    if cut >= end:
        return [(truth, start, end)]
    middle = max(start, int(cut))
    return [part for part in ((truth, start, middle), (None, middle, end)) if part[1] < part[2]]


@attrs.define(eq=False)
class PartitionTruth:
    """The true state of one partition, such as the highest offset and the last accepted commit."""

    committed: int = -1
    #: The offset of the last accepted commit, which a truncation may have removed from the log.
    stored: int = -1
    #: The leader epoch of the committed offset; -1 if unknown.
    committed_epoch: int = -1
    #: True if the log does not have the committed offset, because of a truncation before or after the commit, and the offset's
    #: leader epoch is unknown. The next owner may then start anywhere.
    adrift: bool = False
    highest: int = -1
    #: The :class:`Holding` whose owner made the last accepted commit.
    committed_by: Holding | None = None
    #: True if a commit that was sent earlier arrived last and replaced a newer commit, because the earlier commit was delayed
    #: on another connection. No client can detect this, so the next owner starts at the earlier commit.
    went_back: bool = False
    #: The offset below which every record was processed at least once.
    covered: int = 0
    #: The end of the records that the last owner had finished when it closed; infinite if it had finished all.
    finished: float = math.inf
    #: Processed ranges of offsets above ``covered``: (start, end).
    islands: list[tuple[int, int]] = attrs.field(factory=list)
    holdings: list[Holding] = attrs.field(factory=list)
    #: Ownerships that began before the topic was recreated, and ended before the owner read the new topic. A commit of such an
    #: owner may still arrive.
    ended: list[Holding] = attrs.field(factory=list)
    #: All log start offsets that the log has had.
    log_starts: set[int] = attrs.field(factory=lambda: {0})
    #: The last owner that began to deliver records, and all owners before that owner.
    handing: Holding | None = None
    handing_since: float = 0.0
    handed: list[Holding] = attrs.field(factory=list)


@attrs.frozen
class GroupTruth:
    """The last group record: generation and member id -> assignment."""

    generation: int = 0
    members: Mapping[str, bytes] = attrs.field(factory=dict)
    leader: str | None = None
