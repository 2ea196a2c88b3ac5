"""A query of the pipeline, as a driver process: ``python -m examples.spark_orders.query NAME KAFKA DIRECTORY``.

The query reads orders from Kafka through ``kafka_group``, parses them, drops repeated orders, adds the product's name and
price, groups them into windows of five seconds, and writes Parquet. Any number of queries may run as members of one group.

The watermark limits the time for which a query remembers an order's id. Queries do not share this memory: if *another* query
reads an order again after a kill, that query writes the order again. So readers of the Parquet files remove duplicates by
``order_id``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from consumer_coord.spark import GroupListener, KafkaGroupSource
from consumer_coord.spark.progress import OwnershipEvent, all_progress
from examples.spark_orders.orders import PRODUCTS, TOPIC

GROUP = "order-pipeline"
WINDOW = "5 seconds"


def session(name: str) -> SparkSession:
    """Return a small local Spark session."""
    spark: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        # The JVM runs only for a minute or two. Without its second compiler, the JVM starts in half the time.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        # Without these settings, a task waits 40 ms for its first bytes, and an idle query reports its partitions only every 10
        # s.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.noDataProgressEventInterval", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def pipeline(spark: SparkSession, kafka: str) -> Any:
    """Return enriched orders in windows, from Kafka's bytes."""
    raw = (
        spark.readStream.format("kafka_group")
        .option("kafka.bootstrap.servers", kafka)
        .option("group.id", GROUP)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("assignor", "cooperative-sticky")
        .option("kafka.session.timeout.ms", "6000")
        .option("kafka.heartbeat.interval.ms", "500")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "order_id string, product string, quantity int, placed_at_ms long")
    products = spark.createDataFrame(
        [(key, title, price) for key, (title, price) in PRODUCTS.items()], "product string, title string, price double"
    )
    return (
        raw.select("partition", "offset", order.alias("o"))
        .select("partition", "offset", "o.*")
        .withColumn("placed_at", f.timestamp_millis("placed_at_ms"))
        .withWatermark("placed_at", "30 seconds")
        .dropDuplicatesWithinWatermark(["order_id"])
        .join(f.broadcast(products), "product")
        .withColumn("revenue", f.col("price") * f.col("quantity"))
        .withColumn("window", f.window("placed_at", WINDOW)["start"])
    )


class Story(GroupListener):
    """Listener that reports the query's partitions and progress as JSON lines on standard output."""

    def on_assigned(self, query: str, event: OwnershipEvent) -> None:
        """Report assigned partitions."""
        report("owned", event.at_ms, partitions=event.partitions.get(TOPIC, []))

    def on_revoked(self, query: str, event: OwnershipEvent) -> None:
        """Report revoked partitions."""
        report("revoked", event.at_ms, partitions=event.partitions.get(TOPIC, []))

    def on_lost(self, query: str, event: OwnershipEvent) -> None:
        """Report lost partitions."""
        report("revoked", event.at_ms, partitions=event.partitions.get(TOPIC, []))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Report a finished batch."""
        super().onQueryProgress(event)
        lag = sum(one.lag for one in all_progress(event.progress))
        report("batch", int(time.time() * 1000), rows=event.progress.numInputRows, lag=lag)


def report(event: str, at_ms: int, **what: Any) -> None:
    """Print one line for the parent process."""
    print(json.dumps({"event": event, "at_ms": at_ms, **what}), flush=True)


def main() -> None:
    """Run until standard input ends."""
    name, kafka, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = session(name)
    spark.dataSource.register(KafkaGroupSource)
    spark.streams.addListener(Story())
    query = (
        pipeline(spark, kafka)
        .writeStream.format("parquet")
        .option("path", str(directory / "result" / name))
        .option("checkpointLocation", str(directory / "checkpoints" / name))
        .queryName(name)
        # Batches without a pause would leave no processor time for other queries that start.
        .trigger(processingTime="2 seconds")
        .start()
    )

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
