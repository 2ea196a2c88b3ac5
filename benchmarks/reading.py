"""The programs that :mod:`benchmarks.goals` measures, each in a process of its own; they print their figures as JSON.

``read``: read a topic, from the first batch on: ``rate`` (records/s), ``cpu`` (us of the whole process per record), ``gaps``
(times without a record of more than 60 ms) and ``longest`` (ms). ``single``: records that arrive one at a time: ``p50`` and
``p99`` (ms from the producer's call to the consumer's), ``cpu``. ``empty``: processor time of calls that find nothing (us).
``outage``: the broker stops in the middle: ``after`` (s from its return to the first record). ``import``: ``cpu`` (ms), ``mb``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.table import median

#: A longer time without a record counts as a gap, in seconds.
_GAP_S = 0.06
_DEADLINE_S = 120.0
_BATCH = 500
#: Prints the time at which each record is produced, in the record's value.
_PRODUCER = """
import sys, time, confluent_kafka
servers, topic, rate, size = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
began, sent = time.monotonic(), 0
while True:
    due = int((time.monotonic() - began) * rate)
    while sent < due:
        producer.produce(topic, (b"%.6f" % time.monotonic()).ljust(size), partition=0)
        sent += 1
    producer.poll(0)
    time.sleep(0.0005)
"""


@contextmanager
def _producing(settings: Mapping[str, Any], topic: str, rate: float, size: int) -> Iterator[None]:
    """Produce to partition 0 in another process."""
    command = [sys.executable, "-c", _PRODUCER, settings["bootstrap.servers"], topic, str(rate), str(size)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _busy(threads: int) -> Iterator[None]:
    """Run threads that compute in Python all the time."""
    ended = threading.Event()

    def spin() -> None:
        number = 0
        while not ended.is_set():
            for each in range(1000):
                number += each * each

    running = [threading.Thread(target=spin, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in running:
            thread.join()


def consumer(client: str, settings: Mapping[str, Any], **more: Any) -> Any:
    """Return a consumer of a new group, which reads from the beginning and commits nothing."""
    given = {"group.id": f"goals-{time.time_ns()}", "auto.offset.reset": "earliest", "enable.auto.commit": False, **more}
    if client == "confluent-kafka":
        from confluent_kafka import Consumer

        # librdkafka stops fetching for a second, by default, when its queue is full.
        return Consumer({**settings, "fetch.queue.backoff.ms": 1, **given})
    from consumer_coord import GroupConsumer

    return GroupConsumer({**settings, **given})


class _Watch:
    """Notes when records arrive."""

    def __init__(self) -> None:
        self.seen = 0
        self.gaps: list[float] = []
        #: When records arrived last (``time.monotonic``).
        self.last = 0.0
        self._first = self._cpu = 0.0

    def arrived(self, count: int) -> None:
        """Count records; the first ones start the clocks, and do not count."""
        moment = time.monotonic()
        if not self._first:
            self._first, self._cpu = moment, time.process_time()
            self.seen = -count
        else:
            self.gaps.append(moment - self.last)
        self.last = moment
        self.seen += count

    def figures(self) -> dict[str, float]:
        took_s, cpu_s = self.last - self._first, time.process_time() - self._cpu
        return {
            "rate": self.seen / took_s,
            "cpu": cpu_s / self.seen * 1e6,
            "gaps": sum(gap > _GAP_S for gap in self.gaps),
            "longest": max(self.gaps) * 1000,
        }


def _call(one: Any, way: str, most: int) -> Callable[[], int]:
    """Return a function that reads records once, uses their values, and returns their number.

    A consumer without columns reads messages instead.
    """
    if way == "columns" and not hasattr(one, "consume_arrow"):
        way, most = "consume", _BATCH

    def poll() -> int:
        message = one.poll(1.0)
        if message is None or message.error() is not None:
            return 0
        message.value()
        return 1

    def consume() -> int:
        count = 0
        for message in one.consume(most, 1.0):
            if message.error() is None:
                message.value()
                count += 1
        return count

    def columns() -> int:
        return len(one.consume_arrow(most, timeout=1.0))

    return {"poll": poll, "consume": consume, "columns": columns}[way]


def read(client: str, settings: Mapping[str, Any], topic: str, case: Mapping[str, Any]) -> dict[str, float]:
    """Read ``records`` records, with what the case adds: busy threads, work between calls, pauses, a stalled neighbour."""
    stalled = None
    if case.get("stalled"):
        # A consumer of the same process that has begun to read, and takes nothing any more.
        stalled = consumer(client, settings)
        stalled.subscribe([topic])
        while not stalled.consume(1, 1.0):
            pass
    one = consumer(client, settings)
    one.subscribe([topic])
    watch = _Watch()
    call = _call(one, case.get("way", "consume"), case.get("most", _BATCH))
    # A loop of polls takes less than a microsecond for each record, so it has little else to do.
    enough, ends = case["records"] * case.get("part", 0.98) - 1, time.monotonic() + _DEADLINE_S
    resumes, work_s = case.get("resumes", False), case.get("work_ms", 0) / 1000
    with _busy(case.get("busy", 0)):
        while watch.seen < enough:
            if resumes:
                one.resume(one.assignment())
            count = call()
            if count:
                watch.arrived(count)
                if work_s:
                    time.sleep(work_s)
            if watch.last > ends or (not count and time.monotonic() > ends):
                raise TimeoutError(f"{client} read {watch.seen} of {case['records']} records in {_DEADLINE_S:.0f} s")
        found = watch.figures()
    one.close()
    if stalled is not None:
        stalled.close()
    return found


def single(client: str, settings: Mapping[str, Any], topic: str, case: Mapping[str, Any]) -> dict[str, float]:
    """Read records that arrive at ``rate`` per second for ``seconds``, and measure their latency."""
    one = consumer(client, settings, **{"auto.offset.reset": "latest"})
    one.subscribe([topic])
    latencies: list[float] = []
    with _producing(settings, topic, case["rate"], 100), _busy(case.get("busy", 0)):
        warm = time.monotonic() + 3
        while time.monotonic() < warm:
            one.poll(0.1)
        ends, cpu_s = time.monotonic() + case.get("seconds", 5), time.process_time()
        while (moment := time.monotonic()) < ends:
            message = one.poll(0.5)
            if message is not None and message.error() is None:
                latencies.append(time.monotonic() - float(message.value()))
        cpu_s = time.process_time() - cpu_s
    assert moment >= ends
    one.close()
    latencies.sort()
    return {
        "p50": latencies[len(latencies) // 2] * 1000,
        "p99": latencies[int(len(latencies) * 0.99)] * 1000,
        "cpu": cpu_s / len(latencies) * 1e6,
    }


def empty(client: str, settings: Mapping[str, Any], topic: str, case: Mapping[str, Any]) -> dict[str, float]:
    """Measure the processor time of calls of a member that has nothing to read."""
    one = consumer(client, settings)
    one.subscribe([topic])
    while not one.assignment():
        one.poll(0.1)
    time.sleep(0.5)
    found = {}
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "poll": (5000, lambda: one.poll(0)),
        "consume": (200, lambda: one.consume(100, 0.01)),
    }
    for name, (count, call) in calls.items():
        runs = []
        for _ in range(3):
            before = time.process_time()
            for _ in range(count):
                call()
            runs.append((time.process_time() - before) / count * 1e6)
        found[name] = median(runs)
    one.close()
    return found


def outage(client: str, settings: Mapping[str, Any], topic: str, case: Mapping[str, Any]) -> dict[str, float]:
    """Read while the broker is away. The parent stops and starts it, and writes a line when it has returned."""
    one = consumer(client, settings, **{"auto.offset.reset": "latest"})
    one.subscribe([topic])
    returned: list[float] = []

    def listen() -> None:
        sys.stdin.readline()
        returned.append(time.monotonic())

    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    latest, ends = 0.0, time.monotonic() + _DEADLINE_S
    while time.monotonic() < ends:
        message = one.poll(0.1)
        if message is not None and message.error() is None:
            latest = time.monotonic()
        if returned and latest > returned[0]:
            break
    one.close()
    return {"after": latest - returned[0]}


def main() -> None:
    """Run the program that the parent names."""
    program, client, settings, topic, case = json.loads(sys.argv[1])
    found = {"read": read, "single": single, "empty": empty, "outage": outage}[program](client, settings, topic, case)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
