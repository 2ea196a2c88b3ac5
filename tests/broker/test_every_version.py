"""Every request that is served, in every version that is served, with success and with every fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random

import attrs
import pytest

from consumer_coord.broker import Fault
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.broker.record_batch import build_batch
from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.errors import MalformedMessageError, UnsupportedVersionError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import APIS, api_for
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ReplacedConfig,
    ReplacedConfigs,
)
from consumer_coord.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    FeatureUpdate,
    MetadataRequest,
    MetadataRequestTopic,
    UpdateFeaturesRequest,
)
from consumer_coord.wire.messages.consumer_group import ConsumerGroupDescribeRequest
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from consumer_coord.wire.messages.log import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    InitProducerIdRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from consumer_coord.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from consumer_coord.wire.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaComponent,
    QuotaEntity,
    QuotaOperation,
)
from consumer_coord.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from consumer_coord.wire.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from consumer_coord.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from consumer_coord.wire.schema import Struct
from tests.support.broker.bench import subscription


def batch() -> bytes:
    """Return the records that a producer sends."""
    return build_batch([(b"k", b"v")], base_offset=0, timestamp_ms=5, leader_epoch=-1)


def _protocols() -> tuple[JoinGroupRequestProtocol, ...]:
    return (JoinGroupRequestProtocol(name="range", metadata=subscription("orders")),)


#: API key -> makes a request for a version; topic "orders" exists.
REQUESTS: Mapping[int, Callable[[int], Struct]] = {
    0: lambda version: ProduceRequest(
        acks=-1,
        timeout_ms=1_000,
        topic_data=(TopicProduceData(name="orders", partition_data=(PartitionProduceData(index=0, records=batch()),)),),
    ),
    1: lambda version: FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=(
            FetchTopic(
                topic="orders",
                partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000),),
            ),
        ),
    ),
    2: lambda version: ListOffsetsRequest(
        replica_id=-1,
        topics=(ListOffsetsTopic(name="orders", partitions=(ListOffsetsPartition(partition_index=0, timestamp=0),)),),
    ),
    3: lambda version: MetadataRequest(topics=(MetadataRequestTopic(name="orders"),)),
    8: lambda version: OffsetCommitRequest(
        group_id="simple",
        topics=(
            OffsetCommitRequestTopic(
                name="orders",
                partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None),),
            ),
        ),
    ),
    9: lambda version: (
        OffsetFetchRequest(
            groups=(
                OffsetFetchRequestGroup(
                    group_id="simple", topics=(OffsetFetchRequestTopics(name="orders", partition_indexes=(0,)),)
                ),
            )
        )
        if version >= 8
        else OffsetFetchRequest(group_id="simple", topics=(OffsetFetchRequestTopic(name="orders", partition_indexes=(0,)),))
    ),
    10: lambda version: (
        FindCoordinatorRequest(key_type=0, coordinator_keys=("group",)) if version >= 4 else FindCoordinatorRequest(key="group")
    ),
    11: lambda version: JoinGroupRequest(
        group_id=f"join-{version}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="instance" if version >= 5 else None,
        protocol_type="consumer",
        protocols=_protocols(),
    ),
    12: lambda version: HeartbeatRequest(group_id="group", generation_id=1, member_id="m"),
    13: lambda version: (
        LeaveGroupRequest(group_id="group", members=(MemberIdentity(member_id="m"),))
        if version >= 3
        else LeaveGroupRequest(group_id="group", member_id="m")
    ),
    14: lambda version: SyncGroupRequest(
        group_id="group", generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
    ),
    15: lambda version: DescribeGroupsRequest(groups=("group", "simple")),
    16: lambda version: ListGroupsRequest(),
    18: lambda version: ApiVersionsRequest(client_software_name="n", client_software_version="v"),
    19: lambda version: CreateTopicsRequest(
        topics=(CreatableTopic(name=f"new-{version}", num_partitions=1, replication_factor=1, assignments=(), configs=()),)
    ),
    20: lambda version: (
        DeleteTopicsRequest(topics=(DeleteTopicState(name="absent"),), timeout_ms=1_000)
        if version >= 6
        else DeleteTopicsRequest(topic_names=("absent",), timeout_ms=1_000)
    ),
    21: lambda version: DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name="orders", partitions=(DeleteRecordsPartition(partition_index=0, offset=0),)),),
        timeout_ms=1_000,
    ),
    22: lambda version: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000),
    23: lambda version: OffsetForLeaderEpochRequest(
        topics=(OffsetForLeaderTopic(topic="orders", partitions=(OffsetForLeaderPartition(partition=0, leader_epoch=0),)),)
    ),
    24: lambda version: AddPartitionsToTxnRequest(
        transactions=(AddPartitionsToTxnTransaction("t", 1, 0, topics=(AddPartitionsToTxnTopic("orders", (0,)),)),)
        if version >= 4
        else (),
        v3_and_below_transactional_id="" if version >= 4 else "t",
        v3_and_below_topics=() if version >= 4 else (AddPartitionsToTxnTopic("orders", (0,)),),
    ),
    25: lambda version: AddOffsetsToTxnRequest(transactional_id="t", group_id="group"),
    26: lambda version: EndTxnRequest(transactional_id="t", committed=True),
    27: lambda version: WriteTxnMarkersRequest(
        markers=(WritableTxnMarker(7, 0, True, (WritableTxnMarkerTopic("orders", (0,)),), 0),)
    ),
    28: lambda version: TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="simple",
        topics=(TxnOffsetCommitRequestTopic(name="orders", partitions=(TxnOffsetCommitRequestPartition(0, 1),)),),
    ),
    32: lambda version: DescribeConfigsRequest(
        resources=(
            DescribeConfigsResource(resource_type=2, resource_name="orders", configuration_keys=None),
            DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None),
        )
    ),
    33: lambda version: AlterConfigsRequest(
        resources=(ReplacedConfigs(2, "orders", (ReplacedConfig("retention.ms", "9"),)),), validate_only=True
    ),
    35: lambda version: DescribeLogDirsRequest(topics=(DescribableLogDirTopic("orders", (0,)),)),
    37: lambda version: CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name="orders", count=1, assignments=None),), timeout_ms=1_000
    ),
    42: lambda version: DeleteGroupsRequest(groups_names=("absent",)),
    43: lambda version: ElectLeadersRequest(topic_partitions=(ElectLeadersTopic("orders", (0,)),)),
    44: lambda version: IncrementalAlterConfigsRequest(
        resources=(AlterConfigsResource(2, "orders", (AlterableConfig("retention.ms", 0, "9"),)),), validate_only=True
    ),
    45: lambda version: AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic("orders", (ReassignablePartition(0, (0,)),)),)
    ),
    46: lambda version: ListPartitionReassignmentsRequest(),
    47: lambda version: OffsetDeleteRequest(
        group_id="simple",
        topics=(OffsetDeleteRequestTopic(name="orders", partitions=(OffsetDeleteRequestPartition(partition_index=0),)),),
    ),
    48: lambda version: DescribeClientQuotasRequest(components=(QuotaComponent("client-id", 2, None),)),
    49: lambda version: AlterClientQuotasRequest(
        entries=(QuotaAlteration((QuotaEntity("client-id", "c"),), (QuotaOperation("consumer_byte_rate", 9.0),)),)
    ),
    57: lambda version: UpdateFeaturesRequest(feature_updates=(FeatureUpdate("transaction.version", 2),)),
    60: lambda version: DescribeClusterRequest(),
    61: lambda version: DescribeProducersRequest(topics=(DescribeProducersTopic("orders", (0,)),)),
    65: lambda version: DescribeTransactionsRequest(transactional_ids=("t",)),
    66: lambda version: ListTransactionsRequest(),
    68: lambda version: ConsumerGroupHeartbeatRequest(
        group_id="modern",
        member_id=f"member-{version}" if version else "",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=("orders",),
        topic_partitions=(),
    ),
    69: lambda version: ConsumerGroupDescribeRequest(group_ids=("modern",)),
    71: lambda version: GetTelemetrySubscriptionsRequest(),
    72: lambda version: PushTelemetryRequest(),
    74: lambda version: ListConfigResourcesRequest(),
}
#: API key -> (lowest, highest version) that the handlers were read through for.
HANDLED: Mapping[int, tuple[int, int]] = {
    0: (3, 12),
    1: (4, 18),
    2: (1, 8),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    10: (0, 5),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 5),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    27: (1, 1),
    28: (0, 6),
    32: (1, 4),
    33: (0, 2),
    35: (1, 5),
    37: (0, 3),
    42: (0, 3),
    43: (0, 2),
    44: (0, 1),
    45: (0, 1),
    46: (0, 0),
    47: (0, 0),
    48: (0, 1),
    49: (0, 1),
    57: (0, 2),
    60: (0, 1),
    61: (0, 0),
    65: (0, 0),
    66: (0, 2),
    68: (0, 1),
    69: (0, 1),
    71: (0, 0),
    72: (0, 0),
    74: (0, 1),
}
CASES = [(key, version) for key, api in SERVED.items() for version in range(api.min_version, api.max_version + 1)]


async def _cluster() -> BrokerCluster:
    config = BrokerConfig.from_mapping(
        {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0, "client.metrics.enable": True}
    )
    cluster = BrokerCluster(config, {"orders": 2}, random=Random(1), wall_clock_ms=lambda: 1_000)
    cluster.start_all()
    return cluster


async def _ask(cluster: BrokerCluster, key: int, version: int) -> Struct:
    return await _send(cluster, REQUESTS[key](version), version)


async def _send(cluster: BrokerCluster, request: Struct, version: int) -> Struct:
    answer = await KafkaApis(cluster.nodes[0]).handle(encode_request(request, version, 7, "client"), ClientConnection())
    assert answer is not None
    correlation_id, response = decode_response(api_for(type(request)).response, version, answer)
    assert correlation_id == 7
    return response


def test_every_request_that_is_served_is_here() -> None:
    assert set(REQUESTS) == set(SERVED)


def test_only_versions_that_handlers_were_written_for_are_advertised() -> None:
    """A version that the codec learns for the client is not served by that."""

    async def main() -> None:
        cluster = await _cluster()
        response = await _ask(cluster, 18, 3)
        assert isinstance(response, ApiVersionsResponse)
        assert {one.api_key: (one.min_version, one.max_version) for one in response.api_keys} == HANDLED
        cluster.close()

    virtual.run(main())
    assert all(APIS[key].min_version <= low <= high <= APIS[key].max_version for key, (low, high) in HANDLED.items())


def test_requests_with_metrics_are_advertised_only_if_there_is_a_receiver() -> None:
    async def main() -> None:
        cluster = BrokerCluster(BrokerConfig(), {}, random=Random(1), wall_clock_ms=lambda: 1_000)
        cluster.start_all()
        response = await _ask(cluster, 18, 3)
        assert isinstance(response, ApiVersionsResponse)
        assert {one.api_key for one in response.api_keys} == set(HANDLED) - {71, 72}
        cluster.close()

    virtual.run(main())


def test_every_request_is_answered_in_every_version() -> None:
    async def main() -> None:
        cluster = await _cluster()
        for key, version in CASES:
            response = await _ask(cluster, key, version)
            assert type(response) is APIS[key].response
        cluster.close()

    virtual.run(main())


def test_every_request_can_fail_in_every_version() -> None:
    async def main() -> None:
        cluster = await _cluster()
        for key, version in CASES:
            cluster.faults.add(key, Fault(error_code=error_codes.KAFKA_STORAGE_ERROR))
            response = await _ask(cluster, key, version)
            assert str(error_codes.KAFKA_STORAGE_ERROR) in repr(response), f"{APIS[key].name} {version}: {response}"
        cluster.close()

    virtual.run(main())


def test_records_come_back_in_every_version_of_fetch() -> None:
    async def main() -> None:
        cluster = await _cluster()
        await _ask(cluster, 0, 9)
        topic_id = cluster.topics.by_name["orders"].topic_id
        for version in range(SERVED[1].min_version, SERVED[1].max_version + 1):
            request = REQUESTS[1](version)
            assert isinstance(request, FetchRequest)
            named = attrs.evolve(request, topics=(attrs.evolve(request.topics[0], topic_id=topic_id),))
            response = await _send(cluster, named, version)
            assert isinstance(response, FetchResponse)
            data = response.responses[0].partitions[0]
            assert data.records is not None
            assert data.records[16:] == batch()[16:]
        cluster.close()

    virtual.run(main())


def test_an_unknown_version_of_api_versions_is_told_which_there_are() -> None:
    async def main() -> None:
        cluster = await _cluster()
        frame = bytearray(encode_request(ApiVersionsRequest(), 0, 7, "client"))
        frame[2:4] = (99).to_bytes(2, "big")
        answer = await KafkaApis(cluster.nodes[0]).handle(bytes(frame), ClientConnection())
        assert answer is not None
        _, response = decode_response(ApiVersionsResponse, 0, answer)
        assert response.error_code == error_codes.UNSUPPORTED_VERSION
        assert [(one.api_key, one.max_version) for one in response.api_keys] == [(18, SERVED[18].max_version)]
        cluster.close()

    virtual.run(main())


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (b"", MalformedMessageError),
        (b"\0\x0b\0\x09", MalformedMessageError),
        (b"\0\x0b\0\x09\0\0\0\1\xff\xff\0" + b"\xff" * 20, MalformedMessageError),
        (b"\x03\xe7\0\0\0\0\0\1\xff\xff", UnsupportedVersionError),
        (b"\0\x0b\0\x63\0\0\0\1\xff\xff", UnsupportedVersionError),
        (b"\0\1\0\x13\0\0\0\1\xff\xff", UnsupportedVersionError),
    ],
)
def test_what_is_no_request_is_refused(frame: bytes, error: type[Exception]) -> None:
    async def main() -> None:
        cluster = await _cluster()
        with pytest.raises(error):
            await KafkaApis(cluster.nodes[0]).handle(frame, ClientConnection())
        cluster.close()

    virtual.run(main())


def test_random_bytes_end_nothing_but_their_connection() -> None:
    async def main() -> None:
        cluster = await _cluster()
        rng = Random(3)
        for key, version in CASES:
            frame = bytearray(encode_request(REQUESTS[key](version), version, 7, "client"))
            for _ in range(6):
                damaged = bytearray(frame)
                for _ in range(rng.randrange(1, 4)):
                    damaged[rng.randrange(8, len(damaged))] = rng.randrange(256)
                cut = bytes(damaged[: rng.randrange(8, len(damaged) + 1)])
                try:
                    async with asyncio.timeout(3_600):
                        await KafkaApis(cluster.nodes[0]).handle(cut, ClientConnection())
                except (MalformedMessageError, UnsupportedVersionError, TimeoutError):
                    continue
        assert isinstance(await _ask(cluster, 18, 3), ApiVersionsResponse)
        cluster.close()

    virtual.run(main())
