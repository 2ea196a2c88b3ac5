"""Look up the first record of each partition that a group has not read, with small Fetch requests (``FetchRequest``, KIP-74).

One request asks a leader for all its partitions, with a few kilobytes for each. A broker sends a batch that is larger than that
only for the first partition of a request, and no records for the others. These are asked for again, with more bytes. The
requests belong to no fetch session (KIP-227), so the broker keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.columns.first_record import first_record
from consumer_coord.errors import ConfigurationError, CoordinatorError, RequestTimedOutError, RetriableError
from consumer_coord.fetch.error_steps import PARTITION, Step, refusal, step_for
from consumer_coord.leaders.list_offsets import EARLIEST, list_offsets
from consumer_coord.leaders.look_up import LeaderLookUp
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.metadata import NO_TOPIC_ID, Broker
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, grouped
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.log import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

#: The bytes of one partition in the first request (the default of a producer's ``batch.size``), and their growth per request.
_PARTITION_BYTES: Final = 16 * 1024
_GROWTH: Final = 8
_MOST_PARTITION_BYTES: Final = 1024 * 1024
#: The size of one response, except for a larger first batch.
_RESPONSE_BYTES: Final = 4 * 1024 * 1024
#: The newest version that names topics.
_BY_NAME: Final = 12


@attrs.frozen
class Unread:
    """The offsets to look at: from ``position`` until before ``end``."""

    position: int
    end: int


@attrs.frozen
class FirstUnread:
    """The first record that a member may read; without one, ``offset`` is None.

    ``timestamp_ms`` is None without a record, and for a record without a timestamp.
    """

    offset: int | None = None
    timestamp_ms: int | None = None


async def first_unread(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, Unread], deadline: Deadline, *, read_committed: bool
) -> Results[FirstUnread]:
    """Return the first record of each partition's unread offsets, or why it is unknown.

    Markers are no records, and with ``read_committed`` neither are those of aborted transactions. If the log begins after the
    position, because of retention, the first record of the log is the first unread one. The principal needs READ on the topics.
    """
    return await _LookUp(cluster, wanted, read_committed).run(deadline)


class _LookUp(LeaderLookUp[FirstUnread]):
    """The positions from which to look on."""

    request = "Fetch"

    def __init__(self, cluster: ClusterClient, wanted: Mapping[TopicPartition, Unread], read_committed: bool) -> None:
        super().__init__(cluster, wanted)
        self._ends = {partition: unread.end for partition, unread in wanted.items()}
        self._positions = {partition: unread.position for partition, unread in wanted.items()}
        self._read_committed = read_committed

    async def ask_leader(self, leader: Broker, asked: Sequence[TopicPartition], deadline: Deadline) -> None:
        """Send Fetch requests to a leader while they make progress."""
        left, size = list(asked), _PARTITION_BYTES
        while left:
            if deadline.passed:
                self.fail(
                    {one: RequestTimedOutError(f"the first unread record of {one} was not found in time") for one in left}
                )
                return
            before = {partition: self._positions[partition] for partition in left}
            try:
                rows = await self._fetch(leader, left, size, deadline)
                again = [one for one, row in rows.items() if self._take(one, row, leader)]
                again = await self._from_the_beginning(again, rows, deadline)
            except CoordinatorError as error:
                self.fail(dict.fromkeys(left, error))
                return
            moved = {one for one in again if self._positions[one] != before[one]}
            if len(again) == len(left) and not moved and size == _MOST_PARTITION_BYTES:
                self.fail({one: _nothing(one, before[one], leader) for one in left})
                return
            # The broker sends a large batch only to the first partition with records.
            left, size = sorted(again, key=lambda one: (one in moved, one)), min(size * _GROWTH, _MOST_PARTITION_BYTES)

    async def _fetch(
        self, leader: Broker, asked: Sequence[TopicPartition], size: int, deadline: Deadline
    ) -> Mapping[TopicPartition, PartitionData]:
        """Return the rows of one response, and record the errors of partitions without a row."""
        topics = self.cluster.metadata.topics
        ids = {one.topic: topics[one.topic].id for one in asked if one.topic in topics}
        names = {topic_id: topic for topic, topic_id in ids.items()}
        unnamed = len(ids) < len({one.topic for one in asked}) or NO_TOPIC_ID in names
        rows = grouped(
            (one.topic, FetchPartition(partition=one.partition, fetch_offset=self._positions[one], partition_max_bytes=size))
            for one in asked
        )

        def build(version: int) -> FetchRequest:
            by_id = version > _BY_NAME
            return FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=_RESPONSE_BYTES,
                isolation_level=1 if self._read_committed else 0,
                topics=[
                    FetchTopic(topic=topic, topic_id=ids[topic] if by_id else NO_TOPIC_ID, partitions=partitions)
                    for topic, partitions in rows.items()
                ],
            )

        question = Versioned(FetchRequest, build, newest=_BY_NAME if unnamed else None, quick=True)
        answer: FetchResponse = await self.cluster.request(
            leader,
            question,
            timeout_ms=self.cluster.config.request_timeout_ms,
            patience_ms=max(1.0, deadline.remaining_ms),
        )
        if answer.error_code != codes.NONE:
            name = codes.error_name(answer.error_code)
            raise RetriableError(f"Fetch at {leader.address}: {name}", code=answer.error_code)
        if answer.throttle_time_ms > 0 and not answer.responses:
            raise RetriableError(f"Fetch at {leader.address}: throttled for {answer.throttle_time_ms} ms by the quota")
        told: Iterable[tuple[TopicPartition, PartitionData]] = (
            (TopicPartition(topic.topic or names.get(topic.topic_id, str(topic.topic_id)), row.partition_index), row)
            for topic in answer.responses
            for row in topic.partitions
        )
        matched = self.cluster.answers.match("Fetch", leader.address, asked, told)
        self.fail(matched.unanswered)
        return matched.rows

    def _take(self, partition: TopicPartition, row: PartitionData, leader: Broker) -> bool:
        """Take a row; return whether to ask this leader again."""
        position, end = self._positions[partition], self._ends[partition]
        if row.error_code == codes.OFFSET_OUT_OF_RANGE:
            return True
        if row.error_code != codes.NONE:
            stop = step_for(PARTITION, row.error_code) is Step.STOP
            name = codes.error_name(row.error_code)
            self.fail(
                {
                    partition: refusal(row.error_code, partition, position)
                    if stop
                    else RetriableError(f"Fetch of {partition} at {leader.address}: {name}", code=row.error_code)
                }
            )
            return False
        aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
        try:
            found = first_record(row.records or b"", position, aborted, read_committed=self._read_committed)
        except ImportError as error:
            self.fail({partition: ConfigurationError(f"{partition}: {error}")})
            return False
        except CoordinatorError as error:
            self.fail({partition: type(error)(f"{partition}: {error}")})
            return False
        if found.offset is not None and found.offset < end:
            self.find(partition, FirstUnread(found.offset, found.timestamp_ms))
            return False
        self._positions[partition] = found.next_offset
        if found.next_offset >= end:
            self.find(partition, FirstUnread())
            return False
        return True

    async def _from_the_beginning(
        self, again: Sequence[TopicPartition], rows: Mapping[TopicPartition, PartitionData], deadline: Deadline
    ) -> list[TopicPartition]:
        """Move positions outside the log to its beginning; return the partitions to ask for again."""
        outside = [one for one in again if rows[one].error_code == codes.OFFSET_OUT_OF_RANGE]
        if not outside:
            return list(again)
        begins = await list_offsets(self.cluster, dict.fromkeys(outside, EARLIEST), deadline)
        self.fail(begins.failed)
        settled = set(begins.failed)
        for partition, begin in begins.found.items():
            if self._positions[partition] < begin.offset < self._ends[partition]:
                self._positions[partition] = begin.offset
            else:
                # All unread records were deleted, or the log was truncated since its end was looked up.
                self.find(partition, FirstUnread())
                settled.add(partition)
        return [one for one in again if one not in settled]


def _nothing(partition: TopicPartition, offset: int, leader: Broker) -> RetriableError:
    return RetriableError(f"Fetch of {partition} at {leader.address}: no records at offset {offset}, which is before the end")
