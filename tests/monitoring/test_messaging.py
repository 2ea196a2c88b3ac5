"""OpenTelemetry's messaging spans and metrics of both consumers, with links to the spans of producers."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
from confluent_kafka import Producer
from opentelemetry import propagate
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import error_attributes, messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.trace import SpanKind, StatusCode

from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.errors import CoordinatorError
from consumer_coord.monitoring import messaging
from consumer_coord.monitoring.messaging import traced

#: Every name of the semantic conventions.
CONVENTIONS = {
    value for of in (messaging_attributes, error_attributes) for value in vars(of).values() if isinstance(value, str)
} | {value for value in vars(messaging_metrics).values() if isinstance(value, str)}


@attrs.frozen
class Seen:
    """The providers of a test, and what they recorded."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    tracers: TracerProvider
    meters: MeterProvider

    @property
    def providers(self) -> dict[str, Any]:
        """The arguments for :func:`traced`."""
        return {"group": "billing", "client_id": "w1", "tracer_provider": self.tracers, "meter_provider": self.meters}

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the finished spans with a name, in order."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[tuple[Mapping[str, Any], Any]]:
        """Return the attributes and the data of a metric's points."""
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = (scope for resource in data.resource_metrics for scope in resource.scope_metrics)
        metrics = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        return [(dict(point.attributes or {}), point) for metric in metrics for point in metric.data.data_points]


@pytest.fixture
def seen() -> Seen:
    exporter, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    return Seen(exporter, reader, tracers, MeterProvider([reader]))


@pytest.fixture
def kafka(seen: Seen) -> Iterator[EmbeddedKafka]:
    """Six records in one partition, each written in a span of its own."""
    with EmbeddedKafka({"orders": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        tracer = seen.tracers.get_tracer("producer")
        for number in range(6):
            with tracer.start_as_current_span(f"send {number}"):
                carrier: dict[str, str] = {}
                propagate.inject(carrier)
            headers = [(key, value.encode()) for key, value in carrier.items()]
            producer.produce("orders", b"value", key=str(number), headers=headers if number < 5 else None)
        assert producer.flush(60) == 0
        yield running


def settings(kafka: EmbeddedKafka, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest", **more}


COMMON = {"messaging.system": "kafka", "messaging.consumer.group.name": "billing"}
ORDERS = {"messaging.destination.name": "orders", "messaging.destination.partition.id": "0"}


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def sent(seen: Seen, *numbers: int) -> list[int]:
    """Return the ids of the producers' spans."""
    spans = {span.name: span for span in seen.exporter.get_finished_spans()}
    contexts = [spans[f"send {number}"].get_span_context() for number in numbers]
    return [context.span_id for context in contexts if context is not None]


def test_a_poll_has_a_span_with_a_link_and_a_commit_has_one(kafka: EmbeddedKafka, seen: Seen) -> None:
    with traced(GroupConsumer(settings(kafka)), **seen.providers) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert consumer.consume(4, 60)[-1].offset() == 4
        assert next(consumer).offset() == 5
        assert consumer.poll(0) is None
        consumer.commit(message, asynchronous=False)
        assert consumer.memberid(), "other methods are the consumer's"
    first, batch, last = seen.spans("poll orders")
    assert (first.kind, first.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(first.attributes or {}) == {
        **COMMON,
        **ORDERS,
        "messaging.operation.name": "poll",
        "messaging.operation.type": "receive",
        "messaging.client.id": "w1",
        "messaging.kafka.offset": 0,
    }
    assert [linked(one) for one in (first, batch, last)] == [sent(seen, 0), sent(seen, 1, 2, 3, 4), []]
    assert dict(batch.attributes or {})["messaging.batch.message_count"] == 4
    (commit,) = seen.spans("commit")
    assert dict(commit.attributes or {})["messaging.operation.type"] == "settle"
    [(attributes, point)] = seen.points("messaging.client.consumed.messages")
    assert attributes == {**COMMON, **ORDERS, "messaging.operation.name": "poll"}
    assert point.value == 6
    counted = {
        one["messaging.operation.name"]: point.count for one, point in seen.points("messaging.client.operation.duration")
    }
    assert counted == {"poll": 3, "commit": 1}
    assert all(span.start_time is not None and span.end_time is not None for span in (first, batch, last, commit))
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in (first, batch, last, commit))


def test_processing_is_the_current_span_and_tells_of_failures(kafka: EmbeddedKafka, seen: Seen) -> None:
    tracer = seen.tracers.get_tracer("application")
    with traced(GroupConsumer(settings(kafka)), **seen.providers) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        with consumer.processing(message), tracer.start_as_current_span("work"):
            pass
        with pytest.raises(ZeroDivisionError), consumer.processing(message):
            raise ZeroDivisionError
    good, bad = seen.spans("process orders")
    (work,) = seen.spans("work")
    context = good.get_span_context()
    assert context is not None
    assert work.parent is not None
    assert work.parent.span_id == context.span_id
    assert good.kind is SpanKind.CONSUMER
    assert dict(good.attributes or {}) == {
        **COMMON,
        **ORDERS,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": "w1",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "0",
        "messaging.message.body.size": 5,
    }
    assert linked(good) == sent(seen, 0)
    assert bad.status.status_code is StatusCode.ERROR
    assert dict(bad.attributes or {})["error.type"] == "ZeroDivisionError"
    found = {one.get("error.type"): point.count for one, point in seen.points("messaging.process.duration")}
    assert found == {None: 1, "ZeroDivisionError": 1}


def test_columns_have_one_span_for_a_batch(kafka: EmbeddedKafka, seen: Seen) -> None:
    with traced(GroupConsumer(settings(kafka)), **seen.providers) as consumer:
        consumer.subscribe(["orders"])
        batch = consumer.consume_arrow(timeout=60)
        consumer.commit(batch)
        assert not len(consumer.consume_arrow(timeout=0.01))
    (span,) = seen.spans("poll orders")
    assert dict(span.attributes or {})["messaging.batch.message_count"] == len(batch) == 6
    [(attributes, point)] = seen.points("messaging.client.consumed.messages")
    assert (attributes, point.value) == ({**COMMON, **ORDERS, "messaging.operation.name": "poll"}, 6)


def test_the_asyncio_consumer(kafka: EmbeddedKafka, seen: Seen) -> None:
    async def read() -> None:
        async with traced(AsyncGroupConsumer(settings(kafka)), **seen.providers) as consumer:
            await consumer.subscribe(["orders"])
            message = await consumer.poll(60)
            with consumer.processing(message):
                await asyncio.sleep(0)
            assert len(await consumer.consume(4, 60)) == 4
            async for message in consumer:
                assert message.offset() == 5
                break
            await consumer.commit(asynchronous=False)

    asyncio.run(read())
    assert [linked(one) for one in seen.spans("poll orders")] == [sent(seen, 0), sent(seen, 1, 2, 3, 4), []]
    assert len(seen.spans("process orders")) == len(seen.spans("commit")) == 1


def test_a_failed_call_has_the_error(kafka: EmbeddedKafka, seen: Seen) -> None:
    consumer = traced(GroupConsumer(settings(kafka)), **seen.providers)
    consumer.close()
    with pytest.raises(CoordinatorError):
        consumer.poll(0)
    with pytest.raises(CoordinatorError):
        consumer.commit()
    for name in ("poll", "commit"):
        (span,) = seen.spans(name)
        assert span.status.status_code is StatusCode.ERROR
        assert "error.type" in dict(span.attributes or {})


def test_an_interrupt_while_a_span_is_made_loses_no_message(
    kafka: EmbeddedKafka, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract, interrupts = propagate.extract, [KeyboardInterrupt()]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return extract(*arguments, **named)

    monkeypatch.setattr(propagate, "extract", interrupted)
    with traced(GroupConsumer(settings(kafka)), **seen.providers) as consumer:
        consumer.subscribe(["orders"])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(60)
        assert [consumer.poll(60).offset() for _ in range(6)] == [0, 1, 2, 3, 4, 5]


def test_every_name_is_one_of_the_conventions() -> None:
    used = set(re.findall(r'"(messaging\.[a-z_.]+|error\.type)"', inspect.getsource(messaging)))
    assert len(used) > 15
    assert used <= CONVENTIONS, used - CONVENTIONS
