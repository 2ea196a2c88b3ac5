"""Look up first offsets, end offsets, and offsets for times (ListOffsets), at all leaders at the same time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError, RequestTimedOutError, RetriableError, UnknownTopicError
from consumer_coord.group.error_steps import fatal
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata, by_leader
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline, retrying
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
    look_up = _LookUp(cluster, wanted, read_committed)
    watch = cluster.watch(frozenset(partition.topic for partition in wanted), lambda _: None)
    try:
        async for attempt in retrying(cluster.backoff, deadline, what="ListOffsets"):
            with attempt:
                await look_up.ask(deadline)
    except RetriableError:
        # The time is over; ``failed`` has the error of each partition.
        assert look_up.failed
    finally:
        cluster.unwatch(watch)
    return Listed(look_up.found, look_up.failed)


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


class _LookUp:
    """One look-up: the offsets found so far, and the last error of each other partition."""

    def __init__(self, cluster: ClusterClient, wanted: Mapping[TopicPartition, int], read_committed: bool) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._read_committed = read_committed
        self.found: dict[TopicPartition, ListedOffset] = {}
        self.failed: dict[TopicPartition, CoordinatorError] = {}

    async def ask(self, deadline: Deadline) -> None:
        """Ask the leaders of the partitions without a result; raise a retriable error if partitions remain that it may help."""
        left = self._left()
        try:
            metadata = self._cluster.metadata
            leaders, unknown = by_leader(metadata, left)
            if unknown:
                metadata = await self._cluster.refresh(deadline)
                leaders, unknown = by_leader(metadata, left)
            self._fail({one: _no_leader(metadata, one) for one in unknown})
            await asyncio.gather(*(self._ask_leader(leader, asked, deadline) for leader, asked in leaders.items()))
            left = self._left()
            if left:
                self._cluster.refresh_soon()
                await self._cluster.refresh(deadline)
        except CoordinatorError as error:
            # No broker has reported the leaders.
            self._fail(dict.fromkeys(left, error))
        if left := self._left():
            raise self.failed[left[0]]

    def _left(self) -> list[TopicPartition]:
        """Return the partitions that have neither an offset nor a refusal."""
        return [
            one for one in self._wanted if one not in self.found and isinstance(self.failed.get(one), RetriableError | None)
        ]

    def _fail(self, errors: Mapping[TopicPartition, CoordinatorError]) -> None:
        for partition, error in errors.items():
            # A time-out at the deadline says less than the error before it.
            if not isinstance(error, RequestTimedOutError) or partition not in self.failed:
                self.failed[partition] = error

    async def _ask_leader(self, leader: Broker, asked: Sequence[TopicPartition], deadline: Deadline) -> None:
        stamps = {partition: self._wanted[partition] for partition in asked}
        try:
            answer: ListOffsetsResponse = await self._cluster.request(
                leader,
                _request(stamps, self._read_committed),
                timeout_ms=self._cluster.config.request_timeout_ms,
                patience_ms=max(1.0, deadline.remaining_ms),
            )
        except CoordinatorError as error:
            self._fail(dict.fromkeys(asked, error))
            return
        matched = self._cluster.answers.match(
            "ListOffsets", leader.address, stamps, _rows(answer), lambda one, row: _senseless(stamps[one], row)
        )
        self._fail(matched.unanswered)
        for partition, row in matched.rows.items():
            if row.error_code == codes.NONE:
                self.found[partition] = ListedOffset(row.offset, row.leader_epoch, row.timestamp)
                self.failed.pop(partition, None)
            else:
                self._fail({partition: _refused(partition, row.error_code, leader)})


def _no_leader(metadata: Metadata, partition: TopicPartition) -> CoordinatorError:
    code = metadata.errors.get(partition.topic, codes.UNKNOWN_TOPIC_OR_PARTITION)
    if not codes.is_retriable(code):
        return fatal(code, group_id="", request=f"Metadata of {partition}")
    return UnknownTopicError(f"the cluster has no leader for {partition}: does the topic exist?", code=3)


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
