"""How long partitions are without a reader when a query joins, stops, or is killed: until the new owner's first record is written."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.spark.session import OURS, frame, make_session
from consumer_coord.spark import progress

PARTITIONS = 4
SESSION_MS = 6_000
TRIGGER = "1 second"
_DEADLINE_S = 180.0


class Writer:
    """A sink that notes when the first record of each partition was written; :meth:`forget` starts anew."""

    def __init__(self) -> None:
        self._first: dict[int, float] = {}

    def __call__(self, data: Any, batch: int) -> None:
        for row in data.select("partition").distinct().collect():
            self._first.setdefault(row[0], time.perf_counter())

    def forget(self) -> None:
        """Of what was written so far."""
        self._first = {}

    def since(self, began_s: float, partitions: frozenset[int]) -> float | None:
        """Seconds from ``began_s`` until all of these had a record written, None until then."""
        first = self._first
        return max(first[number] for number in partitions) - began_s if partitions <= first.keys() else None


def measure(bootstrap_servers: str, topic: str, rounds: int) -> Mapping[str, list[float]]:
    """``join``, ``stop`` and ``kill``: seconds of each round; two queries of one session, batches of a second."""
    spark = make_session()
    group = f"handover-{time.time_ns()}"
    options = {
        "startingOffsets": "latest",
        "group.id": group,
        "kafka.session.timeout.ms": str(SESSION_MS),
    }

    def start(writer: Writer) -> Any:
        data = frame(spark, OURS, bootstrap_servers, topic, **options)
        sink = data.writeStream.foreachBatch(writer).trigger(processingTime=TRIGGER)
        return sink.option("checkpointLocation", tempfile.mkdtemp(prefix="bench-")).start()

    found: dict[str, list[float]] = {"join": [], "stop": [], "kill": []}
    stays = Writer()
    first = start(stays)
    _until(lambda: len(_owned(first)) == PARTITIONS)
    for _ in range(rounds):
        for how in ("stop", "kill"):
            planners = _planners()
            comes = Writer()
            began_s = time.perf_counter()
            second = start(comes)
            _until(lambda query=second: len(_owned(query)) == PARTITIONS // 2)
            share = _owned(second)
            found["join"].append(_until(lambda sink=comes, at_s=began_s, of=share: sink.since(at_s, of)))
            (planner,) = _planners() - planners
            _until(lambda: len(_owned(first)) == PARTITIONS // 2)
            # In the middle of its batches, and of the others' heartbeats.
            time.sleep(3 + time.time() % 1)
            stays.forget()
            began_s = time.perf_counter()
            if how == "stop":
                second.stop()
            else:
                os.kill(planner, signal.SIGKILL)
            found[how].append(_until(lambda at_s=began_s, of=share: stays.since(at_s, of)))
            if how == "kill":
                _until(lambda query=second: not query.isActive)
    first.stop()
    spark.stop()
    return found


def _owned(query: Any) -> frozenset[int]:
    told = progress(query)
    return frozenset() if told is None else frozenset(number for numbers in told.owned.values() for number in numbers)


def _planners() -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            above = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        # A child of the JVM, which is a child of this process.
        if b"python_streaming_source_runner" in command and above == os.getpid():
            found.add(int(entry.name))
    return found


def _until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + _DEADLINE_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"the group did not come to rest in {_DEADLINE_S:.0f} s")
        time.sleep(0.01)
    return value
