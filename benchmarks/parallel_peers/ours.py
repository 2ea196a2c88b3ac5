"""``process`` of this project."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import tenacity
from confluent_kafka import Producer

from benchmarks.parallel_peers.calls import Call, Counted, Logged, Task, Timed, compute, coroutine, function
from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.process import DeadLetters, FailurePolicy


def settings(task: Task) -> dict[str, Any]:
    """Return the consumer's settings."""
    return {
        "bootstrap.servers": task.bootstrap,
        "group.id": task.group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 1_000,  # as all others
        "session.timeout.ms": task.session_ms,
        "partition.assignment.strategy": "cooperative-sticky",
    }


def policy(task: Task) -> FailurePolicy | None:
    """Return two attempts and a dead letter, if the task has a topic for these."""
    if not task.letters:
        return None
    producer = Producer({"bootstrap.servers": task.bootstrap, "message.timeout.ms": 10_000})
    return FailurePolicy(stop=tenacity.stop_after_attempt(2), then=DeadLetters(producer, task.letters))


def call_of(message: Any) -> Call:
    """Return what the log names of a message."""
    return Call(message.key(), message.partition(), message.offset(), message.value())


async def with_tasks(task: Task) -> None:
    """Handle in tasks."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    timed = Logged(task) if task.log else Timed(task, stop.set)
    handle = coroutine(task, timed, call_of)
    async with AsyncGroupConsumer(settings(task)) as consumer:
        await consumer.subscribe([task.topic])
        async with _health(consumer, timed, asks=task.health):
            await consumer.process(handle, concurrency=task.concurrency, stop=stop, on_failure=policy(task))
    if isinstance(timed, Timed):
        timed.report()


@contextlib.asynccontextmanager
async def _health(consumer: AsyncGroupConsumer, timed: Timed | Logged, *, asks: bool) -> AsyncIterator[None]:
    """Log every half second what a probe with a limit of five seconds would say."""

    async def ask() -> None:
        assert isinstance(timed, Logged)
        while True:
            health = await consumer.health(5.0)
            timed.note("healthy" if health.healthy else f"unhealthy: {'; '.join(health.problems)}".replace("\n", " "))
            await asyncio.sleep(0.5)

    asking = asyncio.create_task(ask()) if asks else None
    try:
        yield
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


def with_threads(task: Task) -> None:
    """Handle in threads."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    timed = Logged(task) if task.log else Timed(task, stop.set)
    with GroupConsumer(settings(task)) as consumer:
        consumer.subscribe([task.topic])
        handle = function(task, timed, call_of)
        consumer.process(handle, workers=task.concurrency, stop=stop, on_failure=policy(task))
    if isinstance(timed, Timed):
        timed.report()


def with_processes(task: Task) -> None:
    """Handle in worker processes."""
    stop = threading.Event()
    counted = Counted(task, stop.set)
    spawn = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(task.concurrency, mp_context=spawn) as pool,
        GroupConsumer(settings(task)) as consumer,
    ):
        consumer.subscribe([task.topic])
        consumer.process(compute, workers=pool, stop=stop)
    counted.report()


def main() -> None:
    """Run the program."""
    task = Task.given()
    if task.driver == "asyncio":
        asyncio.run(with_tasks(task))
    elif task.driver == "threads":
        with_threads(task)
    else:
        with_processes(task)


if __name__ == "__main__":
    main()
