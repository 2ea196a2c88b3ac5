"""Stops of queries at random moments: which members remain in the group, and how soon the next run owns its partitions.

    python -m tests.support.spark.stops --stops 200
    python -m tests.support.spark.stops --stops 30 --ways session driver

Each stop is one of: ``query`` (``query.stop()``), ``session`` (``spark.stop()``), ``driver`` (the end of a driver
process), ``task`` (a task that fails).  Its moment is right after the start, during the join, in a batch, or between two.
The program counts *ghosts* (members that are still in the group after a second and a half) and remaining processes. Two
times are measured: until the group has confirmed the leave, and from the next start until the query owns its partitions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from consumer_coord.spark.fork_server import SOURCE_WITHIN_S
from consumer_coord.spark.launcher import write_python_launcher
from tests.support.spark.drivers import PLANNER, QUICK_JVM, Driver, descendants
from tests.support.waiting import eventually

PARTITIONS = 4
#: A member that is still in the group this long after the stop is a ghost, in seconds.
GHOST_S = 1.5
#: Additional time in which the program observes when a ghost leaves, in seconds.
SESSION_S = 45.0

_NO_COORDINATOR = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}

WAYS = ("query", "session", "driver", "task")


@attrs.frozen
class Stopped:
    """A stop: its way, its moment after the start, and its results; times in seconds."""

    way: str
    after_s: float
    leave_s: float
    left_behind: int
    share_s: float | None

    @property
    def is_ghost(self) -> bool:
        """Whether the member was in the group for too long."""
        return self.leave_s > GHOST_S


class Stops:
    """A group, a topic, and the queries that are started and stopped one after the other."""

    def __init__(
        self, bootstrap_servers: str, directory: Path, seed: int, say: Callable[[str], None], spark: Any = None
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.directory = directory
        self.random = random.Random(seed)
        self.say = say
        self.name = f"stops-{os.getpid()}-{time.time_ns()}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self.admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])[self.name].result(60)
        self._spark = spark
        self._own_session = spark is None
        self._launcher = ""
        #: How many of the stopped planners were forked.
        self.forked = 0
        self._writing = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        """Write a record every 20 ms, so that queries have batches in which they can be stopped."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 0, "enable.idempotence": True})
        number = 0
        while not self._writing.wait(0.02):
            producer.produce(self.name, b"v", partition=number % PARTITIONS)
            producer.poll(0)
            number += 1
        producer.flush(10)

    def close(self) -> None:
        """Stop writing records, and end the session."""
        self._writing.set()
        self._writer.join(15)
        if self._own_session and self._spark is not None:
            self._spark.stop()

    # -- observations -------------------------------------------------------------------------------------------

    def shares(self) -> list[int]:
        """Return how many partitions each member of the group has, by the broker; -1 while the broker does not know."""
        try:
            found = self.admin.describe_consumer_groups([self.name])[self.name].result(30)
        except KafkaException as error:
            # For the broker's first group, the broker is still creating the offsets topic.
            if error.args[0].code() not in _NO_COORDINATOR:
                raise
            return [-1]
        return [len(member.assignment.topic_partitions) for member in found.members]

    def await_end(self, began: float, planners: Sequence[int]) -> tuple[float, int]:
        """Return the seconds from ``began`` until the group was finally empty, and how many of ``planners`` remain."""
        empty_since, seen_at = began, began
        while True:
            now = time.monotonic()
            if self.shares():
                empty_since = seen_at = time.monotonic()
            left = len(alive(planners))
            # A planner that has not joined yet may still join.  A planner that Spark abandoned at its start ends later.
            if now - began > SESSION_S + 15 or (now > seen_at and (not left or now - began > SOURCE_WITHIN_S + 10)):
                return empty_since - began, left
            time.sleep(0.02)

    # -- the ways ---------------------------------------------------------------------------------------------------

    def session(self) -> Any:
        """Return the session of this process, created again after ``spark.stop()``."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            from consumer_coord.spark import KafkaGroupSource

            if not self._launcher:
                self._launcher = write_python_launcher(self.directory, fork_server=True)
            os.environ["PYSPARK_PYTHON"] = self._launcher
            os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            builder = SparkSession.builder.master("local[2]").appName("stops")
            conf = {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": "1",
                "spark.python.unix.domain.socket.enabled": "true",
                **QUICK_JVM,
            }
            for key, value in conf.items():
                builder = builder.config(key, value)
            self._spark = builder.getOrCreate()
            self._spark.sparkContext.setLogLevel("OFF")
            self._spark.dataSource.register(KafkaGroupSource)
        return self._spark

    def start(self, sink: Callable[[Any, int], None]) -> Any:
        """Start a query in this process."""
        reader = self.session().readStream.format("kafka_group")
        for key, value in {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "group.id": self.name,
            "subscribe": self.name,
            "startingOffsets": "earliest",
        }.items():
            reader = reader.option(key, value)
        writer = reader.load().writeStream.foreachBatch(sink)
        return writer.option("checkpointLocation", str(self.directory / "checkpoint")).start()

    def await_share(self, began: float) -> float:
        """Return the seconds from ``began`` until the group's only member has every partition."""
        eventually(lambda: self.shares() == [PARTITIONS], "a member with all partitions", within_s=90)
        return time.monotonic() - began

    def moment(self) -> float | None:
        """Return the seconds from start to stop, perhaps before the join, or None to stop some time after the join."""
        return self.random.choice((None, None, self.random.uniform(0, 4)))

    def stop_once(self, way: str) -> Stopped:
        """Start a query, stop it at a random moment, and return the results."""
        return self._stop_driver() if way == "driver" else self._stop_here(way)

    def _stop_here(self, way: str) -> Stopped:
        failing = threading.Event()

        def sink(frame: Any, batch: int) -> None:
            if failing.is_set():
                frame.foreach(_fail)
            frame.count()
            time.sleep(0.05)

        self.session()
        began = time.monotonic()
        query = self.start(sink)
        after = self.moment()
        share = None
        if after is None:
            share = self.await_share(began)
            time.sleep(self.random.uniform(0, 1.5))
        else:
            time.sleep(max(0.0, began + after - time.monotonic()))
        family = descendants(os.getpid())
        planners = [pid for pid, command in family.items() if PLANNER in command]
        # Children of the fork server, which is itself one process of the family.
        self.forked += sum("spark.fork_server" in command for command in family.values()) > 1
        stopping = time.monotonic()
        if way == "task":
            failing.set()
            with contextlib.suppress(Exception):
                query.awaitTermination(30)
            stopping = time.monotonic()
            query.stop()
        elif way == "session":
            self._spark.stop()
            self._spark = None
        else:
            query.stop()
        ended = time.monotonic() - stopping
        leave, left = self.await_end(stopping, planners)
        self.say(f"{way}: stop() took {ended:.2f} s, the planner ended after {time.monotonic() - stopping:.2f} s")
        return Stopped(way, stopping - began, leave, left, share)

    def _stop_driver(self) -> Stopped:
        setup = {
            "name": "query",
            "bootstrap_servers": self.bootstrap_servers,
            "group": self.name,
            "topic": self.name,
            "checkpoint": str(self.directory / "checkpoint-driver"),
            "sink": str(self.directory / "sink"),
            "master": "local[2]",
            "end": self.random.choice(("stop", "exit")),
        }
        driver = Driver(setup, self.directory / "driver.log")
        try:
            driver.wait_for("started", 120)
            began = time.monotonic()
            after = self.moment()
            share = None
            if after is None:
                share = self.await_share(began)
                time.sleep(self.random.uniform(0, 1.5))
            else:
                time.sleep(after)
            family = list(driver.processes())
            planners = driver.pids_of(PLANNER)
            stopping = time.monotonic()
            assert driver.process.stdin is not None
            driver.process.stdin.close()
            leave, _ = self.await_end(stopping, planners)
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(20)
            eventually(lambda: not alive(family) or time.monotonic() - stopping > 30, "the end of the driver", within_s=40)
            return Stopped("driver", stopping - began, leave, len(alive(family)), share)
        finally:
            driver.close()


def _fail(row: Any) -> None:
    raise RuntimeError("a task that fails")


def alive(pids: Sequence[int]) -> list[int]:
    """Return the processes that have not ended."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def summary(stops: Sequence[Stopped]) -> dict[str, Any]:
    """Return the counts and times of all stops."""
    leaves = sorted(one.leave_s for one in stops)
    shares = sorted(one.share_s for one in stops if one.share_s is not None)
    found: dict[str, Any] = {
        "stops": {way: sum(one.way == way for one in stops) for way in WAYS},
        "ghosts": sum(one.is_ghost for one in stops),
        "processes left": sum(one.left_behind for one in stops),
    }
    for name, times in (("leave", leaves), ("share after start", shares)):
        if times:
            found[f"{name}, s"] = {
                "median": round(times[len(times) // 2], 2),
                "p95": round(times[int(len(times) * 0.95)], 2),
                "max": round(times[-1], 2),
            }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop queries, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--embedded", action="store_true", help="on the embedded Kafka, not on a real one")
    given = parser.parse_args(arguments)
    from tests.support.spark.proof import broker

    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="spark-stops-") as directory, broker(given.embedded) as address:
        scene = Stops(address, Path(directory), given.seed, say)
        done: list[Stopped] = []
        try:
            for number in range(given.stops):
                # A driver process takes ten times as long as the other ways.
                weights = [1 if way == "driver" else 2 if way in ("session", "task") else 6 for way in given.ways]
                way = scene.random.choices(given.ways, weights)[0]
                one = scene.stop_once(way)
                done.append(one)
                share = "" if one.share_s is None else f", share {one.share_s:.2f} s after its start"
                say(
                    f"{number + 1}: {way}, {one.after_s:.2f} s after its start{share}: left after {one.leave_s:.2f} s,"
                    f" {one.left_behind} processes left{'  GHOST' if one.is_ghost else ''}"
                )
        finally:
            scene.close()
            if done:
                print(json.dumps(summary(done), indent=2))
    return 1 if any(one.is_ghost or one.left_behind for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
