"""OpenTelemetry's instrumentation of confluent-kafka sees the same spans of both consumers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Producer, cimpl
from confluent_kafka.serialization import StringDeserializer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from consumer_coord import DeserializingConsumer, GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import tracing

instrumentation = pytest.importorskip("opentelemetry.instrumentation.confluent_kafka")

RECORDS = 4


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("orders", str(number))
        assert producer.flush(180) == 0
        yield running


@pytest.fixture(scope="module")
def everywhere() -> Iterator[InMemorySpanExporter]:
    """The spans of a process that is instrumented as a whole, once: the instrumentation cannot take all of it back."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = instrumentation.ConfluentKafkaInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()


def settings(kafka: EmbeddedKafka, group: str) -> dict[str, Any]:
    return {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}


def read(consumer: Any) -> None:
    """Poll two records, consume the others, commit, and close."""
    consumer.subscribe(["orders"])
    for _ in range(2):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
    assert len(consumer.consume(RECORDS - 2, 60)) == RECORDS - 2
    consumer.commit(message, asynchronous=False)
    consumer.close()


def seen(exporter: InMemorySpanExporter) -> list[Any]:
    """The finished spans, as far as they are alike from run to run."""
    spans = [
        (span.name, span.kind, dict(span.attributes or {}), len(span.links), span.parent is None)
        for span in exporter.get_finished_spans()
    ]
    exporter.clear()
    return spans


def test_both_consumers_make_the_same_spans_when_one_consumer_is_instrumented(kafka: EmbeddedKafka) -> None:
    def spans(kind: Any, group: str) -> list[Any]:
        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        made = kind(settings(kafka, group))
        consumer: Any = instrumentation.ConfluentKafkaInstrumentor.instrument_consumer(made, tracer_provider=provider)
        assert type(consumer).__mro__.count(cimpl.Consumer) == 1
        read(consumer)
        return seen(exporter)

    theirs = spans(cimpl.Consumer, "theirs")
    assert spans(GroupConsumer, "ours") == theirs
    assert [name for name, *_ in theirs].count("recv") == 3


def test_an_instrumented_process_needs_no_further_steps(kafka: EmbeddedKafka, everywhere: InMemorySpanExporter) -> None:
    read(confluent_kafka.Consumer(settings(kafka, "theirs, instrumented")))
    theirs = seen(everywhere)
    assert [name for name, *_ in theirs].count("recv") == 3

    class Mine(GroupConsumer):
        pass

    for kind in (GroupConsumer, Mine):
        consumer = kind(settings(kafka, f"{kind.__name__}, instrumented"))
        assert isinstance(consumer, kind)
        assert type(consumer).__name__ == kind.__name__
        read(consumer)
        assert seen(everywhere) == theirs


def test_iteration_and_deserializers_are_traced(kafka: EmbeddedKafka, everywhere: InMemorySpanExporter) -> None:
    with GroupConsumer(settings(kafka, "iterates")) as consumer:
        consumer.subscribe(["orders"])
        assert [message.offset() for message in itertools.islice(consumer, RECORDS)] == list(range(RECORDS))
    assert [name for name, *_ in seen(everywhere)].count("recv") == RECORDS
    config = {**settings(kafka, "deserializes"), "value.deserializer": StringDeserializer()}
    with DeserializingConsumer(config) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == "0"
    assert [name for name, *_ in seen(everywhere)].count("recv") == 1


def test_a_class_put_in_the_place_of_an_instrumented_one_is_traced(
    kafka: EmbeddedKafka, everywhere: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", GroupConsumer)
    consumer = confluent_kafka.Consumer(settings(kafka, "replaced"))
    assert isinstance(consumer, GroupConsumer)
    read(consumer)
    assert [name for name, *_ in seen(everywhere)].count("recv") == 3


def test_a_patch_of_ddtrace_is_answered_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(confluent_kafka, "_datadog_patch", True, raising=False)
    monkeypatch.setattr(tracing, "_warned", [])
    for _ in range(2):
        GroupConsumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}).close()
    assert caplog.text.count("ddtrace has patched confluent_kafka") == 1
