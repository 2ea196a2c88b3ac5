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

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from consumer_coord.errors import CoordinatorError
from consumer_coord.extras import missing
from consumer_coord.monitoring.source import Sources, describe, is_counter, read
from consumer_coord.printable import get_logger

if TYPE_CHECKING:
    from consumer_coord.lag.partition_lag import PartitionLag
    from consumer_coord.topic_partition import TopicPartition

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise missing("prometheus", _error) from _error

logger: Final = get_logger(__name__)

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


class HasLag(Protocol):
    """A consumer with ``lag``: a ``GroupConsumer``."""

    def lag(self, timeout: float | None = None, *, seconds: bool = True) -> Mapping[TopicPartition, PartitionLag]:
        """Return the lag of each owned partition."""


class LagCollector(Collector):
    """Collector that asks the brokers for the lag of one consumer's partitions at each scrape; thread-safe.

    ``kafka_consumer_lag_records`` and ``kafka_consumer_lag_seconds``, the age of the first unread record, have the labels
    ``group``, ``client_id``, ``topic`` and ``partition``. A figure that no broker reported is missing, and counted in
    ``kafka_consumer_lag_unknown_partitions``. ``timeout`` is the time limit of a scrape, in seconds.
    """

    def __init__(self, consumer: HasLag, *, group: str, client_id: str = "", timeout: float = 5.0) -> None:
        self._consumer = consumer
        self._labels = (group, client_id)
        self._timeout = timeout

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, because registration must not ask brokers."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the lag of each partition; after an error, only the error's log message."""
        try:
            lags = self._consumer.lag(self._timeout)
        except (CoordinatorError, RuntimeError) as error:
            logger.warning("could not read the lag of group %s, client %s: %s", *self._labels, error)
            return
        labels = (*_LABELS, "topic", "partition")
        records = GaugeMetricFamily("kafka_consumer_lag_records", "Unread records of a partition.", labels=labels)
        seconds = GaugeMetricFamily(
            "kafka_consumer_lag_seconds", "Age of the first unread record of a partition.", labels=labels
        )
        unknown = GaugeMetricFamily(
            "kafka_consumer_lag_unknown_partitions", "Partitions whose lag in records or seconds is unknown.", labels=_LABELS
        )
        for partition, lag in lags.items():
            for family, value in ((records, lag.records), (seconds, lag.seconds)):
                if value is not None:
                    family.add_metric((*self._labels, partition.topic, str(partition.partition)), value)
        unknown.add_metric(self._labels, sum(lag.records is None or lag.seconds is None for lag in lags.values()))
        yield from (records, seconds, unknown)


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    full = PREFIX + name.replace("-", "_")
    if is_counter(name):
        return CounterMetricFamily(full, describe(name), labels=_LABELS)
    return GaugeMetricFamily(full, describe(name), labels=_LABELS)
