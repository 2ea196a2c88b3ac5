"""The figures of partitions that a leader fetches for an assignor: lag or rates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.environment import now
from consumer_coord.errors import RetriableError
from consumer_coord.group.committed_offsets import CommittedOffsets
from consumer_coord.group.metadata_watch import ClusterView
from consumer_coord.lag.partition_lag import Commits, offset_lag
from consumer_coord.leaders.list_offsets import LATEST, Listed, list_offsets, reset_timestamp
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition, listed

T = TypeVar("T")

#: Time limit for fetching all figures of an assignor, in milliseconds.
TIMEOUT_MS = 1_000
#: Minimum time between two measurements for a rate, in seconds, because records are written and committed in batches.
LEAST_APART_S = 0.5


@attrs.frozen
class Look:
    """End offsets and committed offsets of partitions; offsets that could not be fetched are missing.

    ``at_s`` is the loop time when they were asked for.
    """

    at_s: float
    ends: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]


class Figures:
    """Fetches the lag or the rates of partitions for a leader, and keeps the last measurement, because a rate needs two."""

    def __init__(
        self, cluster: ClusterClient, offsets: CommittedOffsets, reset: str, log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self._cluster = cluster
        self._offsets = offsets
        #: ``auto.offset.reset`` of this member.
        self._reset = reset
        self._log = log
        self._last: Look | None = None
        self._rates: Mapping[TopicPartition, float | None] = {}

    async def lag(self, view: ClusterView) -> Mapping[str, Sequence[int | None]]:
        """Return topic -> the lag of each partition in records, or None if it could not be fetched.

        If a partition has no committed offset, its lag counts from the start offset that ``auto.offset.reset`` selects, and is
        None if that setting is ``none``.
        """
        deadline, partitions = Deadline.after(TIMEOUT_MS), _partitions(view)
        # A broker that does not answer must leave time for the requests that follow.
        first = Deadline.after(TIMEOUT_MS / 2)
        committed, ends = await asyncio.gather(
            self._committed(partitions, first), self._listed(dict.fromkeys(partitions, LATEST), first)
        )
        uncommitted = [partition for partition, position in committed.found.items() if position is None]
        since = reset_timestamp(self._reset, self._cluster.environment.wall_clock_ms())
        if since == LATEST:
            starts = ends
        else:
            starts = await self._listed({} if since is None else dict.fromkeys(uncommitted, since), deadline)
        return _by_topic(view, {one: offset_lag(one, committed, ends, starts).records for one in partitions})

    async def weights(self, view: ClusterView) -> Mapping[str, Sequence[float | None]]:
        """Return topic -> the rate of each partition in records per second, or None if unknown (see :func:`rates`).

        The rate is measured since this member's last assignment. For the first assignment, there are two measurements half a
        second apart.
        """
        partitions = _partitions(view)
        deadline = Deadline.after(TIMEOUT_MS)
        if self._last is None:
            # A broker that does not answer must leave time for the second measurement.
            self._last = await self._look_at_all(partitions, Deadline.after(TIMEOUT_MS / 2))
            await asyncio.sleep(max(0.0, min(LEAST_APART_S - (now() - self._last.at_s), deadline.remaining_ms / 1000)))
        if now() - self._last.at_s >= LEAST_APART_S:
            look = await self._look_at_all(partitions, deadline)
            self._rates = rates(self._last, look, partitions)
            self._last = look
        return _by_topic(view, self._rates)

    async def _look_at_all(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> Look:
        began_s = now()
        committed, ends = await asyncio.gather(
            self._committed(partitions, deadline), self._listed(dict.fromkeys(partitions, LATEST), deadline)
        )
        commits = {partition: position.offset for partition, position in committed.found.items() if position is not None}
        return Look(began_s, {partition: end.offset for partition, end in ends.found.items()}, commits)

    async def _listed(self, wanted: Mapping[TopicPartition, int], deadline: Deadline) -> Listed:
        """Return the offsets for timestamps, and log why some are unknown; the end of a log is its last stable offset."""
        result = await list_offsets(self._cluster, wanted, deadline, read_committed=True)
        if result.failed:
            first = next(iter(result.failed.values()))
            self._log.info(
                "the assignor's figures of %s may be None, because the log offsets could not be looked up: %s",
                listed(result.failed),
                first,
            )
        return result

    async def _committed(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> Commits:
        """Return the group's committed offsets, and log why some are unknown."""
        try:
            result = await self._offsets.fetched(partitions, timeout_ms=deadline.remaining_ms)
        except RetriableError as error:
            self._log.warning(
                "figures of the assignor may be None, because the group's committed offsets could not be fetched: %s", error
            )
            return Commits({}, dict.fromkeys(partitions, error))
        if result.failed:
            first = next(iter(result.failed.values()))
            self._log.warning(
                "the assignor's figures of %s may be None, because the committed offsets could not be fetched: %s",
                listed(result.failed),
                first,
            )
        return result


def rates(before: Look, after: Look, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, float | None]:
    """Return partition -> the rate of writes between two measurements, or the rate of commits if a backlog makes it higher.

    Rates are in records per second. The rate is None if both rates are unknown, if the rate of writes is unknown and nothing
    was committed, or if offsets decreased, for example because the topic was deleted and created again.
    """
    passed_s = after.at_s - before.at_s

    def rate(partition: TopicPartition) -> float | None:
        ends, commits = (
            later[partition] - earlier[partition] if partition in earlier and partition in later else None
            for earlier, later in ((before.ends, after.ends), (before.committed, after.committed))
        )
        if ends is None and commits == 0:
            # Records may have been written.
            return None
        grown = [one for one in (ends, commits) if one is not None]
        return max(grown) / passed_s if grown and min(grown) >= 0 and passed_s > 0 else None

    return {partition: rate(partition) for partition in partitions}


def _partitions(view: ClusterView) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, count in view.partitions.items() for number in range(count)]


def _by_topic(view: ClusterView, figures: Mapping[TopicPartition, T | None]) -> Mapping[str, Sequence[T | None]]:
    return {
        topic: [figures.get(TopicPartition(topic, number)) for number in range(count)]
        for topic, count in view.partitions.items()
    }
