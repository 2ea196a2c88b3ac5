"""Sessions and queries for the comparison: one session serves both sources, so that both have the same conditions."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from consumer_coord.spark.launcher import write_python_launcher
from consumer_coord.testing import jars as kafka_jars
from tests.support.jar_sets import SPARK_CONNECTOR

CONNECTOR = "kafka"
OURS = "kafka_group"


def make_session(*, master: str = "local[2]", unix_sockets: bool = True) -> Any:
    """Make a session with the connector's jars on its class path and our source registered."""
    # As docs/spark.md recommends; --plain-start measures without.
    fast = os.environ.get("BENCH_PLAIN_START") != "1"
    launcher = tempfile.mkdtemp(prefix="bench-python-")
    os.environ["PYSPARK_PYTHON"] = write_python_launcher(launcher, fork_server=True) if fast else sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from consumer_coord.spark import register

    jars = ",".join(str(jar) for jar in sorted(Path(kafka_jars.ensure_jars(SPARK_CONNECTOR)).glob("*.jar")))
    spark = (
        SparkSession.builder.master(master)
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .config("spark.python.unix.domain.socket.enabled", str(unix_sockets).lower())
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def frame(spark: Any, source: str, bootstrap_servers: str, topic: str, **options: str) -> Any:
    """Return a streaming frame of either source, with the same options."""
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap_servers).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    if source == OURS:
        reader = reader.option("group.id", f"bench-{time.time_ns()}")
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def start(data: Any, *, now: bool) -> Any:
    """Start a query that writes to ``noop``, with a separate checkpoint."""
    writer = data.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp(prefix="bench-"))
    return (writer.trigger(availableNow=True) if now else writer).start()


@attrs.frozen
class Drained:
    """The duration of one query with Trigger.AvailableNow, in seconds; ``rows`` shows that both sources read the same."""

    rows: int
    add_batch_s: float
    wall_s: float
    memory: Mapping[str, float]


def drain(spark: Any, source: str, bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> Drained:
    """Read a whole topic with one source."""
    data = frame(spark, source, bootstrap_servers, topic, **options)
    began = time.perf_counter()
    query = start(data, now=True)
    peaks: dict[str, float] = {}
    # The planner ends with the query, so read its memory during the query, for both sources.
    while not query.awaitTermination(0.5):
        peaks.update({kind: max(peak, peaks.get(kind, 0.0)) for kind, peak in memory().items()})
    wall_s = time.perf_counter() - began
    progress = query.recentProgress
    return Drained(
        sum(one["numInputRows"] for one in progress),
        sum(one["durationMs"].get("addBatch", 0) for one in progress) / 1000,
        wall_s,
        peaks,
    )


def read_range(spark: Any, source: str, bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> float:
    """Read a whole topic with ``spark.read`` into ``noop``; return the seconds from ``load()`` to the end."""
    began = time.perf_counter()
    bounded(spark, source, bootstrap_servers, topic, options).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def bounded(spark: Any, source: str, bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> Any:
    """Return a frame of a whole topic with either source, without a group."""
    given = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, **options}
    return spark.read.format(source).options(**given).load()


def memory() -> Mapping[str, float]:
    """Return the peak resident memory in MB of this driver's Python processes: the planner's, and the largest worker's."""
    found: dict[str, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            status = (entry / "status").read_text()
        except OSError:
            continue
        kind = next(
            (
                kind
                for kind, mark in (("planner", "python_streaming_source_runner"), ("worker", "spark.daemon"))
                if mark in command
            ),
            None,
        )
        if kind is None or not _is_ours(int(entry.name)):
            continue
        peak_kb = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        found[kind] = max(found.get(kind, 0.0), peak_kb / 1024)
    return found


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
