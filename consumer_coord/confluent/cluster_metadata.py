"""Convert a Metadata response to confluent-kafka's ClusterMetadata, or to objects with the same attributes without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from consumer_coord.confluent.types import KafkaError
from consumer_coord.wire.messages.cluster import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic


def to_cluster_metadata(response: MetadataResponse) -> Any:
    """Return the brokers and topics of a response; a topic or partition with an error code has a ``KafkaError``."""
    found = _new("ClusterMetadata", orig_broker_id=-1, orig_broker_name=None)
    found.cluster_id, found.controller_id = response.cluster_id, response.controller_id
    found.brokers = {
        row.node_id: _new("BrokerMetadata", id=row.node_id, host=row.host, port=row.port) for row in response.brokers
    }
    found.topics = {topic.name: _topic(topic) for topic in response.topics if topic.name is not None}
    return found


def _new(kind: str, **values: Any) -> Any:
    """Return an object of one of confluent-kafka's classes, or a plain object without confluent-kafka 2.x."""
    try:
        # Imported here, because the module takes long to import, and few consumers need it.
        from confluent_kafka import admin

        one = getattr(admin, kind)()
    except (ImportError, AttributeError):
        one = SimpleNamespace()
    for name, value in values.items():
        setattr(one, name, value)
    return one


def _topic(row: MetadataResponseTopic) -> Any:
    partitions = {one.partition_index: _partition(one) for one in row.partitions}
    return _new("TopicMetadata", topic=row.name, error=_error(row.error_code), partitions=partitions)


def _partition(row: MetadataResponsePartition) -> Any:
    return _new(
        "PartitionMetadata",
        id=row.partition_index,
        leader=row.leader_id,
        replicas=list(row.replica_nodes),
        isrs=list(row.isr_nodes),
        error=_error(row.error_code),
    )


def _error(code: int) -> KafkaError | None:
    return KafkaError(code) if code else None
