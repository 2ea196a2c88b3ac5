"""What is sent when, and what an error means (KIP-714; ``ClientTelemetryReporter``).

1. Ask a broker for the subscription of this client instance; the first response names the instance.
2. If the subscription names metrics, push them after a random part of the interval (0.5 to 1.5), then at each interval. If it
   names none, ask again after the interval.
3. After an error, wait as :data:`_STEPS` says, and begin again with step 1.
4. When the consumer closes, push once more, with ``terminating``, unless the broker is not at hand.

Sums are since the last push if the subscription has delta temporality, and otherwise since the start of the pusher.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from consumer_coord import lazy_attrs as attrs
from consumer_coord.errors import CoordinatorError
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.metadata import Broker
from consumer_coord.telemetry.compression import choose, compress
from consumer_coord.telemetry.otlp import CUMULATIVE, DELTA, Point, metrics_data
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from consumer_coord.wire.schema import ZERO_UUID

logger: Final = get_logger(__name__)

#: The pause after a failure while no interval is known (Java's ``DEFAULT_PUSH_INTERVAL_MS``).
DEFAULT_INTERVAL_MS: Final = 300_000
#: Shortest interval, so that a broker's mistake does not make a loop without a pause.
_LEAST_MS: Final = 100
_ALL: Final = "*"

#: Error code -> milliseconds until the subscription is asked for again; None: the present interval. After any other code,
#: nothing is sent any more.
_STEPS: Final[Mapping[int, float | None]] = {
    codes.UNKNOWN_SUBSCRIPTION_ID: 0.0,
    codes.UNSUPPORTED_COMPRESSION_TYPE: 0.0,
    codes.TELEMETRY_TOO_LARGE: None,
    codes.THROTTLING_QUOTA_EXCEEDED: None,
}


class Reading(NamedTuple):
    """The value of a metric now. ``counts``: whether the value never decreases."""

    name: str
    value: float
    counts: bool
    attributes: Mapping[str, str] = {}


@attrs.frozen
class Subscription:
    """What a broker wants. ``wanted`` are prefixes of names, without any for nothing."""

    id: int
    wanted: tuple[str, ...]
    interval_ms: float
    delta: bool
    compression: int
    most_bytes: int

    def chosen(self, found: Iterable[Reading]) -> list[Reading]:
        """Return the readings whose names begin with a wanted prefix."""
        everything = _ALL in self.wanted
        return [one for one in found if everything or one.name.startswith(self.wanted)]


class Source(Protocol):
    """The consumer whose metrics are pushed."""

    @property
    def alive(self) -> bool:
        """Whether the consumer still exists."""

    def takes_metrics(self) -> Broker | None:
        """Return a connected broker that accepts pushed metrics (KIP-714); None if no connection is open to such a broker."""

    def read(self) -> Sequence[Reading]:
        """Return the metrics; nothing if the consumer no longer exists."""

    def labels(self) -> Mapping[str, str]:
        """Return the labels of the consumer, such as ``group_id``."""


class MetricsPusher:
    """Pushes the metrics of one consumer; used on its loop."""

    def __init__(self, cluster: ClusterClient, source: Source) -> None:
        self._cluster = cluster
        self._source = source
        self._instance_id = ZERO_UUID
        self._subscription: Subscription | None = None
        self._broker: Broker | None = None
        self._interval_ms: float = DEFAULT_INTERVAL_MS
        self._refused: set[int] = set()
        #: (name, attributes) -> the sum at the last push that the broker took, and the time of this push.
        self._pushed: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._started_ns = self._pushed_ns = self._now_ns()
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Make :meth:`run` push a last time, and end. A push that waits for its answer ends first."""
        self._closing.set()

    async def run(self) -> None:
        """Ask and push until :meth:`close`, until the consumer is gone, or until a broker refuses for good."""
        while self._source.alive and not self._closing.is_set():
            after_ms = await self._ask()
            subscription = self._subscription
            if subscription is not None and subscription.wanted:
                after_ms = await self._serve(subscription)
            if after_ms == math.inf:
                return
            await self._pause(after_ms)
        subscription, broker = self._subscription, self._broker
        subscribed = self._source.alive and subscription is not None and bool(subscription.wanted)
        if subscription is not None and subscribed and broker is not None and self._cluster.open_connection(broker) is not None:
            await self._push(subscription, broker, terminating=True)

    async def _serve(self, subscription: Subscription) -> float:
        """Push at the interval; return the milliseconds until the subscription is asked for again, infinity for never."""
        broker, pause_ms = self._broker, subscription.interval_ms
        assert broker is not None
        after_ms, jitter = None, self._cluster.environment.random.uniform(0.5, 1.5)
        while after_ms is None:
            await self._pause(pause_ms * jitter)
            if self._closing.is_set() or not self._source.alive:
                return 0.0
            after_ms, jitter = await self._push(subscription, broker), 1.0
        self._subscription = None
        return after_ms

    async def _pause(self, ms: float) -> None:
        """Wait, or until :meth:`close`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ms / 1000):
                await self._closing.wait()

    async def _ask(self) -> float:
        """Ask for the subscription; return the time in milliseconds until the next question, infinity for none."""
        self._subscription = None
        self._broker = self._source.takes_metrics()
        if self._broker is None:
            return self._interval_ms
        request = GetTelemetrySubscriptionsRequest(client_instance_id=self._instance_id)
        try:
            answer: GetTelemetrySubscriptionsResponse = await self._cluster.request(
                self._broker, request, timeout_ms=self._cluster.config.request_timeout_ms
            )
        except CoordinatorError as error:
            logger.debug("no subscription of metrics: %s", error)
            return self._interval_ms
        if answer.error_code != codes.NONE:
            return self._after(answer.error_code)
        self._instance_id = answer.client_instance_id
        self._interval_ms = max(_LEAST_MS, answer.push_interval_ms)
        self._subscription = Subscription(
            answer.subscription_id,
            tuple(answer.requested_metrics),
            self._interval_ms,
            answer.delta_temporality,
            choose(answer.accepted_compression_types, self._refused),
            answer.telemetry_max_bytes,
        )
        return self._interval_ms

    async def _push(self, subscription: Subscription, broker: Broker, *, terminating: bool = False) -> float | None:
        """Push once; return None, or the milliseconds until the subscription is asked for again, infinity for never."""
        found = self._source.read()
        chosen, moment_ns = subscription.chosen(found), self._now_ns()
        metrics = self._encoded(subscription, chosen, moment_ns)
        request = PushTelemetryRequest(
            client_instance_id=self._instance_id,
            subscription_id=subscription.id,
            terminating=terminating,
            compression_type=subscription.compression,
            metrics=metrics,
        )
        try:
            answer: PushTelemetryResponse = await self._cluster.request(
                broker, request, timeout_ms=self._cluster.config.request_timeout_ms
            )
        except CoordinatorError as error:
            logger.debug("metrics were not pushed: %s", error)
            return self._interval_ms
        if answer.error_code == codes.UNSUPPORTED_COMPRESSION_TYPE:
            self._refused.add(subscription.compression)
        if answer.error_code != codes.NONE:
            return self._after(answer.error_code)
        self._pushed = {_key(one): one.value for one in found if one.counts}
        self._pushed_ns = moment_ns
        return None

    def _encoded(self, subscription: Subscription, chosen: Sequence[Reading], moment_ns: int) -> bytes:
        """Return the metrics, without those of partitions if all are too many for the broker."""
        points = [self._point(subscription, one, moment_ns) for one in chosen]
        data = compress(subscription.compression, metrics_data(self._source.labels(), points))
        if len(data) > subscription.most_bytes:
            logger.debug("%d bytes of metrics are more than the broker takes: leaving out those of partitions", len(data))
            points = [one for one in points if "partition" not in one.attributes]
            data = compress(subscription.compression, metrics_data(self._source.labels(), points))
        return data

    def _point(self, subscription: Subscription, one: Reading, moment_ns: int) -> Point:
        if not one.counts:
            return Point(one.name, one.value, one.attributes, 0, moment_ns, None)
        if not subscription.delta:
            return Point(one.name, one.value, one.attributes, self._started_ns, moment_ns, CUMULATIVE)
        since = one.value - self._pushed.get(_key(one), 0.0)
        return Point(one.name, since, one.attributes, self._pushed_ns, moment_ns, DELTA)

    def _after(self, code: int) -> float:
        """Return the milliseconds until the next question after an error code; infinity for never."""
        if code not in _STEPS:
            logger.warning("a broker refuses this client's metrics, so none are pushed any more: %s", codes.error_name(code))
            return math.inf
        logger.debug(
            "a broker rejected a push of metrics with %s; the client asks for its subscription again", codes.error_name(code)
        )
        wait_ms = _STEPS[code]
        return self._interval_ms if wait_ms is None else wait_ms

    def _now_ns(self) -> int:
        return self._cluster.environment.wall_clock_ms() * 1_000_000


def _key(one: Reading) -> tuple[str, tuple[tuple[str, str], ...]]:
    return one.name, tuple(one.attributes.items())
