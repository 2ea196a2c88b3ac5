"""Look up the metadata, the commits and the offsets from which ``start_offsets.py`` decides where partitions start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import NoOffsetError, UnknownTopicError
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.leaders.list_offsets import LATEST, ListedOffset, list_offsets
from consumer_coord.net.metadata import Metadata, is_other
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.printable import get_logger
from consumer_coord.retry import Deadline
from consumer_coord.spark.commit_metadata import topic_id_of
from consumer_coord.spark.identity import TopicIds
from consumer_coord.spark.start_offsets import Beginning, Commit, History, Start, View, start_offsets, view_of
from consumer_coord.spark.starting_offsets_option import Starting
from consumer_coord.topic_partition import TopicPartition, listed

logger: Final = get_logger(__name__)


class Lookups(Protocol):
    """The requests from which starts are decided. ``BlockingCoordinator`` has these methods."""

    @property
    def metadata(self) -> Metadata: ...
    def refresh_metadata(self, timeout_ms: float | None = None) -> Metadata: ...
    def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        topic_ids: TopicIds | None = None,
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]: ...
    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]: ...


async def look(
    coordinator: ConsumerCoordinator,
    topics: Iterable[str],
    pattern: str | None,
    starting: Starting,
    *,
    read_committed: bool,
    timeout_ms: float,
) -> Beginning | None:
    """Return the subscribed topics and end offsets before the group reads any record; None if the group has commits.

    The order of requests matters, see ``start_offsets.py``. Raise ``RetriableError`` if the brokers do not answer in time.
    """
    deadline = Deadline.after(timeout_ms)
    cluster = coordinator.cluster
    # If this response does not show a topic with certainty, the query later treats the topic as new, so it reads the whole
    # topic and loses nothing.
    view = view_of(await cluster.refresh(deadline), topics, pattern)
    ends: Mapping[TopicPartition, int] = {}
    if await _has_commits(coordinator, view, deadline):
        return None
    if starting.needs_latest:
        found = await list_offsets(cluster, dict.fromkeys(view.partitions, LATEST), deadline, read_committed=read_committed)
        ends = {partition: one.offset for partition, one in found.complete().items()}
        if await _has_commits(coordinator, view, deadline):
            return None
    return Beginning(view.topics, ends)


async def _has_commits(coordinator: ConsumerCoordinator, view: View, deadline: Deadline) -> bool:
    found = await coordinator.committed(view.partitions, max(1.0, deadline.remaining_ms))
    return any(commit is not None for commit in found.values())


def resolve(
    partitions: Iterable[TopicPartition],
    lookups: Lookups,
    history: History,
    beginning: Beginning | None,
    starting: Starting,
    *,
    read_committed: bool,
    timeout_ms: float,
    on_loss: Callable[[str], None],
) -> Mapping[TopicPartition, Start]:
    """Return a start with a position for each of ``partitions``.

    ``on_loss`` receives the losses of a topic that was deleted and created again, and raises if a loss is an error. Raise
    ``UnknownTopicError``, which is retriable, until the metadata shows all partitions.
    """
    added = frozenset(partitions)
    # A topic may have been created again since the metadata was fetched.
    asked_version = lookups.metadata.version + 1
    view = view_of(lookups.refresh_metadata(timeout_ms), {partition.topic for partition in added}, None)
    for name, topic in sorted(view.topics.items()):
        before = history.topic_id(name)
        if before is not None and is_other(before, topic.id):
            on_loss(
                f"topic {name!r}: its id is {before} in the checkpoint, but {topic.id} now, so the topic was deleted and"
                " created again, and the unread records of the old topic are gone"
            )
    commits = _commits(view, lookups, timeout_ms)
    starts = start_offsets(
        added,
        view=view,
        asked_version=asked_version,
        history=history,
        commits=commits,
        beginning=beginning,
        starting=starting,
    )
    if starts.undecided:
        first = min(starts.undecided)
        raise UnknownTopicError(f"no start offset for {listed(starts.undecided)} yet: {starts.undecided[first]}")
    return _with_positions(starts.decided, lookups, starting, read_committed, timeout_ms)


def _commits(view: View, lookups: Lookups, timeout_ms: float) -> Mapping[TopicPartition, Commit]:
    """Return the group's commits with the ids of their topics.

    Commits of other consumers do not contain a topic id. But the coordinator remembers the topic id of each commit, and returns
    only matching commits for a request with a topic id. Such a request is needed, because a commit survives if its topic is
    deleted while the coordinator loads.
    """
    found = {one: commit for one, commit in lookups.committed(view.partitions, timeout_ms).items() if commit is not None}
    without_id = [partition for partition, commit in found.items() if topic_id_of(commit.metadata) is None]
    ids = {partition.topic: view.topics[partition.topic].id for partition in without_id}
    by_id = lookups.committed(without_id, timeout_ms, topic_ids=ids) if without_id else {}
    outlived = {partition for partition in without_id if by_id[partition] is None}
    return {one: Commit(commit.offset, topic_id_of(commit.metadata), one in outlived) for one, commit in found.items()}


def _check_chosen(positions: Mapping[TopicPartition, int], lookups: Lookups, timeout_ms: float) -> None:
    """Raise ``NoOffsetError`` for positions after the end of the log, before the query commits them as start offsets."""
    ends = lookups.list_offsets(dict.fromkeys(positions, LATEST), timeout_ms) if positions else {}
    beyond = {partition: end.offset for partition, end in ends.items() if end.offset < positions[partition]}
    if beyond:
        logs = ", ".join(
            f"{partition} at {positions[partition]}, but the log ends at {end}" for partition, end in beyond.items()
        )
        raise NoOffsetError(f"startingOffsets: {logs}; choose an offset up to the end, or -1 for the latest")


def _with_positions(
    starts: Mapping[TopicPartition, Start], lookups: Lookups, starting: Starting, read_committed: bool, timeout_ms: float
) -> Mapping[TopicPartition, Start]:
    _check_chosen(
        {one: start.position for one, start in starts.items() if start.chosen and start.position}, lookups, timeout_ms
    )
    asked = {partition: start.timestamp for partition, start in starts.items() if start.position is None}
    found = lookups.list_offsets(asked, timeout_ms, read_committed=read_committed) if asked else {}
    beyond = [partition for partition in asked if found[partition].offset < 0 and starts[partition].latest is None]
    if beyond:
        stamps = ", ".join(f"{partition} at {asked[partition]}" for partition in beyond)
        raise NoOffsetError(
            f"{starting.option}: no record at or after the time in {stamps}; choose an earlier time, or set"
            " startingOffsetsByTimestampStrategy=latest"
        )
    placed = {
        partition: attrs.evolve(starts[partition], position=one.offset if one.offset >= 0 else starts[partition].latest)
        for partition, one in found.items()
    }
    by_reason: dict[str, dict[TopicPartition, int | None]] = {}
    for partition, start in sorted({**starts, **placed}.items()):
        by_reason.setdefault(start.reason, {})[partition] = start.position
    for reason, positions in by_reason.items():
        logger.info("starting %s: %s", reason, ", ".join(f"{one} at {offset}" for one, offset in positions.items()))
    return {**starts, **placed}
