"""OpenTelemetry spans for a consumer that is created while the instrumentation of confluent-kafka is active.

``ConfluentKafkaInstrumentor().instrument()`` replaces the name ``confluent_kafka.Consumer``, so it does not instrument classes
with other names.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from consumer_coord.log_text import get_logger

logger: Final = get_logger(__name__)

_INSTRUMENTATION = "opentelemetry.instrumentation.confluent_kafka"
#: Not empty after the warning about ddtrace.
_warned: list[bool] = []


def traced(kind: type[Any]) -> type[Any]:
    """Return a subclass of ``kind`` that creates spans in ``poll``, ``consume``, ``close``; without instrumentation, ``kind``.

    The spans are created by the instrumentation's functions.
    """
    _warn_of_datadog()
    module = sys.modules.get(_INSTRUMENTATION)
    # If our class had replaced confluent_kafka.Consumer before the instrumentation was imported, the instrumentation's class
    # derives from our class.
    if module is None or issubclass(kind, module.AutoInstrumentedConsumer):
        return kind
    instrumentor = module.ConfluentKafkaInstrumentor()
    if not instrumentor.is_instrumented_by_opentelemetry:
        return kind
    return _subclass(kind, instrumentor)  # type: ignore[arg-type]  # a class is hashable


def _warn_of_datadog() -> None:
    """Log once that ``ddtrace.patch(kafka=True)``, which replaces confluent-kafka's class, makes no spans for this package."""
    if getattr(sys.modules.get("confluent_kafka"), "_datadog_patch", False) and not _warned:
        _warned.append(True)
        logger.warning(
            "ddtrace has patched confluent_kafka, but it does not trace this package's consumers; use OpenTelemetry's"
            " instrumentation of confluent-kafka, whose spans Datadog accepts"
        )


@functools.cache
def _subclass(kind: type[Any], instrumentor: Any) -> type[Any]:
    @functools.wraps(kind, updated=())
    class Traced(kind):  # type: ignore[misc]  # a base that is known at run time
        _current_consume_span: Any = None
        _current_context_token: Any = None

        @property
        def config(self) -> dict[str, Any]:
            """Return the settings; the instrumentation takes the brokers' addresses of its spans from these."""
            return dict(self._librdkafka.settings)

        def poll(self, timeout: float | None = None) -> Any:
            """Poll, in a span."""
            return instrumentor.wrap_poll(super().poll, self, instrumentor._tracer, [timeout], {})

        def consume(self, num_messages: int = 1, timeout: float = -1) -> Any:
            """Consume, in a span."""
            return instrumentor.wrap_consume(super().consume, self, instrumentor._tracer, [num_messages, timeout], {})

        def close(self, *arguments: Any, **keywords: Any) -> None:
            """Close the consumer, which ends the last span."""
            instrumentor.wrap_close(super().close, self, arguments, keywords)

    return Traced
