"""Handle the requests that create, grow, delete and configure topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from consumer_coord.broker.classic_join import RequestContext
from consumer_coord.broker.client_metrics import check_subscription
from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.topic_settings import TOPIC_SETTINGS, as_list, check_topic_settings, default_of
from consumer_coord.broker.topics import Topic, name_problem
from consumer_coord.errors import ConfigurationError, CoordinatorError
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.admin import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
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
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from consumer_coord.wire.schema import ZERO_UUID

_STATES_FROM = 6
_MAX_PARTITIONS = 100_000
_BROKER_DEFAULT = -1
#: Values of DescribeConfigs: types of resources, and sources of settings.
_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_CLIENT_METRICS_RESOURCE = 16
_GROUP_RESOURCE = 32
_SOURCE_TOPIC = 1
_SOURCE_STATIC_BROKER = 4
_SOURCE_DEFAULT = 5
#: The operations of IncrementalAlterConfigs.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
#: A setting of a group (``GroupConfig``) -> the broker setting that has its value in this broker.
_GROUP_CONFIGS = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
}


class _RefusedError(CoordinatorError):
    """Raised if an administrator's request is refused; ``code`` is the error code of the response."""


async def create_topics(node: BrokerNode, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Serve CreateTopics. All brokers know the new topics before the response is sent."""
    names = [topic.name for topic in request.topics]
    return CreateTopicsResponse(
        topics=tuple(_create(node, topic, request.validate_only, twice=names.count(topic.name) > 1) for topic in request.topics)
    )


def _create(node: BrokerNode, wanted: CreatableTopic, validate_only: bool, twice: bool) -> CreatableTopicResult:
    try:
        if twice:
            raise _RefusedError("the request names this topic twice", code=error_codes.INVALID_REQUEST)
        partitions, factor, assignments = _layout(node, wanted)
        configs = check_topic_settings({config.name: config.value for config in wanted.configs})
    except (_RefusedError, ConfigurationError) as error:
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
        raise _RefusedError(problem, code=error_codes.INVALID_TOPIC_EXCEPTION)
    if wanted.name in cluster.topics.by_name:
        raise _RefusedError(f"topic {wanted.name} already exists", code=error_codes.TOPIC_ALREADY_EXISTS)
    brokers = cluster.topics.brokers
    if wanted.assignments:
        if wanted.num_partitions != _BROKER_DEFAULT or wanted.replication_factor != _BROKER_DEFAULT:
            raise _RefusedError(
                "give either assignments, or a number of partitions and a replication factor", code=error_codes.INVALID_REQUEST
            )
        assignments = {entry.partition_index: entry.broker_ids for entry in wanted.assignments}
        if sorted(assignments) != list(range(len(wanted.assignments))):
            raise _RefusedError(
                "the partitions of the assignments must be 0, 1, 2, …", code=error_codes.INVALID_REPLICA_ASSIGNMENT
            )
        for ids in assignments.values():
            _check_replicas(brokers, ids)
        return len(assignments), len(assignments[0]), assignments
    config = cluster.config
    partitions = config.num_partitions if wanted.num_partitions == _BROKER_DEFAULT else wanted.num_partitions
    if not 1 <= partitions <= _MAX_PARTITIONS:
        raise _RefusedError(
            f"a topic must have 1 to {_MAX_PARTITIONS} partitions, not {partitions}", code=error_codes.INVALID_PARTITIONS
        )
    factor = wanted.replication_factor
    if factor == _BROKER_DEFAULT:
        factor = min(config.default_replication_factor, len(brokers))
    if not 1 <= factor <= len(brokers):
        raise _RefusedError(
            f"a replication factor of {factor} is not possible with {len(brokers)} brokers",
            code=error_codes.INVALID_REPLICATION_FACTOR,
        )
    return partitions, factor, None


def _check_replicas(brokers: Sequence[int], ids: Sequence[int]) -> None:
    if not ids or len(set(ids)) != len(ids) or not set(ids) <= set(brokers):
        raise _RefusedError(
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
            raise _RefusedError(f"topic {wanted.name} does not exist", code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        present = len(topic.partitions)
        if not present < wanted.count <= _MAX_PARTITIONS:
            raise _RefusedError(
                f"topic {wanted.name} has {present} partitions; the new number cannot be {wanted.count}",
                code=error_codes.INVALID_PARTITIONS,
            )
        assignments = None
        if wanted.assignments is not None:
            assignments = [assignment.broker_ids for assignment in wanted.assignments]
            if len(assignments) != wanted.count - present:
                raise _RefusedError(
                    "there must be one assignment for each new partition", code=error_codes.INVALID_REPLICA_ASSIGNMENT
                )
            for ids in assignments:
                _check_replicas(node.cluster.topics.brokers, ids)
    except _RefusedError as error:
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


async def describe_configs(
    node: BrokerNode, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Serve DescribeConfigs of topics, brokers and groups."""
    return DescribeConfigsResponse(results=tuple(_describe(node, resource) for resource in request.resources))


def _describe(node: BrokerNode, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    settings: Mapping[str, _Described] = {}
    error_code, message = error_codes.NONE, None
    try:
        settings = _settings(node, resource)
    except _RefusedError as error:
        error_code, message = error.code, str(error)
    wanted = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=error_code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            DescribeConfigsResourceResult(
                name=name,
                value=found.value,
                read_only=resource.resource_type == _BROKER_RESOURCE,
                config_source=found.source,
                config_type=found.kind,
                documentation=None,
            )
            for name, found in settings.items()
            if not wanted or name in wanted
        ),
    )


@attrs.frozen
class _Described:
    """The value of a setting, its source, and its type (0 if the type is not known)."""

    value: str
    source: int
    kind: int = 0


def _settings(node: BrokerNode, resource: DescribeConfigsResource) -> Mapping[str, _Described]:
    """Return name -> value of all settings of a resource; raise an error if there is no such resource."""
    cluster = node.cluster
    if resource.resource_type == _TOPIC_RESOURCE:
        topic = cluster.topics.by_name.get(resource.resource_name)
        if topic is None:
            raise _RefusedError("the topic does not exist", code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        return _topic_configs(node, topic)
    settings = cluster.config.to_mapping()
    if resource.resource_type == _BROKER_RESOURCE:
        if resource.resource_name not in map(str, cluster.topics.brokers):
            raise _RefusedError(f"broker {resource.resource_name!r} does not exist", code=error_codes.INVALID_REQUEST)
        defaults = type(cluster.config)().to_mapping()
        return {
            name: _Described(value, _SOURCE_DEFAULT if value == defaults[name] else _SOURCE_STATIC_BROKER)
            for name, value in settings.items()
        }
    if resource.resource_type != _GROUP_RESOURCE:
        problem = f"there is no configuration for resources of type {resource.resource_type}"
        raise _RefusedError(problem, code=error_codes.INVALID_REQUEST)
    if not resource.resource_name:
        raise _RefusedError("the name of a group is missing", code=error_codes.INVALID_REQUEST)
    return {name: _Described(settings[broker_name], _SOURCE_DEFAULT) for name, broker_name in _GROUP_CONFIGS.items()}


def _topic_configs(node: BrokerNode, topic: Topic) -> dict[str, _Described]:
    config = node.cluster.config
    found = {}
    for name, setting in TOPIC_SETTINGS.items():
        value, source = topic.configs.get(name), _SOURCE_TOPIC
        if value is None:
            value, source = default_of(name, config), _SOURCE_DEFAULT
        found[name] = _Described(value, source, setting.kind)
    return found


# -- changing settings


async def incremental_alter_configs(
    node: BrokerNode, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Serve IncrementalAlterConfigs for topics and for subscriptions of clients' metrics.

    The settings of brokers and groups stay as they are.
    """
    named = [(resource.resource_type, resource.resource_name) for resource in request.resources]
    responses = []
    for resource, name in zip(request.resources, named, strict=True):
        error_code, message = error_codes.NONE, None
        try:
            if named.count(name) > 1:
                raise _RefusedError("a resource may occur only once", code=error_codes.INVALID_REQUEST)
            _alter(node, resource, validate_only=request.validate_only)
        except (_RefusedError, ConfigurationError) as error:
            error_code, message = error.code or error_codes.INVALID_CONFIG, str(error)
        responses.append(AlterConfigsResourceResponse(error_code, message, *name))
    return IncrementalAlterConfigsResponse(responses=tuple(responses))


def _alter(node: BrokerNode, resource: AlterConfigsResource, *, validate_only: bool) -> None:
    """Change the settings of a resource; raise an error for an operation that is not possible."""
    cluster, name = node.cluster, resource.resource_name
    if resource.resource_type == _CLIENT_METRICS_RESOURCE:
        changed = check_subscription(_altered(resource, cluster.client_metrics.settings(name), lambda *_: None))
        if not validate_only:
            cluster.client_metrics.subscribe(name, changed)
        return
    if resource.resource_type != _TOPIC_RESOURCE:
        raise _RefusedError("this broker changes only the settings of topics", code=error_codes.INVALID_REQUEST)
    topic = cluster.topics.by_name.get(name)
    if topic is None:
        raise _RefusedError("the topic does not exist", code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)

    def present(setting: str) -> Sequence[str] | None:
        found = TOPIC_SETTINGS.get(setting)
        if found is None or not found.is_list:
            return None
        return as_list(topic.configs.get(setting, default_of(setting, cluster.config)))

    changed = check_topic_settings(_altered(resource, topic.configs, present))
    if not validate_only:
        cluster.change_settings(name, changed)


def _altered(
    resource: AlterConfigsResource, before: Mapping[str, str], present: Callable[[str], Sequence[str] | None]
) -> dict[str, str]:
    """Return settings after the operations; ``present`` returns the elements of a list, and None for another setting."""
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise _RefusedError("a setting may occur only once", code=error_codes.INVALID_REQUEST)
    configs = dict(before)
    for config in resource.configs:
        operation, value = config.config_operation, config.value
        if operation not in (_SET, _DELETE, _APPEND, _SUBTRACT):
            raise _RefusedError(f"there is no operation {operation}", code=error_codes.INVALID_REQUEST)
        if operation == _DELETE:
            configs.pop(config.name, None)
            continue
        if value is None:
            raise _RefusedError(f"setting {config.name} needs a value", code=error_codes.INVALID_REQUEST)
        if operation != _SET:
            elements = present(config.name)
            if elements is None:
                raise ConfigurationError(f"{config.name} is not a list")
            value = _changed_list(elements, value.split(","), add=operation == _APPEND)
        configs[config.name] = value
    return configs


def _changed_list(present: Sequence[str], elements: Sequence[str], *, add: bool) -> str:
    if add:
        return ",".join(dict.fromkeys((*present, *elements)))
    return ",".join(one for one in present if one not in elements)
