"""Compute a score for each order in worker processes, one for each core.

python -m examples.parallel_model localhost:9092 orders billing scores.txt
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from consumer_coord import GroupConsumer

#: The model of a worker process.
model: dict[str, Any] = {}


def load(file: str) -> None:
    """Load the model, once in each worker process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The parent ends the workers.
    model["scores"] = Path(file)


def score(message: Any) -> None:
    """Compute the score of an order, in a worker process."""
    value = sum(number * number for number in range(len(message.value()) * 1_000))
    with model["scores"].open("a") as scores:
        scores.write(f"{message.key().decode()} {value}\n")


def main(servers: str, topic: str, group: str, file: str) -> None:
    """Compute until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=load, initargs=(file,)) as pool, GroupConsumer(config) as consumer:
        consumer.subscribe([topic])
        print(consumer.process(score, workers=pool, order="none", stop=stop))


if __name__ == "__main__":
    main(*sys.argv[1:])
