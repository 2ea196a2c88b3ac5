"""Messages about the cluster: the brokers, the versions of requests that the brokers support, and the topics."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from consumer_coord.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Struct, array, field


class ApiVersionsRequest(Struct, versions="0-5", flexible="3+"):
    """Request for the supported versions of each API; it names the client's software and version (KIP-511).

    If ``cluster_id`` and ``node_id`` are set (KIP-1242), a broker with other ids responds with REBOOTSTRAP_REQUIRED.
    """

    client_software_name: str = field(STRING, "3+", ignorable=True)
    client_software_version: str = field(STRING, "3+", ignorable=True)
    cluster_id: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    node_id: int = field(INT32, "5+", default=-1, ignorable=True)


class ApiVersion(Struct):
    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class SupportedFeatureKey(Struct):
    name: str = field(STRING, "3+")
    min_version: int = field(INT16, "3+")
    max_version: int = field(INT16, "3+")


class FinalizedFeatureKey(Struct):
    name: str = field(STRING, "3+")
    max_version_level: int = field(INT16, "3+")
    min_version_level: int = field(INT16, "3+")


class ApiVersionsResponse(Struct, versions="0-5", flexible="3+"):
    """Response with the versions that a broker supports; the header of this response always has version 0."""

    error_code: int = field(INT16)
    api_keys: Sequence[ApiVersion] = field(array(ApiVersion))
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    supported_features: Sequence[SupportedFeatureKey] = field(array(SupportedFeatureKey), "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = field(INT64, "3+", tag=1, default=-1, ignorable=True)
    finalized_features: Sequence[FinalizedFeatureKey] = field(array(FinalizedFeatureKey), "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = field(BOOL, "3+", tag=3, ignorable=True)


class MetadataRequestTopic(Struct):
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    name: str | None = field(STRING, nullable="10+")


class MetadataRequest(Struct, versions="0-13", flexible="9+"):
    """Request for brokers and topics. ``topics``: None for all topics, empty for no topics (in version 0, for all topics)."""

    topics: Sequence[MetadataRequestTopic] | None = field(array(MetadataRequestTopic), nullable="1+")
    allow_auto_topic_creation: bool = field(BOOL, "4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, "8-10")
    include_topic_authorized_operations: bool = field(BOOL, "8+")


class MetadataResponseBroker(Struct):
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, "1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, "7+", default=-1, ignorable=True)
    replica_nodes: Sequence[int] = field(array(INT32))
    isr_nodes: Sequence[int] = field(array(INT32))
    offline_replicas: Sequence[int] = field(array(INT32), "5+", ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="12+")
    topic_id: uuid.UUID = field(UUID, "10+", ignorable=True)
    is_internal: bool = field(BOOL, "1+", ignorable=True)
    partitions: Sequence[MetadataResponsePartition] = field(array(MetadataResponsePartition))
    topic_authorized_operations: int = field(INT32, "8+", default=-2147483648)


class MetadataResponse(Struct, versions="0-13", flexible="9+"):
    """Response with the brokers, the controller and the topics of the cluster."""

    throttle_time_ms: int = field(INT32, "3+", ignorable=True)
    brokers: Sequence[MetadataResponseBroker] = field(array(MetadataResponseBroker))
    cluster_id: str | None = field(STRING, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = field(INT32, "1+", default=-1, ignorable=True)
    topics: Sequence[MetadataResponseTopic] = field(array(MetadataResponseTopic))
    cluster_authorized_operations: int = field(INT32, "8-10", default=-2147483648)
    error_code: int = field(INT16, "13+", ignorable=True)


class DescribeClusterRequest(Struct, versions="0-2", flexible="0+"):
    """Request for the brokers or controllers of the cluster (KIP-700, KIP-919)."""

    include_cluster_authorized_operations: bool = field(BOOL)
    endpoint_type: int = field(INT8, "1+", default=1)
    include_fenced_brokers: bool = field(BOOL, "2+")


class DescribeClusterBroker(Struct):
    broker_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)
    is_fenced: bool = field(BOOL, "2+")


class DescribeClusterResponse(Struct, versions="0-2", flexible="0+"):
    """Response with the nodes of the cluster."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    endpoint_type: int = field(INT8, "1+", default=1)
    cluster_id: str = field(STRING)
    controller_id: int = field(INT32, default=-1)
    brokers: Sequence[DescribeClusterBroker] = field(array(DescribeClusterBroker))
    cluster_authorized_operations: int = field(INT32, default=-2147483648)


class FeatureUpdate(Struct):
    """Element of ``UpdateFeaturesRequest.feature_updates``; an upgrade is of type 1, a safe downgrade of type 2."""

    feature: str = field(STRING)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)


class UpdateFeaturesRequest(Struct, versions="0-2", flexible="0+"):
    """Request to change the levels of features of the cluster (KIP-584)."""

    timeout_ms: int = field(INT32, default=60_000)
    feature_updates: Sequence[FeatureUpdate] = field(array(FeatureUpdate))
    validate_only: bool = field(BOOL, "1+")


class FeatureUpdateResult(Struct):
    feature: str = field(STRING, "0-1")
    error_code: int = field(INT16, "0-1")
    error_message: str | None = field(STRING, "0-1", nullable="0-1")


class UpdateFeaturesResponse(Struct, versions="0-2", flexible="0+"):
    """Response with an outcome for all features; up to version 1, also with one for each feature."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: Sequence[FeatureUpdateResult] = field(array(FeatureUpdateResult), "0-1", ignorable=True)
