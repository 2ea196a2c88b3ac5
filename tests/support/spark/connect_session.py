"""A query over Spark Connect in a separate process: ``python -m tests.support.spark.connect_session SETUP``.

A process cannot have both a classic session and a session over Connect.  ``SETUP`` is JSON: ``bootstrap_servers``,
``group``, ``topic``, ``directory``.  The result of the query is one line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from consumer_coord.spark import GroupListener, by_value, progress, register
from consumer_coord.spark.launcher import write_python_launcher
from consumer_coord.spark.source import parallelism_of
from tests.support.spark.assignors import ToTheFirst
from tests.support.spark.drivers import QUICK_JVM

DEADLINE_S = 400


def main(setup: Any) -> None:
    """Read the available records, and report them."""
    os.environ["PYSPARK_PYTHON"] = write_python_launcher(setup["directory"])
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The server chooses its port, and the client learns the port from the server.
    os.environ["SPARK_TESTING"] = "1"
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote("local[3]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.streaming.noDataProgressEventInterval": "500",
        "spark.python.unix.domain.socket.enabled": "true",
        **QUICK_JVM,
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    owned_events: list[Any] = []

    class Recorder(GroupListener):
        def on_assigned(self, query: str, event: Any) -> None:
            owned_events.append(event.partitions)

    spark.streams.addListener(Recorder())
    register(spark)
    reader = spark.readStream.format("kafka_group")
    for key, value in {
        "kafka.bootstrap.servers": setup["bootstrap_servers"],
        "group.id": setup["group"],
        "subscribe": setup["topic"],
        "startingOffsets": "earliest",
        "assignor": by_value(ToTheFirst),
    }.items():
        reader = reader.option(key, value)
    out = str(Path(setup["directory"]) / "out")
    writer = reader.load().writeStream.format("parquet").option("path", out)
    query = writer.option("checkpointLocation", str(Path(setup["directory"]) / "checkpoint")).start()
    deadline = time.monotonic() + DEADLINE_S
    found = None
    while time.monotonic() < deadline and query.exception() is None:
        found = progress(query)
        if found is not None and found.commits and found.lag == 0 and owned_events:
            break
        time.sleep(0.2)
    read = spark.read.parquet(out).count()
    query.stop()
    print(
        json.dumps(
            {
                "cores": parallelism_of(spark),
                "read": read,
                "owned": None if found is None else found.owned,
                "owned_events": owned_events,
                "error": str(query.exception()),
            }
        ),
        flush=True,
    )
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
