"""OpenTelemetry's spans and metrics for messaging clients (``messaging.*``), for both consumers.

Install the extra with ``pip install 'consumer-coord[opentelemetry]'``, and read through the returned object::

    from consumer_coord.monitoring.messaging import traced

    consumer = traced(GroupConsumer(config), group="orders", client_id="worker-1")
    for message in consumer:
        with consumer.processing(message):
            work_on(message)

A span is made for each call of ``poll``, ``consume``, iteration and ``consume_arrow`` that returned records or raised
(``poll orders``), for each ``commit``, and for each ``with processing`` (``process orders``). Spans have links to the spans of
the producers, if the records have a ``traceparent`` header (or what the global propagator reads). Columns have no links,
because their headers are not read. Consumers that are not wrapped pay nothing.

The names are those of OpenTelemetry's semantic conventions for messaging, version 1.36.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self

from consumer_coord.extras import missing

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider, get_current_span, get_tracer, use_span
    from opentelemetry.util.types import AttributeValue
except ImportError as _error:
    raise missing("opentelemetry", _error) from _error

from consumer_coord.version import __version__

_NAME: Final = "consumer_coord"
#: OpenTelemetry's SDK keeps this number of links of a span (``OTEL_SPAN_LINK_COUNT_LIMIT``).
_MOST_LINKS: Final = 128
#: Bounds of the histograms, in seconds, as the conventions advise.
_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class Work(NamedTuple):
    """Work on messages, begun at ``began`` (``time.perf_counter``); ``named``: the attributes of its span and metric."""

    span: Span
    named: Mapping[str, AttributeValue]
    began: float


class MessagingSpans:
    """The spans and metrics of one consumer; thread-safe. :func:`traced` makes one and calls it."""

    def __init__(
        self,
        *,
        group: str,
        client_id: str = "",
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """Create the instruments; without providers, those of the process are used."""
        self._tracer = get_tracer(_NAME, __version__, tracer_provider)
        meter = get_meter(_NAME, __version__, meter_provider)
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages that were delivered to the application."
        )
        self._operations = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._processing = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._common: dict[str, AttributeValue] = {"messaging.system": "kafka", "messaging.consumer.group.name": group}
        self._client: dict[str, AttributeValue] = {"messaging.client.id": client_id} if client_id else {}

    def received(self, messages: Sequence[Any], began_ns: int) -> None:
        """Record a call that began at ``began_ns`` (since 1970) and returned ``messages``, some of which may be errors."""
        errors = [one.error() for one in messages if one.error() is not None]
        records = [one for one in messages if one.error() is None]
        links = [link for one in records[:_MOST_LINKS] if (link := _link(one)) is not None]
        details: dict[str, AttributeValue] = {}
        if len(records) == 1:
            details["messaging.kafka.offset"] = records[0].offset()
        counts: dict[tuple[str, int], int] = {}
        for one in records:
            at = one.topic(), one.partition()
            counts[at] = counts.get(at, 0) + 1
        self._receive(counts, began_ns, details, links, errors[0].name() if errors else None)

    def received_columns(self, batch: Any, began_ns: int) -> None:
        """Record a call that began at ``began_ns`` and returned a batch of columns, unless the batch is empty."""
        partitions = [(one.topic, one.partition) for one in batch.fetched_under]
        # A batch does not say how many of its records are from each partition.
        self._receive(dict.fromkeys(partitions, 0), began_ns, {}, (), None, len(batch))

    def failed(self, operation: str, kind: str, began_ns: int, error: BaseException) -> None:
        """Record a call that began at ``began_ns`` and raised."""
        self._operation(operation, kind, began_ns, {}, {}, (), type(error).__qualname__)

    def committed(self, began_ns: int) -> None:
        """Record a commit that began at ``began_ns``; an asynchronous one may still be on its way."""
        self._operation("commit", "settle", began_ns, {}, {}, (), None)

    @contextmanager
    def processing(self, message: Any) -> Iterator[Span]:
        """Make the current span one for the work on a message; an exception is recorded, and raised.

        The span is linked to the producer's span. It may be used around ``await``, too.
        """
        work, failure = self.begin([message]), None
        try:
            with use_span(work.span, record_exception=False, set_status_on_exception=False):
                yield work.span
        except BaseException as error:
            failure = error
            raise
        finally:
            self.end(work, failure)

    def begin(self, messages: Sequence[Any], *, attempt: int = 1, child: bool = False) -> Work:
        """Begin a span for the work on messages of one partition, which is not the current span; :meth:`end` ends it.

        The span is a child of the current span, and has a link to the span of each producer. With ``child``, the span for a
        single message is instead a child of its producer's, and none is a child of the current span, which may never end.
        """
        first = messages[0]
        named = {**self._common, **_destination([(first.topic(), first.partition())]), "messaging.operation.name": "process"}
        details: dict[str, AttributeValue] = {
            "messaging.operation.type": "process",
            "messaging.kafka.offset": first.offset(),
            **self._client,
        }
        if attempt > 1:
            details["consumer_coord.attempt"] = attempt
        alone = len(messages) == 1
        if alone:
            details |= _of_message(first)
        else:
            details["messaging.batch.message_count"] = len(messages)
        # Without one in the headers, the span has no parent.
        parent = propagate.extract(first.headers() or () if alone else (), Context(), _HEADERS) if child else None
        span = self._tracer.start_span(
            f"process {first.topic()}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={**named, **details},
            links=() if child and alone else [link for one in messages[:_MOST_LINKS] if (link := _link(one)) is not None],
        )
        return Work(span, named, time.perf_counter())

    def end(self, work: Work, error: BaseException | None) -> None:
        """End the span of :meth:`begin`, with the exception that ended the work."""
        failure = None if error is None else type(error).__qualname__
        if error is not None:
            work.span.record_exception(error)
            work.span.set_status(StatusCode.ERROR, f"{failure}: {error}")
            work.span.set_attribute("error.type", str(failure))
        work.span.end()
        self._processing.record(time.perf_counter() - work.began, _with_error(work.named, failure))

    def _receive(
        self,
        counts: Mapping[tuple[str, int], int],
        began_ns: int,
        details: dict[str, AttributeValue],
        links: Sequence[Link],
        failure: str | None,
        total: int | None = None,
    ) -> None:
        number = sum(counts.values()) if total is None else total
        if not number and failure is None:
            return
        destination = _destination(counts)
        if number != 1:
            details = {**details, "messaging.batch.message_count": number}
        self._operation("poll", "receive", began_ns, destination, details, links, failure)
        named = {**self._common, "messaging.operation.name": "poll"}
        if total is not None:
            self._consumed.add(number, {**named, **destination})
            return
        for at, count in counts.items():
            self._consumed.add(count, {**named, **_destination([at])})

    def _operation(
        self,
        operation: str,
        kind: str,
        began_ns: int,
        destination: Mapping[str, AttributeValue],
        details: Mapping[str, AttributeValue],
        links: Sequence[Link],
        failure: str | None,
    ) -> None:
        ended_ns = time.time_ns()
        named = {**self._common, **destination, "messaging.operation.name": operation, "messaging.operation.type": kind}
        named = _with_error(named, failure)
        topic = destination.get("messaging.destination.name")
        span = self._tracer.start_span(
            operation if topic is None else f"{operation} {topic}",
            kind=SpanKind.CLIENT,
            attributes={**named, **self._client, **details},
            links=links,
            start_time=began_ns,
        )
        if failure is not None:
            span.set_status(StatusCode.ERROR, failure)
        span.end(ended_ns)
        self._operations.record(max(0, ended_ns - began_ns) / 1e9, named)


def _with_error(named: Mapping[str, AttributeValue], failure: str | None) -> dict[str, AttributeValue]:
    return dict(named) if failure is None else {**named, "error.type": failure}


def _destination(partitions: Iterable[tuple[str, int]]) -> dict[str, AttributeValue]:
    """Return the attributes of the topic and the partition, if there is only one."""
    found = list(partitions)
    topics = {topic for topic, _ in found}
    attributes: dict[str, AttributeValue] = {}
    if len(topics) == 1:
        attributes["messaging.destination.name"] = found[0][0]
        if len(found) == 1:
            attributes["messaging.destination.partition.id"] = str(found[0][1])
    return attributes


def _of_message(message: Any) -> dict[str, AttributeValue]:
    """Return the attributes of a single message."""
    details: dict[str, AttributeValue] = {}
    key, value = message.key(), message.value()
    if isinstance(key, bytes) and key.isascii():
        details["messaging.kafka.message.key"] = key.decode()
    if value is None:
        details["messaging.kafka.message.tombstone"] = True
    elif isinstance(value, bytes):
        details["messaging.message.body.size"] = len(value)
    return details


class _Headers:
    """Reads the headers of a message for OpenTelemetry's propagators."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        """Return the values of a header; None without any."""
        found = [value.decode(errors="replace") for name, value in carrier if name == key and isinstance(value, bytes)]
        return found or None

    def keys(self, carrier: Any) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier]


_HEADERS: Any = _Headers()


def _link(message: Any) -> Link | None:
    """Return a link to the span of the producer; None without one in the headers."""
    headers = message.headers()
    if not headers:
        return None
    context = get_current_span(propagate.extract(headers, getter=_HEADERS)).get_span_context()
    return Link(context) if context.is_valid else None


class _Traced:
    """A consumer with spans: the part that the blocking and the asyncio wrapper share.

    Attributes that the wrapper does not have are those of the consumer.
    """

    def __init__(self, consumer: Any, spans: MessagingSpans) -> None:
        self._consumer = consumer
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def processing(self, message: Any) -> Any:
        """See :meth:`MessagingSpans.processing`."""
        return self._spans.processing(message)

    def _note(self, received: Any, began_ns: int) -> None:
        if received is None:
            return
        if hasattr(received, "fetched_under"):
            self._spans.received_columns(received, began_ns)
        else:
            self._spans.received(received if isinstance(received, list) else [received], began_ns)


class TracedConsumer(_Traced):
    """A :class:`~consumer_coord.GroupConsumer` with spans and metrics; the methods are the consumer's."""

    def __init__(self, consumer: Any, spans: MessagingSpans) -> None:
        super().__init__(consumer, spans)
        #: What the consumer returned, until the spans are made: an interrupt in between loses nothing.
        self._held: Any = None

    def __enter__(self) -> Self:
        self._consumer.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._consumer.__exit__(*raised)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next message."""
        return self._received(self._consumer.__next__)

    def poll(self, timeout: float | None = None) -> Any:
        """Poll; see :meth:`~consumer_coord.GroupConsumer.poll`."""
        return self._received(lambda: self._consumer.poll(timeout))

    def consume(self, num_messages: int = 1, timeout: float = -1) -> Any:
        """Consume; see :meth:`~consumer_coord.GroupConsumer.consume`."""
        return self._received(lambda: self._consumer.consume(num_messages, timeout))

    def consume_arrow(self, *arguments: Any, **named: Any) -> Any:
        """Consume columns; see :meth:`~consumer_coord.GroupConsumer.consume_arrow`."""
        return self._received(lambda: self._consumer.consume_arrow(*arguments, **named))

    def commit(self, *arguments: Any, **named: Any) -> Any:
        """Commit; see :meth:`~consumer_coord.GroupConsumer.commit`."""
        began_ns = time.time_ns()
        try:
            committed = self._consumer.commit(*arguments, **named)
        except Exception as error:
            self._spans.failed("commit", "settle", began_ns, error)
            raise
        self._spans.committed(began_ns)
        return committed

    def _received(self, call: Callable[[], Any]) -> Any:
        began_ns = time.time_ns()
        if self._held is None:
            try:
                self._held = call()
            except StopIteration:
                raise
            except Exception as error:
                self._spans.failed("poll", "receive", began_ns, error)
                raise
        self._note(self._held, began_ns)
        received, self._held = self._held, None
        return received


class AsyncTracedConsumer(_Traced):
    """An :class:`~consumer_coord.AsyncGroupConsumer` with spans and metrics; the methods are the consumer's."""

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._consumer.__aexit__(*raised)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next message."""
        return await self._received(self._consumer.__anext__)

    async def poll(self, timeout: float | None = None) -> Any:
        """Poll; see :meth:`~consumer_coord.AsyncGroupConsumer.poll`."""
        return await self._received(lambda: self._consumer.poll(timeout))

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> Any:
        """Consume; see :meth:`~consumer_coord.AsyncGroupConsumer.consume`."""
        return await self._received(lambda: self._consumer.consume(num_messages, timeout))

    async def consume_arrow(self, *arguments: Any, **named: Any) -> Any:
        """Consume columns; see :meth:`~consumer_coord.AsyncGroupConsumer.consume_arrow`."""
        return await self._received(lambda: self._consumer.consume_arrow(*arguments, **named))

    async def commit(self, *arguments: Any, **named: Any) -> Any:
        """Commit; see :meth:`~consumer_coord.AsyncGroupConsumer.commit`."""
        began_ns = time.time_ns()
        try:
            committed = await self._consumer.commit(*arguments, **named)
        except Exception as error:
            self._spans.failed("commit", "settle", began_ns, error)
            raise
        self._spans.committed(began_ns)
        return committed

    async def _received(self, call: Callable[[], Any]) -> Any:
        began_ns = time.time_ns()
        try:
            # Tasks take turns here, so nothing is held: a cancelled call loses no records, and no other await follows.
            received = await call()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._spans.failed("poll", "receive", began_ns, error)
            raise
        self._note(received, began_ns)
        return received


def traced(
    consumer: Any,
    *,
    group: str,
    client_id: str = "",
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Any:
    """Return a wrapper of a ``GroupConsumer`` or ``AsyncGroupConsumer``, for its reads and commits; use it in its place.

    ``group`` and ``client_id`` are attributes of every span. Without providers, those of the process are used.
    """
    spans = MessagingSpans(group=group, client_id=client_id, tracer_provider=tracer_provider, meter_provider=meter_provider)
    return AsyncTracedConsumer(consumer, spans) if hasattr(consumer, "__aiter__") else TracedConsumer(consumer, spans)
