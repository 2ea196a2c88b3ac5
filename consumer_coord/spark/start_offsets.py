"""Decide where each partition of a query starts, and why, without I/O or a clock.

A wrong answer to one question loses records: is a partition *new to the group*, or is the group itself new? ``startingOffsets``
applies to new groups. A partition that was created later starts at the earliest offset. Kafka keeps no creation times, so the
answer comes from evidence, the strongest first:

1. the group's commit for this topic (by id), or the finished end in the query's checkpoint, whichever is later;
2. a topic id that differs from the id in the checkpoint, a commit or the beginning: the topic was recreated, so the topic is
   new;
3. the *beginning*: the query's view of the cluster from before the group's first commit. Every partition in this view existed
   before the group began, so ``startingOffsets`` applies, with the end offsets of this view as "latest";
4. every other partition is new: the group has commits, or the checkpoint has batches of this query, but there is no commit for
   this partition.

The order of requests makes rule 3 safe, regardless of concurrent queries: metadata, then end offsets, then commits. If there
are still no commits, no member had read anything when the ends were listed. A query whose view is too late only reads more
records than ``startingOffsets`` selects.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Set

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import ConfigurationError
from consumer_coord.leaders.list_offsets import EARLIEST, LATEST
from consumer_coord.net.metadata import is_other
from consumer_coord.spark.ledger import NONE, Ledger
from consumer_coord.spark.starting_offsets_option import Starting
from consumer_coord.spark.subscribed_topics import TopicView, View
from consumer_coord.topic_partition import TopicPartition, listed

AT_COMMIT = "at the group's commit"
AT_CHECKPOINT = "at the end of the checkpoint, which is later than the group's commit"
RECREATED = "at the earliest offset: the topic was deleted and created again"
NOT_IN_CHECKPOINT = "at the earliest offset: the checkpoint does not name the partition, and the group has no commit for it"
AFTER_THE_QUERY = "at the earliest offset: the partition was created after this query started"
AFTER_THE_GROUP = "at the earliest offset: the group has commits for this subscription, but none for the partition"


@attrs.frozen
class Commit:
    """A committed offset and the topic id; the id is None if neither the commit nor the broker reports an id.

    ``outlived``: the broker still has the commit, but the commit belongs to a deleted topic that had the same name.
    """

    offset: int
    topic_id: uuid.UUID | None = None
    outlived: bool = False

    def is_of(self, topic: TopicView) -> bool:
        """Return True unless the commit is known to belong to another topic."""
        return not self.outlived and (self.topic_id is None or not is_other(self.topic_id, topic.id))


@attrs.frozen
class Beginning:
    """The cluster as a query saw it before the group had a commit. ``ends`` is empty unless a start is "latest"."""

    topics: Mapping[str, TopicView]
    ends: Mapping[TopicPartition, int] = attrs.field(factory=dict)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Return every partition that existed before the group began."""
        return frozenset(TopicPartition(name, number) for name, topic in self.topics.items() for number in range(topic.count))

    def names(self, partition: TopicPartition) -> bool:
        """Return whether the partition existed before the group began."""
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.partition < topic.count


@attrs.frozen
class Start:
    """The start of a partition: ``position``, or if there is none, the offset of ``timestamp`` (ms since 1970, or EARLIEST).

    ``committed``: the group's commit, NONE if there is none. ``latest``: the position if no record has this timestamp or a
    later one. ``chosen``: the user chose the position, so it may be after the end of the log.
    """

    topic_id: uuid.UUID
    committed: int
    position: int | None
    timestamp: int
    reason: str
    latest: int | None = None
    chosen: bool = False


@attrs.frozen
class Starts:
    """The start of each partition. ``undecided`` is partition -> the reason why newer metadata is needed."""

    decided: Mapping[TopicPartition, Start]
    undecided: Mapping[TopicPartition, str]


def start_offsets(
    partitions: Iterable[TopicPartition],
    *,
    view: View,
    asked_version: int,
    ledger: Ledger,
    commits: Mapping[TopicPartition, Commit],
    beginning: Beginning | None,
    starting: Starting,
) -> Starts:
    """Decide where ``partitions`` start.

    ``commits`` contains the commits of every partition of these topics. Raise ``ConfigurationError`` if ``starting`` names
    single partitions and omits some that existed at the beginning.
    """
    decided: dict[TopicPartition, Start] = {}
    undecided: dict[TopicPartition, str] = {}
    incomplete = view.incomplete(asked_version)
    recreated = recreated_topics(view, ledger, commits, beginning)
    left_out: Set[TopicPartition] = frozenset()
    if beginning is not None and starting.by_partition is not None:
        left_out = beginning.partitions - set(starting.named())
    for partition in sorted(partitions):
        topic = view.topics.get(partition.topic)
        if incomplete is not None:
            undecided[partition] = incomplete
        elif topic is None or partition.partition >= topic.count:
            undecided[partition] = f"the metadata (version {view.version}) does not name the partition"
        else:
            evidence = _evident(partition, topic, partition.topic in recreated, ledger, commits.get(partition))
            if evidence is not None:
                decided[partition] = evidence
            elif beginning is not None and beginning.names(partition):
                if left_out:
                    raise ConfigurationError(
                        f"{starting.option} leaves out {listed(left_out)}: name every partition that exists when the group"
                        " begins, with -2 for the earliest offset or -1 for the latest; partitions that are added later start"
                        " at the earliest offset"
                    )
                decided[partition] = _as_configured(partition, topic.id, beginning, starting)
            else:
                later = AFTER_THE_QUERY if beginning is not None else AFTER_THE_GROUP
                reason = NOT_IN_CHECKPOINT if ledger.began and beginning is None else later
                decided[partition] = Start(topic.id, NONE, None, EARLIEST, reason)
    return Starts(decided, undecided)


def recreated_topics(
    view: View, ledger: Ledger, commits: Mapping[TopicPartition, Commit], beginning: Beginning | None
) -> frozenset[str]:
    """Return the topics of ``view`` that were deleted and created again, according to any evidence with another topic id."""
    found = {
        partition.topic
        for partition, commit in commits.items()
        if partition.topic in view.topics and not commit.is_of(view.topics[partition.topic])
    }
    for name, topic in view.topics.items():
        before = [ledger.topic_id(name), beginning.topics[name].id if beginning and name in beginning.topics else None]
        if any(one is not None and is_other(one, topic.id) for one in before):
            found.add(name)
    return frozenset(found)


def _evident(
    partition: TopicPartition, topic: TopicView, recreated: bool, ledger: Ledger, commit: Commit | None
) -> Start | None:
    """Return the start that a commit, the checkpoint or the topic's id determines, or None."""
    finished = ledger.end(partition, topic.id)
    committed = commit.offset if commit is not None and commit.is_of(topic) else NONE
    if finished is not None and finished > committed:
        return Start(topic.id, committed, finished, EARLIEST, AT_CHECKPOINT)
    if committed != NONE:
        return Start(topic.id, committed, committed, EARLIEST, AT_COMMIT)
    return Start(topic.id, NONE, None, EARLIEST, RECREATED) if recreated else None


def _as_configured(partition: TopicPartition, topic_id: uuid.UUID, beginning: Beginning, starting: Starting) -> Start:
    reason = f"by {starting.option}: the group had no commits when this query started"
    stamp = starting.timestamp_of(partition)
    if stamp is not None:
        latest = beginning.ends[partition] if starting.latest_after_the_end else None
        return Start(topic_id, NONE, None, stamp, reason, latest)
    wanted = starting.of(partition)
    if wanted == EARLIEST:
        return Start(topic_id, NONE, None, EARLIEST, reason)
    if wanted == LATEST:
        return Start(topic_id, NONE, beginning.ends[partition], EARLIEST, reason)
    return Start(topic_id, NONE, wanted, EARLIEST, reason, chosen=True)
