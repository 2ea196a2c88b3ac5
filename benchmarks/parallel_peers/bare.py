"""The bare loop: as many tasks, threads or processes call the same handlers without a Kafka."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import multiprocessing
import threading

from benchmarks.parallel_peers.calls import Call, Counted, Task, Timed, compute, coroutine, function

_NO_RECORD = Call(None, 0, 0, None)


async def with_tasks(task: Task, timed: Timed) -> None:
    """Call a coroutine function."""
    handle = coroutine(task, timed, lambda _: _NO_RECORD)

    async def loop() -> None:
        while not timed.over:
            await handle(None)

    await asyncio.gather(*(loop() for _ in range(task.concurrency)))


def with_threads(task: Task, timed: Timed) -> None:
    """Call a function in threads."""
    handle = function(task, timed, lambda _: _NO_RECORD)

    def loop() -> None:
        while not timed.over:
            handle(None)

    threads = [threading.Thread(target=loop) for _ in range(task.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_processes(task: Task) -> None:
    """Call a function in processes, by the map of the standard library."""
    over = threading.Event()
    counted = Counted(task, over.set)
    with concurrent.futures.ProcessPoolExecutor(task.concurrency, multiprocessing.get_context("spawn")) as pool:
        while not over.is_set():
            for _ in pool.map(compute, itertools.repeat(None, 500 * task.concurrency), chunksize=20):
                pass
    counted.report()


def main() -> None:
    """Run the program."""
    task = Task.given()
    if task.driver == "processes":
        with_processes(task)
        return
    timed = Timed(task)
    if task.driver == "asyncio":
        asyncio.run(with_tasks(task, timed))
    else:
        with_threads(task, timed)
    timed.report()


if __name__ == "__main__":
    main()
