"""The topics of a cluster: the leader of each partition, its epoch, and the logs.

Each partition has one log for the whole cluster, as if replication took no time, and the leader serves this log.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.topic_settings import LogSettings

NO_LEADER = -1
_MAX_NAME_LENGTH = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Return why a topic's name is invalid (Java's ``Topic.validate``); None if the name is valid."""
    if not name:
        return "the topic name is empty"
    if name in (".", ".."):
        return "the name of a topic cannot be . or .."
    if len(name) > _MAX_NAME_LENGTH:
        return f"a topic name can have at most {_MAX_NAME_LENGTH} characters"
    if not _LEGAL_NAME.fullmatch(name):
        return f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


@attrs.define(eq=False)
class Partition:
    """A partition. ``leader`` is a broker's id, or ``NO_LEADER`` while no replica is up."""

    topic: str
    index: int
    replicas: tuple[int, ...]
    log: PartitionLog
    leader: int
    leader_epoch: int = 0


@attrs.define(eq=False)
class Topic:
    """A topic. ``configs`` has only the settings that were given for this topic."""

    name: str
    topic_id: uuid.UUID
    configs: dict[str, str]
    internal: bool = False
    partitions: list[Partition] = attrs.field(factory=list)
    #: The version of :class:`Topics` in which the topic, or one of its partitions, last changed.
    changed_in: int = 0

    @property
    def replication_factor(self) -> int:
        """The number of brokers that may lead a partition of the topic."""
        return len(self.partitions[0].replicas)


#: Creates the log of a partition: (topic, partition, settings).
LogFactory = Callable[[str, int, LogSettings], PartitionLog]


@attrs.define(eq=False)
class Topics:
    """All topics of a cluster by name and by id."""

    config: BrokerConfig
    brokers: Sequence[int]
    new_log: LogFactory
    by_name: dict[str, Topic] = attrs.field(factory=dict)
    by_id: dict[uuid.UUID, Topic] = attrs.field(factory=dict)
    #: Increases with every change; responses derived from the topics can be cached until the next change.
    version: int = 0
    #: The version in which a topic was last created.
    newest_topic_version: int = 0
    #: Name of a deleted topic -> the version in which it was deleted.
    deleted_in: dict[str, int] = attrs.field(factory=dict)
    _next_start: int = 0

    def create(
        self,
        name: str,
        partitions: int,
        topic_id: uuid.UUID,
        *,
        replication_factor: int,
        configs: Mapping[str, str],
        is_up: Callable[[int], bool],
        assignments: Mapping[int, Sequence[int]] | None = None,
        internal: bool = False,
    ) -> Topic:
        """Add a topic; the arguments must be valid. Without ``assignments``, leaders rotate over the brokers."""
        topic = Topic(name, topic_id, dict(configs), internal)
        start = self._next_start
        self._next_start = (start + 1) % len(self.brokers)
        self._extend(topic, partitions, start, replication_factor, is_up, assignments)
        self.by_name[name] = topic
        self.by_id[topic_id] = topic
        self.deleted_in.pop(name, None)
        self._changed(topic)
        self.newest_topic_version = self.version
        return topic

    def grow(
        self,
        topic: Topic,
        count: int,
        is_up: Callable[[int], bool],
        assignments: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Add partitions to a topic, up to a total of ``count``."""
        start = topic.partitions[0].replicas[0] if topic.partitions else 0
        self._extend(topic, count, list(self.brokers).index(start), topic.replication_factor, is_up, assignments)
        self._changed(topic)

    def delete(self, name: str) -> Topic:
        """Remove a topic; raise :class:`KeyError` if the topic does not exist."""
        topic = self.by_name.pop(name)
        del self.by_id[topic.topic_id]
        self.version += 1
        self.deleted_in[name] = self.version
        return topic

    def partition(self, name: str, index: int) -> Partition | None:
        """Return a partition; None if the partition does not exist."""
        topic = self.by_name.get(name)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def partitions(self) -> Iterator[Partition]:
        """Iterate over every partition of every topic."""
        for topic in self.by_name.values():
            yield from topic.partitions

    def set_leader(self, partition: Partition, leader: int) -> None:
        """Make another broker the leader, in a new epoch."""
        partition.leader = leader
        partition.leader_epoch += 1
        self.moved(partition)

    def moved(self, partition: Partition) -> None:
        """Record that the leader or the replicas of a partition changed."""
        self._changed(self.by_name[partition.topic])

    def changed_in(self, name: str) -> int:
        """Return the version in which a topic was last created, changed or deleted; -1 if it never existed."""
        topic = self.by_name.get(name)
        return self.deleted_in.get(name, -1) if topic is None else topic.changed_in

    def _changed(self, topic: Topic) -> None:
        self.version += 1
        topic.changed_in = self.version

    def _extend(
        self,
        topic: Topic,
        count: int,
        start: int,
        factor: int,
        is_up: Callable[[int], bool],
        assignments: Mapping[int, Sequence[int]] | Sequence[Sequence[int]] | None,
    ) -> None:
        """Add partitions up to a total of ``count``; ``assignments`` has the replicas of each new partition, in order."""
        first, brokers = len(topic.partitions), self.brokers
        for index in range(first, count):
            if assignments is None:
                steps = range(min(factor, len(brokers)))
                replicas = tuple(brokers[(start + index + step) % len(brokers)] for step in steps)
            else:
                replicas = tuple(assignments[index - first])
            leader = next((broker for broker in replicas if is_up(broker)), NO_LEADER)
            topic.partitions.append(Partition(topic.name, index, replicas, self.make_log(topic, index), leader))

    def make_log(self, topic: Topic, index: int) -> PartitionLog:
        """Create the log of a partition, with the topic's settings, or with the broker's settings if the topic has none."""
        return self.new_log(topic.name, index, LogSettings.of(topic.configs, self.config, internal=topic.internal))

    def configure(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the settings of a topic, also those of its logs."""
        topic.configs = dict(configs)
        for partition in topic.partitions:
            partition.log.settings = LogSettings.of(configs, self.config, internal=topic.internal)
