"""Take snapshots of groups at intervals that do not load the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import attrs

from consumer_coord.admin.ask import patiently
from consumer_coord.admin.groups import describe_group, list_groups, wrong_type
from consumer_coord.admin.offset_access import committed_offsets
from consumer_coord.environment import now
from consumer_coord.errors import AuthenticationError, CoordinatorError, RetriableError
from consumer_coord.lag.group_lag import read_lags
from consumer_coord.lag.log_offsets import topics_metadata
from consumer_coord.lag.partition_lag import Commits, LagPolicy
from consumer_coord.net.answers import Results
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.setting_names import did_you_mean
from consumer_coord.topic_partition import TopicPartition, flatten
from consumer_coord.watch.changes import Message, Tracker
from consumer_coord.watch.snapshots import GroupSnapshot, OffsetsSnapshot, to_snapshot
from consumer_coord.wire import error_codes as codes

#: Seconds between two requests for offsets, and between two requests for the list of groups.
OFFSETS_EVERY_S = 2.0
GROUPS_EVERY_S = 5.0
#: The maximum fraction of time spent on requests, so that snapshots of large groups are taken less often.
_DUTY = 0.33
_AT_ONCE = 16


class Collector:
    """Takes snapshots of some groups or of all groups, and returns each as a message with the changes."""

    def __init__(
        self, cluster: ClusterClient, groups: Sequence[str], policy: LagPolicy, *, interval_s: float, timeout_ms: float
    ) -> None:
        self._cluster = cluster
        self._named = tuple(groups)
        self._groups: tuple[str, ...] = self._named
        self._policy = policy
        self._interval_s = interval_s
        self._timeout_ms = timeout_ms
        self._tracker = Tracker()
        self._listed_at: float | None = None
        self._offsets_at: float | None = None
        self._pause_s = interval_s
        self._in_trouble = False
        #: Groups given by name that have existed.
        self._seen: set[str] = set()
        #: Group given by name that has never existed -> the text that the page shows.
        self._absent: dict[str, str] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def first(self) -> Message:
        """Take the first snapshot; raise every error, so that a command with a wrong address ends at once."""
        return await self._take_snapshot()

    async def next(self) -> Message:
        """Wait for the interval, then take a snapshot; return a message with ``trouble`` if the cluster does not respond."""
        await asyncio.sleep(self._pause_s)
        try:
            message = await self._take_snapshot()
        except (RetriableError, AuthenticationError) as error:
            self._in_trouble = True
            return {"at": self._time(), "trouble": str(error)}
        if self._in_trouble:
            self._in_trouble = False
            message["trouble"] = None
        return message

    def _time(self) -> float:
        return self._cluster.environment.wall_clock_ms() / 1000

    async def _take_snapshot(self) -> Message:
        began = now()
        deadline = Deadline.after(self._timeout_ms)
        list_again = self._listed_at is None or began - self._listed_at >= GROUPS_EVERY_S
        if not self._named and list_again:
            listed = await list_groups(self._cluster, deadline)
            present = {listing.group_id for listing in listed.groups if listing.is_consumer_group}
            # The groups of a broker that does not answer still exist.
            self._groups = tuple(sorted(present | set(self._groups) if listed.unlisted else present))
            self._listed_at = began
        described = await patiently(self._groups, self._describe, deadline)
        snapshots = _snapshots(described)
        if self._named:
            snapshots = await self._name_absent(snapshots, deadline, list_again=list_again)
        offsets: Mapping[str, OffsetsSnapshot] = {}
        if self._offsets_at is None or began - self._offsets_at >= OFFSETS_EVERY_S:
            offsets = await self._offsets(snapshots, deadline)
            self._offsets_at = began
        message = self._tracker.take(snapshots, offsets, self._time())
        took_s = now() - began
        self._pause_s = max(self._interval_s - took_s, took_s * (1 / _DUTY - 1), 0.0)
        return message

    async def _name_absent(
        self, snapshots: Sequence[GroupSnapshot], deadline: Deadline, *, list_again: bool
    ) -> list[GroupSnapshot]:
        """Return the snapshots; for a group that never existed, add an error that suggests a similar name."""
        self._seen |= {snapshot.group_id for snapshot in snapshots if snapshot.state != "Dead"}
        absent = [snapshot.group_id for snapshot in snapshots if snapshot.group_id not in self._seen]
        if absent and (list_again or not self._absent.keys() >= set(absent)):
            known = [listing.group_id for listing in (await list_groups(self._cluster, deadline)).groups]
            self._listed_at = now()
            self._absent = {
                group_id: f"The cluster has no group {group_id!r}{did_you_mean(group_id, known) or '.'}"
                " The page shows the group once it exists."
                for group_id in absent
            }
        return [
            attrs.evolve(snapshot, error=self._absent[snapshot.group_id]) if snapshot.group_id not in self._seen else snapshot
            for snapshot in snapshots
        ]

    async def _describe(self, group_id: str, deadline: Deadline) -> GroupSnapshot:
        async with self._gate:
            described = await describe_group(self._cluster, group_id, deadline)
        other = wrong_type(described, "watch")
        return to_snapshot(described) if other is None else GroupSnapshot(group_id, error=str(other))

    async def _offsets(self, snapshots: Sequence[GroupSnapshot], deadline: Deadline) -> dict[str, OffsetsSnapshot]:
        """Return the offsets of each group that has no error and whose coordinator answers.

        If this principal may not read a group's commits, only the committed offsets of this group are unknown.
        """

        async def committed(group_id: str, limit: Deadline) -> Commits:
            async with self._gate:
                return await committed_offsets(self._cluster, group_id, limit, partitions=owned[group_id])

        owned = {snapshot.group_id: _owned(snapshot) for snapshot in snapshots if snapshot.error is None}
        answers = await patiently(owned, committed, deadline)
        topics = {topic for snapshot in snapshots if snapshot.group_id in owned for topic in _topics(snapshot)}
        by_group = {
            group_id: Results() if isinstance(found, CoordinatorError) else found
            for group_id, found in answers.items()
            if not isinstance(found, RetriableError)
        }
        refused = {group_id for group_id, found in answers.items() if isinstance(found, CoordinatorError)}
        topics |= {partition.topic for found in by_group.values() for partition in found.found}
        if not topics:
            return {group_id: OffsetsSnapshot() for group_id in by_group}
        counts = (await topics_metadata(self._cluster, topics, deadline)).partitions(topics)
        every = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        lags = await read_lags(self._cluster, by_group, self._policy, deadline, also=every)
        ends = {partition: end.offset for partition, end in lags.ends.found.items()}
        return {
            group_id: OffsetsSnapshot(
                counts, of_group, ends, owned[group_id] if group_id in refused else frozenset(), self._policy.seconds
            )
            for group_id, of_group in lags.groups.items()
        }


def _snapshots(described: Mapping[str, GroupSnapshot | CoordinatorError]) -> list[GroupSnapshot]:
    """Return a snapshot with an error for a group that cannot be read; raise an error that concerns all groups."""
    errors = [one for one in described.values() if isinstance(one, RetriableError)]
    for error in described.values():
        if isinstance(error, AuthenticationError) or (errors and len(errors) == len(described) and error is errors[0]):
            assert isinstance(error, CoordinatorError)
            raise error
    return [_as_snapshot(group_id, one) for group_id, one in described.items()]


def _as_snapshot(group_id: str, described: GroupSnapshot | CoordinatorError) -> GroupSnapshot:
    if isinstance(described, GroupSnapshot):
        return described
    if described.code == codes.GROUP_ID_NOT_FOUND:
        return GroupSnapshot(group_id, state="Dead")
    return GroupSnapshot(group_id, error=str(described))


def _owned(snapshot: GroupSnapshot) -> frozenset[TopicPartition]:
    return frozenset(partition for member in snapshot.members for partition in flatten(member.owned))


def _topics(snapshot: GroupSnapshot) -> set[str]:
    found: set[str] = set()
    for member in snapshot.members:
        found |= {*member.owned, *(member.topics or ())}
    return found
