"""The metrics of one consumer, under the names that Java's client pushes (``KafkaMetricsCollector``).

Java makes a name from the group and the name of a metric: ``join-rate`` of ``consumer-coordinator-metrics`` is
``org.apache.kafka.consumer.coordinator.join.rate``. Metrics that Java does not have begin with ``consumer_coord.``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from consumer_coord.consumer.engine import Engine
from consumer_coord.environment import now
from consumer_coord.net.metadata import Broker
from consumer_coord.net.traffic import Traffic
from consumer_coord.telemetry.push import Reading

_PREFIX: Final = "org.apache.kafka.consumer."
_OWN_PREFIX: Final = "consumer_coord.consumer."
#: The metrics of ``consumer-metrics``; the others of the coordinator are those of ``consumer-coordinator-metrics``.
_OF_THE_CONSUMER: Final = ("last-poll-seconds-ago", "poll-idle-ratio-avg", "time-between-poll-avg", "time-between-poll-max")
#: The beginnings of names that Java does not have.
_NOT_JAVAS: Final = ("assign-", "coordinator-lookup", "member-id-required", "early-heartbeat")
_NOT_JAVAS_EITHER: Final = ("commit-refused", "commit-resent", "partition-lost-total", "lease-suspended")


def readings(engine: Engine) -> Iterator[Reading]:
    """Yield the metrics of a consumer that have a value; the most numerous, those of partitions, last."""
    for name, value in engine.core.metrics().items():
        yield from _reading(_full_name(name), value)
    for name, value in engine.reader.fetch_metrics().items():
        yield from _reading(f"{_PREFIX}fetch.manager.{_dotted(name)}", value)
    cluster = engine.core.cluster
    traffic = {broker: found for broker in cluster.brokers() if (found := cluster.traffic(broker)) is not None}
    yield from _connections(traffic)
    lags = dict(_lags(engine))
    if lags:
        yield Reading(f"{_PREFIX}fetch.manager.records.lag.max", max(lags.values()), False)
    for (topic, partition), lag in lags.items():
        yield Reading(f"{_PREFIX}fetch.manager.records.lag", lag, False, {"topic": topic, "partition": str(partition)})


def labels(engine: Engine) -> Mapping[str, str]:
    """Return the labels of the consumer (``ClientTelemetryProvider``)."""
    core = engine.core
    found = {
        "client_rack": core.config.client_rack,
        "group_id": core.config.group_id,
        "group_instance_id": core.config.group_instance_id,
        "group_member_id": core.member_id,
    }
    return {name: value for name, value in found.items() if value}


def _full_name(name: str) -> str:
    if name in _OF_THE_CONSUMER:
        return f"{_PREFIX}{_dotted(name)}"
    own = name.startswith((*_NOT_JAVAS, *_NOT_JAVAS_EITHER))
    return f"{_OWN_PREFIX if own else _PREFIX}coordinator.{_dotted(name)}"


def _dotted(name: str) -> str:
    return name.replace("-", ".")


def _reading(name: str, value: float) -> Iterator[Reading]:
    if not math.isnan(value):
        yield Reading(name, value, name.endswith(".total"))


def _connections(traffic: Mapping[Broker, Traffic]) -> Iterator[Reading]:
    """Yield the metrics of connections, which the consumers of a process share (``consumer-metrics``, ``consumer-node-…``)."""
    for name, attribute in (
        ("connection.creation.total", "connects"),
        ("connection.close.total", "disconnects"),
        ("request.total", "sent"),
        ("outgoing.byte.total", "sent_bytes"),
        ("response.total", "received"),
        ("incoming.byte.total", "received_bytes"),
    ):
        yield Reading(f"{_PREFIX}{name}", float(sum(getattr(one, attribute) for one in traffic.values())), True)
    yield Reading(f"{_PREFIX}connection.count", float(sum(one.open for one in traffic.values())), False)
    since = now() - 60
    for broker, found in traffic.items():
        times = [us / 1000 for at, us in found.round_trips if at > since]
        if times and broker.id >= 0:
            node = {"node_id": str(broker.id)}
            yield Reading(f"{_PREFIX}node.request.latency.avg", sum(times) / len(times), False, node)
            yield Reading(f"{_PREFIX}node.request.latency.max", max(times), False, node)


def _lags(engine: Engine) -> Iterator[tuple[tuple[str, int], float]]:
    ends = engine.reader.log_ends() or {}
    positions = engine.positions(ends)
    for partition, end in ends.items():
        at = positions.get(partition)
        if end.end is not None and at is not None:
            yield partition, float(max(0, end.end - at.offset))
