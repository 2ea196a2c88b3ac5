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

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from consumer_coord.errors import CoordinatorError
from consumer_coord.extras import missing
from consumer_coord.health.source import UNANSWERED, HasHealth, unanswered
from consumer_coord.log_text import get_logger
from consumer_coord.monitoring.source import Sources, describe, is_counter, read

if TYPE_CHECKING:
    from consumer_coord.health import Health
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


class HealthCollector(Collector):
    """Collector of what one consumer's ``health()`` says, read at each scrape; thread-safe.

    ``kafka_consumer_healthy``, ``kafka_consumer_live`` and ``kafka_consumer_lease_seconds`` have the labels ``group`` and
    ``client_id``; ``kafka_consumer_owed_seconds`` and ``kafka_consumer_owed_records`` (missing if unknown) also ``topic`` and
    ``partition``. ``kafka_consumer_delivery_blocked`` is 1 for each partition that waits, with the labels ``reason``, ``owed``
    (yes or unknown) and ``excused`` besides. ``limit`` is that of ``health()``, in seconds.

    An ``AsyncGroupConsumer`` needs its ``loop``, and a scrape on another thread, such as that of ``start_http_server``.
    A consumer that does not answer within ``timeout`` seconds is not healthy.
    """

    def __init__(
        self,
        consumer: HasHealth,
        *,
        group: str,
        client_id: str = "",
        limit: float = 60.0,
        loop: asyncio.AbstractEventLoop | None = None,
        timeout: float = 5.0,
    ) -> None:
        if inspect.iscoroutinefunction(consumer.health) and loop is None:
            raise ValueError("HealthCollector of an AsyncGroupConsumer needs loop=, the loop that the consumer runs on")
        self._consumer = consumer
        self._labels = (group, client_id)
        self._limit_s = limit
        self._loop = loop
        self._timeout_s = timeout

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, because registration must not ask a consumer that may not have started yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the health; a consumer that cannot answer is neither healthy nor live, and the log has the reason."""
        try:
            health = self._health()
        except (*UNANSWERED, TimeoutError) as error:
            logger.warning("could not read the health of group %s, client %s: %r", *self._labels, error)
            health = unanswered(error)
        partition = (*_LABELS, "topic", "partition")
        healthy = GaugeMetricFamily("kafka_consumer_healthy", "Whether no partition owes records too long.", labels=_LABELS)
        live = GaugeMetricFamily("kafka_consumer_live", "Whether no restart is needed.", labels=_LABELS)
        lease = GaugeMetricFamily("kafka_consumer_lease_seconds", "Time until the end of the lease.", labels=_LABELS)
        seconds = GaugeMetricFamily(
            "kafka_consumer_owed_seconds", "Time for which records were owed, or nothing was known.", labels=partition
        )
        records = GaugeMetricFamily(
            "kafka_consumer_owed_records", "Offsets that the log has after the last delivered record.", labels=partition
        )
        blocked = GaugeMetricFamily(
            "kafka_consumer_delivery_blocked", "Why records are owed.", labels=(*partition, "reason", "owed", "excused")
        )
        healthy.add_metric(self._labels, float(health.healthy))
        live.add_metric(self._labels, float(health.live))
        if health.lease_s is not None:
            lease.add_metric(self._labels, health.lease_s)
        for one in health.partitions:
            labels = (*self._labels, one.topic, str(one.partition))
            seconds.add_metric(labels, one.since_s)
            if one.records is not None:
                records.add_metric(labels, one.records)
            if one.reason is not None:
                blocked.add_metric((*labels, one.reason.value, one.owed.value, str(one.excused).lower()), 1)
        yield from (healthy, live, lease, seconds, records, blocked)

    def _health(self) -> Health:
        if self._loop is None:
            answer = self._consumer.health(self._limit_s)
            assert not isinstance(answer, Awaitable)
            return answer
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            # The usual case: no loop runs on this thread.
            inside = False
        if inside:
            raise RuntimeError("a scrape on the consumer's own loop would wait for itself: serve it on another thread")

        async def ask() -> Health:
            answer = self._consumer.health(self._limit_s)
            return await answer if isinstance(answer, Awaitable) else answer

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(self._timeout_s)


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    full = PREFIX + name.replace("-", "_")
    if is_counter(name):
        return CounterMetricFamily(full, describe(name), labels=_LABELS)
    return GaugeMetricFamily(full, describe(name), labels=_LABELS)
