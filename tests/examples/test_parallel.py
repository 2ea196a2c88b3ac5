"""The programs of docs/parallel.md: each handles every order, ends at SIGTERM, and has committed what it handled."""

from __future__ import annotations

import http.server
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing.processes import end, spawn
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4, "orders.failed": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(100):
            producer.produce("orders", f"order {number}", f"customer-{number % 20}", partition=number % 4)
        assert producer.flush(60) == 0
        yield running


def run_until(kafka: EmbeddedKafka, module: str, last: str, done: Callable[[], bool]) -> str:
    """Run a program until a condition is true, end it with SIGTERM, and return what it printed."""
    command = [sys.executable, "-m", module, kafka.bootstrap_servers, "orders", "billing", last]
    process = spawn(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        eventually(lambda: done() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=180)
        assert process.returncode == 0
    finally:
        end(process)
    with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing"}) as reader:
        rows = reader.committed([TopicPartition("orders", number) for number in range(4)])
        assert [row.offset for row in rows] == [25] * 4
    return out.decode()


class Service(http.server.ThreadingHTTPServer):
    """Accepts orders, but not the order 7."""

    request_queue_size = 500

    def __init__(self) -> None:
        self.accepted: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Request)


class Request(http.server.BaseHTTPRequestHandler):
    """A request to the service."""

    def do_POST(self) -> None:
        """Accept an order, or answer 422."""
        assert isinstance(self.server, Service)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        refused = body == b"order 7"
        if not refused:
            self.server.accepted.append(body)
        self.send_response(422 if refused else 204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


def test_calls_of_a_service(kafka: EmbeddedKafka) -> None:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{service.server_port}/invoices"

        def done() -> bool:
            low, high = reader.get_watermark_offsets(TopicPartition("orders.failed", 0)) or (0, 0)
            return len(service.accepted) >= 99 and high > low

        try:
            with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "letters"}) as reader:
                out = run_until(kafka, "examples.parallel_http", url, done)
                reader.assign([TopicPartition("orders.failed", 0, 0)])
                letter = reader.poll(60)
        finally:
            service.shutdown()
            thread.join()
    assert out.startswith("Counts(handled=99, failed=1,")
    assert sorted(service.accepted) == sorted(f"order {number}".encode() for number in range(100) if number != 7)
    assert letter is not None
    assert letter.value() == b"order 7"
    assert dict(letter.headers() or ())["dead-letter.exception"] == b"HTTPStatusError"


def test_writes_to_a_database(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    database = tmp_path / "orders.sqlite"

    def written() -> int:
        if not database.exists():
            return 0
        connection = sqlite3.connect(database, timeout=60)
        try:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
        except sqlite3.OperationalError:
            return 0
        finally:
            connection.close()

    out = run_until(kafka, "examples.parallel_database", str(database), lambda: written() == 100)
    assert out.startswith("Counts(handled=100,")


def test_a_model_on_the_cpu(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    scores = tmp_path / "scores.txt"
    scores.touch()
    out = run_until(kafka, "examples.parallel_model", str(scores), lambda: len(scores.read_text().splitlines()) == 100)
    assert out.startswith("Counts(handled=100,")
