"""The lag of a partition as a value; no I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import BrokerError, CoordinatorError, NoOffsetError, UnknownTopicError
from consumer_coord.finished_offsets_text import UnusableMetadataError, decode
from consumer_coord.leaders.list_offsets import EARLIEST, ListedOffset
from consumer_coord.net.answers import Results
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.lag.first_unread import FirstUnread

#: The committed offsets of partitions; None: no offset is committed.
Commits = Results[OffsetAndMetadata | None]


@attrs.frozen
class ShareStart(OffsetAndMetadata):
    """The position of a share group: the first offset that it has not finished (KIP-932).

    ``lag`` is the number of records that the broker counts as unfinished (KIP-1226), without those that were finished out of
    order; None if it does not tell.
    """

    lag: int | None = None


#: How far the clock of a producer may be ahead of this one, in milliseconds. The record then has an age of 0.
CLOCKS_APART_MS = 5_000


@attrs.frozen
class LagPolicy:
    """What counts as lag.

    ``start``: the ListOffsets timestamp from which a partition without a commit counts (EARLIEST, LATEST, or a time in
    milliseconds since 1970); None: its lag is unknown. ``read_committed``: the log ends at the last stable offset, otherwise at
    the high watermark. ``records``: look whether any record is unread, because the offsets of markers and aborted records
    are none. ``seconds``: look up how old the first unread record is.
    """

    start: int | None = EARLIEST
    read_committed: bool = True
    records: bool = True
    seconds: bool = False


@attrs.frozen
class PartitionLag:
    """The lag of one partition; fields that are unknown, or were not asked for, are None.

    ``start`` is where the lag of a partition without a commit begins. ``unknown`` is the reason why :attr:`records` is unknown,
    and ``seconds_unknown`` the reason for ``seconds``, the age of the first unread record.
    """

    committed: OffsetAndMetadata | None = None
    start: int | None = None
    end: int | None = None
    #: Whether a record is between the position and the end; None if no one looked.
    has_record: bool | None = None
    #: The lag that the broker itself counts, of a share group.
    told: int | None = None
    unknown: CoordinatorError | None = None
    seconds: float | None = None
    seconds_unknown: CoordinatorError | None = None

    @property
    def position(self) -> int | None:
        """The offset from which the lag counts: the committed offset, or :attr:`start`."""
        return self.start if self.committed is None else self.committed.offset

    @property
    def finished(self) -> int:
        """The number of offsets after the committed one that are finished, as ``process`` notes in a commit's metadata."""
        at = self.committed
        if at is None or not at.metadata or self.end is None:
            return 0
        try:
            return sum(end - first for first, end in decode(at.metadata, at.offset, self.end))
        except UnusableMetadataError:
            # The next owner will not believe it, either.
            return 0

    @property
    def records(self) -> int | None:
        """The number of offsets from :attr:`position` to the end, without the finished ones; None if unknown.

        It is 0 if no record is among these offsets.
        """
        if self.unknown is not None:
            return None
        if self.has_record is False:
            return 0
        if self.told is not None:
            return self.told
        return None if self.position is None or self.end is None else max(0, self.end - self.position - self.finished)

    @property
    def deleted(self) -> bool:
        """True if the partition no longer exists."""
        return _is_gone(self.unknown)


def offset_lag(
    partition: TopicPartition, commits: Commits, ends: Results[ListedOffset], starts: Results[ListedOffset]
) -> PartitionLag:
    """Return the lag in offsets. ``starts`` has the starts of partitions without a commit, -1 for the end of the log."""
    committed, end = commits.found.get(partition), ends.found.get(partition)
    told = committed.lag if isinstance(committed, ShareStart) else None
    without_end = ends.failed.get(partition)
    # A lag that the broker counts needs no end, if there is still a log.
    unknown = commits.failed.get(partition) or (without_end if told is None or _is_gone(without_end) else None)
    start = None
    if committed is None and partition not in commits.failed:
        found = starts.found.get(partition)
        if found is not None:
            start = found.offset if found.offset >= 0 or end is None else end.offset
        else:
            unknown = unknown or starts.failed.get(partition)
            unknown = unknown or NoOffsetError(f"the group has no commit for {partition}, so its position is unknown")
    return PartitionLag(committed, start, None if end is None else end.offset, None, told, unknown)


def _is_gone(error: CoordinatorError | None) -> bool:
    return isinstance(error, UnknownTopicError)


def with_first_unread(
    partition: TopicPartition, lag: PartitionLag, first: Results[FirstUnread], now_ms: int | None
) -> PartitionLag:
    """Add what the first unread record says; with ``now_ms`` (milliseconds since 1970), also how old it is."""
    found = first.found.get(partition)
    if found is not None:
        lag = attrs.evolve(lag, has_record=found.offset is not None)
    if now_ms is None:
        return lag
    if lag.records is None:
        return attrs.evolve(lag, seconds_unknown=lag.unknown)
    if lag.records == 0:
        return attrs.evolve(lag, seconds=0.0)
    if found is None:
        # Without a reason, the position of a share group is after the end that the isolation level sets.
        why = first.failed.get(partition)
        return attrs.evolve(lag, seconds=None if why else 0.0, seconds_unknown=why)
    if found.timestamp_ms is None:
        return attrs.evolve(lag, seconds_unknown=_no_age(partition, found.offset, "has no timestamp"))
    ahead_ms = found.timestamp_ms - now_ms
    if ahead_ms > CLOCKS_APART_MS:
        told = f"has a timestamp that is {ahead_ms / 1000:.0f} s in the future"
        return attrs.evolve(lag, seconds_unknown=_no_age(partition, found.offset, told))
    return attrs.evolve(lag, seconds=max(0, -ahead_ms) / 1000)


def _no_age(partition: TopicPartition, offset: int | None, why: str) -> BrokerError:
    return BrokerError(f"the record at offset {offset} of {partition}, the first unread one, {why}")
