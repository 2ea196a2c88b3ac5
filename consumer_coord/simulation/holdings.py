"""Who holds what, and since when, as the checkers keep it: each uninterrupted holding of a partition, and each partition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import attrs

from consumer_coord.topic_partition import TopicPartition


class Owner(Protocol):
    """A member of the application, as far as checkers look at it."""

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

    def holds(self, partition: TopicPartition) -> bool:
        """Held, and not lost."""

    def was_assigned(self, partition: TopicPartition, generation: int) -> bool:
        """It heard of this generation's assignment, and that has the partition."""


@attrs.define(eq=False)
class Holding:
    """One uninterrupted holding of a partition by one member.

    ``start`` is None until the position was looked up; ``[start, position)`` was delivered, and ``[start, processed)`` was
    processed; ``acknowledged`` is the highest offset that a commit was confirmed for; ``ended`` says how it ended, None while
    it lasts.
    """

    owner: Owner
    partition: TopicPartition
    began: float
    number: int
    #: Whether its owner knew the group's present generation when it took the partition up: a zombie does not.
    rightful: bool
    #: What the log said was committed when it was taken up.
    committed_before: int = -1
    #: When its application chose a position last.
    sought_at: float = -math.inf
    #: Nothing was handed out since.
    sought_only: bool = False
    #: Its application went back to records that it had read.
    went_back: bool = False
    start: int | None = None
    position: int = 0
    #: Delivered and not processed yet, in order: (the partition at the time of the delivery, first offset, end offset).  The
    #: partition is None for records of a deleted topic.
    in_hand: list[tuple[PartitionTruth | None, int, int]] = attrs.field(factory=list)
    #: The highest offset behind a processed record: a seek may have gone back since.
    furthest: int = 0
    #: The first record of the last delivery.
    delivery: int = 0
    acknowledged: int = -1
    ended: str | None = None
    #: The topic was made again, and this member may not have noticed: so often it may begin with the first record, when its
    #: position is not in the new log, and when it notices.
    may_begin: int = 0
    #: The group became one of the consumer protocol when its last assignment had taken this away already, and this owner had
    #: still to hear of that or to give it up.  Kafka takes that assignment for what is held: another member gets it at once.
    forgotten: bool = False

    @property
    def processed(self) -> int:
        """The offset behind the last processed record."""
        return self.in_hand[0][1] if self.in_hand else self.position

    @property
    def clean(self) -> bool:
        """Ended in order, with everything it processed confirmed as committed."""
        return self.ended in ("revoked", "closed") and (self.start is None or self.acknowledged >= self.position)


@attrs.define(eq=False)
class PartitionTruth:
    committed: int = -1
    highest: int = -1
    #: The holding whose commit was the last one accepted.
    committed_by: Holding | None = None
    #: The last commit was an older one of the same owner, which a newer one had overtaken on another connection.  No
    #: client can tell, so the next owner begins there.
    went_back: bool = False
    #: Everything below was processed at least once.
    covered: int = 0
    #: Processed beyond ``covered``: (start, end).
    islands: list[tuple[int, int]] = attrs.field(factory=list)
    holdings: list[Holding] = attrs.field(factory=list)
    #: Begun before the topic was made again, and given up before the new one was read: a commit of it may be on its way.
    given_up: list[Holding] = attrs.field(factory=list)
    #: Where the log began, at one time or another.
    log_starts: set[int] = attrs.field(factory=lambda: {0})
    #: The last owner that began to hand out records, and those before it.
    handing: Holding | None = None
    handed: list[Holding] = attrs.field(factory=list)


@attrs.frozen
class GroupTruth:
    """The last group record: generation and member id -> assignment."""

    generation: int = 0
    members: Mapping[str, bytes] = attrs.field(factory=dict)
    leader: str | None = None
