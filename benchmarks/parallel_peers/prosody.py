"""prosody-events, in an environment of its own (``prosody.txt``).

With a real Kafka it needs Cassandra, too. Therefore this program uses the library's mock: a broker in the same process, with
three partitions. The records are produced to it before the consumer starts, to the port on which the mock listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from prosody import EventHandler, ProsodyClient

from benchmarks.parallel_peers.calls import Call, Logged, Task, Timed, coroutine

_PARTITIONS = 3


class Handler(EventHandler):  # type: ignore[misc]
    """Calls the benchmark's handler."""

    def __init__(self, task: Task, timed: Timed | Logged) -> None:
        self._handle = coroutine(task, timed, call_of)

    async def on_message(self, context: Any, message: Any) -> None:
        """Handle a record."""
        await self._handle(message)

    async def on_excise(self, context: Any, message: Any) -> None:
        """Ignore a record without a value; there is none."""

    async def on_timer(self, context: Any, timer: Any) -> None:
        """Ignore a timer; there is none."""


def call_of(message: Any) -> Call:
    """Return what the log names of a message."""
    return Call(message.key, message.partition, message.offset, json.dumps(message.payload))


def listening() -> list[int]:
    """Return the ports of 127.0.0.1 on which this process listens."""
    sockets = {os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.exists() or one.is_symlink()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


def produce(task: Task, bootstrap: str) -> None:
    """Produce the records of the task."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    value = json.dumps("x" * 98)
    for number in range(task.records):
        producer.produce(task.topic, value, key=str(number % 5_000), partition=number % _PARTITIONS)
        if number % 10_000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0


async def run(task: Task) -> None:
    """Process records until everything is measured, or until SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    timed = Logged(task) if task.log else Timed(task, stop.set)
    client = await ProsodyClient.create(
        bootstrap_servers="localhost:1",  # required, and not used
        mock=True,
        group_id=task.group,
        source_system="benchmark",
        subscribed_topics=task.topic,
        probe_port=None,
        max_concurrency=task.concurrency,
        max_uncommitted=task.most,
        mode="low-latency" if task.letters else "pipeline",
        failure_topic=task.letters or None,
    )
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in listening())
    if task.log:
        Logged(task).note(f"bootstrap {bootstrap}")
        while not Path(task.log).with_suffix(".go").exists():
            await asyncio.sleep(0.05)
    else:
        await asyncio.to_thread(produce, task, bootstrap)
    await client.subscribe(Handler(task, timed))
    await stop.wait()
    if isinstance(timed, Timed):
        timed.report()
    await client.shutdown()


if __name__ == "__main__":
    asyncio.run(run(Task.given()))
