"""OpenTelemetry's instrumentation of confluent-kafka sees the same spans of both consumers."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer, cimpl
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka

instrumentation = pytest.importorskip("opentelemetry.instrumentation.confluent_kafka")

RECORDS = 4


def spans(kafka: EmbeddedKafka, kind: Any, group: str) -> list[Any]:
    """What is traced of a consumer that polls two records, consumes the others, commits, and closes."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer: Any = instrumentation.ConfluentKafkaInstrumentor.instrument_consumer(kind(settings), tracer_provider=provider)
    assert type(consumer).__mro__.count(cimpl.Consumer) == 1
    consumer.subscribe(["orders"])
    for _ in range(2):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
    assert len(consumer.consume(RECORDS - 2, 60)) == RECORDS - 2
    consumer.commit(message, asynchronous=False)
    consumer.close()
    return [
        (span.name, span.kind, dict(span.attributes or {}), len(span.links), span.parent is None)
        for span in exporter.get_finished_spans()
    ]


def test_both_consumers_make_the_same_spans() -> None:
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("orders", str(number))
        assert producer.flush(60) == 0
        theirs = spans(kafka, cimpl.Consumer, "theirs")
        assert spans(kafka, GroupConsumer, "ours") == theirs
        assert [name for name, *_ in theirs].count("recv") == 3
