"""Read the lags of groups: the ends of logs, the starts of partitions without a commit, and the first unread records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from consumer_coord import lazy_attrs as attrs
from consumer_coord.lag.log_offsets import PATIENCE_MS, log_offsets
from consumer_coord.lag.partition_lag import Commits, LagPolicy, PartitionLag, offset_lag, with_first_unread
from consumer_coord.leaders.list_offsets import LATEST, ListedOffset
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

K = TypeVar("K")

#: Number of groups whose first unread records are looked up at the same time.
_AT_ONCE = 8


@attrs.frozen
class Lags(Generic[K]):
    """The lags of groups, and the ends of the logs of all partitions that were asked for."""

    groups: Mapping[K, Mapping[TopicPartition, PartitionLag]]
    ends: Results[ListedOffset]


async def read_lags(
    cluster: ClusterClient,
    commits: Mapping[K, Commits],
    policy: LagPolicy,
    deadline: Deadline,
    *,
    also: Iterable[TopicPartition] = (),
) -> Lags[K]:
    """Return the lag of each partition in each group's commits. ``also``: further partitions whose ends are looked up.

    One broker that does not answer delays the others for at most :data:`PATIENCE_MS`, and costs its partitions only.
    """
    every = {partition for group in commits.values() for partition in (*group.found, *group.failed)}
    uncommitted = {partition for group in commits.values() for partition, found in group.found.items() if found is None}
    listed = log_offsets(cluster, dict.fromkeys({*every, *also}, LATEST), deadline, read_committed=policy.read_committed)
    if policy.start is None:
        ends, starts = await listed, Results[ListedOffset]()
    elif policy.start == LATEST:
        ends = starts = await listed
    else:
        asked = log_offsets(cluster, dict.fromkeys(uncommitted, policy.start), deadline)
        ends, starts = await asyncio.gather(listed, asked)
    lags = {
        key: {partition: offset_lag(partition, group, ends, starts) for partition in (*group.found, *group.failed)}
        for key, group in commits.items()
    }
    if not policy.seconds and not policy.records:
        return Lags(lags, ends)
    gate, limit = asyncio.Semaphore(_AT_ONCE), Deadline.after(deadline.within(PATIENCE_MS))

    async def looked_up(of: Mapping[TopicPartition, PartitionLag]) -> Mapping[TopicPartition, PartitionLag]:
        async with gate:
            return await _with_records(cluster, of, ends, policy, limit)

    found = await asyncio.gather(*map(looked_up, lags.values()))
    return Lags(dict(zip(lags, found, strict=True)), ends)


async def _with_records(
    cluster: ClusterClient,
    lags: Mapping[TopicPartition, PartitionLag],
    ends: Results[ListedOffset],
    policy: LagPolicy,
    deadline: Deadline,
) -> Mapping[TopicPartition, PartitionLag]:
    # Imported here, because every consumer imports this module, and few ask for their lag.
    from consumer_coord.lag.first_unread import FirstUnread, Unread, first_unread

    wanted = {
        partition: Unread(lag.position, lag.end)
        for partition, lag in lags.items()
        if lag.records and lag.position is not None and lag.end is not None and lag.position < lag.end
    }
    first = Results[FirstUnread]()
    if wanted:
        first = await first_unread(cluster, wanted, deadline, read_committed=policy.read_committed)
    first = Results(first.found, {**ends.failed, **first.failed})
    now_ms = cluster.environment.wall_clock_ms() if policy.seconds else None
    return {partition: with_first_unread(partition, lag, first, now_ms) for partition, lag in lags.items()}
