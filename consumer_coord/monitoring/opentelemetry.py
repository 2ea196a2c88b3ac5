"""OpenTelemetry: observable instruments for the consumers of a process.

Install the extra with ``pip install 'consumer-coord[opentelemetry]'``::

    from opentelemetry.metrics import get_meter
    from consumer_coord.monitoring.opentelemetry import CoordinatorInstruments

    instruments = CoordinatorInstruments(get_meter("consumer-coord"))
    instruments.add(consumer, group="orders", client_id="worker-1")

The names are those of OpenTelemetry's instrumentation of the Java client: ``join-rate`` is ``kafka.consumer.join_rate``, with
the attributes ``group`` and ``client-id``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from consumer_coord.extras import missing
from consumer_coord.group.metrics import NAMES
from consumer_coord.monitoring.process_figures import FIGURES
from consumer_coord.monitoring.source import Source, Sources, describe, is_counter, read, unit
from consumer_coord.runtime.locks import Lock

try:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
except ImportError as _error:
    raise missing("opentelemetry", _error) from _error

PREFIX = "kafka.consumer."

#: The time for which the consumers' figures are cached, in seconds, because one collection calls every instrument.
_FRESH_S = 0.1


class CoordinatorInstruments(Sources):
    """OpenTelemetry instruments, one for each figure, that read all added consumers at each collection; thread-safe."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._reading = Lock()
        self._read_of: tuple[Source, ...] = ()
        self._read_at = -math.inf
        self._figures: list[tuple[Source, Mapping[str, float]]] = []
        for name in (*NAMES, *FIGURES):
            make = meter.create_observable_counter if is_counter(name) else meter.create_observable_gauge
            make(PREFIX + name.replace("-", "_"), [self._observer(name)], unit=unit(name), description=describe(name))

    def _read(self) -> list[tuple[Source, Mapping[str, float]]]:
        """Return the figures of every consumer; read them only once for all instruments of a collection."""
        with self._reading:
            sources = self._present()
            if sources != self._read_of or time.monotonic() - self._read_at > _FRESH_S:
                self._figures, self._read_of, self._read_at = list(read(sources)), sources, time.monotonic()
            return self._figures

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for source, figures in self._read():
                value = figures.get(name, math.nan)
                # NaN means that there is no value; some back ends reject it.
                if not math.isnan(value):
                    yield Observation(value, {"group": source.group, "client-id": source.client_id})

        return observe
