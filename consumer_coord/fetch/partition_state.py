"""The fetcher's state of one assigned partition."""

from __future__ import annotations

import uuid

import attrs

from consumer_coord.fetch.values import FetchStart
from consumer_coord.topic_partition import TopicPartition

_UNKNOWN = -1


@attrs.define(eq=False)
class FetchState:
    """The state of one assigned partition, until its next assignment or its end; changed on the fetcher's loop only.

    ``offset`` and ``leader_epoch`` are the position of the next Fetch, after all fetched records.
    """

    partition: TopicPartition
    serial: int
    topic_id: uuid.UUID
    offset: int
    leader_epoch: int
    paused: bool = False
    #: Whether fetching stopped with a :class:`~consumer_coord.fetch.values.Stopped`.
    stopped: bool = False
    #: Bytes that were not taken yet, and bytes that were not advanced over yet. The second number includes the first.
    untaken: int = 0
    held: int = 0
    high_watermark: int = _UNKNOWN
    #: The leader epoch in which OffsetForLeaderEpoch last validated the position.
    validated_in: int = _UNKNOWN
    #: The broker from which the partition is fetched; None while no leader is known.
    broker_id: int | None = None
    #: A replica in this client's rack, and the loop's time, in seconds, until which it is used (KIP-392).
    preferred: tuple[int, float] | None = None
    failures: int = 0
    not_before: float = 0.0

    @classmethod
    def starting(cls, partition: TopicPartition, start: FetchStart, topic_id: uuid.UUID) -> FetchState:
        """Create the state when the partition is assigned."""
        return cls(partition, start.serial, topic_id, start.offset, start.leader_epoch)

    @property
    def active(self) -> bool:
        """Whether the partition should be fetched."""
        return not self.paused and not self.stopped

    @property
    def at_end(self) -> bool:
        """Whether a Fetch would wait for new records, according to the last response."""
        return self.offset >= self.high_watermark >= 0
