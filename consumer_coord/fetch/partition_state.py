"""The fetcher's state of one assigned partition, and the fetcher and the broker to which this state belongs."""

from __future__ import annotations

import uuid
from typing import Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError
from consumer_coord.fetch.sessions import Wanted
from consumer_coord.fetch.values import FetchedRecords, FetchStart, StopReason
from consumer_coord.topic_partition import TopicPartition

_UNKNOWN = -1


class Fetches(Protocol):
    """The part of the Fetches from one broker that a fetcher uses."""

    broker_id: int
    partitions: dict[FetchState, None]
    throttled_until: float

    def check(self) -> None:
        """Check again whether to send a Fetch."""

    def freed(self) -> None:
        """Check again whether to send a Fetch, because the caller took records or advanced past them."""


class Owner(Protocol):
    """The methods of a fetcher that the Fetches from one broker use."""

    def share_bytes(self) -> int:
        """Return the share of each broker in the fetcher's buffer, in bytes."""

    def hold_back(self) -> None:
        """Note that partitions are not fetched until the caller has taken records, or advanced past them."""

    def in_use(self, moment: float) -> bool:
        """Return whether the caller waits for records, or has used the fetcher recently; ``moment`` is the loop's time."""

    def is_current(self, state: FetchState) -> bool:
        """Return whether ``state`` is still the state of an assigned partition that is neither paused nor stopped."""

    def place(self, state: FetchState) -> None:
        """Choose the broker from which to fetch a partition, and fetch from that broker."""

    def deliver(self, state: FetchState, records: FetchedRecords, size: int, count: int) -> None:
        """Keep records until the caller takes them, and move the position to the offset after these records.

        :meth:`answered` announces them, once for all records of a response.
        ``size`` is in bytes, and ``count`` the number of records.
        """

    def answered(self, broker: Fetches, latency_ms: float) -> None:
        """Announce the records of a response to a Fetch with partitions of this fetcher, and record the Fetch's duration."""

    def stop(self, state: FetchState, reason: StopReason, error: CoordinatorError, end: tuple[int, int] = (-1, -1)) -> None:
        """Stop fetching a partition, and report the reason to the caller."""

    def reach_end(self, state: FetchState) -> None:
        """Report that the position is at the end of the log, unless this was reported."""

    def fail(self, broker: Fetches, error: CoordinatorError) -> None:
        """Report an error that ended the Fetches from a broker, unless the broker answers before the report."""


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
    #: Number of fetched records that the caller has not taken yet.
    untaken_records: int = 0
    #: The offset from which a Fetch waits for new records, as last reported: the high watermark, or the last stable offset with
    #: ``read_committed``.
    end_offset: int = _UNKNOWN
    #: The offset of the last report that the position is at the end of the log.
    reported_end: int = _UNKNOWN
    #: The first offset and the high watermark in the last response; None before the first response.
    watermarks: tuple[int, int] | None = None
    last_stable_offset: int = _UNKNOWN
    #: The partition's leader epoch at the time when OffsetForLeaderEpoch last validated the position.
    validated_in: int = _UNKNOWN
    #: The broker from which the partition is fetched; None while no leader is known.
    broker: Fetches | None = None
    #: A replica in this client's rack, and the time until which it is used (KIP-392; loop's clock, in seconds).
    preferred: tuple[int, float] | None = None
    #: True if the partition was in a response that was too large, so the next Fetch has no other partition.
    alone: bool = False
    #: True if the last response that had to contain the partition did not.
    unanswered: bool = False
    #: How many metadata in a row had the topic and not the partition.
    missing: int = 0
    #: How many responses in a row had as many records as was asked for, at most two.
    full: int = 0
    failures: int = 0
    not_before: float = 0.0
    #: The loop time of the last response about this partition that had no error, or of the assignment, in seconds.
    answered_at: float = 0.0
    #: Why the last Fetch brought nothing; empty after a response.
    obstacle: str = ""

    @classmethod
    def starting(
        cls, owner: Owner, partition: TopicPartition, start: FetchStart, topic_id: uuid.UUID, moment: float
    ) -> FetchState:
        """Create the state when the partition is assigned, at the loop time ``moment``."""
        return cls(owner, partition, start.serial, topic_id, start.offset, start.leader_epoch, answered_at=moment)

    @property
    def active(self) -> bool:
        """True if the partition should be fetched."""
        return not self.paused and not self.stopped

    @property
    def at_end(self) -> bool:
        """True if a Fetch would wait for new records, because the position is at the end of the log, as last reported."""
        return self.offset >= self.end_offset >= 0
