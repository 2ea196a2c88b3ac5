"""Take the pictures of a live group for README.md: ``python -m tools.shoot_watch``.

Run an embedded Kafka, a producer, a group whose members join and leave for a minute, and ``consumer-coord watch``. Requires
Chromium.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Producer

from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
from tests.support.browser import HOW, Browser, chromium

TARGET = Path(__file__).parents[1] / "docs" / "img"
WIDTH, HEIGHT = 1120, 686
TOPICS = {"orders": 24, "payments": 12}
#: (seconds after which a member joins, seconds after which the member leaves), one pair for each member; None: at the end.
MEMBERS = [(0, 32), (0, None), (0, None), (11, None), (22, None), (43, None)]
END_S = 54


def produce(servers: str, ending: threading.Event) -> None:
    """Produce about 2,000 records a second."""
    producer = Producer({"bootstrap.servers": servers})
    number = 0
    while not ending.wait(0.05):
        for _ in range(100):
            producer.produce("payments" if number % 3 == 0 else "orders", str(number), key=str(number))
            number += 1
        producer.poll(0)
    producer.flush(10)


def consume(servers: str, number: int, joins: float, leaves: float | None, ending: threading.Event) -> None:
    """Consume as a member from ``joins`` to ``leaves``."""
    if ending.wait(joins):
        return
    config = {
        "bootstrap.servers": servers,
        "group.id": "orders-service",
        "client.id": f"worker-{number}",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    left = threading.Event()
    timer = threading.Timer(END_S * 2 if leaves is None else leaves - joins, left.set)
    timer.daemon = True
    timer.start()
    with GroupConsumer(config) as consumer:
        consumer.subscribe(list(TOPICS))
        while not ending.is_set() and not left.is_set():
            consumer.consume(500, timeout=0.2)
    timer.cancel()


@contextlib.contextmanager
def threads(*work: Callable[[], None]) -> Iterator[None]:
    """Run all functions at the same time in threads, and wait for their ends."""
    running = [threading.Thread(target=one) for one in work]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        for thread in running:
            thread.join()


@contextlib.contextmanager
def served(servers: str) -> Iterator[str]:
    """Run ``consumer-coord watch`` on the group; yield its address."""
    command = [sys.executable, "-m", "consumer_coord", "watch", "orders-service", "--bootstrap-server", servers]
    watch = subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--interval-ms", "500"], stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        yield watch.stdout.readline().strip()
    finally:
        watch.terminate()
        watch.wait(30)


def main() -> int:
    """Write docs/img/watch-light.png and watch-dark.png."""
    executable = chromium()
    if executable is None:
        print(HOW, file=sys.stderr)
        return 1
    ending = threading.Event()
    with EmbeddedKafka(topics=TOPICS, brokers=3) as kafka, tempfile.TemporaryDirectory() as directory:
        servers = kafka.bootstrap_servers
        members = [
            lambda number=number, joins=joins, leaves=leaves: consume(servers, number, joins, leaves, ending)
            for number, (joins, leaves) in enumerate(MEMBERS, 1)
        ]
        with threads(lambda: produce(servers, ending), *members), served(servers) as url:
            try:
                with Browser(executable, Path(directory)) as browser:
                    browser.open(url)
                    ending.wait(END_S)
                    for name, dark in (("light", False), ("dark", True)):
                        browser.resize(WIDTH, HEIGHT, dark=dark)
                        browser.until("new Promise(seen => requestAnimationFrame(() => setTimeout(() => seen(true), 700)))")
                        browser.screenshot(TARGET / f"watch-{name}.png", whole=False)
            finally:
                ending.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
