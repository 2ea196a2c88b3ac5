"""Look up first offsets, end offsets, and offsets for times (ListOffsets), at all leaders at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError, RetriableError
from consumer_coord.final_errors import fatal
from consumer_coord.leaders.look_up import LeaderLookUp
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

#: Special values that a request may contain instead of a timestamp in milliseconds.
LATEST = -1
EARLIEST = -2
_BY_DURATION = "by_duration:"

#: Time limit of the first round of a look-up, in milliseconds. A round ends when all leaders have responded. If some have
#: responded at its time limit, the look-up returns their offsets; otherwise the next round has twice the time.
_ROUND_MS = 1_000

_DURATION = r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"


def reset_timestamp(reset: str, wall_clock_ms: int) -> int | None:
    """Return the ListOffsets timestamp of ``auto.offset.reset`` (-1 for latest, -2 for earliest), or None for ``none``.

    ``by_duration`` (KIP-1106) results in a time before ``wall_clock_ms``, both in milliseconds. If no record is as recent as
    this time, the caller must start at LATEST.
    """
    if reset.startswith(_BY_DURATION):
        return wall_clock_ms - int(duration_ms(reset.removeprefix(_BY_DURATION)))
    return {"earliest": EARLIEST, "latest": LATEST}.get(reset)


def duration_ms(text: str) -> float:
    """Convert ISO 8601's PnDTnHnMnS to milliseconds; raise ValueError for any other text."""
    match = re.fullmatch(_DURATION, text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration like P1DT12H30M5S")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000


@attrs.frozen
class ListedOffset:
    """An offset (-1 if no record is as recent as the requested time), and the leader epoch of its record (-1 if unknown)."""

    offset: int
    leader_epoch: int = -1
    timestamp_ms: int = -1

    @property
    def position(self) -> OffsetAndMetadata:
        """The offset as a position to read from, with its leader epoch."""
        return OffsetAndMetadata(self.offset, self.leader_epoch)


#: The offset of each wanted partition, or its error.
Listed = Results[ListedOffset]


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], deadline: Deadline, *, read_committed: bool = False
) -> Listed:
    """Look up each partition's first offset at or after its timestamp, its end offset for LATEST, or its start for EARLIEST.

    With ``read_committed``, LATEST is the last stable offset. A partition whose leader is unknown, does not respond, or
    responds without a usable row is asked for again until ``deadline``, with back-off; the others keep their offsets. Raise no
    error of a broker: the result has an offset or an error for each partition, for instance :class:`UnknownTopicError`.
    """
    return await _LookUp(cluster, wanted, read_committed).run(deadline)


async def list_available(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], timeout_ms: float, *, read_committed: bool = False
) -> Listed:
    """Look up the offsets of the partitions whose leaders respond, so that a partition without a leader delays no other.

    Return when at least one partition has its offset, or ``timeout_ms`` have passed, or no retry can help. For the arguments
    and the result, see :func:`list_offsets`.
    """
    deadline, round_ms = Deadline.after(timeout_ms), _ROUND_MS
    while True:
        # A slow leader needs a longer round.
        limit = Deadline.after(min(deadline.remaining_ms, round_ms))
        round_ms *= 2
        result = await list_offsets(cluster, wanted, limit, read_committed=read_committed)
        if result.found or not result.retriable or deadline.passed:
            return result


class _LookUp(LeaderLookUp[ListedOffset]):
    """The look-up of one offset of each partition."""

    request = "ListOffsets"

    def __init__(self, cluster: ClusterClient, wanted: Mapping[TopicPartition, int], read_committed: bool) -> None:
        super().__init__(cluster, wanted)
        self._stamps = wanted
        self._read_committed = read_committed

    async def ask_leader(self, leader: Broker, asked: Sequence[TopicPartition], deadline: Deadline) -> None:
        """Send one ListOffsets."""
        stamps = {partition: self._stamps[partition] for partition in asked}
        try:
            answer: ListOffsetsResponse = await self.cluster.request(
                leader,
                _request(stamps, self._read_committed),
                timeout_ms=self.cluster.config.request_timeout_ms,
                patience_ms=max(1.0, deadline.remaining_ms),
            )
        except CoordinatorError as error:
            self.fail(dict.fromkeys(asked, error))
            return
        matched = self.cluster.answers.match(
            "ListOffsets", leader.address, stamps, _rows(answer), lambda one, row: _senseless(stamps[one], row)
        )
        self.fail(matched.unanswered)
        for partition, row in matched.rows.items():
            if row.error_code == codes.NONE:
                self.find(partition, ListedOffset(row.offset, row.leader_epoch, row.timestamp))
            else:
                self.fail({partition: _refused(partition, row.error_code, leader)})


def _refused(partition: TopicPartition, code: int, leader: Broker) -> CoordinatorError:
    if codes.is_retriable(code):
        return RetriableError(f"ListOffsets of {partition} at {leader.address}: {codes.error_name(code)}", code=code)
    return fatal(code, group_id="", request=f"ListOffsets of {partition}")


def _request(wanted: Mapping[TopicPartition, int], read_committed: bool) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, number), timestamp in wanted.items():
        topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=number, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if read_committed else 0,
        topics=[ListOffsetsTopic(name=topic, partitions=rows) for topic, rows in topics.items()],
    )


def _rows(answer: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, ListOffsetsPartitionResponse]]:
    return ((TopicPartition(topic.name, row.partition_index), row) for topic in answer.topics for row in topic.partitions)


def _senseless(timestamp: int, row: ListOffsetsPartitionResponse) -> str | None:
    """Return why a row is no answer to a look-up of ``timestamp``, or None."""
    if row.error_code != codes.NONE:
        return None
    # Only for a time, -1 has a meaning: no record is as recent. librdkafka's OFFSET_END is -1, too.
    if row.offset < (0 if timestamp in (LATEST, EARLIEST) else -1):
        return f"offset {row.offset}"
    return f"leader epoch {row.leader_epoch}" if row.leader_epoch < -1 else None
