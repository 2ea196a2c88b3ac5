"""Handle Metadata and DescribeCluster."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.topics import NO_LEADER, Partition, Topic, name_problem
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

#: DescribeCluster's endpoint type for brokers. (The type for controllers is 2.)
_BROKERS = 1


async def metadata(node: BrokerNode, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Serve Metadata: return the brokers that are up, and the requested topics or all topics. The request may create topics."""
    cluster = node.cluster
    wanted = request.topics
    if wanted is None or (context.api_version == 0 and not wanted):
        topics = [_describe(node, topic) for topic in cluster.topics.by_name.values()]
    else:
        topics = [
            _by_id(node, topic.topic_id) if topic.name is None else _by_name(node, topic.name, request) for topic in wanted
        ]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=other.broker_id, host=other.host, port=other.port, rack=other.rack)
            for other in cluster.nodes
            if other.up
        ),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=tuple(topics),
    )


def _by_name(node: BrokerNode, name: str, request: MetadataRequest) -> MetadataResponseTopic:
    cluster = node.cluster
    topic = cluster.topics.by_name.get(name)
    if topic is not None:
        return _describe(node, topic)
    if name_problem(name) is not None:
        return MetadataResponseTopic(error_code=error_codes.INVALID_TOPIC_EXCEPTION, name=name)
    if request.allow_auto_topic_creation and cluster.config.auto_create_topics_enable:
        cluster.create_topic(name)
        return MetadataResponseTopic(error_code=error_codes.LEADER_NOT_AVAILABLE, name=name)
    return MetadataResponseTopic(error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _by_id(node: BrokerNode, topic_id: uuid.UUID) -> MetadataResponseTopic:
    topic = node.cluster.topics.by_id.get(topic_id)
    if topic is not None:
        return _describe(node, topic)
    return MetadataResponseTopic(error_code=error_codes.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)


def _describe(node: BrokerNode, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error_codes.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(_describe_partition(node, partition) for partition in topic.partitions),
    )


def _describe_partition(node: BrokerNode, partition: Partition) -> MetadataResponsePartition:
    up: Sequence[int] = partition.replicas
    down: Sequence[int] = ()
    if not all(node.cluster.is_up(broker) for broker in partition.replicas):
        up = tuple(broker for broker in partition.replicas if node.cluster.is_up(broker))
        down = tuple(broker for broker in partition.replicas if not node.cluster.is_up(broker))
    leaderless = partition.leader == NO_LEADER
    return MetadataResponsePartition(
        error_code=error_codes.LEADER_NOT_AVAILABLE if leaderless else error_codes.NONE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=up,
        offline_replicas=down,
    )


async def describe_cluster(
    node: BrokerNode, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Serve DescribeCluster: return the brokers that are up. The cluster has no controller endpoints."""
    cluster = node.cluster
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=error_codes.MISMATCHED_ENDPOINT_TYPE,
            error_message="this endpoint is a broker, not a controller",
            endpoint_type=_BROKERS,
            cluster_id=cluster.cluster_id,
        )
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=tuple(
            DescribeClusterBroker(broker_id=other.broker_id, host=other.host, port=other.port, rack=other.rack)
            for other in cluster.nodes
            if other.up
        ),
    )
