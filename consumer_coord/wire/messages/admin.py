"""Messages that create, change and describe topics and configurations."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Struct, array, field


class CreatableReplicaAssignment(Struct):
    partition_index: int = field(INT32)
    broker_ids: Sequence[int] = field(array(INT32))


class CreatableTopicConfig(Struct):
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class CreatableTopic(Struct):
    name: str = field(STRING)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: Sequence[CreatableReplicaAssignment] = field(array(CreatableReplicaAssignment))
    configs: Sequence[CreatableTopicConfig] = field(array(CreatableTopicConfig))


class CreateTopicsRequest(Struct, versions="2-7", flexible="5+"):
    """Request to create topics."""

    topics: Sequence[CreatableTopic] = field(array(CreatableTopic))
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOL)


class CreatableTopicConfigs(Struct):
    name: str = field(STRING, "5+")
    value: str | None = field(STRING, "5+", nullable="5+")
    read_only: bool = field(BOOL, "5+")
    config_source: int = field(INT8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL, "5+")


class CreatableTopicResult(Struct):
    name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID, "7+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", ignorable=True)
    topic_config_error_code: int = field(INT16, "5+", tag=0, ignorable=True)
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)
    configs: Sequence[CreatableTopicConfigs] | None = field(array(CreatableTopicConfigs), "5+", nullable="5+", ignorable=True)


class CreateTopicsResponse(Struct, versions="2-7", flexible="5+"):
    """Response with the outcome for each topic."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    topics: Sequence[CreatableTopicResult] = field(array(CreatableTopicResult))


class DeleteTopicState(Struct):
    name: str | None = field(STRING, "6+", nullable="6+", default=None)
    topic_id: uuid.UUID = field(UUID, "6+")


class DeleteTopicsRequest(Struct, versions="1-6", flexible="4+"):
    """Request to delete topics, by name, and from version 6 by name or id."""

    topics: Sequence[DeleteTopicState] = field(array(DeleteTopicState), "6+")
    topic_names: Sequence[str] = field(array(STRING), "0-5", ignorable=True)
    timeout_ms: int = field(INT32)


class DeletableTopicResult(Struct):
    name: str | None = field(STRING, nullable="6+")
    topic_id: uuid.UUID = field(UUID, "6+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


class DeleteTopicsResponse(Struct, versions="1-6", flexible="4+"):
    """Response with the outcome for each topic."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    responses: Sequence[DeletableTopicResult] = field(array(DeletableTopicResult))


class CreatePartitionsAssignment(Struct):
    broker_ids: Sequence[int] = field(array(INT32))


class CreatePartitionsTopic(Struct):
    name: str = field(STRING)
    count: int = field(INT32)
    assignments: Sequence[CreatePartitionsAssignment] | None = field(array(CreatePartitionsAssignment), nullable="0+")


class CreatePartitionsRequest(Struct, versions="0-3", flexible="2+"):
    """Request to increase the number of partitions of topics."""

    topics: Sequence[CreatePartitionsTopic] = field(array(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


class CreatePartitionsTopicResult(Struct):
    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


class CreatePartitionsResponse(Struct, versions="0-3", flexible="2+"):
    """Response with the outcome for each topic."""

    throttle_time_ms: int = field(INT32)
    results: Sequence[CreatePartitionsTopicResult] = field(array(CreatePartitionsTopicResult))


class DescribeConfigsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configuration_keys: Sequence[str] | None = field(array(STRING), nullable="0+")


class DescribeConfigsRequest(Struct, versions="1-4", flexible="4+"):
    """Request for the configuration of topics, brokers or groups."""

    resources: Sequence[DescribeConfigsResource] = field(array(DescribeConfigsResource))
    include_synonyms: bool = field(BOOL)
    include_documentation: bool = field(BOOL, "3+")


class DescribeConfigsSynonym(Struct):
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    source: int = field(INT8)


class DescribeConfigsResourceResult(Struct):
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    config_source: int = field(INT8, default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL)
    synonyms: Sequence[DescribeConfigsSynonym] = field(array(DescribeConfigsSynonym), ignorable=True)
    config_type: int = field(INT8, "3+", ignorable=True)
    documentation: str | None = field(STRING, "3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: Sequence[DescribeConfigsResourceResult] = field(array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(Struct, versions="1-4", flexible="4+"):
    """Response with the configuration of each resource."""

    throttle_time_ms: int = field(INT32)
    results: Sequence[DescribeConfigsResult] = field(array(DescribeConfigsResult))


class AlterableConfig(Struct):
    """Element of ``AlterConfigsResource.configs``; the operation is 0 (set), 1 (delete), 2 (append) or 3 (subtract)."""

    name: str = field(STRING)
    config_operation: int = field(INT8)
    value: str | None = field(STRING, nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: Sequence[AlterableConfig] = field(array(AlterableConfig))


class IncrementalAlterConfigsRequest(Struct, versions="0-1", flexible="1+"):
    """Request to change some settings of topics, brokers or groups (KIP-339)."""

    resources: Sequence[AlterConfigsResource] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)


class AlterConfigsResourceResponse(Struct):
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


class IncrementalAlterConfigsResponse(Struct, versions="0-1", flexible="1+"):
    """Response with the outcome for each resource."""

    throttle_time_ms: int = field(INT32)
    responses: Sequence[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse))


class ReplacedConfig(Struct):
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class ReplacedConfigs(Struct):
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: Sequence[ReplacedConfig] = field(array(ReplacedConfig))


class AlterConfigsRequest(Struct, versions="0-2", flexible="2+"):
    """Request to replace all settings of topics, as older administrators send it."""

    resources: Sequence[ReplacedConfigs] = field(array(ReplacedConfigs))
    validate_only: bool = field(BOOL)


class AlterConfigsResponse(Struct, versions="0-2", flexible="2+"):
    """Response with the outcome for each resource."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    responses: Sequence[AlterConfigsResourceResponse] = field(array(AlterConfigsResourceResponse))


class ListConfigResourcesRequest(Struct, versions="0-1", flexible="0+"):
    """Request for the resources that have settings: of some types, or of all; in version 0, subscriptions of metrics."""

    resource_types: Sequence[int] = field(array(INT8), "1+")


class ConfigResource(Struct):
    """Element of ``ListConfigResourcesResponse.config_resources``; type 16 is a subscription of clients' metrics."""

    resource_name: str = field(STRING)
    resource_type: int = field(INT8, "1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Struct, versions="0-1", flexible="0+"):
    """Response with the names of the resources."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    config_resources: Sequence[ConfigResource] = field(array(ConfigResource))
