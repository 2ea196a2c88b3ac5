"""Handle the requests about settings: of topics, of brokers, of groups, and of subscriptions of clients' metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from consumer_coord.broker.client_metrics import DEFAULT_INTERVAL_MS, check_subscription
from consumer_coord.broker.cluster import BrokerNode
from consumer_coord.broker.errors import RefusedError
from consumer_coord.broker.group_settings import check_group_settings
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.broker.topic_settings import DYNAMIC, TOPIC_SETTINGS, as_list, check_topic_settings, default_of
from consumer_coord.broker.topics import Topic
from consumer_coord.errors import ConfigurationError
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ReplacedConfigs,
)

#: Types of resources (``ConfigResource.Type``).
_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
#: Sources of settings in DescribeConfigs (``ConfigSource``).
_SOURCE_TOPIC, _SOURCE_DYNAMIC_BROKER, _SOURCE_STATIC_BROKER, _SOURCE_DEFAULT, _SOURCE_METRICS, _SOURCE_GROUP = 1, 3, 4, 5, 7, 8
#: Types of settings in DescribeConfigs (``ConfigType``).
_INT, _LIST = 3, 7
#: The operations of IncrementalAlterConfigs.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_TYPES_FROM = 1

#: The elements of a setting that is a list; None for another setting.
_Elements = Callable[[str], Sequence[str] | None]
#: Settings before a change, and the elements of lists -> settings after the change.
_Change = Callable[[Mapping[str, str], _Elements], Mapping[str, str | None]]


async def describe_configs(
    node: BrokerNode, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Serve DescribeConfigs."""
    return DescribeConfigsResponse(results=tuple(_describe(node, resource) for resource in request.resources))


def _describe(node: BrokerNode, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    settings: Mapping[str, _Described] = {}
    error_code, message = error_codes.NONE, None
    try:
        settings = _settings(node, resource)
    except RefusedError as error:
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
                read_only=resource.resource_type == _BROKER and name not in DYNAMIC,
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
    if resource.resource_type == _TOPIC:
        topic = cluster.topics.by_name.get(resource.resource_name)
        if topic is None:
            raise RefusedError("the topic does not exist", code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        return _topic_configs(node, topic)
    if resource.resource_type == _BROKER:
        return _broker_configs(node, resource.resource_name)
    if resource.resource_type not in (_GROUP, _CLIENT_METRICS):
        problem = f"there is no configuration for resources of type {resource.resource_type}"
        raise RefusedError(problem, code=error_codes.INVALID_REQUEST)
    name = resource.resource_name
    if not name:
        raise RefusedError("the name of the resource is missing", code=error_codes.INVALID_REQUEST)
    if resource.resource_type == _GROUP:
        own = cluster.group_settings.given(name)
        return {
            setting: _Described(value, _SOURCE_GROUP if setting in own else _SOURCE_DEFAULT, _INT)
            for setting, value in cluster.group_settings.of(name).items()
        }
    given = cluster.client_metrics.settings(name)
    defaults = {"interval.ms": (str(DEFAULT_INTERVAL_MS), _INT), "metrics": ("", _LIST)}
    return {
        setting: _Described(given.get(setting, default), _SOURCE_METRICS if setting in given else _SOURCE_DEFAULT, kind)
        for setting, (default, kind) in defaults.items()
        if given
    }


def _broker_configs(node: BrokerNode, name: str) -> Mapping[str, _Described]:
    """Return the settings of a broker; without a name, only those that were changed for all brokers."""
    cluster = node.cluster
    changed = {setting: _Described(value, _SOURCE_DYNAMIC_BROKER) for setting, value in cluster.changed_settings.items()}
    if not name:
        return changed
    if name not in map(str, cluster.topics.brokers):
        raise RefusedError(f"broker {name!r} does not exist", code=error_codes.INVALID_REQUEST)
    defaults = type(cluster.config)().to_mapping()
    return {
        setting: changed.get(setting)
        or _Described(value, _SOURCE_DEFAULT if value == defaults[setting] else _SOURCE_STATIC_BROKER)
        for setting, value in cluster.config.to_mapping().items()
    }


def _topic_configs(node: BrokerNode, topic: Topic) -> dict[str, _Described]:
    config = node.cluster.config
    found = {}
    for name, setting in TOPIC_SETTINGS.items():
        value, source = topic.configs.get(name), _SOURCE_TOPIC
        if value is None:
            value, source = default_of(name, config), _SOURCE_DEFAULT
        found[name] = _Described(value, source, setting.kind)
    return found


async def list_config_resources(
    node: BrokerNode, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Serve ListConfigResources: of the types that the request names, or of all; up to version 0, subscriptions of metrics."""
    cluster = node.cluster
    brokers = tuple(map(str, cluster.topics.brokers))
    names: Mapping[int, Sequence[str]] = {
        _TOPIC: tuple(cluster.topics.by_name),
        _BROKER: brokers,
        _BROKER_LOGGER: brokers,
        _CLIENT_METRICS: cluster.client_metrics.names,
        _GROUP: cluster.group_settings.names,
    }
    types = set(request.resource_types or names) if context.api_version >= _TYPES_FROM else {_CLIENT_METRICS}
    if not types <= set(names):
        return ListConfigResourcesResponse(error_code=error_codes.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=tuple(ConfigResource(name, kind) for kind in sorted(types) for name in names[kind])
    )


# -- changing settings


async def incremental_alter_configs(
    node: BrokerNode, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Serve IncrementalAlterConfigs."""
    changes: list[tuple[int, str, _Change]] = [
        (one.resource_type, one.resource_name, partial(_altered, one)) for one in request.resources
    ]
    return IncrementalAlterConfigsResponse(responses=_alter_all(node, changes, validate_only=request.validate_only))


async def alter_configs(node: BrokerNode, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Serve AlterConfigs, which replaces all settings of a resource."""
    changes: list[tuple[int, str, _Change]] = [
        (one.resource_type, one.resource_name, partial(_replaced, one)) for one in request.resources
    ]
    return AlterConfigsResponse(responses=_alter_all(node, changes, validate_only=request.validate_only))


def _alter_all(
    node: BrokerNode, changes: Sequence[tuple[int, str, _Change]], *, validate_only: bool
) -> tuple[AlterConfigsResourceResponse, ...]:
    named = [(kind, name) for kind, name, _ in changes]
    responses = []
    for kind, name, change in changes:
        error_code, message = error_codes.NONE, None
        try:
            if named.count((kind, name)) > 1:
                raise RefusedError("a resource may occur only once", code=error_codes.INVALID_REQUEST)
            apply = _checked(node, kind, name, change)
            if not validate_only:
                apply()
        except RefusedError as error:
            error_code, message = error.code, str(error)
        except ConfigurationError as error:
            invalid = error_codes.INVALID_CONFIG if kind in (_TOPIC, _GROUP) else error_codes.INVALID_REQUEST
            error_code, message = invalid, str(error)
        responses.append(AlterConfigsResourceResponse(error_code, message, kind, name))
    return tuple(responses)


def _checked(node: BrokerNode, kind: int, name: str, change: _Change) -> Callable[[], None]:
    """Return the function that applies a change of a resource; raise an error if the change is not possible."""
    cluster = node.cluster
    if kind == _CLIENT_METRICS:
        return partial(
            cluster.client_metrics.subscribe, name, check_subscription(change(cluster.client_metrics.settings(name), _no_list))
        )
    if kind == _GROUP:
        checked = check_group_settings(change(cluster.group_settings.given(name), _no_list), cluster.config)
        return partial(cluster.group_settings.change, name, checked)
    if kind == _BROKER:
        if name and name not in map(str, cluster.topics.brokers):
            raise RefusedError(f"broker {name!r} does not exist", code=error_codes.INVALID_REQUEST)
        changed = {setting: value or "" for setting, value in change(cluster.changed_settings, _no_list).items()}
        fixed = sorted(changed.keys() - DYNAMIC)
        if fixed:
            raise RefusedError(f"{fixed[0]} does not change while brokers run", code=error_codes.INVALID_REQUEST)
        return partial(cluster.change_broker_settings, cluster.with_settings(changed), changed)
    if kind != _TOPIC:
        raise RefusedError(f"settings of resources of type {kind} cannot be changed", code=error_codes.INVALID_REQUEST)
    topic = cluster.topics.by_name.get(name)
    if topic is None:
        raise RefusedError("the topic does not exist", code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)

    def elements(setting: str) -> Sequence[str] | None:
        found = TOPIC_SETTINGS.get(setting)
        if found is None or not found.is_list:
            return None
        return as_list(topic.configs.get(setting, default_of(setting, cluster.config)))

    return partial(cluster.change_settings, name, check_topic_settings(change(topic.configs, elements)))


def _no_list(_: str) -> None:
    """Say that a setting has no elements that can be added or removed one by one."""


def _replaced(resource: ReplacedConfigs, before: Mapping[str, str], elements: _Elements) -> dict[str, str | None]:
    return {config.name: config.value for config in resource.configs}


def _altered(resource: AlterConfigsResource, before: Mapping[str, str], present: _Elements) -> dict[str, str | None]:
    """Return settings after the operations of IncrementalAlterConfigs."""
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise RefusedError("a setting may occur only once", code=error_codes.INVALID_REQUEST)
    configs: dict[str, str | None] = dict(before)
    for config in resource.configs:
        operation, value = config.config_operation, config.value
        if operation not in (_SET, _DELETE, _APPEND, _SUBTRACT):
            raise RefusedError(f"there is no operation {operation}", code=error_codes.INVALID_REQUEST)
        if operation == _DELETE:
            configs.pop(config.name, None)
            continue
        if value is None:
            raise RefusedError(f"setting {config.name} needs a value", code=error_codes.INVALID_REQUEST)
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
