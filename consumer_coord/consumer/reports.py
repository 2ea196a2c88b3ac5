"""Reports of a consumer that reads with this package's own Fetch, in librdkafka's form: statistics, errors and throttling.

They are for the callbacks ``stats_cb``, ``error_cb`` and ``throttle_cb``. Reports arrive on the loop, wait in a queue of the
consumer, and are passed to the callbacks inside its next call.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from consumer_coord import lazy_attrs as attrs
from consumer_coord.confluent.types import KafkaError
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.engine_loop import weakly
from consumer_coord.environment import now
from consumer_coord.errors import AuthenticationError, CoordinatorError, MalformedMessageError, RequestTimedOutError
from consumer_coord.net.metadata import Broker
from consumer_coord.net.traffic import Traffic

_PERCENTILES: Final = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_99": 0.9999}


@attrs.frozen
class ThrottleEvent:
    """A broker delayed a response because of a quota; has the fields of ``confluent_kafka.ThrottleEvent``."""

    broker_name: str
    broker_id: int
    #: In seconds; 0 when the broker no longer throttles.
    throttle_time: float

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.broker_id} throttled for {int(self.throttle_time * 1000)} ms"


class Reports:
    """Reports at an interval, and of the connections, to the callbacks that the settings have."""

    def __init__(self, settings: Mapping[str, Any], engine: Engine, report: Callable[[Any], object]) -> None:
        """Pass statistics to complete, errors and throttle events to ``report``, on the loop."""
        self._engine = engine
        self._report = report
        self._cluster = engine.core.cluster
        self._client_id = str(settings.get("client.id") or "rdkafka")
        self._errors = settings.get("error_cb") is not None
        self._throttling = settings.get("throttle_cb") is not None
        #: Whether all brokers were down at the last error.
        self._all_down = False
        if self._errors or self._throttling:
            self._cluster.listeners[self] = None
        self._loop = asyncio.get_running_loop()
        self._began = self._reported_at = now()
        wanted = settings.get("stats_cb") is not None
        self._interval_s = float(settings.get("statistics.interval.ms") or 0) / 1000 if wanted else 0.0
        if self._interval_s > 0:
            self._next()

    # -- errors and throttling ----------------------------------------------------------------------------------------

    def connection_failed(self, broker: Broker, error: CoordinatorError) -> None:
        """See :class:`~consumer_coord.net.traffic.Listener`."""
        brokers = {one.address: one for one in self._cluster.brokers()}
        # Clients of other brokers may share the connections.
        named = brokers.get(broker.address)
        if named is None or not self._errors or self._engine.closing:
            return
        self._tell(KafkaError(_code(error), f"{_name(named)}: {str(error).removeprefix('control plane: ')}"))
        down = all(self._cluster.failing(one) for one in brokers.values())
        if down and not self._all_down:
            self._tell(KafkaError(KafkaError._ALL_BROKERS_DOWN, f"{len(brokers)}/{len(brokers)} brokers are down"))
        self._all_down = down

    def throttled(self, broker: Broker, throttle_ms: int) -> None:
        """See :class:`~consumer_coord.net.traffic.Listener`."""
        if self._throttling and not self._engine.closing and broker in self._cluster.brokers():
            self._tell(ThrottleEvent(broker.address, broker.id, throttle_ms / 1000))

    def _tell(self, what: Any) -> None:
        self._report(what)
        self._engine.core.application.wake()

    # -- statistics ---------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self._loop.call_later(self._interval_s, weakly(self._due))

    def _due(self) -> None:
        if self._engine.closing:
            return
        moment = now()
        figures = {broker: found for broker in self._cluster.brokers() if (found := self._cluster.traffic(broker)) is not None}
        total = figures.values()
        statistics = {
            "name": f"{self._client_id}#consumer",
            "client_id": self._client_id,
            "type": "consumer",
            "ts": _us(moment),
            "time": int(time.time()),
            "age": _us(moment - self._began),
            "replyq": 0,
            "metadata_cache_cnt": len(self._cluster.metadata.topics),
            "tx": sum(one.sent for one in total),
            "tx_bytes": sum(one.sent_bytes for one in total),
            "rx": sum(one.received for one in total),
            "rx_bytes": sum(one.received_bytes for one in total),
            "brokers": {_name(broker): self._broker(broker, found, moment) for broker, found in figures.items()},
            "topics": {},
            "cgrp": {},
        }
        self._reported_at = moment
        self._tell(json.dumps(statistics))
        self._next()

    def _broker(self, broker: Broker, found: Traffic, moment: float) -> dict[str, Any]:
        topics = self._cluster.metadata.topics
        led = [one for one in self._engine.table if _leader(topics.get(one.topic), one.partition) == broker.id]
        return {
            "name": _name(broker),
            "nodeid": broker.id,
            "nodename": broker.address,
            "source": "learned" if broker.id >= 0 else "configured",
            "state": "UP" if found.open else "DOWN" if found.changed_at else "INIT",
            "stateage": _us(moment - found.changed_at) if found.changed_at else 0,
            "waitresp_cnt": max(0, found.sent - found.received - found.unanswered),
            "tx": found.sent,
            "txbytes": found.sent_bytes,
            "txerrs": found.failures,
            "rx": found.received,
            "rxbytes": found.received_bytes,
            "connects": found.connects,
            "disconnects": found.disconnects,
            "req_timeouts": found.timeouts,
            "rtt": _window(us for at, us in found.round_trips if at > self._reported_at),
            "throttle": _window(ms for at, ms in found.throttles if at > self._reported_at),
            "req": {name.removesuffix("Request"): count for name, count in found.requests.items()},
            "toppars": {str(one): {"topic": one.topic, "partition": one.partition} for one in sorted(led)},
        }


def _leader(topic: Any, number: int) -> int | None:
    return topic.leaders[number] if topic is not None and number < topic.partition_count else None


def _name(broker: Broker) -> str:
    return f"{broker.address}/{broker.id if broker.id >= 0 else 'bootstrap'}"


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def _window(values: Iterable[int]) -> dict[str, int]:
    """Return librdkafka's window statistics of the values since the last report."""
    found = sorted(values)
    count, total = len(found), sum(found)
    places = {name: found[min(count - 1, int(part * count))] if found else 0 for name, part in _PERCENTILES.items()}
    ends = {"min": found[0], "max": found[-1], "avg": total // count} if found else {"min": 0, "max": 0, "avg": 0}
    return {**ends, "sum": total, "cnt": count, **places}


#: librdkafka's code for an error of a connection, by the class of the error or of one of its causes; the first match counts.
_CODES: Final[Mapping[type[BaseException], int]] = {
    ssl.SSLError: KafkaError._SSL,
    socket.gaierror: KafkaError._RESOLVE,
    AuthenticationError: KafkaError._AUTHENTICATION,
    RequestTimedOutError: KafkaError._TIMED_OUT,
    MalformedMessageError: KafkaError._BAD_MSG,
}


def _code(error: CoordinatorError) -> int:
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for kind, code in _CODES.items():
        if any(isinstance(one, kind) for one in chain):
            return code
    transport: int = KafkaError._TRANSPORT
    return transport
