"""The fetcher's state of one assigned partition."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import attrs

from consumer_coord.fetch.sessions import Wanted
from consumer_coord.fetch.values import FetchStart
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.fetch.broker import BrokerFetches, Owner

_UNKNOWN = -1


@attrs.define(eq=False)
class FetchState:
    """The state of one partition during one assignment; only code on the fetcher's loop changes it.

    ``offset`` and ``leader_epoch`` are the position of the next Fetch, after all fetched records.
    """

    #: The fetcher to which the partition is assigned.
    owner: Owner
    partition: TopicPartition
    serial: int
    topic_id: uuid.UUID
    offset: int
    leader_epoch: int
    #: The position in the last Fetch.
    wanted: Wanted | None = None
    paused: bool = False
    #: True if fetching stopped with a :class:`~consumer_coord.fetch.values.Stopped`.
    stopped: bool = False
    #: Bytes of fetched records that the caller has not taken yet, and bytes of records that the caller has not advanced past.
    #: The second number includes the first.
    untaken: int = 0
    held: int = 0
    high_watermark: int = _UNKNOWN
    #: The partition's leader epoch at the time when OffsetForLeaderEpoch last validated the position.
    validated_in: int = _UNKNOWN
    #: The task that fetches the partition; None while no leader is known.
    task: BrokerFetches | None = None
    #: A replica in this client's rack, and the time until which it is used (KIP-392; loop's clock, in seconds).
    preferred: tuple[int, float] | None = None
    failures: int = 0
    not_before: float = 0.0

    @classmethod
    def starting(cls, owner: Owner, partition: TopicPartition, start: FetchStart, topic_id: uuid.UUID) -> FetchState:
        """Create the state when the partition is assigned."""
        return cls(owner, partition, start.serial, topic_id, start.offset, start.leader_epoch)

    @property
    def active(self) -> bool:
        """True if the partition should be fetched."""
        return not self.paused and not self.stopped

    @property
    def at_end(self) -> bool:
        """True if a Fetch would wait for new records, because the position is at the end of the log, as last reported."""
        return self.offset >= self.high_watermark >= 0
