"""What the fetcher knows of one assigned partition."""

from __future__ import annotations

import uuid

import attrs

from consumer_coord.fetch.values import FetchStart
from consumer_coord.topic_partition import TopicPartition

_UNKNOWN = -1


@attrs.define(eq=False)
class FetchState:
    """One reading of one partition, from its assignment to its end; changed on the fetcher's loop only.

    ``offset`` and ``leader_epoch`` are the position of the next Fetch: behind everything that was fetched.
    """

    partition: TopicPartition
    serial: int
    topic_id: uuid.UUID
    offset: int
    leader_epoch: int
    paused: bool = False
    #: It ended with a :class:`~consumer_coord.fetch.values.Stopped`.
    stopped: bool = False
    #: Bytes that nobody took yet, and bytes that nobody advanced over yet; the latter include the former.
    untaken: int = 0
    held: int = 0
    high_watermark: int = _UNKNOWN
    #: The leader epoch for which the position was found in the leader's log, by OffsetForLeaderEpoch.
    validated_in: int = _UNKNOWN
    #: Which broker fetches it; None while no leader is known.
    broker_id: int | None = None
    #: A replica in this client's rack, and until when it is asked, in the loop's seconds (KIP-392).
    preferred: tuple[int, float] | None = None
    failures: int = 0
    not_before: float = 0.0

    @classmethod
    def starting(cls, partition: TopicPartition, start: FetchStart, topic_id: uuid.UUID) -> FetchState:
        """Return the state at the beginning of a reading."""
        return cls(partition, start.serial, topic_id, start.offset, start.leader_epoch)

    @property
    def active(self) -> bool:
        """Whether it is to be fetched at all."""
        return not self.paused and not self.stopped

    @property
    def at_end(self) -> bool:
        """Whether a Fetch would wait for new records, as far as the last response says."""
        return self.offset >= self.high_watermark >= 0
