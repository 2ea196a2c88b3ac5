"""Work on several records of a partition at once: who decides what is committed, and when a partition is released.

An application that receives one record after another needs none of this: asking for the next record finishes the last one
(``consumer/deliveries.py``). An application that works on many records at once, in any order, passes a :class:`RecordTracker`
to ``consumer.track_records``. From then on, automatic commits contain what the tracker says, also with
``enable.auto.commit=false``, and a partition that the group revokes is kept until the tracker lets go of it.
``consumer.process`` is built on these calls. Both sides know only what this module says: ``consumer/tracking.py`` implements
the reading half, and ``process/`` the tracker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition


class RecordTracker(Protocol):
    """Keeps the records that were delivered and are not finished.

    The consumer calls it on its loop, inside its own calls. The methods must return at once and must not call the consumer.
    ``reading`` is the number of a :class:`~consumer_coord.record_tracker.TrackedReading`; of a reading that the tracker does
    not know, it has no records.
    """

    def finished(self, partition: TopicPartition, reading: int, position: OffsetAndMetadata) -> OffsetAndMetadata | None:
        """Return the position to commit.

        ``position`` is behind all delivered records, and behind the transaction markers that follow them; it is the answer if
        everything is finished. None commits nothing. If a broker rejects the metadata as too large, the offset is committed
        alone.
        """

    def may_release(self, partition: TopicPartition, reading: int) -> bool:
        """Return whether the group may have the partition now.

        The partition is no longer fetched, and what :meth:`finished` says is committed next. After False, the consumer asks
        again after :meth:`~consumer_coord.record_tracker.Tracking.look_again`, and releases the partition after the
        rebalance timeout in any case.
        """

    def metadata_rejected(self, partition: TopicPartition, length: int) -> None:
        """Take note that a broker has rejected metadata of ``length`` characters (error OFFSET_METADATA_TOO_LARGE, 12)."""


@attrs.frozen
class TrackedReading:
    """One uninterrupted pass through a partition's log; a new ownership, a seek and a reset begin another."""

    number: int
    #: Where it began; with the metadata of the group's commit, if it began there.
    start: OffsetAndMetadata
    #: Whether the group revokes the partition.
    releasing: bool


class Tracking(Protocol):
    """The consumer of a :class:`RecordTracker`: what is read, and how to read it. ``consumer.track_records`` returns it.

    The coroutines run on the consumer's loop.
    """

    async def take(
        self,
        most: int,
        timeout_s: float,
        only: frozenset[TopicPartition] | None = None,
        *,
        sink: Callable[[list[Any]], object] | None = None,
    ) -> list[Any]:
        """Return about ``most`` messages, as soon as there are any; none after ``timeout_s`` seconds.

        ``only``: read only these partitions during this call. ``sink`` is called on the loop with the messages, before anything
        else can happen to them.
        """

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        """Return the readings of the partitions whose start is known; the same object until something changes."""

    @property
    def leased(self) -> bool:
        """Whether the coordinator cannot have removed this member, so that its partitions have no other owner."""

    def look_again(self) -> None:
        """Ask :meth:`RecordTracker.may_release` again in the present or next call; callable from any thread."""

    async def commit(self, timeout_s: float) -> bool:
        """Commit what is finished, and wait for the response; return False if there was none in time. A failure is logged."""

    async def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        """Return the offsets after the last records of these partitions; omit those whose leader does not respond in time."""

    def wall_clock_ms(self) -> int:
        """Return the time of the machine, in milliseconds since 1970."""

    async def read_also(self, topics_for: Callable[[Collection[str]], frozenset[str]]) -> None:
        """Also subscribe to the topics that ``topics_for`` returns for those of the application; :meth:`stop` ends that.

        ``topics_for`` gets no topics if the application has subscribed to none by its name. Raise
        :class:`~consumer_coord.errors.IllegalStateError` if a topic does not exist. An error ends the tracking.
        """

    async def stop(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        """End the tracking, and continue these readings, by their numbers, at these positions, where they have not ended.

        A partition that the group has taken and given back has another reading, which begins at a later commit.
        """


class BlockingTracking(Protocol):
    """What :class:`Tracking` is for the consumer of threads: the same calls, which block."""

    def take(
        self, most: int, timeout_s: float, only: frozenset[TopicPartition] | None, sink: Callable[[list[Any]], object]
    ) -> None:
        """Pass messages to ``sink``, on the loop's thread; see :meth:`Tracking.take`."""

    def readings(self) -> Mapping[TopicPartition, TrackedReading]:
        """See :meth:`Tracking.readings`; callable from any thread, but from one at a time."""

    @property
    def leased(self) -> bool:
        """See :attr:`Tracking.leased`; readable from any thread."""

    def look_again(self) -> None:
        """See :meth:`Tracking.look_again`."""

    def wall_clock_ms(self) -> int:
        """See :meth:`Tracking.wall_clock_ms`; callable from any thread."""

    def read_also(self, topics_for: Callable[[Collection[str]], frozenset[str]]) -> None:
        """See :meth:`Tracking.read_also`."""

    def commit(self, timeout_s: float) -> bool:
        """See :meth:`Tracking.commit`."""

    def log_ends(self, partitions: frozenset[TopicPartition], timeout_s: float) -> Mapping[TopicPartition, int]:
        """See :meth:`Tracking.log_ends`."""

    def stop(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        """See :meth:`Tracking.stop`."""
