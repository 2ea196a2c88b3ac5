"""The memory of ``process`` over time: a consumer that handles 2,000 records/s, with a new key in each record."""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Producer, TopicPartition

from benchmarks import cluster
from benchmarks.parallel_peers.calls import Task
from benchmarks.parallel_peers.programs import ROOT, command
from benchmarks.table import median
from consumer_coord import GroupConsumer
from consumer_coord.testing.kafka_cluster import unique_name
from consumer_coord.testing.processes import end, spawn
from tests.support.processes import rss_mb

_EVERY_S, _RATE, _PARTITIONS = 10.0, 2_000, 8


def run(seconds: float) -> None:
    """Print the memory every ten seconds, for both drivers side by side; then how much it has grown."""
    with cluster.broker() as kafka:
        topic = unique_name("records")
        kafka.create_topic(topic, _PARTITIONS)
        stop, failed = threading.Event(), list[BaseException]()
        producing = threading.Thread(target=_produce, args=(kafka.bootstrap_servers, topic, stop, failed))
        producing.start()
        drivers = ("asyncio", "threads")
        tasks = [_task(kafka.bootstrap_servers, topic, one) for one in drivers]
        members = [spawn(command("ours", task), cwd=ROOT) for task in tasks]
        rows: list[list[float]] = []
        try:
            began = time.monotonic()
            while (at := time.monotonic() - began) < seconds:
                stop.wait(min(_EVERY_S, seconds - at))
                if failed or any(member.poll() is not None for member in members):
                    raise RuntimeError(f"a program ended: {failed or [member.poll() for member in members]}")
                rows.append([rss_mb(member.pid) for member in members])
                shown = ", ".join(f"{name} {mb:.1f} MB" for name, mb in zip(drivers, rows[-1], strict=True))
                print(f"{time.monotonic() - began:.0f} s: {shown}", file=sys.stderr, flush=True)
            finished = [_committed(task) for task in tasks]
        finally:
            stop.set()
            producing.join()
            for member in members:
                end(member)
    third = max(1, len(rows) // 3)
    for place, name in enumerate(drivers):
        values = [row[place] for row in rows]
        middle, last = median(values[third : 2 * third] or values), median(values[-third:])
        print(f"{name}, {finished[place]:,} records: {' '.join(f'{value:.1f}' for value in values)} MB")
        print(f"{name}: median of the second third {middle:.1f} MB, of the last third {last:.1f} MB, {last - middle:+.1f} MB")


def _task(bootstrap: str, topic: str, driver: str) -> Task:
    return Task(driver, bootstrap, topic, unique_name("g"), concurrency=100, records=1 << 60, seconds=1e9)


def _committed(task: Task) -> int:
    """Return how many records the group has finished."""
    with GroupConsumer({"bootstrap.servers": task.bootstrap, "group.id": task.group}) as reader:
        rows = reader.committed([TopicPartition(task.topic, number) for number in range(_PARTITIONS)])
    return sum(max(0, row.offset) for row in rows)


def _produce(bootstrap: str, topic: str, stop: threading.Event, failed: list[BaseException]) -> None:
    """Produce until ``stop``."""
    try:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
        number, began = 0, time.monotonic()
        while not stop.wait(0.05):
            while number < _RATE * (time.monotonic() - began):
                producer.produce(topic, b"x" * 100, key=str(number))
                number += 1
            producer.poll(0)
        producer.flush(60)
    except BaseException as error:  # noqa: BLE001 - raised by run
        failed.append(error)
