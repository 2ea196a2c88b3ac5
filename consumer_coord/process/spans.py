"""One OpenTelemetry span for each call of a handler, by :class:`~consumer_coord.monitoring.messaging.MessagingSpans`.

There are spans and their metric if the application has set a tracer or meter provider before it calls ``process``; otherwise
this module imports nothing and costs nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from consumer_coord.process.work import Record

if TYPE_CHECKING:
    from consumer_coord.monitoring.messaging import MessagingSpans, Work


class Spans:
    """The spans of one ``process``."""

    def __init__(self, group_id: str) -> None:
        self._spans: MessagingSpans | None = None
        if _is_traced():
            from consumer_coord.monitoring.messaging import MessagingSpans

            self._spans = MessagingSpans(group=group_id)

    def begin(self, record: Record) -> Work | None:
        """Begin the span of a call: a child of its record's producer, or with a link to each producer; None without spans."""
        if self._spans is None:
            return None
        messages = [one.message for one in (record, *record.rest)]
        return self._spans.begin(messages, attempt=record.earlier + record.attempt, child=True)

    def end(self, span: Work, error: BaseException | None) -> None:
        """End the span of a call."""
        assert self._spans is not None
        self._spans.end(span, error)


def enter(span: Work) -> None:
    """Make a span the current one, in the thread or the context of the handler."""
    from opentelemetry import context, trace

    context.attach(trace.set_span_in_context(span.span))


def _is_traced() -> bool:
    """Return whether the application has set a provider."""
    if "opentelemetry" not in sys.modules:
        return False
    from opentelemetry import metrics, trace

    # A provider of the API alone does nothing.
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    return not all(type(one).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics")) for one in providers)
