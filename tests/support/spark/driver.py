"""A streaming query in a separate driver process, for tests that kill it: ``python -m tests.support.spark.driver SETUP``.

``SETUP`` is JSON: ``name``, ``bootstrap_servers``, ``group``, ``topic``, ``checkpoint``, ``master``, ``options``, ``conf``,
``log_level``, ``plan`` (whether to report it), ``sink`` (a file to which each batch appends a line per partition: batch,
partition, first, last, count) and ``trigger`` (the time from batch to batch; by default none).  The first digit of a record
says how many earlier topics had the name; the sink's partition number is the partition plus 1000 times this digit.  Events
are lines of JSON on standard output.  A line on standard input stops the query and starts it again at once; the end of the
input stops the query, or with ``"end": "exit"`` ends this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.spark.drivers import unfinished_batch

#: A run's number is the process id times this, plus the number of restarts in the process.
RUNS = 1000

#: The fields of the sink's lines; proof.py also reads them.
FIELDS = ("member", "run", "batch", "at_ms", "partition", "first", "last", "count")


def main() -> None:
    """Run the query until it fails or standard input ends."""
    setup = json.loads(sys.argv[1])
    from pyspark.sql import SparkSession

    from consumer_coord.spark import KafkaGroupSource

    builder = SparkSession.builder.master(setup["master"]).appName(setup["name"])
    for key, value in (_CONF | setup.get("conf", {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(setup.get("log_level", "ERROR"))
    spark.dataSource.register(KafkaGroupSource)
    spark.streams.addListener(_listener())
    query = _Query(spark, setup)
    report("started", pid=os.getpid())
    if setup.get("plan"):
        report("plan", plan=query.frame._jdf.queryExecution().toString())
    threading.Thread(target=query.obey, daemon=True).start()
    try:
        query.wait()
        spark.stop()
    except Exception as error:  # noqa: BLE001 - every error is reported to the parent process
        report("failed", error=str(error)[:2000])
    report("ended")


_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.noDataProgressEventInterval": "500",
}


def report(event: str, **what: Any) -> None:
    """Print an event."""
    print(json.dumps({"event": event, "at_ms": int(time.time() * 1000), **what}), flush=True)


def _listener() -> Any:
    from consumer_coord.spark import GroupListener, progress

    class Reporter(GroupListener):
        def on_assigned(self, query: str, event: Any) -> None:
            report("owned", partitions=event.partitions, generation=event.generation)

        def on_revoked(self, query: str, event: Any) -> None:
            report("revoked", partitions=event.partitions, generation=event.generation)

        def on_lost(self, query: str, event: Any) -> None:
            report("lost", partitions=event.partitions, generation=event.generation)

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            super().onQueryProgress(event)
            found = progress(_Last(event.progress))
            if found is not None:
                batch, rows = event.progress.batchId, event.progress.numInputRows
                report("progress", batch=batch, rows=rows, lag=found.lag, member=found.member_id)

    return Reporter()


class _Query:
    """The query, which standard input stops and starts again."""

    def __init__(self, spark: Any, setup: dict[str, Any]) -> None:
        reader = spark.readStream.format("kafka_group")
        options = {
            "kafka.bootstrap.servers": setup["bootstrap_servers"],
            "group.id": setup["group"],
            "subscribe": setup["topic"],
            "startingOffsets": "earliest",
            **setup.get("options", {}),
        }
        for key, value in options.items():
            reader = reader.option(key, value)
        self.frame = reader.load()
        self._setup = setup
        self._restarts = 0
        self._ending = threading.Event()
        self._query = self._start()

    @property
    def _run(self) -> int:
        return os.getpid() * RUNS + self._restarts

    def _start(self) -> Any:
        setup = self._setup
        writer = self.frame.writeStream.foreachBatch(self._sink).option("checkpointLocation", setup["checkpoint"])
        return writer.trigger(processingTime=setup.get("trigger", "0 seconds")).start()

    def _sink(self, frame: Any, batch: int) -> None:
        from pyspark.sql import functions as f

        began_ms = time.monotonic_ns() // 1_000_000
        topic = f.coalesce(f.substring(f.col("value").cast("string"), 1, 1).try_cast("int"), f.lit(0))
        partition = (f.col("partition") + 1000 * topic).alias("partition")
        rows = frame.groupBy(partition).agg(f.min("offset"), f.max("offset"), f.count("*")).collect()
        head = (self._setup["name"], self._run, batch, began_ms)
        # One write, so that a kill leaves all lines of a batch or none.
        lines = [json.dumps(dict(zip(FIELDS, (*head, *row), strict=True))) + "\n" for row in rows]
        with open(self._setup["sink"], "ab", buffering=0) as file:
            file.write("".join(lines).encode())

    def obey(self) -> None:
        """Restart the query for each line of standard input, and stop it at the end of the input."""
        for _ in sys.stdin:
            self._query.stop()
            self._restarts += 1
            report("restarting", run=self._run, unfinished=unfinished_batch(Path(self._setup["checkpoint"])))
            self._query = self._start()
        if self._setup.get("end") == "exit":
            os._exit(0)
        self._ending.set()
        self._query.stop()

    def wait(self) -> None:
        """Return when the end of standard input has stopped the query; raise if the query fails."""
        while not self._ending.is_set():
            if self._query.awaitTermination(1):
                time.sleep(0.05)  # the query is being started again
        self._query.awaitTermination()


class _Last:
    """The attribute of a query that ``progress`` reads."""

    def __init__(self, last: Any) -> None:
        self.lastProgress = last  # the name is Spark's


if __name__ == "__main__":
    main()
