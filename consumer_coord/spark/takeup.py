"""Where a newly won partition starts: at the group's commit, else by ``startingOffsets``, and never where records are skipped.

Ways to lose records here, each closed by a rule:

* ``latest`` resolved and not committed, then another member resolves it again, later: the resolved start is committed
  at once (by the caller, before the first batch).
* A partition that was added to a topic later: it starts at the earliest.  Each commit of ours carries in its metadata how
  many partitions the topic had when the group began to read it; in a topic that the group reads without such a note,
  a partition without a commit counts as added later.
* A topic that was deleted and made again, or came later than the query: it starts at the earliest, whatever is committed of
  the topic before it; each commit of ours notes the topic's id.
* Commits that expired while the group was empty: a checkpoint that knows the topic shows that the group had read it, so a
  partition goes on where the checkpoint says, or at the earliest.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from consumer_coord.errors import NoOffsetError, UnknownTopicError
from consumer_coord.group.committed_offsets import OffsetAndMetadata
from consumer_coord.list_offsets import ListedOffset
from consumer_coord.net.metadata import Metadata, Topic
from consumer_coord.spark.identity import TopicIds, is_other
from consumer_coord.spark.notes import note_of
from consumer_coord.spark.planner import Holding, Planner
from consumer_coord.spark.starting import EARLIEST, LATEST, Starting
from consumer_coord.topic_partition import TopicPartition

NO_COMMIT = -1


class Lookups(Protocol):
    """The questions a take-up asks the cluster; a ``BlockingCoordinator`` answers them."""

    @property
    def metadata(self) -> Metadata: ...
    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]: ...
    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None, *, read_committed: bool = False
    ) -> Mapping[TopicPartition, ListedOffset]: ...


@attrs.frozen
class Start:
    """Where a partition starts, what the group has committed for it (NO_COMMIT), and which topic this is."""

    position: int
    committed: int
    topic_id: uuid.UUID
    count: int

    def holding(self, ownership: int) -> Holding:
        """What the planner keeps."""
        return Holding(self.topic_id, self.count, ownership, self.position, self.committed)


def resolve(
    partitions: Iterable[TopicPartition],
    lookups: Lookups,
    planner: Planner,
    starting: Starting,
    *,
    known_topics: TopicIds | None,
    read_committed: bool,
    timeout_ms: float,
    on_loss: Callable[[str], None],
) -> Mapping[TopicPartition, Start]:
    """Starts for ``partitions``; their ``count`` is 0 for a topic that came later or was made again.

    ``known_topics``: the ids of those that existed when this query joined, None while it joins; a topic that came later is
    read from its beginning.  ``on_loss`` is told of a topic that was deleted and made again, and raises if that shall fail.
    """
    added = frozenset(partitions)
    known = known_topics or {}
    recreated: set[str] = set()
    topics = {partition.topic: _topic(lookups.metadata, partition.topic) for partition in sorted(added)}
    for name, topic in topics.items():
        before = planner.finished_id(name)
        if before is not None and is_other(before, topic.id):
            on_loss(
                f"topic {name!r}: the checkpoint knows it as {before}, and it is {topic.id} now, so it was deleted and made"
                " again, and what was unread of the old one is gone"
            )
            recreated.add(name)
        elif is_other(known.get(name, topic.id), topic.id) or (known_topics is not None and name not in known):
            recreated.add(name)
    every = frozenset(TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partition_count))
    commits: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, commit in lookups.committed(every | added, timeout_ms).items():
        note = None if commit is None else note_of(commit.metadata)
        if note is not None and is_other(note.topic_id, topics[partition.topic].id):
            # It came too late: the topic was made again before the group's coordinator took it.
            recreated.add(partition.topic)
        elif commit is not None:
            commits[partition] = commit
    starts: dict[TopicPartition, Start] = {}
    asked: dict[TopicPartition, int] = {}
    for partition in sorted(added):
        topic = topics[partition.topic]
        siblings = [commit for other, commit in commits.items() if other.topic == partition.topic]
        count = 0 if partition.topic in recreated else _count(partition.topic, topic, siblings, planner)
        commit = commits.get(partition)
        finished = planner.finished(partition, topic.id)
        if commit is not None:
            position = planner.resume(partition, topic.id, commit.offset)
            starts[partition] = Start(position, commit.offset, topic.id, topic.partition_count if count is None else count)
            continue
        base = Start(NO_COMMIT, NO_COMMIT, topic.id, topic.partition_count if count is None else count)
        if finished is not None:
            starts[partition] = attrs.evolve(base, position=finished)
            continue
        grown = partition.partition >= count if count is not None else bool(siblings)
        expired = not siblings and planner.finished_id(partition.topic) == topic.id
        starts[partition] = base
        if grown or expired:
            asked[partition] = EARLIEST
        else:
            stamp = starting.timestamp_of(partition)
            asked[partition] = starting.of(partition) if stamp is None else stamp
            if stamp is None and asked[partition] >= 0:
                starts[partition] = attrs.evolve(base, position=asked.pop(partition))
    if asked:
        found = dict(lookups.list_offsets(asked, timeout_ms, read_committed=read_committed))
        _after_the_end(found, asked, lookups, starting, read_committed, timeout_ms)
        for partition in asked:
            starts[partition] = attrs.evolve(starts[partition], position=found[partition].offset)
    for name, topic in topics.items():
        before = planner.finished_id(name)
        if before is not None and is_other(before, topic.id):
            # Not before: a look-up that failed is tried again, and must find the same.
            planner.forget(name)
    return starts


def _topic(metadata: Metadata, name: str) -> Topic:
    topic = metadata.topics.get(name)
    if topic is None:
        raise UnknownTopicError(f"topic {name!r} is assigned to this query, and the cluster does not know it now")
    return topic


def _count(name: str, topic: Topic, siblings: Iterable[OffsetAndMetadata], planner: Planner) -> int | None:
    """How many partitions the topic had when the group began to read it, as far as it was noted in a commit."""
    noted = [note.count for commit in siblings if (note := note_of(commit.metadata)) is not None]
    noted += [
        holding.count for partition, holding in planner.held.items() if partition.topic == name and holding.topic_id == topic.id
    ]
    return min(noted, default=None)


def _after_the_end(
    found: dict[TopicPartition, ListedOffset],
    asked: Mapping[TopicPartition, int],
    lookups: Lookups,
    starting: Starting,
    read_committed: bool,
    timeout_ms: float,
) -> None:
    """What to do where no record is as young as ``startingTimestamp`` wants."""
    beyond = [partition for partition in asked if found[partition].offset < 0]
    if beyond and not starting.latest_after_the_end:
        stamps = ", ".join(f"{partition} at {asked[partition]}" for partition in beyond)
        raise NoOffsetError(
            f"{starting.option}: no record is that young in {stamps}; choose an earlier time, or set"
            " startingOffsetsByTimestampStrategy=latest"
        )
    if beyond:
        found.update(lookups.list_offsets(dict.fromkeys(beyond, LATEST), timeout_ms, read_committed=read_committed))
