"""Handle the requests that create, grow and delete topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import RefusedError
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.topic_settings import check_topic_settings
from consumer_coord.broker.topics import name_problem
from consumer_coord.errors import ConfigurationError
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from consumer_coord.wire.schema import ZERO_UUID

_STATES_FROM = 6
_MAX_PARTITIONS = 100_000
_BROKER_DEFAULT = -1
#: The source of a topic's own setting in a response.
_SOURCE_TOPIC = 1


async def create_topics(node: BrokerNode, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Serve CreateTopics. All brokers know the new topics before the response is sent."""
    names = [topic.name for topic in request.topics]
    return CreateTopicsResponse(
        topics=tuple(_create(node, topic, request.validate_only, twice=names.count(topic.name) > 1) for topic in request.topics)
    )


def _create(node: BrokerNode, wanted: CreatableTopic, validate_only: bool, twice: bool) -> CreatableTopicResult:
    try:
        if twice:
            raise RefusedError("the request names this topic twice", code=error_codes.INVALID_REQUEST)
        partitions, factor, assignments = _layout(node, wanted)
        configs = check_topic_settings({config.name: config.value for config in wanted.configs})
    except (RefusedError, ConfigurationError) as error:
        error_code = error.code or error_codes.INVALID_CONFIG
        return CreatableTopicResult(name=wanted.name, error_code=error_code, error_message=str(error), configs=())
    topic_id = ZERO_UUID
    if not validate_only:
        topic = node.cluster.create_topic(
            wanted.name, partitions, replication_factor=factor, configs=configs, assignments=assignments
        )
        factor, topic_id = topic.replication_factor, topic.topic_id
    return CreatableTopicResult(
        name=wanted.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=tuple(
            CreatableTopicConfigs(name=name, value=value, config_source=_SOURCE_TOPIC) for name, value in configs.items()
        ),
    )


def _layout(node: BrokerNode, wanted: CreatableTopic) -> tuple[int, int, Mapping[int, Sequence[int]] | None]:
    """Return (number of partitions, replication factor, assignments) of a new topic; raise an error if it is not allowed."""
    cluster = node.cluster
    problem = name_problem(wanted.name)
    if problem is not None:
        raise RefusedError(problem, code=error_codes.INVALID_TOPIC_EXCEPTION)
    if wanted.name in cluster.topics.by_name:
        raise RefusedError(f"topic {wanted.name} already exists", code=error_codes.TOPIC_ALREADY_EXISTS)
    brokers = cluster.topics.brokers
    if wanted.assignments:
        if wanted.num_partitions != _BROKER_DEFAULT or wanted.replication_factor != _BROKER_DEFAULT:
            raise RefusedError(
                "give either assignments, or a number of partitions and a replication factor", code=error_codes.INVALID_REQUEST
            )
        assignments = {entry.partition_index: entry.broker_ids for entry in wanted.assignments}
        if sorted(assignments) != list(range(len(wanted.assignments))):
            raise RefusedError(
                "the partitions of the assignments must be 0, 1, 2, …", code=error_codes.INVALID_REPLICA_ASSIGNMENT
            )
        for ids in assignments.values():
            _check_replicas(brokers, ids)
        return len(assignments), len(assignments[0]), assignments
    config = cluster.config
    partitions = config.num_partitions if wanted.num_partitions == _BROKER_DEFAULT else wanted.num_partitions
    if not 1 <= partitions <= _MAX_PARTITIONS:
        raise RefusedError(
            f"a topic must have 1 to {_MAX_PARTITIONS} partitions, not {partitions}", code=error_codes.INVALID_PARTITIONS
        )
    factor = wanted.replication_factor
    if factor == _BROKER_DEFAULT:
        factor = min(config.default_replication_factor, len(brokers))
    if not 1 <= factor <= len(brokers):
        raise RefusedError(
            f"a replication factor of {factor} is not possible with {len(brokers)} brokers",
            code=error_codes.INVALID_REPLICATION_FACTOR,
        )
    return partitions, factor, None


def _check_replicas(brokers: Sequence[int], ids: Sequence[int]) -> None:
    if not ids or len(set(ids)) != len(ids) or not set(ids) <= set(brokers):
        raise RefusedError(
            f"the replicas {tuple(ids)} must be different ids of existing brokers", code=error_codes.INVALID_REPLICA_ASSIGNMENT
        )


async def create_partitions(
    node: BrokerNode, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Serve CreatePartitions."""
    return CreatePartitionsResponse(results=tuple(_grow(node, topic, request.validate_only) for topic in request.topics))


def _grow(node: BrokerNode, wanted: CreatePartitionsTopic, validate_only: bool) -> CreatePartitionsTopicResult:
    try:
        topic = node.cluster.topics.by_name.get(wanted.name)
        if topic is None or topic.internal:
            raise RefusedError(f"topic {wanted.name} does not exist", code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        present = len(topic.partitions)
        if not present < wanted.count <= _MAX_PARTITIONS:
            raise RefusedError(
                f"topic {wanted.name} has {present} partitions; the new number cannot be {wanted.count}",
                code=error_codes.INVALID_PARTITIONS,
            )
        assignments = None
        if wanted.assignments is not None:
            assignments = [assignment.broker_ids for assignment in wanted.assignments]
            if len(assignments) != wanted.count - present:
                raise RefusedError(
                    "there must be one assignment for each new partition", code=error_codes.INVALID_REPLICA_ASSIGNMENT
                )
            for ids in assignments:
                _check_replicas(node.cluster.topics.brokers, ids)
    except RefusedError as error:
        return CreatePartitionsTopicResult(name=wanted.name, error_code=error.code, error_message=str(error))
    if not validate_only:
        node.cluster.grow_topic(wanted.name, wanted.count, assignments)
    return CreatePartitionsTopicResult(name=wanted.name)


async def delete_topics(node: BrokerNode, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Serve DeleteTopics, by name or (since version 6) by id."""
    if context.api_version >= _STATES_FROM:
        return DeleteTopicsResponse(responses=tuple(_delete(node, state) for state in request.topics))
    return DeleteTopicsResponse(responses=tuple(_delete(node, DeleteTopicState(name=name)) for name in request.topic_names))


def _delete(node: BrokerNode, wanted: DeleteTopicState) -> DeletableTopicResult:
    topics = node.cluster.topics
    topic = topics.by_id.get(wanted.topic_id) if wanted.name is None else topics.by_name.get(wanted.name)
    if topic is None:
        unknown = error_codes.UNKNOWN_TOPIC_ID if wanted.name is None else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(name=wanted.name, topic_id=wanted.topic_id, error_code=unknown)
    if topic.internal:
        return DeletableTopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            error_code=error_codes.INVALID_REQUEST,
            error_message="this topic contains the embedded broker's groups and cannot be deleted",
        )
    node.cluster.delete_topic(topic.name)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
