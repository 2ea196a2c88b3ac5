"""One OpenTelemetry span for each call of a handler: a child of the span that the producer put into the record's headers.

The names are those of OpenTelemetry's semantic conventions for messaging systems and for Kafka. There are spans if the
application has set a tracer provider before it calls ``process``; otherwise this module imports nothing and costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from consumer_coord.process.work import Record

#: Begins the span of a call, and returns it.
BeginSpan = Callable[[Record], Any]


def span_maker(group_id: str) -> BeginSpan | None:
    """Return what begins spans; None if the application does not trace."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import propagate, trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    tracer = trace.get_tracer("consumer_coord.process")

    def begin(record: Record) -> Any:
        messages = [one.message for one in (record, *record.rest)]
        parents = [propagate.extract(_carrier(message)) for message in messages]
        alone = len(messages) == 1
        contexts = [trace.get_current_span(parent).get_span_context() for parent in parents]
        partition = record.holding.partition
        span = tracer.start_span(
            f"process {partition.topic}",
            # The calls for several records have several causes, so their spans have links in place of a parent.
            context=parents[0] if alone else None,
            links=() if alone else [trace.Link(one) for one in contexts if one.is_valid],
            kind=trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.destination.name": partition.topic,
                "messaging.destination.partition.id": str(partition.partition),
                "messaging.consumer.group.name": group_id,
                "messaging.kafka.offset": record.offset,
            },
        )
        if not alone:
            span.set_attribute("messaging.batch.message_count", len(messages))
        key = record.message.key()
        if alone and key is not None:
            span.set_attribute("messaging.kafka.message.key", key.decode(errors="replace"))
        if (attempt := record.earlier + record.attempt) > 1:
            span.set_attribute("messaging.message.retry.attempt", attempt)
        return span

    return begin


def enter(span: Any) -> None:
    """Make a span the current one of this context, in the thread or the context of the handler."""
    from opentelemetry import context, trace

    context.attach(trace.set_span_in_context(span))


def end(span: Any, error: BaseException | None) -> None:
    """End a span, with the exception of the handler."""
    from opentelemetry.trace import StatusCode

    if error is not None:
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, repr(error))
        span.set_attribute("error.type", type(error).__qualname__)
    span.end()


def _carrier(message: Any) -> dict[str, str]:
    headers: Sequence[tuple[str, bytes | str | None]] = message.headers() or ()
    return {
        name.lower(): value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in headers
        if value is not None
    }
