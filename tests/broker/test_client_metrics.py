"""Subscriptions of metrics, and the brokers' answers to clients that push (Kafka's ``ClientMetricsManager``)."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

import attrs
import pytest
from confluent_kafka import Consumer

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.client_metrics import ClientMetrics, check_subscription
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.errors import ConfigurationError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import decode_response, encode_request
from consumer_coord.wire.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from consumer_coord.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)
from consumer_coord.wire.schema import ZERO_UUID
from tests.support.waiting import eventually


class Bench:
    """Client metrics with a clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.metrics = ClientMetrics(Random(1), lambda: self.ms)
        self.metrics.subscribe("all", {"metrics": "*", "interval.ms": "1000"})

    def ask(self, instance_id: uuid.UUID = ZERO_UUID) -> GetTelemetrySubscriptionsResponse:
        return self.metrics.asked(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)

    def push(self, found: GetTelemetrySubscriptionsResponse, broker_id: int = 0, **changes: Any) -> int:
        usual = PushTelemetryRequest(client_instance_id=found.client_instance_id, subscription_id=found.subscription_id)
        return self.metrics.pushed(attrs.evolve(usual, **changes), "client", broker_id).error_code


def test_an_instance_gets_an_id_and_keeps_it() -> None:
    bench = Bench()
    first = bench.ask()
    assert (first.error_code, first.push_interval_ms, tuple(first.requested_metrics)) == (0, 1_000, ("*",))
    assert bench.push(first) == codes.NONE
    bench.ms += 1_000
    again = bench.ask(first.client_instance_id)
    assert (again.client_instance_id, again.subscription_id) == (first.client_instance_id, first.subscription_id)
    assert bench.ask().client_instance_id != first.client_instance_id


def test_who_asks_or_pushes_before_the_interval_is_throttled() -> None:
    bench = Bench()
    found = bench.ask()
    assert bench.ask(found.client_instance_id).error_code == codes.THROTTLING_QUOTA_EXCEEDED
    assert bench.push(found) == codes.NONE
    bench.ms += 999
    assert bench.push(found) == codes.THROTTLING_QUOTA_EXCEEDED
    bench.ms += 1
    assert bench.push(found) == codes.NONE
    assert len(bench.metrics.pushes) == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"subscription_id": 1}, codes.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 9}, codes.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": bytes((1 << 20) + 1)}, codes.TELEMETRY_TOO_LARGE),
        ({"client_instance_id": ZERO_UUID}, codes.INVALID_REQUEST),
    ],
)
def test_bad_pushes(changes: dict[str, Any], code: int) -> None:
    bench = Bench()
    found = bench.ask()
    assert bench.push(found, **changes) == code
    assert not bench.metrics.pushes
    asked = bench.ask(found.client_instance_id).error_code
    again = code in (codes.UNKNOWN_SUBSCRIPTION_ID, codes.UNSUPPORTED_COMPRESSION_TYPE)
    assert asked == (codes.NONE if again else codes.THROTTLING_QUOTA_EXCEEDED)


def test_a_changed_subscription_has_another_id() -> None:
    bench = Bench()
    found = bench.ask()
    bench.metrics.subscribe("few", {"metrics": "org.x", "interval.ms": "500"})
    assert bench.push(found) == codes.UNKNOWN_SUBSCRIPTION_ID
    bench.ms += 1
    new = bench.ask(found.client_instance_id)
    assert (new.push_interval_ms, bench.push(new)) == (500, codes.NONE)
    bench.metrics.subscribe("all", {})
    assert bench.metrics.metrics == ("org.x",)


def test_a_terminating_push_needs_no_interval_and_is_the_last() -> None:
    bench = Bench()
    found = bench.ask()
    assert [bench.push(found), bench.push(found, terminating=True), bench.push(found, terminating=True)] == [
        codes.NONE,
        codes.NONE,
        codes.INVALID_REQUEST,
    ]


def test_a_broker_knows_nothing_of_what_a_client_pushed_to_another() -> None:
    bench = Bench()
    found = bench.ask()
    assert [bench.push(found, terminating=True), bench.push(found, 1), bench.push(found)] == [
        codes.NONE,
        codes.NONE,
        codes.INVALID_REQUEST,
    ]


@pytest.mark.parametrize("settings", [{"interval.ms": "99"}, {"interval.ms": "x"}, {"match": "client_id=x"}])
def test_invalid_subscriptions(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        check_subscription(settings)


def test_an_admin_changes_subscriptions() -> None:
    async def main() -> None:
        cluster = BrokerCluster(BrokerConfig(), {}, random=Random(1), wall_clock_ms=lambda: 1_000)
        cluster.start_all()

        async def alter(*configs: AlterableConfig) -> int:
            request = IncrementalAlterConfigsRequest(resources=(AlterConfigsResource(16, "mine", configs),))
            answer = await KafkaApis(cluster.nodes[0]).handle(encode_request(request, 1, 7, "client"), ClientConnection())
            assert answer is not None
            return decode_response(IncrementalAlterConfigsResponse, 1, answer)[1].responses[0].error_code

        assert await alter(AlterableConfig("metrics", 0, "org.x,org.y"), AlterableConfig("interval.ms", 0, "200")) == codes.NONE
        assert (cluster.client_metrics.metrics, cluster.client_metrics.interval_ms) == (("org.x", "org.y"), 200)
        assert await alter(AlterableConfig("match", 0, "client_id=x")) == codes.INVALID_REQUEST
        assert await alter(AlterableConfig("metrics", 1, None), AlterableConfig("interval.ms", 1, None)) == codes.NONE
        assert cluster.client_metrics.metrics == ()
        cluster.close()

    virtual.run(main())


def test_librdkafka_pushes() -> None:
    with EmbeddedKafka({"t": 1}, config={"client.metrics.enable": True}) as kafka:
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        kafka.subscribe_to_metrics("org.apache.kafka.consumer.", interval_ms=100)
        consumer = Consumer({**servers, "group.id": "g", "client.id": "theirs"})
        try:
            consumer.subscribe(["t"])
            eventually(lambda: consumer.poll(0.1) is None and len(kafka.pushed_metrics()) > 1)
        finally:
            consumer.close()
        assert {one.client_id for one in kafka.pushed_metrics()} == {"theirs"}
