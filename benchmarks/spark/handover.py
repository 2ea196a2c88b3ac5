"""Time without a reader when a query joins, stops, or is killed: until the new owner has written from each partition.

``measure`` uses two queries of a Spark session. ``measure_members`` uses two memberships whose batches are pauses of a second,
so it measures only the group, the embedded broker and the planning.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.spark.session import OURS, frame, make_session
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import progress
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.query_membership import QueryMembership

PARTITIONS = 4
SESSION_MS = 6_000
BATCH_S = 1.0
_DEADLINE_S = 400.0

Found = dict[str, list[float]]


class Writer:
    """A sink that records when the first record of each partition was written. :meth:`forget` resets the sink."""

    def __init__(self) -> None:
        self._first: dict[int, float] = {}

    def __call__(self, data: Any, batch: int) -> None:
        self.wrote({row[0] for row in data.select("partition").distinct().collect()})

    def wrote(self, partitions: set[int]) -> None:
        """Record that records of these partitions are being written now."""
        for number in partitions:
            self._first.setdefault(number, time.perf_counter())

    def forget(self) -> None:
        """Forget all written partitions."""
        self._first = {}

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of which a record was written."""
        return frozenset(self._first)

    def wait(self, began_s: float, partitions: frozenset[int]) -> float:
        """Wait until a record of each partition was written; return the seconds since ``began_s``."""
        _until(lambda: partitions <= self.partitions)
        return max(self._first[number] for number in partitions) - began_s


def measure(bootstrap_servers: str, topic: str, rounds: int) -> Found:
    """Measure ``join``, ``stop`` and ``kill`` in seconds of each round, with two queries of one session."""
    spark = make_session()
    options = {
        "startingOffsets": "latest",
        "group.id": f"handover-{time.time_ns()}",
        "kafka.session.timeout.ms": str(SESSION_MS),
    }

    def start(writer: Writer) -> Any:
        data = frame(spark, OURS, bootstrap_servers, topic, **options)
        sink = data.writeStream.foreachBatch(writer).trigger(processingTime=f"{BATCH_S} seconds")
        return sink.option("checkpointLocation", tempfile.mkdtemp(prefix="bench-")).start()

    found: Found = {"join": [], "stop": [], "kill": []}
    stays = Writer()
    first = start(stays)
    _await_share(first, PARTITIONS)
    for number in range(2 * rounds):
        how = ("stop", "kill")[number % 2]
        planners = _planners()
        comes = Writer()
        began_s = time.perf_counter()
        second = start(comes)
        share = _await_share(second, PARTITIONS // 2)
        found["join"].append(comes.wait(began_s, share))
        (planner,) = _planners() - planners
        _await_share(first, PARTITIONS // 2)
        time.sleep(_some_seconds())
        stays.forget()
        began_s = time.perf_counter()
        if how == "stop":
            second.stop()
        else:
            os.kill(planner, signal.SIGKILL)
        found[how].append(stays.wait(began_s, share))
        while how == "kill" and second.isActive:
            time.sleep(0.1)
    first.stop()
    spark.stop()
    return found


def _some_seconds() -> float:
    """Return a random time, so that the stop comes at any moment of a batch, and between any two heartbeats."""
    return 3 + random.random()


def _await_share(query: Any, count: int) -> frozenset[int]:
    _until(lambda: len(_owned(query)) == count)
    return _owned(query)


def _owned(query: Any) -> frozenset[int]:
    told = progress(query)
    return frozenset() if told is None else frozenset(number for numbers in told.owned.values() for number in numbers)


def _planners() -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents = Path(f"/proc/{parent}/cmdline").read_bytes()
            above = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        # Find a child of the JVM or of the fork server, which are children of this process.
        plain = b"python_streaming_source_runner" in command and b"fork_front" not in command
        forked = b"spark.fork_server" in command and b"spark.fork_server" in parents
        if (plain or forked) and above == os.getpid():
            found.add(int(entry.name))
    return found


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the group was not stable after {_DEADLINE_S:.0f} s")
        time.sleep(0.01)


class _Member(threading.Thread):
    """A member that plans, pauses for the length of a batch, and plans again."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(daemon=True)
        options = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "group.id": "handover",
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "kafka.session.timeout.ms": str(SESSION_MS),
        }
        self.membership = QueryMembership(parse_options(options))
        self.writer = Writer()
        self.ending = threading.Event()

    def run(self) -> None:
        offsets = Offsets("handover")
        while not self.ending.is_set():
            planned = self.membership.next_batch(offsets)
            if planned is None:
                self.ending.wait(0.01)
                continue
            if not self.ending.wait(BATCH_S):
                offsets = planned
                self.writer.wrote({partition.partition for partition, span in planned.spans() if span.start < span.end})

    def end(self, *, leave: bool) -> None:
        """Stop the member. Without ``leave``, the broker removes the member only after its session timeout."""
        self.ending.set()
        if leave:
            # Leave from this thread in the middle of a batch, like Spark's planner after SIGTERM.
            self.membership.leave()
        else:
            self.membership.open().close(1_000, leave_group=False)


def measure_members(rounds: int) -> Found:
    """Measure ``join``, ``stop`` and ``kill`` without Spark."""
    found: Found = {"join": [], "stop": [], "kill": []}
    flowing = threading.Event()
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as kafka:
        flow = threading.Thread(target=_flow, args=(kafka.bootstrap_servers, flowing), daemon=True)
        flow.start()
        stays = _Member(kafka.bootstrap_servers)
        stays.start()
        _until(lambda: len(stays.writer.partitions) == PARTITIONS)
        for number in range(2 * rounds):
            how = ("stop", "kill")[number % 2]
            comes = _Member(kafka.bootstrap_servers)
            began_s = time.perf_counter()
            comes.start()
            while len(comes.writer.partitions) < PARTITIONS // 2:
                time.sleep(0.01)
            share = comes.writer.partitions
            found["join"].append(time.perf_counter() - began_s)
            time.sleep(_some_seconds())
            stays.writer.forget()
            began_s = time.perf_counter()
            comes.end(leave=how == "stop")
            found[how].append(stays.writer.wait(began_s, share))
        stays.end(leave=True)
        flowing.set()
        flow.join()
    return found


def _flow(bootstrap_servers: str, ending: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    while not ending.wait(0.05):
        for number in range(PARTITIONS):
            producer.produce("orders", b"x", partition=number)
        producer.poll(0)
    producer.flush(10)


def rows(found: Mapping[str, list[float]]) -> list[list[str]]:
    """Return rows for a table: way, median, least, most, rounds."""
    middle = {how: sorted(times)[len(times) // 2] for how, times in found.items()}
    return [
        [how, f"{middle[how]:.2f}", f"{min(times):.2f}", f"{max(times):.2f}", str(len(times))] for how, times in found.items()
    ]
