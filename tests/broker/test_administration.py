"""Requests of administrators about producers, replicas, and settings of brokers and groups."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.wire import error_codes
from consumer_coord.wire.messages.admin import (
    AlterConfigsRequest,
    ListConfigResourcesRequest,
    ReplacedConfig,
    ReplacedConfigs,
)
from consumer_coord.wire.messages.cluster import FeatureUpdate, UpdateFeaturesRequest
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatRequest
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
from consumer_coord.wire.messages.transactions import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.test_topic_settings import DELETE, SET, TOPIC, change, described
from tests.broker.test_transactions import TxnProducer, log_of, on_cluster

BROKER, METRICS, GROUP = 4, 16, 32


async def producers(client: TxnProducer, index: int = 0, broker: int = 0) -> tuple[int, tuple[ActiveProducer, ...]]:
    """Return (error code, producers) of a partition of "orders"."""
    request = DescribeProducersRequest((DescribeProducersTopic("orders", (index,)),))
    partition = (await client.ask(request, 0, broker)).topics[0].partitions[0]
    return partition.error_code, partition.active_producers


async def mark(client: TxnProducer, epoch: int, *, committed: bool = False, coordinator_epoch: int = 0, index: int = 0) -> int:
    """Send WriteTxnMarkers for the client's producer; return the error code."""
    topics = (WritableTxnMarkerTopic("orders", (index,)),)
    marker = WritableTxnMarker(client.producer_id, epoch, committed, topics, coordinator_epoch)
    (result,) = (await client.ask(WriteTxnMarkersRequest((marker,)), 1)).markers
    assert result.producer_id == client.producer_id
    return int(result.topics[0].partitions[0].error_code)


def test_producers_of_a_partition_are_described() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        assert await producers(producer) == (0, ())
        await producer.init()
        await producer.send(count=2)
        (found,) = (await producers(producer))[1]
        assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
        assert (found.last_sequence, found.coordinator_epoch, found.current_txn_start_offset) == (1, -1, 0)
        await producer.end(True)
        (found,) = (await producers(producer))[1]
        # The marker of a new client has the next epoch.
        assert (found.producer_epoch, found.last_sequence) == (producer.epoch, -1)
        assert (found.coordinator_epoch, found.current_txn_start_offset) == (0, -1)
        assert (await producers(producer, index=9))[0] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        assert (await producers(producer, index=0, broker=1))[0] == error_codes.NOT_LEADER_OR_FOLLOWER

    on_cluster(work, brokers=2)


def test_a_marker_of_an_administrator_ends_a_hanging_transaction() -> None:
    async def work(cluster: BrokerCluster) -> None:
        producer = TxnProducer(cluster)
        await producer.init()
        await producer.send()
        log = log_of(cluster)
        assert log.last_stable_offset == 0
        assert await mark(producer, producer.epoch - 1) == error_codes.INVALID_PRODUCER_EPOCH
        assert log.last_stable_offset == 0
        assert await mark(producer, producer.epoch, coordinator_epoch=3) == 0
        assert log.last_stable_offset == log.end_offset == 2
        assert [one.first_offset for one in log.aborted_transactions(0)] == [0]
        fenced = await mark(producer, producer.epoch, coordinator_epoch=2)
        assert fenced == error_codes.TRANSACTION_COORDINATOR_FENCED
        assert await mark(producer, producer.epoch, index=9) == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        cluster.faults.is_full = True
        assert await mark(producer, producer.epoch, coordinator_epoch=3) == error_codes.KAFKA_STORAGE_ERROR

    on_cluster(work)


def test_log_directories_have_the_sizes_of_a_brokers_replicas() -> None:
    async def work(cluster: BrokerCluster) -> None:
        cluster.create_topic("one", 2, replication_factor=1)
        client = TxnProducer(cluster)
        await client.init()
        await client.send()
        sizes: list[dict[tuple[str, int], int]] = []
        for broker in (0, 1):
            (directory,) = (await client.ask(DescribeLogDirsRequest(topics=None), 5, broker)).results
            found = {(topic.name, one.partition_index): one for topic in directory.topics for one in topic.partitions}
            sizes.append({name: one.partition_size for name, one in found.items()})
        assert sizes[0]["orders", 0] == sizes[1]["orders", 0] == log_of(cluster).size > 0
        assert sum(("one", index) in of for of in sizes for index in (0, 1)) == 2
        wanted = DescribeLogDirsRequest(topics=(DescribableLogDirTopic("orders", (1,)), DescribableLogDirTopic("none", (0,))))
        (directory,) = (await client.ask(wanted, 5)).results
        assert [(one.name, len(one.partitions)) for one in directory.topics] == [("orders", 1)]

    on_cluster(work, brokers=2)


async def elect(client: TxnProducer, kind: int, *partitions: int) -> list[tuple[int, int]]:
    """Send ElectLeaders, without partitions for all; return (partition, error code)."""
    topics = (ElectLeadersTopic("orders", partitions),) if partitions else None
    response = await client.ask(ElectLeadersRequest(kind, topics), 2)
    return [(one.partition_id, one.error_code) for topic in response.replica_election_results for one in topic.partition_result]


def test_the_preferred_replica_is_elected() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        cluster.stop(1)
        assert await elect(client, 0, 0, 1) == [
            (0, error_codes.ELECTION_NOT_NEEDED),
            (1, error_codes.PREFERRED_LEADER_NOT_AVAILABLE),
        ]
        cluster.start(1)
        partition = cluster.topics.partition("orders", 1)
        assert partition is not None
        before = partition.leader
        assert await elect(client, 1, 1) == [(1, error_codes.ELECTION_NOT_NEEDED)]
        assert (1, error_codes.NONE) in await elect(client, 0)
        assert (partition.leader, before) == (1, 0)
        assert await elect(client, 0) == []
        assert await elect(client, 0, 7) == [(7, error_codes.UNKNOWN_TOPIC_OR_PARTITION)]

    on_cluster(work, brokers=2)


def test_an_election_needs_a_replica_that_is_up() -> None:
    async def work(cluster: BrokerCluster) -> None:
        cluster.create_topic("one", 2, replication_factor=1)
        lonely = next(one for one in cluster.topics.by_name["one"].partitions if one.leader == 1)
        cluster.stop(1)
        request = ElectLeadersRequest(1, (ElectLeadersTopic("one", (lonely.index,)),))
        (topic,) = (await TxnProducer(cluster).ask(request, 2)).replica_election_results
        assert topic.partition_result[0].error_code == error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE

    on_cluster(work, brokers=2)


async def reassign(client: TxnProducer, replicas: tuple[int, ...] | None, *, index: int = 0, resize: bool = True) -> int:
    """Send AlterPartitionReassignments; return the error code."""
    topics = (ReassignableTopic("orders", (ReassignablePartition(index, replicas),)),)
    response = await client.ask(AlterPartitionReassignmentsRequest(1_000, resize, topics), 1)
    return int(response.responses[0].partitions[0].error_code)


def test_replicas_move_at_once_and_a_leader_that_is_none_of_them_is_replaced() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        partition = cluster.topics.partition("orders", 0)
        assert partition is not None
        assert (partition.replicas, partition.leader) == ((0, 1, 2), 0)
        version = cluster.topics.version
        assert await reassign(client, (2, 1, 0)) == 0
        assert (partition.replicas, partition.leader, partition.leader_epoch) == ((2, 1, 0), 0, 0)
        assert cluster.topics.version > version, "clients would get old metadata"
        assert await reassign(client, (2, 1)) == 0
        assert (partition.leader, partition.leader_epoch) == (2, 1)
        assert (await client.ask(ListPartitionReassignmentsRequest(), 0)).topics == ()

    on_cluster(work, brokers=3)


@pytest.mark.parametrize(
    ("replicas", "options", "code"),
    [
        ((), {}, error_codes.INVALID_REPLICA_ASSIGNMENT),
        ((0, 0), {}, error_codes.INVALID_REPLICA_ASSIGNMENT),
        ((0, 9), {}, error_codes.INVALID_REPLICA_ASSIGNMENT),
        ((0,), {"resize": False}, error_codes.INVALID_REPLICATION_FACTOR),
        (None, {}, error_codes.NO_REASSIGNMENT_IN_PROGRESS),
        ((0, 1), {"index": 9}, error_codes.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_impossible_move_is_refused(replicas: tuple[int, ...] | None, options: dict[str, Any], code: int) -> None:
    async def work(cluster: BrokerCluster) -> None:
        assert await reassign(TxnProducer(cluster), replicas, **options) == code
        assert cluster.topics.by_name["orders"].partitions[0].replicas == (0, 1)

    on_cluster(work, brokers=2)


def test_the_defaults_of_topics_change_while_brokers_run() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        assert await change(client, ("message.max.bytes", SET, "10"), topic="", kind=BROKER) == 0
        assert log_of(cluster).settings.max_batch_bytes == 10
        await client.init()
        assert await client.send() == error_codes.MESSAGE_TOO_LARGE
        assert (await described(client))["max.message.bytes"] == ("10", 5)
        for name in ("", "0"):
            assert (await described(client, name, BROKER))["message.max.bytes"] == ("10", 3)
        assert (await described(client, "", BROKER)).keys() == {"message.max.bytes"}
        assert await change(client, ("message.max.bytes", DELETE, None), topic="0", kind=BROKER) == 0
        assert await client.send() == 0
        assert (await described(client, "0", BROKER))["message.max.bytes"] == ("1048588", 5)
        assert await described(client, "", BROKER) == {}

    on_cluster(work)


def test_other_changes_of_brokers_are_refused() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        refused = {
            ("num.partitions", "3", "0"): error_codes.INVALID_REQUEST,
            ("message.max.bytes", "3", "9"): error_codes.INVALID_REQUEST,
            ("message.max.bytes", "many", ""): error_codes.INVALID_REQUEST,
        }
        for (name, value, broker), code in refused.items():
            assert await change(client, (name, SET, value), topic=broker, kind=BROKER) == code
        assert await change(client, ("message.max.bytes", SET, "9"), topic="", kind=BROKER, validate_only=True) == 0
        assert log_of(cluster).settings.max_batch_bytes == cluster.config.message_max_bytes == 1_048_588

    on_cluster(work)


def test_a_group_has_its_own_heartbeats_and_sessions() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        interval, session = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"
        assert await change(client, (interval, SET, "700"), (session, SET, "2000"), topic="fast", kind=GROUP) == 0
        assert await described(client, "fast", GROUP) == {interval: ("700", 8), session: ("2000", 8)}
        assert await described(client, "other", GROUP) == {interval: ("5000", 5), session: ("45000", 5)}
        found = {}
        for group in ("fast", "other"):
            request = ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id="member",
                rebalance_timeout_ms=1_000,
                subscribed_topic_names=("orders",),
                topic_partitions=(),
            )
            found[group] = (await client.ask(request, 1)).heartbeat_interval_ms
        assert found == {"fast": 700, "other": 5_000}
        refused = {("consumer.session.timeout.ms", "600"), ("share.session.timeout.ms", "9"), (session, "soon")}
        for name, value in refused:
            assert await change(client, (name, SET, value), topic="fast", kind=GROUP) == error_codes.INVALID_CONFIG
        assert await change(client, (interval, DELETE, None), (session, DELETE, None), topic="fast", kind=GROUP) == 0
        assert (await described(client, "fast", GROUP))[session] == ("45000", 5)

    on_cluster(work)


def test_a_member_of_a_group_with_a_short_session_is_fenced_sooner() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        changes = (("consumer.heartbeat.interval.ms", SET, "700"), ("consumer.session.timeout.ms", SET, "2000"))
        assert await change(client, *changes, topic="fast", kind=GROUP) == 0
        join = ConsumerGroupHeartbeatRequest(
            group_id="fast",
            member_id="member",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=("orders",),
            topic_partitions=(),
        )
        epoch = (await client.ask(join, 1)).member_epoch
        await asyncio.sleep(1.9)
        again = ConsumerGroupHeartbeatRequest(group_id="fast", member_id="member", member_epoch=epoch)
        assert (await client.ask(again, 1)).error_code == 0
        await asyncio.sleep(2.1)
        assert (await client.ask(again, 1)).error_code == error_codes.UNKNOWN_MEMBER_ID

    on_cluster(work)


def test_older_administrators_replace_all_settings() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        assert await change(client, ("retention.ms", SET, "9")) == 0

        async def replace(*configs: tuple[str, str | None]) -> int:
            resource = ReplacedConfigs(TOPIC, "orders", tuple(ReplacedConfig(*one) for one in configs))
            return int((await client.ask(AlterConfigsRequest((resource,)), 2)).responses[0].error_code)

        assert await replace(("segment.bytes", "1048576")) == 0
        found = await described(client)
        assert (found["retention.ms"], found["segment.bytes"]) == (("-1", 5), ("1048576", 1))
        assert await replace(("retention.ms", None)) == error_codes.INVALID_CONFIG
        assert (await described(client))["segment.bytes"] == ("1048576", 1)

    on_cluster(work)


def test_resources_with_settings_are_listed() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        assert await change(client, ("metrics", SET, "org.apache"), topic="watch", kind=METRICS) == 0
        assert await change(client, ("consumer.session.timeout.ms", SET, "50000"), topic="readers", kind=GROUP) == 0

        async def listed(version: int, *types: int) -> set[tuple[str, int]]:
            response = await client.ask(ListConfigResourcesRequest(types), version)
            return {(one.resource_name, one.resource_type) for one in response.config_resources}

        assert await listed(0) == {("watch", METRICS)}
        assert await listed(1, GROUP) == {("readers", GROUP)}
        assert await listed(1) >= {("watch", METRICS), ("readers", GROUP), ("orders", TOPIC), ("0", BROKER), ("1", BROKER)}
        refused = await client.ask(ListConfigResourcesRequest((99,)), 1)
        assert refused.error_code == error_codes.UNSUPPORTED_VERSION
        assert await described(client, "watch", METRICS) == {"interval.ms": ("300000", 5), "metrics": ("org.apache", 7)}

    on_cluster(work, brokers=2)


USER, CLIENT, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = range(3)


async def set_quota(client: TxnProducer, entity: dict[str, str | None], key: str, value: float | None, **more: bool) -> int:
    """Send AlterClientQuotas; None removes the quota. Return the error code."""
    parts = tuple(QuotaEntity(*part) for part in entity.items())
    operation = QuotaOperation(key, value or 0.0, value is None)
    request = AlterClientQuotasRequest((QuotaAlteration(parts, (operation,)),), **more)
    return int((await client.ask(request, 1)).entries[0].error_code)


async def quotas(client: TxnProducer, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    """Send DescribeClientQuotas; return the quotas by entity, or the error code."""
    request = DescribeClientQuotasRequest(tuple(QuotaComponent(*one) for one in components), strict)
    response = await client.ask(request, 1)
    if response.error_code:
        return response.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {one.key: one.value for one in entry.values}
        for entry in response.entries
    }


def test_quotas_are_kept_described_and_removed() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        assert await quotas(client) == {}
        assert await set_quota(client, {CLIENT: "c"}, "consumer_byte_rate", 9.0, validate_only=True) == 0
        assert await quotas(client) == {}
        assert await set_quota(client, {CLIENT: "c"}, "consumer_byte_rate", 9.0) == 0
        assert await set_quota(client, {USER: "u", CLIENT: None}, "request_percentage", 0.5) == 0
        assert await set_quota(client, {IP: None}, "connection_creation_rate", 3.0) == 0
        one, two = ((CLIENT, "c"),), ((CLIENT, None), (USER, "u"))
        assert await quotas(client, (CLIENT, ANY, None)) == {one: {"consumer_byte_rate": 9.0}, two: {"request_percentage": 0.5}}
        assert (await quotas(client, (CLIENT, ANY, None), strict=True)).keys() == {one}
        assert (await quotas(client, (CLIENT, DEFAULT, None))).keys() == {two}
        assert (await quotas(client, (CLIENT, EXACT, "c"))).keys() == {one}
        assert (await quotas(client, (USER, EXACT, "u"), (CLIENT, DEFAULT, None), strict=True)).keys() == {two}
        assert (await quotas(client)).keys() == {one, two, ((IP, None),)}
        assert await set_quota(client, {CLIENT: "c"}, "consumer_byte_rate", None) == 0
        assert await quotas(client, (CLIENT, EXACT, "c")) == {}

    on_cluster(work)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({}, "consumer_byte_rate", 9.0),
        ({"group": "g"}, "consumer_byte_rate", 9.0),
        ({IP: "::1", USER: "u"}, "consumer_byte_rate", 9.0),
        ({USER: "u"}, "connection_creation_rate", 9.0),
        ({USER: "u"}, "consumer_byte_rate", 0.5),
        ({USER: "u"}, "request_percentage", -1.0),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(entity: dict[str, str | None], key: str, value: float) -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        assert await set_quota(client, entity, key, value) == error_codes.INVALID_REQUEST
        assert await quotas(client) == {}

    on_cluster(work)


def test_a_filter_of_quotas_that_makes_no_sense_is_refused() -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        for components in [
            ((USER, ANY, None),) * 2,
            ((USER, ANY, None), (IP, ANY, None)),
            ((USER, EXACT, None),),
            ((USER, 9, None),),
        ]:
            assert await quotas(client, *components) == error_codes.INVALID_REQUEST
        assert await quotas(client, ("group", ANY, None)) == error_codes.UNSUPPORTED_VERSION

    on_cluster(work)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_levels_of_features_stay(version: int) -> None:
    async def work(cluster: BrokerCluster) -> None:
        client = TxnProducer(cluster)
        expected = {("transaction.version", 2): 0, ("transaction.version", 1): 95, ("metadata.version", 2): 95}
        for (name, level), code in expected.items():
            response = await client.ask(UpdateFeaturesRequest(feature_updates=(FeatureUpdate(name, level),)), version)
            assert response.error_code == code == error_codes.INVALID_UPDATE_VERSION * bool(code)
            assert [one.error_code for one in response.results] == ([0] if version < 2 and not code else [])

    on_cluster(work)
