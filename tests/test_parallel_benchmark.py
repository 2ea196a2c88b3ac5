"""The programs that ``benchmarks.parallel`` compares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from benchmarks.parallel import measure
from benchmarks.parallel_peers.calls import Task
from benchmarks.parallel_peers.programs import PEERS, ROOT, command
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing.processes import end, spawn
from tests.support.consumer.embedded import GROUP, consumer
from tests.support.consumer.handled import Handled, out_of_order
from tests.support.waiting import eventually

RECORDS, PARTITIONS = 300, 2


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("orders", b'"x"', key=str(number % 50), partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        yield running


def task(kafka: EmbeddedKafka, driver: str, group: str) -> Task:
    return Task(driver, kafka.bootstrap_servers, "orders", group, concurrency=4, records=100, seconds=60, work=0.001)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "driver"), [(name, driver) for name in ("bare", "ours", "pool") for driver in PEERS[name].drivers]
)
def test_a_program_reports_what_it_measured(kafka: EmbeddedKafka, client: str, driver: str) -> None:
    found = measure(client, task(kafka, driver, GROUP))
    assert found["rate"] > 0
    assert found["cpu"] > 0
    assert found["records"] >= 100


@pytest.mark.slow
@pytest.mark.parametrize(("client", "driver"), [("ours", "asyncio"), ("pool", "threads")])
def test_a_program_that_is_stopped_has_committed_what_it_logged(
    kafka: EmbeddedKafka, tmp_path: Path, client: str, driver: str
) -> None:
    log = Handled(tmp_path / "log")
    given = task(kafka, driver, GROUP)
    member = spawn(command(client, Task(**{**vars(given), "log": str(log.file)})), cwd=ROOT, env={**os.environ})
    try:
        eventually(lambda: len(log.ended()) == RECORDS)
        member.send_signal(signal.SIGTERM)
        assert member.wait(60) == 0
    finally:
        end(member)
    assert log.ended().total() == RECORDS
    assert not list(out_of_order([log]))
    with consumer(kafka) as reader:
        rows = reader.committed([TopicPartition("orders", number) for number in range(PARTITIONS)])
    assert sum(row.offset for row in rows) == RECORDS
