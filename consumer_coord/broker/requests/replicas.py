"""Handle the requests about the replicas of partitions. Every broker has every log, so a move ends at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.topics import NO_LEADER, Partition
from consumer_coord.topic_partition import grouped
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopicResult,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

#: The type of an election, in which a replica may lead that was not in sync. The other type elects the preferred replica.
_UNCLEAN: Final = 1
_MESSAGES: Final[Mapping[int, str]] = {
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: "the partition does not exist",
    error_codes.ELECTION_NOT_NEEDED: "the leader need not change",
    error_codes.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred replica is down",
    error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica is up",
    error_codes.NO_REASSIGNMENT_IN_PROGRESS: "no move is under way",
    error_codes.INVALID_REPLICA_ASSIGNMENT: "the replicas must be different ids of existing brokers",
    error_codes.INVALID_REPLICATION_FACTOR: "the number of replicas would change",
}


async def describe_log_dirs(
    node: BrokerNode, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Serve DescribeLogDirs: the sizes of the partitions of which this broker is a replica, in the only directory."""
    topics = node.cluster.topics
    if request.topics is None:
        asked: Iterable[Partition | None] = topics.partitions()
    else:
        asked = (topics.partition(topic.topic, index) for topic in request.topics for index in topic.partitions)
    found = (one for one in asked if one is not None and node.broker_id in one.replicas)
    sizes = grouped((one.topic, DescribeLogDirsPartition(one.index, one.log.size)) for one in found)
    rows = tuple(DescribeLogDirsTopic(topic, tuple(partitions)) for topic, partitions in sizes.items())
    return DescribeLogDirsResponse(results=(DescribeLogDirsResult(log_dir=node.cluster.log_dir, topics=rows),))


async def elect_leaders(node: BrokerNode, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Serve ElectLeaders; without partitions, the response names only those that need another leader."""
    if request.topic_partitions is None:
        asked = [(one.topic, one.index) for one in node.cluster.topics.partitions()]
    else:
        asked = [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    codes = {one: _elect(node, *one, unclean=request.election_type == _UNCLEAN) for one in asked}
    if request.topic_partitions is None:
        codes = {one: code for one, code in codes.items() if code != error_codes.ELECTION_NOT_NEEDED}
    rows = grouped(
        (topic, ElectLeadersPartitionResult(index, code, _MESSAGES.get(code))) for (topic, index), code in codes.items()
    )
    return ElectLeadersResponse(
        replica_election_results=tuple(ElectLeadersTopicResult(topic, tuple(results)) for topic, results in rows.items())
    )


def _elect(node: BrokerNode, topic: str, index: int, *, unclean: bool) -> int:
    """Elect a leader, and return an error code (``ReplicationControlManager.electLeader``)."""
    cluster = node.cluster
    partition = cluster.topics.partition(topic, index)
    if partition is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    preferred = partition.replicas[0]
    if partition.leader != NO_LEADER and (unclean or partition.leader == preferred):
        return error_codes.ELECTION_NOT_NEEDED
    if not cluster.is_up(preferred):
        # A replica that is up leads already, because every broker is in sync.
        return error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else error_codes.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.move_leader(topic, index, preferred)
    return error_codes.NONE


async def alter_partition_reassignments(
    node: BrokerNode, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Serve AlterPartitionReassignments."""
    rows = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            code = _reassign(node, topic.name, wanted, resize=request.allow_replication_factor_change)
            results.append(ReassignablePartitionResponse(wanted.partition_index, code, _MESSAGES.get(code)))
        rows.append(ReassignableTopicResponse(topic.name, tuple(results)))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=tuple(rows)
    )


def _reassign(node: BrokerNode, topic: str, wanted: ReassignablePartition, *, resize: bool) -> int:
    """Give a partition other replicas, and return an error code."""
    cluster, replicas = node.cluster, wanted.replicas
    partition = cluster.topics.partition(topic, wanted.partition_index)
    if partition is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if replicas is None:
        return error_codes.NO_REASSIGNMENT_IN_PROGRESS
    if not replicas or len(set(replicas)) != len(replicas) or not set(replicas) <= set(cluster.topics.brokers):
        return error_codes.INVALID_REPLICA_ASSIGNMENT
    if not resize and len(replicas) != len(partition.replicas):
        return error_codes.INVALID_REPLICATION_FACTOR
    cluster.assign_replicas(partition, replicas)
    return error_codes.NONE


async def list_partition_reassignments(
    node: BrokerNode, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Serve ListPartitionReassignments: no move is ever under way."""
    return ListPartitionReassignmentsResponse(error_message=None)
