"""Look up the metadata, the commits and the offsets from which ``start_offsets.py`` decides where partitions start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import NoOffsetError, RetriableError, UnknownTopicError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import LATEST, list_offsets
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.retry import Deadline
from consumer_coord.spark.commit_metadata import topic_id_of
from consumer_coord.spark.ledger import Ledger
from consumer_coord.spark.start_offsets import Beginning, Commit, Start, start_offsets
from consumer_coord.spark.starting_offsets_option import Starting
from consumer_coord.spark.subscribed_topics import View, view_of
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)


@attrs.frozen
class StartLookups:
    """The requests from which the starts of one query are decided; see ``start_offsets.py`` for their order."""

    core: ConsumerCoordinator
    starting: Starting
    read_committed: bool

    async def beginning(self, topics: Iterable[str], pattern: str | None, timeout_ms: float) -> Beginning | None:
        """Return the subscribed topics and end offsets before the group reads any record; None if the group has commits.

        Raise ``RetriableError`` if the brokers do not answer in time.
        """
        deadline = Deadline.after(timeout_ms)
        # If this response does not show a topic with certainty, the query later treats the topic as new, so it reads the whole
        # topic and loses nothing.
        view = view_of(await self.core.cluster.refresh(deadline), topics, pattern)
        ends: Mapping[TopicPartition, int] = {}
        if await self._has_commits(view, deadline):
            return None
        if self.starting.needs_latest:
            wanted = dict.fromkeys(view.partitions, LATEST)
            ends = await offsets_at(self.core.cluster, wanted, deadline, read_committed=self.read_committed)
            if await self._has_commits(view, deadline):
                return None
        return Beginning(view.topics, ends)

    async def _has_commits(self, view: View, deadline: Deadline) -> bool:
        found = await self.core.committed(view.partitions, max(1.0, deadline.remaining_ms))
        return any(commit is not None for commit in found.values())

    async def starts(
        self, partitions: Iterable[TopicPartition], ledger: Ledger, beginning: Beginning | None, timeout_ms: float
    ) -> Mapping[TopicPartition, Start]:
        """Return a start with a position for each of ``partitions`` whose topic exists.

        Raise ``UnknownTopicError``, which is retriable, while the metadata of an existing topic does not show all of them.
        """
        deadline = Deadline.after(timeout_ms)
        added = frozenset(partitions)
        # A topic may have been created again since the metadata was fetched.
        asked_version = self.core.cluster.metadata.version + 1
        view = view_of(await self.core.cluster.refresh(deadline), {partition.topic for partition in added}, None)
        existing = {one for one in added if one.topic in view.topics or one.topic in view.unclear}
        starts = start_offsets(
            existing,
            view=view,
            asked_version=asked_version,
            ledger=ledger,
            commits=await self._commits(view, deadline),
            beginning=beginning,
            starting=self.starting,
        )
        if starts.undecided:
            first = min(starts.undecided)
            raise UnknownTopicError(f"no start offset for {listed(starts.undecided)} yet: {starts.undecided[first]}")
        return await self._with_positions(starts.decided, deadline)

    async def _commits(self, view: View, deadline: Deadline) -> Mapping[TopicPartition, Commit]:
        """Return the group's commits with the ids of their topics.

        Commits of other consumers do not contain a topic id. But the coordinator remembers the topic id of each commit, and
        returns only matching commits for a request with a topic id. Such a request is needed, because a commit survives if its
        topic is deleted while the coordinator loads.
        """
        limit_ms = max(1.0, deadline.remaining_ms)
        committed = await self.core.committed(view.partitions, limit_ms)
        found = {one: commit for one, commit in committed.items() if commit is not None}
        without_id = [partition for partition, commit in found.items() if topic_id_of(commit.metadata) is None]
        ids = {partition.topic: view.topics[partition.topic].id for partition in without_id}
        by_id = await self.core.committed(without_id, limit_ms, topic_ids=ids) if without_id else {}
        outlived = {partition for partition in without_id if by_id[partition] is None}
        return {one: Commit(commit.offset, topic_id_of(commit.metadata), one in outlived) for one, commit in found.items()}

    async def _with_positions(
        self, starts: Mapping[TopicPartition, Start], deadline: Deadline
    ) -> Mapping[TopicPartition, Start]:
        chosen = {one: start.position for one, start in starts.items() if start.chosen and start.position}
        ends = await offsets_at(self.core.cluster, dict.fromkeys(chosen, LATEST), deadline)
        if beyond := {one: end for one, end in ends.items() if end < chosen[one]}:
            # The query would commit these positions as start offsets.
            raise beyond_the_end(self.starting.option, chosen, beyond)
        asked = {partition: start.timestamp for partition, start in starts.items() if start.position is None}
        found = await offsets_at(self.core.cluster, asked, deadline, read_committed=self.read_committed)
        if unmatched := [one for one, offset in found.items() if offset < 0 and starts[one].latest is None]:
            raise no_record_since(self.starting, unmatched)
        placed = {
            partition: attrs.evolve(starts[partition], position=offset if offset >= 0 else starts[partition].latest)
            for partition, offset in found.items()
        }
        by_reason: dict[str, dict[TopicPartition, int | None]] = {}
        for partition, start in sorted({**starts, **placed}.items()):
            by_reason.setdefault(start.reason, {})[partition] = start.position
        for reason, positions in by_reason.items():
            logger.info("starting %s: %s", reason, ", ".join(f"{one} at {offset}" for one, offset in positions.items()))
        return {**starts, **placed}


async def offsets_at(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], deadline: Deadline, *, read_committed: bool = False
) -> Mapping[TopicPartition, int]:
    """Return the offset of each partition at its timestamp (ms since 1970, LATEST or EARLIEST); -1 if no record is as young.

    Raise the error of a partition whose offset is unknown at the deadline; the error names the partition.
    """
    if not wanted:
        return {}
    result = await list_offsets(cluster, wanted, deadline, read_committed=read_committed)
    if result.failed:
        # An error that no retry can help comes first.
        partition, error = min(result.failed.items(), key=lambda one: isinstance(one[1], RetriableError))
        if str(partition) in str(error):
            raise error
        raise type(error)(f"the offset of {partition} is not known: {error}", code=error.code) from error
    return {partition: one.offset for partition, one in result.found.items()}


def no_record_since(starting: Starting, partitions: Iterable[TopicPartition]) -> NoOffsetError:
    """Return the error for partitions without a record as young as their start."""
    stamps = ", ".join(f"{partition} at {starting.timestamp_of(partition)}" for partition in partitions)
    return NoOffsetError(
        f"{starting.option}: no record at or after the time in {stamps}; choose an earlier time, or set"
        " startingOffsetsByTimestampStrategy=latest"
    )


def beyond_the_end(option: str, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> NoOffsetError:
    """Return the error for positions after the ends of their logs; ``ends`` has only these partitions."""
    logs = ", ".join(f"{partition} at {positions[partition]}, but the log ends at {end}" for partition, end in ends.items())
    return NoOffsetError(f"{option}: {logs}; choose an offset up to the end of the log")
