"""The lag of a member's partitions, for its application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from consumer_coord.lag.group_lag import read_lags
from consumer_coord.lag.partition_lag import LagPolicy, PartitionLag
from consumer_coord.leaders.list_offsets import reset_timestamp
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition

if TYPE_CHECKING:
    from consumer_coord.group.coordinator import ConsumerCoordinator

_MEMBER = "this member"


async def member_lag(
    coordinator: ConsumerCoordinator,
    partitions: Iterable[TopicPartition],
    *,
    read_committed: bool,
    seconds: bool,
    timeout_ms: float | None,
) -> Mapping[TopicPartition, PartitionLag]:
    """Return the lag of each partition, from the group's commits.

    A partition without a commit counts from where ``auto.offset.reset`` begins. Raise the group's error, and a retriable error
    if the coordinator does not answer; a leader that does not answer costs its partitions only.
    """
    config, cluster = coordinator.config, coordinator.cluster
    deadline = Deadline.after(config.default_api_timeout_ms if timeout_ms is None else timeout_ms)
    commits = await coordinator.offsets.fetched(partitions, timeout_ms=deadline.remaining_ms)
    start = reset_timestamp(config.auto_offset_reset, cluster.environment.wall_clock_ms())
    policy = LagPolicy(start, read_committed, seconds=seconds)
    return (await read_lags(cluster, {_MEMBER: commits}, policy, deadline)).groups[_MEMBER]
