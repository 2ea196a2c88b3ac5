"""Work on several records of a partition at once: who decides what is committed, and when a partition is released.

An application that receives one record after another needs none of this: asking for the next record finishes the last one
(``consumer/deliveries.py``). An application that works on many records at once, in any order, passes a :class:`RecordTracker`
to ``consumer.track_records``. From then on, automatic commits contain what the tracker says, also with
``enable.auto.commit=false``, and a partition that the group revokes is kept until the tracker lets go of it.
``consumer.process`` is built on these calls.
"""

from __future__ import annotations

from typing import Protocol

from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition


class RecordTracker(Protocol):
    """Keeps the records that were delivered and are not finished.

    The consumer calls it on its loop, inside its own calls. The methods must return at once and must not call the consumer.
    ``reading`` is the number of a :class:`~consumer_coord.consumer.tracking.TrackedReading`; of a reading that the tracker does
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
        again after :meth:`~consumer_coord.consumer.tracking.Tracking.look_again`, and releases the partition after the
        rebalance timeout in any case.
        """

    def metadata_rejected(self, partition: TopicPartition, length: int) -> None:
        """Take note that a broker has rejected metadata of ``length`` characters (error OFFSET_METADATA_TOO_LARGE, 12)."""
