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
from typing import Final

from consumer_coord.errors import CoordinatorError
from consumer_coord.extras import missing
from consumer_coord.monitoring.source import HasMetrics, Source, describe, is_counter
from consumer_coord.printable import get_logger
from consumer_coord.runtime.locks import Lock

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise missing("prometheus", _error) from _error

logger: Final = get_logger(__name__)

PREFIX = "kafka_consumer_coordinator_"
_LABELS = ("group", "client_id")


class CoordinatorCollector(Collector):
    """Collector that reads every added consumer at each scrape of Prometheus; thread-safe."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._lock = Lock()

    def add(self, consumer: HasMetrics, *, group: str, client_id: str = "") -> None:
        """Add a consumer whose figures are reported; call :meth:`remove` before you close the consumer."""
        with self._lock:
            self._sources[id(consumer)] = Source(consumer, group, client_id)

    def remove(self, consumer: HasMetrics) -> None:
        """Stop reporting the figures of a consumer."""
        with self._lock:
            self._sources.pop(id(consumer), None)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, because registration must not read consumers that may not have started yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family for each figure; omit a consumer whose figures cannot be read."""
        with self._lock:
            sources = tuple(self._sources.values())
        families: dict[str, Metric] = {}
        for source in sources:
            try:
                figures = source.of.metrics()
            except (CoordinatorError, RuntimeError) as error:
                logger.warning("could not read the metrics of group %s, client %s: %s", source.group, source.client_id, error)
                continue
            for name, value in figures.items():
                family = families.get(name)
                if family is None:
                    family = families[name] = _family(name)
                family.add_metric(source.labels, value)  # type: ignore[attr-defined]  # both kinds have it
        yield from families.values()


def _family(name: str) -> Metric:
    full = PREFIX + name.replace("-", "_")
    if is_counter(name):
        return CounterMetricFamily(full, describe(name), labels=_LABELS)
    return GaugeMetricFamily(full, describe(name), labels=_LABELS)
