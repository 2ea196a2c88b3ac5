"""Each example runs, on an embedded Kafka."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import IO

import pytest
from confluent_kafka import Producer, TopicPartition
from starlette.testclient import TestClient

from consumer_coord import GroupConsumer
from consumer_coord.broker import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing.processes import end, spawn
from consumer_coord.wire import error_codes
from examples.exactly_once import Billing
from examples.web_service import make_app
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(100):
            producer.produce("orders", f"order {number}", f"customer-{number % 5}", partition=number % 4)
        assert producer.flush(60) == 0
        yield running


def run(output: IO[bytes], module: str, *arguments: str) -> Popen[bytes]:
    return spawn([sys.executable, "-u", "-m", module, *arguments], cwd=ROOT, stdout=output, stderr=output)


def await_text(path: Path, text: str, count: int = 1) -> None:
    eventually(lambda: path.read_text().count(text) >= count, f"{count} times {text!r} in {path.read_text()!r}")


def stop(process: Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(180) == 130
    finally:
        end(process)


def test_the_plain_consumer_prints_and_commits(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as output:
        process = run(output, "examples.plain_consumer", kafka.bootstrap_servers, "orders", "billing")
        await_text(out, "order ", 100)
        with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}) as reader:
            partitions = [TopicPartition("orders", number) for number in range(4)]
            # The consumer commits a batch after it has printed the batch.
            eventually(lambda: [row.offset for row in reader.committed(partitions, 60)] == [25, 25, 25, 25], "the commit")
        stop(process)


def test_each_process_has_its_own_consumer_and_leaves_in_good_order(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as output:
        process = run(output, "examples.worker_processes", kafka.bootstrap_servers, "orders", "billing", "2")
        await_text(out, "order ", 100)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(180) == 0, out.read_text()
        finally:
            end(process)
    assert kafka.group_state("billing") == "Empty"
    with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}) as consumer:
        committed = consumer.committed([TopicPartition("orders", number) for number in range(4)])
    assert sum(one.offset for one in committed) == 100


def test_a_static_member_restarts_without_a_rebalance_and_a_second_one_fences_it(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("first", "again", "twin")]
    arguments = ("examples.static_membership", kafka.bootstrap_servers, "orders", "billing", "worker-1")
    with outs[0].open("wb") as first, outs[1].open("wb") as again, outs[2].open("wb") as twin:
        process = run(first, *arguments)
        await_text(outs[0], "generation 1 partitions [0, 1, 2, 3]")
        stop(process)
        process = run(again, *arguments)
        await_text(outs[1], "generation 1 partitions [0, 1, 2, 3]")
        other = run(twin, *arguments)
        await_text(outs[2], "generation 1 partitions [0, 1, 2, 3]")
        assert process.wait(180) == 1
        stop(other)
    assert "another member is 'worker-1' now" in outs[1].read_text()


def test_the_web_service_counts_while_it_serves_and_leaves_when_it_ends(kafka: EmbeddedKafka) -> None:
    with TestClient(make_app(kafka.bootstrap_servers)) as client:
        eventually(lambda: client.get("/totals").json() == {f"customer-{number}": 20 for number in range(5)}, "the totals")
        assert client.get("/healthz").json()["generation"] == 1
    successor = GroupConsumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "totals", "session.timeout.ms": 6000},
    )
    successor.subscribe(["orders"])
    assigned = wait_assignment(successor)
    rows = successor.committed(assigned, 10)
    successor.close()
    assert sum(row.offset for row in rows) == 100, "what was counted was committed"


def wait_assignment(consumer: GroupConsumer) -> list[TopicPartition]:
    return eventually(consumer.assignment, step=lambda: consumer.poll(0.1))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_orders_are_billed_exactly_once(kafka: EmbeddedKafka, protocol: str) -> None:
    """Also those of a transaction that is aborted because a commit of its offsets fails."""
    kafka.create_topic("invoices", 2)
    kafka.add_fault("TxnOffsetCommit", Fault(error_code=error_codes.ILLEGAL_GENERATION), nth=2)
    billing = Billing(kafka.bootstrap_servers, "orders", "invoices", "billing", batch=20, protocol=protocol)
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers", "auto.offset.reset": "earliest"}
    invoices: list[bytes | None] = []
    with GroupConsumer({**config, "isolation.level": "read_committed"}) as reader:
        reader.subscribe(["invoices"])

        def billed() -> bool:
            billing.step(0.05)
            invoices.extend(message.value() for message in reader.consume(100, 0.05))
            return len(invoices) >= 100

        eventually(billed, "all invoices")
        assert not reader.consume(1, 0.2)
    billing.close()
    assert billing.aborted == 1
    assert len(invoices) == len(set(invoices)) == 100
