"""A member that processes in parallel until SIGTERM, as a child process that a test kills.

``python -m tests.support.consumer.process_worker <settings as JSON> <topic> <file>``. It appends two lines to the file for each
record, with one write each: ``+ key partition offset`` when the handler begins, and ``- key partition offset`` when it ends. A
line ``! lost partition`` says that the partition was lost, so that nothing more could be committed. ``handled.py`` reads this.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from typing import Any

from confluent_kafka import TopicPartition

from consumer_coord import AsyncGroupConsumer


async def main(settings: dict[str, Any], topic: str, file: str) -> None:
    """Process until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rng = random.Random(os.getpid())

    async def handle(message: Any) -> None:
        where = f"{message.key().decode()} {message.partition()} {message.offset()}\n"
        os.write(log, f"+ {where}".encode())
        await asyncio.sleep(rng.expovariate(200))
        os.write(log, f"- {where}".encode())

    async def note_lost(_: Any, partitions: Sequence[TopicPartition]) -> None:
        for one in partitions:
            os.write(log, f"! lost {one.partition}\n".encode())

    async with AsyncGroupConsumer(settings) as consumer:
        await consumer.subscribe([topic], on_lost=note_lost)
        await consumer.process(handle, concurrency=50, stop=stop)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), *sys.argv[2:]))
