"""Both consumers push their metrics to an embedded Kafka that takes them, for messages and for columns, and at their close."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.broker.client_metrics import PushedMetrics
from tests.support.telemetry.pushed import Pushed, pushed
from tests.support.waiting import eventually

PREFIX = "org.apache.kafka.consumer."
#: Names of Kafka's ``ClientMetrics`` documentation that this package has values for after some records.
EXPECTED = {
    f"{PREFIX}{name}"
    for name in (
        *("connection.creation.total", "request.total", "incoming.byte.total", "outgoing.byte.total"),
        *("node.request.latency.avg", "node.request.latency.max"),
        *("poll.idle.ratio.avg", "time.between.poll.avg", "last.poll.seconds.ago"),
        *("coordinator.assigned.partitions", "coordinator.join.total", "coordinator.sync.total"),
        *("coordinator.heartbeat.total", "coordinator.commit.total", "coordinator.commit.latency.avg"),
        *("coordinator.rebalance.total", "coordinator.rebalance.latency.avg", "coordinator.rebalance.latency.total"),
        *("fetch.manager.fetch.total", "fetch.manager.fetch.latency.avg", "fetch.manager.fetch.size.avg"),
        *("fetch.manager.bytes.consumed.total", "fetch.manager.records.consumed.total"),
        *("fetch.manager.records.consumed.rate", "fetch.manager.records.lag", "fetch.manager.records.lag.max"),
    )
}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka({"orders": 2}, config={"client.metrics.enable": True}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers, "enable.metrics.push": False})
        for number in range(20):
            producer.produce("orders", b"v" * 100, partition=number % 2)
        assert producer.flush(60) == 0
        yield running


def settings(kafka: EmbeddedKafka, **more: Any) -> dict[str, Any]:
    """Return the settings of a consumer with this package's Fetch: librdkafka pushes metrics of its own, as another client."""
    return {
        "librdkafka.enable": False,
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "billing",
        "client.id": "worker-1",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 100,
        **more,
    }


def received(kafka: EmbeddedKafka) -> Sequence[tuple[bool, Pushed]]:
    return [(one.terminating, pushed(one.metrics, one.compression_type)) for one in kafka.pushed_metrics()]


def total(kafka: EmbeddedKafka, name: str) -> float:
    """Return the sum of the deltas of a counter."""
    found = (metrics.metrics.get(PREFIX + name, []) for _, metrics in received(kafka))
    return sum(point.value for points in found for point in points)


def check(kafka: EmbeddedKafka) -> None:
    """Check the metrics of a consumer that read all 20 records, and was closed."""
    pushes = received(kafka)
    names = set().union(*(metrics.metrics for _, metrics in pushes))
    assert names >= EXPECTED, EXPECTED - names
    assert [terminating for terminating, _ in pushes] == [False] * (len(pushes) - 1) + [True]
    assert len({one.client_instance_id for one in kafka.pushed_metrics()}) == 1
    assert total(kafka, "fetch.manager.records.consumed.total") == 20
    assert total(kafka, "coordinator.rebalance.total") >= 1
    labels: Mapping[str, str] = pushes[0][1].labels
    assert labels["group_id"] == "billing"
    assert labels["group_member_id"]
    lags = pushes[-2][1].metrics[f"{PREFIX}fetch.manager.records.lag"]
    assert [(one.attributes, one.value) for one in lags] == [
        ({"topic": "orders", "partition": str(number)}, 0.0) for number in range(2)
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("columns", [False, True])
def test_the_blocking_consumer(columns: bool, protocol: str, kafka: EmbeddedKafka) -> None:
    kafka.subscribe_to_metrics("*", interval_ms=200)
    with GroupConsumer(settings(kafka, **{"group.protocol": protocol})) as consumer:
        consumer.subscribe(["orders"])
        seen = 0

        def done() -> bool:
            nonlocal seen
            if columns:
                seen += len(consumer.consume_arrow(timeout=0.1))
            else:
                seen += consumer.poll(0.1) is not None
            return seen == 20 and total(kafka, "coordinator.commit.total") > 0 and len(kafka.pushed_metrics()) > 3

        eventually(done)
    check(kafka)


@pytest.mark.parametrize("columns", [False, True])
def test_the_asyncio_consumer(columns: bool, kafka: EmbeddedKafka) -> None:
    kafka.subscribe_to_metrics("*", interval_ms=200)

    async def read() -> None:
        async with AsyncGroupConsumer(settings(kafka)) as consumer:
            await consumer.subscribe(["orders"])
            seen = 0
            async with asyncio.timeout(180):
                while not (seen == 20 and total(kafka, "coordinator.commit.total") > 0 and len(kafka.pushed_metrics()) > 3):
                    if columns:
                        seen += len(await consumer.consume_arrow(timeout=0.1))
                    else:
                        seen += await consumer.poll(0.1) is not None

    asyncio.run(read())
    check(kafka)


@pytest.mark.parametrize(("pushes", "wanted"), [(False, ("*",)), (True, ())])
def test_nothing_is_sent_if_switched_off_or_without_a_subscription(
    pushes: bool, wanted: tuple[str, ...], kafka: EmbeddedKafka
) -> None:
    seen: list[str] = []
    kafka.add_request_hook(lambda broker_id, request: seen.append(type(request.message).__name__))
    kafka.subscribe_to_metrics(*wanted, interval_ms=200)
    consumers = [GroupConsumer(settings(kafka, **more)) for more in ({"group.id": "other"}, {"enable.metrics.push": pushes})]

    def asked() -> bool:
        for one in consumers:
            one.poll(0.1)
        return "GetTelemetrySubscriptionsRequest" in seen

    for one in consumers:
        one.subscribe(["orders"])
    eventually(asked)
    for one in consumers:
        one.close()
    assert not [one for one in kafka.pushed_metrics() if pushed_group(one) == "billing"]


def pushed_group(one: PushedMetrics) -> str:
    return pushed(one.metrics, one.compression_type).labels["group_id"]


def drop_a_consumer(kafka: EmbeddedKafka) -> None:
    consumer = GroupConsumer(settings(kafka))
    consumer.subscribe(["orders"])
    eventually(lambda: consumer.poll(0.1) is None and len(kafka.pushed_metrics()) > 1)


def test_a_dropped_consumer_is_collected(kafka: EmbeddedKafka) -> None:
    """Neither the timer nor the task keeps it alive."""
    kafka.subscribe_to_metrics("*", interval_ms=200)
    drop_a_consumer(kafka)
    gc.collect()
    before = len(kafka.pushed_metrics())
    with GroupConsumer(settings(kafka, **{"group.id": "other"})) as other:
        other.subscribe(["orders"])

        def others() -> int:
            return sum(pushed_group(one) == "other" for one in kafka.pushed_metrics())

        eventually(lambda: other.poll(0.1) is None and others() > 3)
        assert len(kafka.pushed_metrics()) - others() <= before + 1, "the dropped consumer pushes at most once more"
