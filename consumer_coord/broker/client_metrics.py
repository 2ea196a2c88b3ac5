"""Subscriptions of clients' metrics, and the metrics that clients push (KIP-714; Kafka's ``ClientMetricsManager``).

Each broker remembers the clients that have asked it, and knows nothing of what they asked or pushed elsewhere.
"""

from __future__ import annotations

import uuid
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import attrs

from consumer_coord.errors import ConfigurationError
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from consumer_coord.wire.schema import ZERO_UUID

#: Kafka's ``ClientMetricsConfigs``.
DEFAULT_INTERVAL_MS: Final = 300_000
_INTERVALS_MS: Final = (100, 3_600_000)
#: zstd, lz4, gzip, snappy, as Kafka prefers them; a client may also push without compression.
COMPRESSION: Final = (4, 3, 1, 2)
#: Kafka's default of ``telemetry.max.bytes``.
MAX_BYTES: Final = 1 << 20
#: The number of client instances of a broker (Kafka's ``CACHE_MAX_SIZE``) and of pushes that are remembered.
_MOST_INSTANCES: Final = 16_384
_MOST_PUSHES: Final = 1_000
#: After these errors, a client may ask again at once.
_ASK_AGAIN: Final = (codes.UNKNOWN_SUBSCRIPTION_ID, codes.UNSUPPORTED_COMPRESSION_TYPE)


@attrs.frozen
class PushedMetrics:
    """A PushTelemetry request that was accepted. ``metrics`` are compressed with Kafka's ``compression_type``."""

    client_instance_id: uuid.UUID
    client_id: str
    terminating: bool
    compression_type: int
    metrics: bytes


@attrs.define
class _Instance:
    """A client that has asked for a subscription."""

    asked_ms: int = -(2**62)
    pushed_ms: int = -(2**62)
    terminated: bool = False
    last_error: int = codes.NONE


class ClientMetrics:
    """The subscriptions of a cluster, and what clients have pushed."""

    def __init__(self, random: Random, wall_clock_ms: Callable[[], int]) -> None:
        self.pushes: deque[PushedMetrics] = deque(maxlen=_MOST_PUSHES)
        #: The error codes of all refused pushes.
        self.refusals: set[int] = set()
        self._random = random
        self._wall_clock_ms = wall_clock_ms
        self._subscriptions: dict[str, Mapping[str, str]] = {}
        #: The broker's number -> its clients.
        self._instances: defaultdict[int, OrderedDict[uuid.UUID, _Instance]] = defaultdict(OrderedDict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all subscriptions."""
        return tuple(self._subscriptions)

    def settings(self, name: str) -> Mapping[str, str]:
        """Return the settings of a subscription, by Kafka's names; empty if there is no such subscription."""
        return self._subscriptions.get(name, {})

    def subscribe(self, name: str, settings: Mapping[str, str]) -> None:
        """Replace the settings of a subscription; without settings, remove it."""
        if settings:
            self._subscriptions[name] = settings
        else:
            self._subscriptions.pop(name, None)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The prefixes of names in all subscriptions; ``*`` alone if one wants all metrics."""
        wanted = {one.strip() for of in self._subscriptions.values() for one in of.get("metrics", "").split(",")} - {""}
        return ("*",) if "*" in wanted else tuple(sorted(wanted))

    @property
    def interval_ms(self) -> int:
        """The shortest interval of all subscriptions."""
        given = [int(of["interval.ms"]) for of in self._subscriptions.values() if "interval.ms" in of]
        return min(given, default=DEFAULT_INTERVAL_MS)

    def _subscription_id(self, instance_id: uuid.UUID) -> int:
        return (zlib.crc32(repr((self.metrics, self.interval_ms)).encode()) ^ hash(instance_id.int)) & 0x7FFFFFFF

    def _instance(self, broker_id: int, instance_id: uuid.UUID) -> _Instance:
        instances = self._instances[broker_id]
        found = instances.setdefault(instance_id, _Instance())
        instances.move_to_end(instance_id)
        if len(instances) > _MOST_INSTANCES:
            instances.popitem(last=False)
        return found

    def asked(self, request: GetTelemetrySubscriptionsRequest, broker_id: int) -> GetTelemetrySubscriptionsResponse:
        """Answer GetTelemetrySubscriptions as a broker."""
        instance_id = request.client_instance_id
        if instance_id == ZERO_UUID:
            instance_id = uuid.UUID(int=self._random.getrandbits(128), version=4)
        instance, moment_ms = self._instance(broker_id, instance_id), self._wall_clock_ms()
        early = moment_ms - max(instance.asked_ms, instance.pushed_ms) < self.interval_ms
        if early and instance.last_error not in _ASK_AGAIN:
            instance.last_error = codes.THROTTLING_QUOTA_EXCEEDED
            return GetTelemetrySubscriptionsResponse(error_code=codes.THROTTLING_QUOTA_EXCEEDED)
        instance.asked_ms, instance.last_error = moment_ms, codes.NONE
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=self._subscription_id(instance_id),
            accepted_compression_types=COMPRESSION,
            push_interval_ms=self.interval_ms,
            telemetry_max_bytes=MAX_BYTES,
            delta_temporality=True,
            requested_metrics=self.metrics,
        )

    def pushed(self, request: PushTelemetryRequest, client_id: str, broker_id: int) -> PushTelemetryResponse:
        """Answer PushTelemetry as a broker, and keep the metrics of an accepted request."""
        if request.client_instance_id == ZERO_UUID:
            self.refusals.add(codes.INVALID_REQUEST)
            return PushTelemetryResponse(error_code=codes.INVALID_REQUEST)
        instance = self._instance(broker_id, request.client_instance_id)
        instance.last_error = self._why_not(request, instance)
        if instance.last_error == codes.NONE:
            named = request.client_instance_id, client_id, request.terminating, request.compression_type
            self.pushes.append(PushedMetrics(*named, bytes(request.metrics)))
        else:
            self.refusals.add(instance.last_error)
        return PushTelemetryResponse(error_code=instance.last_error)

    def _why_not(self, request: PushTelemetryRequest, instance: _Instance) -> int:
        """Return the error code for a push; note the time and the end of an accepted one."""
        moment_ms = self._wall_clock_ms()
        if instance.terminated:
            return codes.INVALID_REQUEST
        first = instance.asked_ms > instance.pushed_ms
        if not (first or moment_ms - instance.pushed_ms >= self.interval_ms or request.terminating):
            return codes.THROTTLING_QUOTA_EXCEEDED
        instance.pushed_ms = moment_ms
        if request.subscription_id != self._subscription_id(request.client_instance_id):
            return codes.UNKNOWN_SUBSCRIPTION_ID
        if request.compression_type not in (0, *COMPRESSION):
            return codes.UNSUPPORTED_COMPRESSION_TYPE
        if len(request.metrics) > MAX_BYTES:
            return codes.TELEMETRY_TOO_LARGE
        instance.terminated = request.terminating
        return codes.NONE


def check_subscription(settings: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return valid settings of a subscription; raise :class:`~consumer_coord.errors.ConfigurationError` for others."""
    checked: dict[str, str] = {}
    for name, value in settings.items():
        if value is None:
            raise ConfigurationError(f"{name} needs a value")
        checked[name] = value
        if name == "interval.ms":
            low, high = _INTERVALS_MS
            if not value.isdecimal() or not low <= int(value) <= high:
                raise ConfigurationError(f"interval.ms must be a whole number from {low} to {high}, not {value!r}")
        elif name != "metrics":
            raise ConfigurationError(
                f"{name} is not a setting of a subscription of metrics here; it has metrics and interval.ms"
            )
    return checked
