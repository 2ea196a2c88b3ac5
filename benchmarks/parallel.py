"""Benchmark: records in parallel (``process``) against a bare loop of as many tasks, threads or processes.

``python -m benchmarks.parallel [--rounds 3] [--seconds 5] [--only asyncio threads processes]``

Handlers sleep 5 ms (asyncio, threads) or compute 1 ms (processes). The bare loop calls the same handlers without a Kafka: it is
the most that any consumer can reach. Each record has 100 bytes, and one of 5,000 keys in 8 partitions. A rate counts from the
first call of a handler to the end of the last. *overhead* is the processor time of a record beyond the bare loop's, in
microseconds; for processes, that of the parent.

Goals: 0.9 of a bare loop that handles at most 10,000 records/s; above that, 25 us (asyncio) and 50 us (threads) of overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.table import markdown, median, number
from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.testing.kafka_cluster import KafkaCluster, unique_name

CASES = {"asyncio": (1, 10, 100, 1_000), "threads": (1, 10, 100, 1_000), "processes": (1, 2)}
SLEEP_S, COMPUTE_S = 0.005, 0.001
PARTITIONS, KEYS, MOST = 8, 5_000, 200_000


@attrs.define
class Clock:
    """Counts calls of handlers; thread-safe enough for counters that one thread at a time changes."""

    records: int
    began: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0
    left: int = attrs.field(init=False)
    done: Callable[[], object] = attrs.field(default=lambda: None)

    def __attrs_post_init__(self) -> None:
        self.left = self.records

    def begin(self) -> None:
        """Note the first call."""
        if not self.began:
            self.began, self.cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Note the end of a call."""
        self.left -= 1
        if self.left == 0:
            self.ended, self.cpu = time.perf_counter(), time.process_time() - self.cpu
            self.done()

    @property
    def measured(self) -> tuple[float, float]:
        """Records per second, and microseconds of processor time per record."""
        return self.records / (self.ended - self.began), self.cpu / self.records * 1e6


def compute(_: Any) -> None:
    """Use a processor for a millisecond."""
    ends = time.process_time() + COMPUTE_S
    while time.process_time() < ends:
        pass


def settings(kafka: KafkaCluster) -> dict[str, Any]:
    """Return the settings of a new group."""
    return {"bootstrap.servers": kafka.bootstrap_servers, "group.id": unique_name("g"), "auto.offset.reset": "earliest"}


async def asyncio_bare(concurrency: int, clock: Clock) -> None:
    """Call the handlers without a Kafka."""

    async def loop(count: int) -> None:
        for _ in range(count):
            clock.begin()
            await asyncio.sleep(SLEEP_S)
            clock.end()

    await asyncio.gather(*(loop(clock.records // concurrency) for _ in range(concurrency)))


async def asyncio_ours(kafka: KafkaCluster, topic: str, concurrency: int, clock: Clock) -> None:
    """Call the handlers by ``process``."""
    stop = asyncio.Event()
    clock.done = stop.set

    async def handle(_: Any) -> None:
        clock.begin()
        await asyncio.sleep(SLEEP_S)
        if clock.left > 0:
            clock.end()

    async with AsyncGroupConsumer(settings(kafka)) as consumer:
        await consumer.subscribe([topic])
        await consumer.process(handle, concurrency=concurrency, stop=stop)


def threads_bare(concurrency: int, clock: Clock) -> None:
    """Call the handlers without a Kafka."""
    lock = threading.Lock()

    def loop(count: int) -> None:
        for _ in range(count):
            with lock:
                clock.begin()
            time.sleep(SLEEP_S)
            with lock:
                clock.end()

    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(loop, [clock.records // concurrency] * concurrency))


def threads_ours(kafka: KafkaCluster, topic: str, concurrency: int, clock: Clock) -> None:
    """Call the handlers by ``process``."""
    stop, lock = threading.Event(), threading.Lock()
    clock.done = stop.set

    def handle(_: Any) -> None:
        with lock:
            clock.begin()
        time.sleep(SLEEP_S)
        with lock:
            if clock.left > 0:
                clock.end()

    with GroupConsumer(settings(kafka)) as consumer:
        consumer.subscribe([topic])
        consumer.process(handle, workers=concurrency, stop=stop)


def processes_bare(concurrency: int, clock: Clock) -> None:
    """Call the handlers without a Kafka."""
    with concurrent.futures.ProcessPoolExecutor(concurrency, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compute, range(concurrency)))  # Start the processes.
        clock.begin()
        for _ in pool.map(compute, range(clock.records), chunksize=50):
            clock.end()


def processes_ours(kafka: KafkaCluster, topic: str, concurrency: int, clock: Clock) -> None:
    """Call the handlers by ``process``; a call of the executor counts as one of the handler."""
    stop = threading.Event()
    clock.done = stop.set
    lock = threading.Lock()

    class Pool(concurrent.futures.ProcessPoolExecutor):
        """Counts its calls."""

        def submit(self, *arguments: Any, **keywords: Any) -> Any:
            with lock:
                clock.begin()
            future = super().submit(*arguments, **keywords)
            future.add_done_callback(self._ended)
            return future

        def _ended(self, _: Any) -> None:
            with lock:
                if clock.left > 0:
                    clock.end()

    with Pool(concurrency, mp_context=multiprocessing.get_context("spawn")) as pool, GroupConsumer(settings(kafka)) as consumer:
        list(pool.map(compute, range(concurrency)))
        clock.began, clock.left = 0.0, clock.records
        consumer.subscribe([topic])
        consumer.process(compute, workers=pool, stop=stop)


def measure(case: str, kafka: KafkaCluster, topic: str, concurrency: int, records: int) -> tuple[Clock, Clock]:
    """Measure a bare loop, and ``process``."""
    bare, ours = Clock(records), Clock(records)
    if case == "asyncio":
        asyncio.run(asyncio_bare(concurrency, bare))
        asyncio.run(asyncio_ours(kafka, topic, concurrency, ours))
    elif case == "threads":
        threads_bare(concurrency, bare)
        threads_ours(kafka, topic, concurrency, ours)
    else:
        processes_bare(concurrency, bare)
        processes_ours(kafka, topic, concurrency, ours)
    return bare, ours


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.parallel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    chosen = parser.parse_args(arguments)
    rows = []
    with cluster.broker() as kafka:
        topic = unique_name("records")
        kafka.create_topic(topic, PARTITIONS)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
        for record in range(MOST):
            key = record % KEYS
            producer.produce(topic, b"x" * 100, key=str(key), partition=key % PARTITIONS, on_delivery=None)
            if record % 10_000 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        for case in chosen.only:
            for concurrency in CASES[case]:
                per_s = concurrency / (COMPUTE_S if case == "processes" else SLEEP_S)
                records = max(concurrency, min(MOST, int(per_s * chosen.seconds)) // concurrency * concurrency)
                runs = [measure(case, kafka, topic, concurrency, records) for _ in range(chosen.rounds)]
                bare = [median([one.measured[which] for one, _ in runs]) for which in (0, 1)]
                ours = [median([one.measured[which] for _, one in runs]) for which in (0, 1)]
                cells = [number(bare[0]), number(ours[0]), f"{ours[0] / bare[0]:.2f}", number(ours[1] - bare[1])]
                rows.append([f"{case}, {concurrency:,}", *cells])
                print(rows[-1], flush=True)
    print(markdown(["handlers", "bare loop, records/s", "process, records/s", "ratio", "overhead, us"], rows))


if __name__ == "__main__":
    main()
