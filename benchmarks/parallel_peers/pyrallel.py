"""pyrallel-consumer, in an environment of its own (``pyrallel.txt``); with its defaults but for bounds, retries and polls."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from pyrallel_consumer.config import KafkaConfig
from pyrallel_consumer.consumer import PyrallelConsumer
from pyrallel_consumer.dto import ExecutionMode

from benchmarks.parallel_peers.calls import Call, Counted, Logged, Task, Timed, compute, coroutine


def call_of(item: Any) -> Call:
    """Return what the log names of a work item."""
    return Call(item.key, item.tp.partition, item.offset, item.payload)


def config(task: Task) -> KafkaConfig:
    """Return the settings."""
    found = KafkaConfig(
        BOOTSTRAP_SERVERS=task.bootstrap,
        CONSUMER_GROUP=task.group,
        SESSION_TIMEOUT_MS=task.session_ms,
        dlq_enabled=bool(task.letters),
    )
    parallel = found.parallel_consumer
    parallel.worker_pool_size = max(8, task.concurrency)
    parallel.queue_max_messages = task.most
    if task.concurrency >= 1_000:
        # Measured: here a thirteenth of the rate with the default of 1,000, and with fewer at once the other way round.
        parallel.poll_batch_size = 100
    parallel.execution.max_in_flight = task.concurrency
    parallel.execution.max_retries = 2
    parallel.execution.retry_backoff_ms = 10
    if task.driver == "processes":
        parallel.execution.mode = ExecutionMode.PROCESS
        parallel.execution.process_config.process_count = task.concurrency
        parallel.execution.max_in_flight = 1_000
    return found


async def run(task: Task) -> None:
    """Process records until everything is measured, or until SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    timed: Any
    if task.driver == "processes":
        handle: Any = compute
        timed = Counted(task, lambda: loop.call_soon_threadsafe(stop.set))
    else:
        timed = Logged(task) if task.log else Timed(task, stop.set)
        handle = coroutine(task, timed, call_of)
    consumer = PyrallelConsumer(config=config(task), worker=handle, topic=task.topic)
    await consumer.start()
    await stop.wait()
    await consumer.stop()
    if not task.log:
        timed.report()


if __name__ == "__main__":
    asyncio.run(run(Task.given()))
