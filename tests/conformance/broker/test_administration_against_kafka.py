"""Requests of administrators about settings, quotas, features and replicas have the error codes of Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.simulation import loop as virtual
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.wire.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ReplacedConfig,
    ReplacedConfigs,
)
from consumer_coord.wire.messages.cluster import FeatureUpdate, UpdateFeaturesRequest
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
from consumer_coord.wire.schema import Struct, fields_of
from tests.support.broker.differential import RealBroker, caller

pytestmark = pytest.mark.kafka

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
SET, DELETE = 0, 1

#: The name of a topic, and the id of the broker -> a request with its version.
Asked = Callable[[str, int], tuple[Struct, int]]


def alter(kind: int, name: str | None, setting: str, value: str | None, operation: int = SET) -> Asked:
    """IncrementalAlterConfigs; without a name, of the topic."""
    return lambda topic, _: (
        IncrementalAlterConfigsRequest(
            (AlterConfigsResource(kind, topic if name is None else name, (AlterableConfig(setting, operation, value),)),)
        ),
        1,
    )


def replace(kind: int, setting: str, value: str | None) -> Asked:
    """AlterConfigs of the topic."""
    return lambda topic, _: (AlterConfigsRequest((ReplacedConfigs(kind, topic, (ReplacedConfig(setting, value),)),)), 2)


def reassign(replicas: tuple[int, ...] | None, partition: int = 0, *, here: bool = False) -> Asked:
    """AlterPartitionReassignments; ``here``: to the only broker."""
    return lambda topic, broker: (
        AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(topic, (ReassignablePartition(partition, (broker,) if here else replicas),)),)
        ),
        1,
    )


def elect(kind: int, partition: int) -> Asked:
    """ElectLeaders."""
    return lambda topic, _: (ElectLeadersRequest(kind, (ElectLeadersTopic(topic, (partition,)),)), 2)


def quota(entity: Mapping[str, str | None], key: str, value: float, *, remove: bool = False) -> Asked:
    """AlterClientQuotas."""
    parts = tuple(QuotaEntity(*part) for part in entity.items())
    alteration = QuotaAlteration(parts, (QuotaOperation(key, value, remove),))
    return lambda *_: (AlterClientQuotasRequest((alteration,)), 1)


def quotas(*components: tuple[str, int, str | None], strict: bool = False) -> Asked:
    """DescribeClientQuotas."""
    request = DescribeClientQuotasRequest(tuple(QuotaComponent(*one) for one in components), strict)
    return lambda *_: (request, 1)


def feature(name: str, level: int, version: int) -> Asked:
    """UpdateFeatures."""
    return lambda *_: (UpdateFeaturesRequest(feature_updates=(FeatureUpdate(name, level),)), version)


ASKED: Mapping[str, Asked] = {
    "a default of topics": alter(BROKER, "", "message.max.bytes", "2000000"),
    "a default of topics is removed": alter(BROKER, "", "message.max.bytes", None, DELETE),
    "a default of topics with no number": alter(BROKER, "", "message.max.bytes", "many"),
    "a setting of a group": alter(GROUP, "with-settings", "consumer.session.timeout.ms", "50000"),
    "a setting of a group is removed": alter(GROUP, "with-settings", "consumer.session.timeout.ms", None, DELETE),
    "a setting of a group with no number": alter(GROUP, "with-settings", "consumer.session.timeout.ms", "soon"),
    "an unknown setting of a group": alter(GROUP, "with-settings", "no.such.setting", "1"),
    "a subscription of metrics": alter(METRICS, "m", "interval.ms", "30000"),
    "a subscription is removed": alter(METRICS, "m", "interval.ms", None, DELETE),
    "an illegal interval of metrics": alter(METRICS, "m", "interval.ms", "1"),
    "all settings of a topic": replace(TOPIC, "retention.ms", "9"),
    "an unknown setting of a topic": replace(TOPIC, "no.such.setting", "9"),
    "an illegal setting of a topic": replace(TOPIC, "retention.ms", "-9"),
    "resources": lambda *_: (ListConfigResourcesRequest((TOPIC,)), 1),
    "resources of an unknown type": lambda *_: (ListConfigResourcesRequest((99,)), 1),
    "the same replicas": reassign(None, here=True),
    "no move to cancel": reassign(None),
    "a move of an unknown partition": reassign(None, 99, here=True),
    "a move to no broker": reassign(()),
    "a move to an unknown broker": reassign((99,)),
    "a move to a broker twice": reassign((1, 1)),
    "moves": lambda *_: (ListPartitionReassignmentsRequest(), 0),
    "the preferred leader leads": elect(0, 0),
    "a leader leads": elect(1, 0),
    "an election of an unknown partition": elect(0, 99),
    "log directories": lambda topic, _: (DescribeLogDirsRequest((DescribableLogDirTopic(topic, (0,)),)), 3),
    "a quota": quota({"client-id": "with-quota"}, "consumer_byte_rate", 9.0),
    "a quota of all users": quota({"user": None, "client-id": "with-quota"}, "request_percentage", 0.5),
    "a quota of an address": quota({"ip": "127.0.0.9"}, "connection_creation_rate", 9.0),
    "quotas": quotas(("client-id", 0, "with-quota")),
    "quotas of one type": quotas(("client-id", 2, None), strict=True),
    "quotas without a filter": quotas(),
    "a quota of nobody": quota({}, "consumer_byte_rate", 9.0),
    "a quota of an unknown type": quota({"group": "g"}, "consumer_byte_rate", 9.0),
    "an address with a user": quota({"ip": "127.0.0.9", "user": "u"}, "consumer_byte_rate", 9.0),
    "a user's quota of an address": quota({"user": "u"}, "connection_creation_rate", 9.0),
    "an unknown quota": quota({"user": "u"}, "no_such_rate", 9.0),
    "a fraction of bytes": quota({"user": "u"}, "consumer_byte_rate", 0.5),
    "a negative quota": quota({"user": "u"}, "request_percentage", -1.0),
    "no quota": quota({"user": "u"}, "request_percentage", 0.0),
    "a quota that is not there is removed": quota({"user": "u"}, "request_percentage", 0.0, remove=True),
    "a filter with a type twice": quotas(("user", 2, None), ("user", 2, None)),
    "a filter with an address and a user": quotas(("user", 2, None), ("ip", 2, None)),
    "an exact filter without a name": quotas(("user", 0, None)),
    "a filter with an unknown match": quotas(("user", 9, None)),
    "a filter with an unknown type": quotas(("group", 2, None)),
    "the level of a feature stays": feature("transaction.version", 2, 1),
    "the level of a feature stays, in the newest version": feature("transaction.version", 2, 2),
    "a level that is not supported": feature("transaction.version", 99, 1),
    "an unknown feature": feature("no.such.feature", 1, 2),
}


def codes(response: Any) -> list[int]:
    """Return all error codes in a response, in their order."""
    found: list[int] = []
    for spec in fields_of(type(response)) if isinstance(response, Struct) else ():
        value = getattr(response, spec.name)
        if spec.name.endswith("error_code"):
            found.append(int(value))
        elif isinstance(value, (tuple, list)):
            for each in value:
                found += codes(each)
    return found


async def of_kafka(kafka: KafkaCluster, topic: str) -> dict[str, list[int]]:
    """Ask the real broker."""
    host, _, port = kafka.bootstrap_servers.partition(":")
    broker = RealBroker(host, int(port))
    try:
        return {name: codes(await broker.call("one", *asked(topic, 1))) for name, asked in ASKED.items()}
    finally:
        await broker.close()


def of_ours() -> dict[str, list[int]]:
    """Ask our broker."""

    async def main() -> dict[str, list[int]]:
        loop = asyncio.get_running_loop()
        cluster = BrokerCluster(BrokerConfig(), {"topic": 1}, random=Random(1), wall_clock_ms=lambda: round(loop.time() * 1000))
        cluster.start_all()
        call = caller(cluster)
        found = {name: codes(await call(*asked("topic", 0))) for name, asked in ASKED.items()}
        cluster.close()
        return found

    return virtual.run(main())


def test_error_codes_are_those_of_kafka(kafka: KafkaCluster, topic: NewTopicFactory) -> None:
    theirs, mine = asyncio.run(of_kafka(kafka, topic())), of_ours()
    assert {name: (theirs[name], mine[name]) for name in ASKED if theirs[name] != mine[name]} == {}
    assert sum(map(any, theirs.values())) > 20, "errors were asked for"
