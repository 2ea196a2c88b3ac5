"""A measurement in a separate process.

    child.py drain TOPIC ROUNDS OPTIONS MASTER   both sources in turns, in one session, after warm-ups of each
    child.py ranges TOPIC ROUNDS OPTIONS         the same with bounded reads (spark.read)
    child.py cold SOURCE TOPIC                   the first query of a new session
    child.py trickle TOPIC SECONDS UNIX          a thousand records a second; both sources in turns
    child.py join TOPIC                          a second query joins a running query
    child.py handover TOPIC ROUNDS               a query joins, stops or is killed: until the new owner writes

``benchmarks.spark`` starts this program, which prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import attrs
from confluent_kafka import Producer

from benchmarks.spark import handover
from benchmarks.spark.session import CONNECTOR, OURS, Drained, bounded, drain, frame, make_session, read_range, start

RATE = 1_000

#: Number of queries of each source before the measured queries. The JVM compiles a loop after it has run for some seconds, but
#: a query of kafka_group takes only one second.
WARM_UPS = 5


class Trickle(threading.Thread):
    """A producer that writes ``RATE`` records of 100 bytes per second until it is closed."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
        self._topic, self._partitions = topic, partitions
        self._closing = threading.Event()

    def run(self) -> None:
        """Produce some records each millisecond."""
        began, sent = time.monotonic(), 0
        while not self._closing.wait(0.002):
            due = int((time.monotonic() - began) * RATE)
            for number in range(sent, due):
                self._producer.produce(self._topic, b"x" * 100, partition=number % self._partitions)
            sent = due
            self._producer.poll(0)
        self._producer.flush(30)

    def close(self) -> None:
        """End the producer's thread."""
        self._closing.set()
        self.join()


def drains(bootstrap_servers: str, topic: str, rounds: int, options: Mapping[str, str], master: str) -> Mapping[str, Any]:
    """Read the whole topic with both sources in turns."""
    spark = make_session(master=master)
    found: dict[str, list[Drained]] = {CONNECTOR: [], OURS: []}
    for number in range(WARM_UPS + rounds):
        # Change the order in each round, so that neither source always runs after the other source's garbage.
        for source in sorted(found, reverse=bool(number % 2)):
            found[source].append(drain(spark, source, bootstrap_servers, topic, options))
    return {source: [attrs.asdict(one) for one in drained[WARM_UPS:]] for source, drained in found.items()}


def ranges(bootstrap_servers: str, topic: str, rounds: int, options: Mapping[str, str]) -> Mapping[str, Any]:
    """Read the whole topic with bounded reads of both sources in turns; return the number of rows, and the seconds."""
    spark = make_session()
    counts = {source: bounded(spark, source, bootstrap_servers, topic, options).count() for source in (CONNECTOR, OURS)}
    if len(set(counts.values())) != 1:
        raise ValueError(f"the sources read different numbers of records: {counts}")
    seconds: dict[str, list[float]] = {CONNECTOR: [], OURS: []}
    for number in range(WARM_UPS + rounds):
        for source in sorted(seconds, reverse=bool(number % 2)):
            seconds[source].append(read_range(spark, source, bootstrap_servers, topic, options))
    return {"rows": counts[OURS], "seconds": {source: found[WARM_UPS:] for source, found in seconds.items()}}


def cold(source: str, bootstrap_servers: str, topic: str) -> Mapping[str, Any]:
    """Run the first query of a session; return its figures."""
    spark = make_session()
    return attrs.asdict(drain(spark, source, bootstrap_servers, topic, {}))


def trickle(bootstrap_servers: str, topic: str, partitions: int, seconds: float, unix_sockets: bool) -> Mapping[str, Any]:
    """Return the durations of both sources' batches in milliseconds, in turns, and the time to the first batch."""
    spark = make_session(unix_sockets=unix_sockets)
    flow = Trickle(bootstrap_servers, topic, partitions)
    flow.start()
    found: dict[str, dict[str, list[float]]] = {
        source: {"batch_ms": [], "add_batch_ms": [], "first_s": []} for source in (CONNECTOR, OURS)
    }
    try:
        for turn in range(6):
            for source in sorted(found, reverse=bool(turn % 2)):
                began = time.perf_counter()
                query = start(frame(spark, source, bootstrap_servers, topic, startingOffsets="latest"), now=False)
                while not any(one["numInputRows"] for one in query.recentProgress):
                    time.sleep(0.01)
                first_s = time.perf_counter() - began
                time.sleep(seconds)
                query.stop()
                # Leave out the first batches, which warm up Spark.
                batches = [one for one in query.recentProgress if one["numInputRows"]][5:]
                if turn < 2:
                    continue
                found[source]["first_s"].append(first_s)
                found[source]["batch_ms"] += [one["durationMs"]["triggerExecution"] for one in batches]
                found[source]["add_batch_ms"] += [one["durationMs"].get("addBatch", 0) for one in batches]
    finally:
        flow.close()
    return found


def join(bootstrap_servers: str, topic: str, partitions: int) -> Mapping[str, Any]:
    """Return the seconds until a second query owns its share, and the first query's batch times before and during the join."""
    from consumer_coord.spark import progress

    spark = make_session()
    flow = Trickle(bootstrap_servers, topic, partitions)
    flow.start()
    group = f"join-{time.time_ns()}"
    settings = {"startingOffsets": "latest", "group.id": group}
    try:
        first = start(frame(spark, OURS, bootstrap_servers, topic, **settings), now=False)
        _until(lambda: _share(progress(first)) == partitions)
        time.sleep(5)
        calm_ms = [one["durationMs"]["triggerExecution"] for one in first.recentProgress[-15:]]
        began = time.perf_counter()
        before = first.lastProgress["batchId"]
        second = start(frame(spark, OURS, bootstrap_servers, topic, **settings), now=False)
        _until(lambda: _share(progress(second)) == partitions // 2)
        took_s = time.perf_counter() - began
        time.sleep(2)
        during = [one["durationMs"]["triggerExecution"] for one in first.recentProgress if one["batchId"] >= before]
        second.stop()
        first.stop()
    finally:
        flow.close()
    return {"join_s": took_s, "calm_ms": calm_ms, "during_ms": during}


def _share(found: Any) -> int:
    return 0 if found is None else sum(len(numbers) for numbers in found.owned.values())


def _until(condition: Any) -> None:
    end = time.monotonic() + 180
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the group was not stable after 180 s")
        time.sleep(0.01)


def main() -> None:
    """Run one measurement: ``child.py BOOTSTRAP WHAT ...``."""
    bootstrap_servers, what, *rest = sys.argv[1:]
    result: Mapping[str, Any]
    if what == "drain":
        result = drains(bootstrap_servers, rest[0], int(rest[1]), json.loads(rest[2]), rest[3])
    elif what == "ranges":
        result = ranges(bootstrap_servers, rest[0], int(rest[1]), json.loads(rest[2]))
    elif what == "cold":
        result = cold(rest[0], bootstrap_servers, rest[1])
    elif what == "trickle":
        result = trickle(bootstrap_servers, rest[0], int(rest[1]), float(rest[2]), rest[3] == "unix")
    elif what == "handover":
        flow = Trickle(bootstrap_servers, rest[0], handover.PARTITIONS)
        flow.start()
        try:
            result = handover.measure(bootstrap_servers, rest[0], int(rest[1]))
        finally:
            flow.close()
    else:
        result = join(bootstrap_servers, rest[0], int(rest[1]))
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
