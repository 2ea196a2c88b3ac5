"""A consumer that Kubernetes probes: ``deployment.yml`` runs it.

    KAFKA=localhost:9092 python -m examples.health.orders

``GET /ready`` answers whether the consumer receives what its partitions have, and ``GET /live`` whether a restart would help.
The same answers are in a file, for exec probes: ``python -m consumer_coord.health FILE``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from uvicorn import Config, Server

from consumer_coord import GroupConsumer
from consumer_coord.health.asgi import HealthApp
from consumer_coord.health.file import HealthFile


@contextmanager
def probes(consumer: GroupConsumer, host: str, port: int, limit_s: float) -> Iterator[None]:
    """Answer probes in a thread of its own, also while the consumer waits or works."""
    app = HealthApp(consumer, limit=limit_s)
    server = Server(Config(app, host=host, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, name="probes")
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """Print orders until SIGTERM."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    environment = os.environ
    limit_s = float(environment.get("LIMIT_S", "30"))
    consumer = GroupConsumer(
        {
            "bootstrap.servers": environment["KAFKA"],
            "group.id": "orders",
            "auto.offset.reset": "earliest",
        }
    )
    path = environment.get("HEALTH_FILE", "orders.health")
    host, port = environment.get("POD_IP", "127.0.0.1"), int(environment.get("PORT", "8080"))
    with consumer, HealthFile(consumer, path, limit=limit_s, every=2.0), probes(consumer, host, port, limit_s):
        consumer.subscribe(["orders"])
        while not ending.is_set():
            for message in consumer.consume(500, timeout=0.5):
                print(message.topic(), message.partition(), message.offset(), flush=True)


if __name__ == "__main__":
    main()
