"""Prometheus and OpenTelemetry report the figures of ``metrics()``, with group and client id."""

from __future__ import annotations

import math
from collections.abc import Mapping

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from consumer_coord.errors import ClosedError
from consumer_coord.group.metrics import Metrics
from consumer_coord.monitoring.opentelemetry import CoordinatorInstruments
from consumer_coord.monitoring.prometheus import CoordinatorCollector


class Consumer:
    """A consumer with metrics: two joins of 10 and 30 ms, no sync; or closed."""

    def __init__(self) -> None:
        self.closed = False
        self.reads = 0
        self._metrics = Metrics(lambda: 100.0)
        self._metrics.gauge("assigned-partitions", lambda: 4.0)
        self._metrics.record("join", 10.0)
        self._metrics.record("join", 30.0)

    def metrics(self) -> Mapping[str, float]:
        self.reads += 1
        if self.closed:
            raise ClosedError("the coordinator is closed")
        return self._metrics.snapshot()


LABELS = {"group": "orders", "client_id": "worker-1"}


def test_prometheus() -> None:
    registry = CollectorRegistry()
    collector = CoordinatorCollector()
    registry.register(collector)
    consumer, other = Consumer(), Consumer()
    collector.add(consumer, **LABELS)
    collector.add(other, group="bills")

    prefix = "kafka_consumer_coordinator_"
    assert registry.get_sample_value(f"{prefix}join_total", LABELS) == 2.0
    assert registry.get_sample_value(f"{prefix}join_time_max", LABELS) == 30.0
    assert registry.get_sample_value(f"{prefix}assigned_partitions", {"group": "bills", "client_id": ""}) == 4.0
    nothing = registry.get_sample_value(f"{prefix}sync_time_avg", LABELS)
    assert nothing is not None
    assert math.isnan(nothing)
    text = generate_latest(registry).decode()
    assert f"# TYPE {prefix}join_total counter" in text
    assert f"# TYPE {prefix}last_heartbeat_seconds_ago gauge" in text
    assert f'{prefix}join_time_avg{{client_id="worker-1",group="orders"}} 20.0' in text

    # A consumer that was closed without being removed does not hide the others.
    other.closed = True
    assert registry.get_sample_value(f"{prefix}join_total", {"group": "bills", "client_id": ""}) is None
    assert registry.get_sample_value(f"{prefix}join_total", LABELS) == 2.0
    collector.remove(consumer)
    assert registry.get_sample_value(f"{prefix}join_total", LABELS) is None


def test_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instruments = CoordinatorInstruments(provider.get_meter("test"))
    consumer, other = Consumer(), Consumer()
    instruments.add(consumer, **LABELS)
    instruments.add(other, group="bills")
    other.closed = True

    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    joins = found["kafka.consumer.join_total"]
    assert isinstance(joins.data, Sum)
    assert joins.data.is_monotonic
    (point,) = joins.data.data_points
    assert (point.value, dict(point.attributes or {})) == (2.0, {"group": "orders", "client-id": "worker-1"})
    slowest = found["kafka.consumer.join_time_max"]
    assert isinstance(slowest.data, Gauge)
    assert (slowest.unit, [point.value for point in slowest.data.data_points]) == ("ms", [30.0])
    assert found["kafka.consumer.last_heartbeat_seconds_ago"].unit == "s"
    # A figure without a value is not reported.
    assert "kafka.consumer.sync_time_avg" not in found
    # All instruments of one collection share one read of the consumer's metrics.
    assert consumer.reads == 1
    instruments.remove(consumer)
    assert reader.get_metrics_data() is None
    provider.shutdown()
