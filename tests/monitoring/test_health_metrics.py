"""The health of a consumer as metrics of Prometheus."""

from __future__ import annotations

import asyncio
import logging
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from consumer_coord.errors import ClosedError
from consumer_coord.monitoring.prometheus import HealthCollector
from tests.health.test_asgi import FINE, FROZEN, SICK, STUCK, Async, Blocking

MEMBER = {"group": "orders", "client_id": "worker-1"}
PARTITION = {**MEMBER, "topic": "orders", "partition": "3"}


def collector(consumer: Blocking, **settings: Any) -> HealthCollector:
    return HealthCollector(consumer, group="orders", client_id="worker-1", **settings)


def registry_of(one: HealthCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(one)
    return registry


def test_the_fields_of_the_health_are_metrics() -> None:
    one = Blocking(SICK)
    value = registry_of(collector(one, limit=30.0)).get_sample_value
    assert not one.limits, "the registration asked nothing"
    assert value("kafka_consumer_healthy", MEMBER) == 0.0
    assert value("kafka_consumer_live", MEMBER) == 1.0
    assert value("kafka_consumer_lease_seconds", MEMBER) == 40.0
    assert value("kafka_consumer_owed_seconds", PARTITION) == 14.0
    assert value("kafka_consumer_owed_records", PARTITION) is None, "unknown is not zero"
    why = {**PARTITION, "reason": "leader does not answer", "owed": "unknown", "excused": "false"}
    assert value("kafka_consumer_delivery_blocked", why) == 1.0
    assert set(one.limits) == {30.0}
    one.answer = FINE
    assert value("kafka_consumer_healthy", MEMBER) == 1.0
    one.answer = STUCK
    assert value("kafka_consumer_live", MEMBER) == 0.0
    assert FROZEN.records is None


def test_a_consumer_that_cannot_answer_is_not_healthy(caplog: pytest.LogCaptureFixture) -> None:
    value = registry_of(collector(Blocking(ClosedError("Consumer closed")))).get_sample_value
    with caplog.at_level(logging.WARNING):
        assert value("kafka_consumer_healthy", MEMBER) == 0.0
    assert "could not read the health of group orders, client worker-1" in caplog.text


def test_an_asyncio_consumer_is_scraped_from_another_thread() -> None:
    with pytest.raises(ValueError, match="needs loop="):
        collector(Async(SICK))
    loop = asyncio.new_event_loop()
    value = registry_of(collector(Async(SICK), loop=loop, timeout=30.0)).get_sample_value
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        assert value("kafka_consumer_owed_seconds", PARTITION) == 14.0
        inside: list[float | None] = []
        ended = Event()

        def scrape() -> None:
            inside.append(value("kafka_consumer_healthy", MEMBER))
            ended.set()

        loop.call_soon_threadsafe(scrape)
        assert ended.wait(30.0)
        assert inside == [0.0], "a scrape on the loop does not wait for itself"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
