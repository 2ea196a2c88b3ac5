"""Starts to push the consumer's metrics when a broker takes them (KIP-714); until then, one timer and no request."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.engine_loop import weakly
from consumer_coord.net.metadata import Broker

if TYPE_CHECKING:
    from consumer_coord.telemetry.push import MetricsPusher, Reading

#: GetTelemetrySubscriptions. Brokers without a receiver of metrics do not list it among their requests.
_GET_TELEMETRY_SUBSCRIPTIONS: Final = 71
#: Seconds until the first look whether a broker takes metrics, and the longest time between two looks. No connection is opened
#: for a look.
_FIRST_LOOK_S: Final = 1.0
_LONGEST_S: Final = 300.0
#: How long the last push may delay a close, in seconds.
_FAREWELL_S: Final = 0.5


class MetricsPush:
    """The metrics that a consumer pushes; used on its loop. :meth:`close` pushes the last ones."""

    def __init__(self, engine: Engine) -> None:
        # Neither the timer nor the task must keep a consumer alive that was dropped.
        self._engine = weakref.ref(engine)
        self._cluster = engine.core.cluster
        self._loop = asyncio.get_running_loop()
        self._pusher: MetricsPusher | None = None
        self._task: asyncio.Task[None] | None = None
        self._wait_s = _FIRST_LOOK_S
        self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._wait_s, weakly(self._look))
        self._wait_s = min(2 * self._wait_s, _LONGEST_S)

    def _look(self) -> None:
        if self.takes_metrics() is None:
            self._look_later()
            return
        # Imported here, because most brokers take no metrics.
        from consumer_coord.telemetry.push import MetricsPusher

        self._pusher = MetricsPusher(self._cluster, self)
        self._task = self._loop.create_task(self._pusher.run(), name="push metrics")
        self._task.add_done_callback(_log_crash)

    @property
    def alive(self) -> bool:
        """See :class:`~consumer_coord.telemetry.push.Source`."""
        return self._engine() is not None

    def takes_metrics(self) -> Broker | None:
        """See :class:`~consumer_coord.telemetry.push.Source`."""
        for broker in self._cluster.brokers():
            connection = self._cluster.open_connection(broker)
            if connection is not None and _GET_TELEMETRY_SUBSCRIPTIONS in connection.versions:
                return broker
        return None

    def read(self) -> Sequence[Reading]:
        """See :class:`~consumer_coord.telemetry.push.Source`."""
        from consumer_coord.consumer.metric_readings import readings

        engine = self._engine()
        return () if engine is None else list(readings(engine))

    def labels(self) -> Mapping[str, str]:
        """See :class:`~consumer_coord.telemetry.push.Source`."""
        from consumer_coord.consumer.metric_readings import labels

        engine = self._engine()
        return {} if engine is None else labels(engine)

    async def close(self, limit_ms: float) -> None:
        """Push the last metrics if a broker subscribes to some and is connected, within ``limit_ms`` and half a second."""
        self._timer.cancel()
        task, self._task = self._task, None
        if task is not None and self._pusher is not None:
            self._pusher.close()
            await asyncio.wait({task}, timeout=min(limit_ms / 1000, _FAREWELL_S))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _log_crash(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        # Not raised by a call of the application, because its records do not depend on metrics.
        text = "pushing metrics ended with an error; the consumer goes on without. Please report this"
        task.get_loop().call_exception_handler({"message": text, "exception": error, "task": task})
