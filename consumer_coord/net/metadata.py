"""The content of a Metadata response, as one immutable value. This module uses no I/O."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import MalformedMessageError
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes
from consumer_coord.wire.codec import decode_response_rows
from consumer_coord.wire.messages.cluster import MetadataResponse, MetadataResponseTopic

NO_TOPIC_ID = uuid.UUID(int=0)

#: Kafka's longest topic name (``Topic.MAX_NAME_LENGTH``).
LONGEST_TOPIC_NAME = 249

#: Maximum number of gaps in the partition numbers of a response. Brokers with ZooKeeper omit partitions that never had a
#: leader. Each gap costs memory, and a single high partition number could imply two thousand million gaps.
MOST_MISSING_PARTITIONS = 100_000

#: Maximum number of topics whose ids are remembered, and of ids for each of these topics.
_MOST_IDS = 1_000
_MOST_IDS_OF_A_TOPIC = 8

#: How long responses must call a known topic unknown before it is removed, in seconds. A broker that has just started, or that
#: cannot reach the controller, does not know the latest topics; without the topic, the leader would revoke all its partitions.
#: The same holds for partitions that a topic seems to have lost: either the response is outdated, or an earlier one was wrong.
_UNKNOWN_S = 1.0


@attrs.frozen
class Broker:
    """The address of a broker. Ids below zero are bootstrap addresses, whose real id is unknown."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """The address as ``host:port``."""
        return f"{self.host}:{self.port}"


@attrs.frozen
class Topic:
    """A topic: its id (KIP-516), and for each partition its leader, leader epoch and replicas."""

    name: str
    id: uuid.UUID
    internal: bool
    leaders: tuple[int, ...]
    leader_epochs: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.leaders)


@attrs.frozen
class Metadata:
    """The cluster according to one Metadata response: brokers by id, topics by name, errors of topics by name.

    ``version`` grows with each response that a client processed.
    """

    version: int = 0
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Broker] = attrs.field(factory=dict)
    topics: Mapping[str, Topic] = attrs.field(factory=dict)
    errors: Mapping[str, int] = attrs.field(factory=dict)
    #: Number of times that a topic got another id, because it was deleted and created again.
    recreations: int = 0
    #: The ids of each topic that was once missing or got another id, the newest last. Kafka never uses an id again.
    ids: Mapping[str, tuple[uuid.UUID, ...]] = attrs.field(factory=dict)
    #: Topic in :attr:`topics` -> the time since which responses call it unknown.
    unknown_since: Mapping[str, float] = attrs.field(factory=dict)
    #: Topic -> the time since which responses name fewer partitions than it has in :attr:`topics`.
    fewer_since: Mapping[str, float] = attrs.field(factory=dict)
    #: Cache of computed results: several members need the same results, and with many topics computing them takes a long time.
    _computed: dict[Any, Any] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return topic -> number of partitions, for the existing topics among ``topics``."""
        return {topic: self.topics[topic].partition_count for topic in topics if topic in self.topics}

    def topic_id(self, partition: TopicPartition) -> uuid.UUID | None:
        """Return the id of the topic that currently has the name of the partition's topic, or None while the id is unknown.

        Also return None if the topic in the metadata does not have the partition, because the metadata is then older than the
        partition, and its topic id may belong to a deleted topic.
        """
        topic = self.topics.get(partition.topic)
        if topic is None or topic.id == NO_TOPIC_ID or partition.partition >= topic.partition_count:
            return None
        return topic.id

    def racks(self, topic: str) -> tuple[frozenset[str], ...]:
        """Return the racks of each partition's replicas; the sets are empty if the brokers report no racks."""
        found = self.topics.get(topic)
        if found is None:
            return ()
        rack_of = {broker.id: broker.rack for broker in self.brokers.values()}
        return tuple(
            frozenset(rack for replica in replicas if (rack := rack_of.get(replica)) is not None) for replicas in found.replicas
        )

    def matching(self, pattern: re.Pattern[str], *, exclude_internal: bool) -> tuple[str, ...]:
        """Return the topics whose whole name the pattern matches, in alphabetical order; the result is cached."""
        key = (pattern, exclude_internal)
        found: tuple[str, ...] | None = self._computed.get(key)
        if found is None:
            found = self._computed[key] = tuple(
                sorted(
                    name
                    for name, topic in self.topics.items()
                    if pattern.fullmatch(name) is not None and not (exclude_internal and topic.internal)
                )
            )
        return found

    def names(self) -> Mapping[uuid.UUID, str]:
        """Return topic id -> name; the result is cached."""
        found: dict[uuid.UUID, str] | None = self._computed.get("names")
        if found is None:
            found = self._computed["names"] = {topic.id: name for name, topic in self.topics.items()}
        return found


def is_other(expected: uuid.UUID | None, present: uuid.UUID | None) -> bool:
    """Return whether both ids are known and differ, which means that the expected topic was deleted (KIP-516)."""
    if expected is present:
        return False
    unknown = (None, NO_TOPIC_ID)
    return expected not in unknown and present not in unknown and expected != present


def read_metadata(
    version: int, frame: bytes, previous: Metadata, asked: frozenset[str] | None, at: float
) -> tuple[int, Metadata]:
    """Return the error code of a Metadata response, and the metadata that replaces ``previous``.

    ``asked``: the requested topics, or None if every topic was requested; other topics in the response are ignored. ``at``: the
    time of the request, in seconds. The decoded rows of a topic are dropped before the next topic is decoded. Otherwise a
    response of 95 MB would create millions of objects, which the garbage collector would scan while it holds the interpreter's
    lock.

    Raise :class:`~consumer_coord.errors.MalformedMessageError` for negative partition numbers and for too many gaps in the
    numbers, before memory is allocated for the partitions.
    """
    reading = Reading(previous, asked, at)
    response = decode_response_rows(MetadataResponse, version, frame, "topics", reading.take)
    return response.error_code, reading.result(response)


class Reading:
    """Builds the metadata that replaces ``previous`` from a response's topics, one topic at a time."""

    def __init__(self, previous: Metadata, asked: frozenset[str] | None, at: float) -> None:
        self._previous = previous
        self._asked = asked
        self._at = at
        self._topics: dict[str, Topic] = {}
        self._errors: dict[str, int] = {}
        self._fewer_since: dict[str, float] = {}
        self._missing = 0
        self._ids = dict(previous.ids)
        self._recreations = 0
        #: Cache of replica sets: most partitions share a few sets of replicas.
        self._replicas: dict[tuple[int, ...], tuple[int, ...]] = {}

    def take(self, topic: MetadataResponseTopic) -> None:
        """Process one row of the response."""
        name, asked = topic.name, self._asked
        if name is None or (name not in asked if asked is not None else len(name) > LONGEST_TOPIC_NAME):
            return
        old = self._previous.topics.get(name)
        if topic.error_code != error_codes.NONE:
            self._errors[name] = topic.error_code
            if old is not None and error_codes.is_retriable(topic.error_code) and not _gone(topic.error_code):
                self._topics[name] = old
            return
        if self._is_replaced(name, topic.topic_id, old):
            if old is not None:
                self._topics[name] = old
            return
        self._missing += _missing_partitions(topic)
        if self._missing > MOST_MISSING_PARTITIONS:
            raise MalformedMessageError(
                f"the metadata names partition {max(row.partition_index for row in topic.partitions)} of topic"
                f" {name!r}, but only {len(topic.partitions)} of its partitions"
            )
        if old is not None and self._is_outdated(topic, old):
            self._topics[name] = old
        else:
            self._topics[name] = _topic(topic, old, self._replicas)

    def _is_outdated(self, topic: MetadataResponseTopic, old: Topic) -> bool:
        """Return whether a response names fewer partitions than a topic has, which no topic loses, for a short time only."""
        count = max((row.partition_index for row in topic.partitions), default=-1) + 1
        if not (old.id == topic.topic_id != NO_TOPIC_ID and count < old.partition_count):
            return False
        since = self._previous.fewer_since.get(old.name, self._at)
        if self._at - since >= _UNKNOWN_S:
            return False
        self._fewer_since[old.name] = since
        return True

    def _is_replaced(self, name: str, topic_id: uuid.UUID, old: Topic | None) -> bool:
        """Remember a topic's id; return True if a broker with outdated metadata reports the id of a deleted topic."""
        known = self._ids.get(name, () if old is None else (old.id,))
        if topic_id == NO_TOPIC_ID or not known or known == (NO_TOPIC_ID,) or topic_id == known[-1]:
            return False
        if topic_id in known:
            return True
        self._ids[name] = (*known, topic_id)[-_MOST_IDS_OF_A_TOPIC:]
        self._recreations += 1
        return False

    def result(self, response: MetadataResponse) -> Metadata:
        """Return the metadata, with the topics processed so far and all other fields from ``response``."""
        previous, ids = self._previous, self._ids
        unknown_since: dict[str, float] = {}
        for name in previous.topics.keys() - self._topics.keys():
            # The topic is missing from the response, or was not requested this time.
            since = previous.unknown_since.get(name, self._at)
            if self._is_called_unknown(name) and self._at - since < _UNKNOWN_S:
                self._topics[name], unknown_since[name] = previous.topics[name], since
            else:
                ids.setdefault(name, (previous.topics[name].id,))
        for name in [*islice(ids, max(0, len(ids) - _MOST_IDS))]:
            del ids[name]
        brokers = {broker.node_id: Broker(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}
        return Metadata(
            version=previous.version + 1,
            cluster_id=response.cluster_id if response.cluster_id is not None else previous.cluster_id,
            controller_id=response.controller_id,
            brokers=brokers or previous.brokers,
            topics=self._topics,
            errors=self._errors,
            recreations=previous.recreations + self._recreations,
            ids=ids,
            unknown_since=unknown_since,
            fewer_since=self._fewer_since,
        )

    def _is_called_unknown(self, name: str) -> bool:
        """Return whether a missing topic was requested, and the broker does not know it."""
        requested = self._asked is None or name in self._asked
        return requested and _gone(self._errors.get(name, error_codes.UNKNOWN_TOPIC_OR_PARTITION))


def _missing_partitions(topic: MetadataResponseTopic) -> int:
    """Return how many partition numbers below the highest number are missing from a response."""
    numbers = {partition.partition_index for partition in topic.partitions}
    if not numbers:
        return 0
    if min(numbers) < 0:
        raise MalformedMessageError(f"the metadata names partition {min(numbers)} of topic {topic.name!r}")
    return max(numbers) + 1 - len(numbers)


def _gone(code: int) -> bool:
    return code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


def _topic(answer: MetadataResponseTopic, old: Topic | None, known: dict[tuple[int, ...], tuple[int, ...]]) -> Topic:
    name = answer.name
    assert name is not None
    by_number = {partition.partition_index: partition for partition in answer.partitions}
    numbers = range(max(by_number, default=-1) + 1)
    leaders = tuple(by_number[number].leader_id if number in by_number else -1 for number in numbers)
    epochs = tuple(by_number[number].leader_epoch if number in by_number else -1 for number in numbers)
    listed = (tuple(by_number[number].replica_nodes) if number in by_number else () for number in numbers)
    replicas = tuple(known.setdefault(nodes, nodes) for nodes in listed)
    fresh = Topic(name, answer.topic_id, answer.is_internal, leaders, epochs, replicas)
    if old is not None and old.id == fresh.id and any(map(_older, fresh.leader_epochs, old.leader_epochs)):
        # If a leader epoch is older than the known epoch, the broker's metadata is outdated, so keep the known leader
        # (KIP-320).
        keep = [
            (old if number < old.partition_count and _older(fresh.leader_epochs[number], old.leader_epochs[number]) else fresh)
            for number in numbers
        ]
        fresh = attrs.evolve(
            fresh,
            leaders=tuple(source.leaders[number] for number, source in enumerate(keep)),
            leader_epochs=tuple(source.leader_epochs[number] for number, source in enumerate(keep)),
        )
    return old if fresh == old else fresh


def _older(epoch: int, known: int) -> bool:
    return -1 < epoch < known


def by_leader(
    metadata: Metadata, partitions: Iterable[TopicPartition]
) -> tuple[dict[Broker, list[TopicPartition]], list[TopicPartition]]:
    """Return the partitions that each broker leads, in order, and the partitions without a known leader."""
    leaders: dict[Broker, list[TopicPartition]] = {}
    unknown: list[TopicPartition] = []
    for partition in sorted(partitions):
        topic = metadata.topics.get(partition.topic)
        leader = None
        if topic is not None and partition.partition < topic.partition_count:
            leader = metadata.brokers.get(topic.leaders[partition.partition])
        if leader is None:
            unknown.append(partition)
        else:
            leaders.setdefault(leader, []).append(partition)
    return leaders, unknown
