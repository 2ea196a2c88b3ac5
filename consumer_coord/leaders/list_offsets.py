"""Look up first offsets, end offsets, and offsets for times (ListOffsets), at all leaders at the same time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import RetriableError, UnknownTopicError
from consumer_coord.group.error_steps import fatal
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import by_leader
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline, retrying
from consumer_coord.topic_partition import TopicPartition, listed
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
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


async def list_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    read_committed: bool = False,
    found: dict[TopicPartition, ListedOffset] | None = None,
) -> Mapping[TopicPartition, ListedOffset]:
    """Return each partition's first offset at or after its timestamp, its end offset for LATEST, or its start for EARLIEST.

    With ``read_committed``, LATEST is the last stable offset. Raise :class:`UnknownTopicError` if the cluster still does not
    have a partition at ``deadline``, and a retriable error if brokers do not respond. In both cases, ``found`` contains the
    offsets that were found before the error.
    """
    found = {} if found is None else found
    watch = cluster.watch(frozenset(partition.topic for partition in wanted), lambda _: None)
    try:
        async for attempt in retrying(cluster.backoff, deadline, what="ListOffsets"):
            with attempt:
                await _ask_leaders(cluster, wanted, found, deadline, read_committed)
    finally:
        cluster.unwatch(watch)
    return found


async def list_available(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    timeout_ms: float,
    note: Callable[[Collection[TopicPartition], RetriableError], None],
    *,
    read_committed: bool = False,
    others_wait: bool = False,
) -> Mapping[TopicPartition, ListedOffset]:
    """Return the offsets of the partitions whose leaders respond, so that a partition without a leader delays no other.

    Raise a retriable error if no leader responded within ``timeout_ms``. ``note`` receives the partitions without an offset and
    the error of each round. ``others_wait``: partitions that are not in ``wanted`` also wait for this look-up, so return after
    the first round, even without an offset. For the arguments and the offsets, see :func:`list_offsets`.
    """
    found: dict[TopicPartition, ListedOffset] = {}
    deadline, round_ms = Deadline.after(timeout_ms), _ROUND_MS
    while wanted and not found:
        # A slow leader needs a longer round.
        limit = Deadline.after(min(deadline.remaining_ms, round_ms))
        round_ms *= 2
        try:
            await list_offsets(cluster, wanted, limit, read_committed=read_committed, found=found)
        except RetriableError as error:
            if not (found or others_wait or deadline.remaining_ms > 0):
                raise
            note(wanted.keys() - found.keys(), error)
            if others_wait:
                break
    return found


async def _ask_leaders(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, ListedOffset],
    deadline: Deadline,
    read_committed: bool,
) -> None:
    missing = {partition: stamp for partition, stamp in wanted.items() if partition not in found}
    leaders, unknown = by_leader(cluster.metadata, missing)
    if unknown:
        leaders, unknown = by_leader(await cluster.refresh(deadline), missing)
    requests = [
        cluster.request(
            leader,
            _request({partition: missing[partition] for partition in partitions}, read_committed),
            timeout_ms=cluster.config.request_timeout_ms,
            patience_ms=max(1.0, deadline.remaining_ms),
        )
        for leader, partitions in leaders.items()
    ]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    failures = [answer if isinstance(answer, BaseException) else _take(answer, found) for answer in answers]
    if unknown:
        failures = [UnknownTopicError(f"the cluster has no leader for {listed(unknown)}: does the topic exist?", code=3)]
    failure = next((one for one in failures if one is not None), None)
    if failure is not None:
        if isinstance(failure, RetriableError):
            cluster.refresh_soon()
            await cluster.refresh(deadline)
        raise failure


def _request(wanted: Mapping[TopicPartition, int], read_committed: bool) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, number), timestamp in wanted.items():
        topics.setdefault(topic, []).append(ListOffsetsPartition(partition_index=number, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if read_committed else 0,
        topics=[ListOffsetsTopic(name=topic, partitions=rows) for topic, rows in topics.items()],
    )


def _take(answer: ListOffsetsResponse, found: dict[TopicPartition, ListedOffset]) -> RetriableError | None:
    """Add the offsets in one leader's response to ``found``; return the last retriable error, or raise any other error."""
    failure = None
    for topic in answer.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            if row.error_code == codes.NONE:
                found[partition] = ListedOffset(row.offset, row.leader_epoch, row.timestamp)
            elif codes.is_retriable(row.error_code):
                failure = RetriableError(f"{partition}: {codes.error_name(row.error_code)}", code=row.error_code)
            else:
                raise fatal(row.error_code, group_id="", request=f"ListOffsets of {partition}")
    return failure
