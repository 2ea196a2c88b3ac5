"""What ``process`` shows of its work: spans, metrics, statistics, and log lines."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import tenacity
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.monitoring.process_figures import FIGURES
from consumer_coord.monitoring.prometheus import CoordinatorCollector
from consumer_coord.process import Batches, FailurePolicy, context
from tests.consumer.test_async_consumer import consumer
from tests.process.test_processing import reads
from tests.process.test_thread_process import stop_when
from tests.process.test_work import P0, FakeMessage, messages, start_all, work
from tests.support.consumer.embedded import consumer as blocking_consumer
from tests.support.producer import Producer
from tests.support.waiting import eventually, eventually_async

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(3):
            producer.produce("orders", str(number), key="k", headers=[("traceparent", f"00-{TRACE}-{PARENT}-01")])
        assert producer.flush(60) == 0
        yield running


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def of_process(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == "process orders"]


def check(span: ReadableSpan, offset: int) -> None:
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert (
        dict(span.attributes or {}).items()
        >= {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": "orders",
            "messaging.destination.partition.id": "0",
            "messaging.consumer.group.name": "billing",
            "messaging.kafka.offset": offset,
            "messaging.kafka.message.key": "k",
        }.items()
    )


def test_each_call_of_a_coroutine_has_a_span_and_a_failure_is_in_it(kafka: EmbeddedKafka, spans: InMemorySpanExporter) -> None:
    async def handle(message: Any) -> None:
        with trace.get_tracer("of the application").start_as_current_span(f"inside {message.offset()}"):
            await asyncio.sleep(0)
        if message.offset() == 1:
            raise ValueError("broken")

    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            task = asyncio.create_task(member.process(handle, stop=stop, on_failure=FailurePolicy(then="skip")))
            await eventually_async(lambda: len(of_process(spans)) == 3)
            stop.set()
            await task

    asyncio.run(main())
    for offset, span in enumerate(of_process(spans)):
        check(span, offset)
        (inside,) = [one for one in spans.get_finished_spans() if one.name == f"inside {offset}"]
        assert inside.parent is not None
        assert span.context is not None
        assert inside.parent.span_id == span.context.span_id
    failed = of_process(spans)[1]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]


def test_the_second_attempt_says_so(kafka: EmbeddedKafka, spans: InMemorySpanExporter) -> None:
    async def handle(message: Any) -> None:
        if message.offset() == 1 and context().attempt == 1:
            raise ValueError("broken")

    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            policy = FailurePolicy(stop=tenacity.stop_after_attempt(2))
            task = asyncio.create_task(member.process(handle, stop=stop, on_failure=policy))
            await eventually_async(lambda: len(of_process(spans)) == 4)
            stop.set()
            await task

    asyncio.run(main())
    assert [(span.attributes or {}).get("consumer_coord.attempt") for span in of_process(spans)] == [None, None, 2, None]


def test_each_call_in_a_thread_has_a_span(kafka: EmbeddedKafka, spans: InMemorySpanExporter) -> None:
    current = []

    def handle(_: Any) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)

    with blocking_consumer(kafka) as member:
        member.subscribe(["orders"])
        stop = threading.Event()
        threading.Thread(target=stop_when, args=(stop, lambda: len(of_process(spans)) == 3)).start()
        member.process(handle, workers=2, stop=stop)
    for offset, span in enumerate(of_process(spans)):
        check(span, offset)
        assert span.context is not None
        assert span.context.span_id == current[offset]


def test_the_span_of_a_batch_has_links(kafka: EmbeddedKafka, spans: InMemorySpanExporter) -> None:
    async def handle(_: Any) -> None: ...

    async def main() -> None:
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            task = asyncio.create_task(member.process(handle, stop=stop, batches=Batches(3, wait=10.0)))
            await eventually_async(lambda: of_process(spans))
            stop.set()
            await task

    # The loop of an application may run inside a span, which is no parent of the calls.
    with trace.get_tracer("of the application").start_as_current_span("all day"):
        asyncio.run(main())
    (span,) = of_process(spans)
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE] * 3
    assert (span.attributes or {})["messaging.batch.message_count"] == 3


def test_figures_of_process_are_in_metrics_prometheus_and_statistics(kafka: EmbeddedKafka) -> None:
    go_on, stop, statistics = threading.Event(), threading.Event(), list[dict[str, Any]]()

    def handle(_: Any) -> None:
        assert go_on.wait(60)

    with blocking_consumer(
        kafka, stats_cb=lambda text: statistics.append(json.loads(text)), statistics_interval_ms=50
    ) as member:
        member.subscribe(["orders"])
        processing = threading.Thread(target=lambda: member.process(handle, workers=2, stop=stop))
        processing.start()
        eventually(lambda: member.metrics().get("process-running") == 1)
        assert member.metrics()["process-waiting"] == 2
        assert member.metrics()["process-unfinished-seconds"] > 0
        registry, collector = CollectorRegistry(), CoordinatorCollector()
        registry.register(collector)
        collector.add(member, group="billing", client_id="one")
        assert 'process_running{client_id="one",group="billing"} 1.0' in generate_latest(registry).decode()
        eventually(lambda: statistics and statistics[-1].get("process", {}).get("process-waiting") == 2)
        go_on.set()
        eventually(lambda: member.metrics()["process-handled-total"] == 3)
        assert member.metrics()["process-unfinished-seconds"] == 0
        stop.set()
        processing.join()
        assert "process-running" not in member.metrics()


def test_every_figure_has_a_description() -> None:
    driver, _ = reads(0)
    assert driver.figures().keys() == FIGURES.keys()


def test_figures_count_calls_records_that_wait_and_retries() -> None:
    one = work(concurrency=2)
    holding = one.begin(P0, 1, 0)
    one.deliver(holding, [*messages(0, 1, key=b"a"), FakeMessage(2, b"b"), FakeMessage(3, b"c")], 10.0)
    first, _ = start_all(one, 10.0)
    one.retry(first, 99.0)
    start_all(one, 11.0)
    figures = one.figures(25.0)
    assert (figures["process-running"], figures["process-waiting"], figures["process-retrying"]) == (2, 1, 1)
    assert (figures["process-unfinished-seconds"], figures["process-retried-total"]) == (15.0, 1)


def test_the_age_is_that_of_the_oldest_unfinished_record() -> None:
    one = work(order="none", concurrency=100)
    holding = one.begin(P0, 1, 0)
    for number in range(50):
        one.deliver(holding, messages(number, key=None), number / 4)
    records = start_all(one, 20.0)
    assert holding.age_s(20.0) == 20.0
    assert len(holding.arrivals) == 13, "one for each second"
    for record in records[:-1]:
        one.finish(record)
    assert holding.age_s(20.0) == 20.0 - 12.0
    one.finish(records[-1])
    assert holding.age_s(20.0) == 0.0


def test_a_key_whose_retries_never_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    driver, (record, other) = reads(7, 8)
    driver.work.finish(other)
    driver.work.retry(record, 1000.0)
    driver.now = 75.0
    with caplog.at_level(logging.INFO, "consumer_coord.process"):
        driver.tell_of_progress()
        driver.tell_of_progress()
    figures, stuck = [line.getMessage() for line in caplog.records]
    assert figures == (
        "process: running 0, waiting 0, retrying 1, unfinished-seconds 75, handled-total 1, failed-total 0, retried-total 1,"
        " letters-total 0"
    )
    assert stuck == (
        "the record of orders-0 at offset 7, with the key b'7', has failed in 1 attempts for 75 s, and waits for the next; the"
        " commits of the partition wait for it"
    )
