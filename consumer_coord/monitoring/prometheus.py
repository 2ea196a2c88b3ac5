"""Prometheus: a collector for the consumers of a process.

Install the extra with ``pip install 'consumer-coord[prometheus]'``::

    from prometheus_client import REGISTRY
    from consumer_coord.monitoring.prometheus import CoordinatorCollector

    collector = CoordinatorCollector()
    REGISTRY.register(collector)
    collector.add(consumer, group="orders", client_id="worker-1")

The figures are those of Java's ``consumer-coordinator-metrics``: ``join-rate`` is ``kafka_consumer_coordinator_join_rate``,
with the labels ``group`` and ``client_id``.
"""

from __future__ import annotations

from collections.abc import Iterator

from consumer_coord.extras import missing
from consumer_coord.monitoring.source import Sources, describe, is_counter, read

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise missing("prometheus", _error) from _error

PREFIX = "kafka_consumer_coordinator_"
_LABELS = ("group", "client_id")


class CoordinatorCollector(Sources, Collector):
    """Collector that reads every added consumer at each scrape of Prometheus; thread-safe."""

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, because registration must not read consumers that may not have started yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family for each figure; omit a consumer whose figures cannot be read."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for source, figures in read(self._present()):
            for name, value in figures.items():
                family = families.get(name)
                if family is None:
                    family = families[name] = _family(name)
                family.add_metric((source.group, source.client_id), value)
        yield from families.values()


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    full = PREFIX + name.replace("-", "_")
    if is_counter(name):
        return CounterMetricFamily(full, describe(name), labels=_LABELS)
    return GaugeMetricFamily(full, describe(name), labels=_LABELS)
