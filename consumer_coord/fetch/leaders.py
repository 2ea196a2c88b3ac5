"""The leader of each partition and its leader epoch: from the metadata, or from a newer Fetch response (KIP-951)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from consumer_coord import lazy_attrs as attrs
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker, Metadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.messages.log import FetchNodeEndpoint
from consumer_coord.wire.schema import ZERO_UUID


@attrs.frozen
class Leader:
    """The broker that leads a partition (None if there is no leader), and the leader epoch (-1 if unknown)."""

    broker: Broker | None
    epoch: int = -1


class Leaders:
    """The known leaders of partitions, as one client sees them."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        #: Leaders that a response named and the metadata does not contain yet. The topic's id is part of the value, because
        #: the leader epochs of a recreated topic start at 0 again.
        self._newer: dict[TopicPartition, tuple[Leader, uuid.UUID]] = {}
        #: The leaders that were read from this metadata.
        self._known: dict[TopicPartition, Leader] = {}
        self._known_from: Metadata | None = None

    def of(self, partition: TopicPartition) -> Leader:
        """Return the newest known leader of a partition."""
        newer, metadata = self._newer.get(partition), self._cluster.metadata
        if newer is not None:
            return newer[0]
        if self._known_from is not metadata:
            self._known_from, self._known = metadata, {}
        known = self._known.get(partition)
        if known is None:
            known = self._known[partition] = _leader(metadata, partition)
        return known

    def learn(self, partition: TopicPartition, leader_id: int, epoch: int, endpoints: Mapping[int, FetchNodeEndpoint]) -> bool:
        """Record a leader that a response names, if it is newer than the known leader; return whether it was recorded."""
        if epoch <= self.of(partition).epoch:
            return False
        endpoint = endpoints.get(leader_id)
        broker = (
            self._cluster.metadata.brokers.get(leader_id)
            if endpoint is None
            else Broker(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
        )
        if broker is None:
            return False
        self._newer[partition] = Leader(broker, epoch), self.topic_id(partition.topic)
        return True

    def metadata_changed(self) -> None:
        """Drop the recorded leaders that are now in the metadata."""
        self._newer = {
            partition: (leader, topic_id)
            for partition, (leader, topic_id) in self._newer.items()
            if leader.epoch > _leader(self._cluster.metadata, partition).epoch and topic_id == self.topic_id(partition.topic)
        }

    def broker(self, broker_id: int) -> Broker | None:
        """Return a broker with its address, or None if it is unknown."""
        found = self._cluster.metadata.brokers.get(broker_id)
        if found is not None:
            return found
        newer = (leader.broker for leader, _ in self._newer.values() if leader.broker is not None)
        return next((broker for broker in newer if broker.id == broker_id), None)

    def topic_id(self, topic: str) -> uuid.UUID:
        """Return a topic's id from the metadata; zeros if the topic or its id is unknown."""
        found = self._cluster.metadata.topics.get(topic)
        return ZERO_UUID if found is None else found.id


def _leader(metadata: Metadata, partition: TopicPartition) -> Leader:
    topic = metadata.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < topic.partition_count:
        return Leader(None)
    return Leader(metadata.brokers.get(topic.leaders[partition.partition]), topic.leader_epochs[partition.partition])
