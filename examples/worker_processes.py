"""Consumers in several processes: each process makes its own consumer, because a consumer does not survive a fork.

    python -m examples.worker_processes localhost:9092 orders billing 4

The first process only starts the others, and passes SIGTERM and Ctrl-C on to them. Servers that fork have a hook for such a
function: ``post_fork`` of Gunicorn, ``worker_process_init`` of Celery, ``initializer`` of a pool.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from consumer_coord import GroupConsumer


def work(config: Mapping[str, Any], topic: str) -> None:
    """Read until SIGTERM; runs in a process of its own."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process turns Ctrl-C into SIGTERM
    with GroupConsumer(config) as consumer:
        consumer.subscribe([topic])
        while not ending.is_set():
            for message in consumer.consume(500, timeout=0.5):
                print(message.partition(), message.offset(), message.value(), flush=True)


def main() -> int:
    """Start the processes, and return the largest of their exit codes."""
    servers, topic, group, count = sys.argv[1:]
    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    workers = [multiprocessing.Process(target=work, args=(config, topic)) for _ in range(int(count))]
    for worker in workers:
        worker.start()

    def end(*_: object) -> None:
        for worker in workers:
            worker.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    for worker in workers:
        worker.join()
    return max(abs(worker.exitcode or 0) for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
