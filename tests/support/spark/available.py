"""Produce, ``processAllAvailable``, count, many times: ``python -m tests.support.spark.available --rounds 200 --kafka real``.

The pauses between two rounds are random, up to ``--pause`` seconds. Exit with 1 if a record that existed at a call was not in
the table after the call.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from random import Random

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.spark.producing import produce
from tests.support.spark.proof import broker


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the rounds, and print how many calls returned too early."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--kafka", choices=["embedded", "real"], default="embedded")
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    from pyspark.sql import SparkSession

    from consumer_coord.spark import register
    from consumer_coord.spark.launcher import write_python_launcher

    random, early, slowest_s = Random(given.seed), 0, 0.0
    with (
        broker(given.kafka == "embedded") as address,
        tempfile.TemporaryDirectory() as checkpoint,
        contextlib.ExitStack() as stack,
    ):
        # On a busy machine, Spark's own start of Python may take longer than the ten seconds that Spark waits for it.
        launchers = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["PYSPARK_PYTHON"] = write_python_launcher(launchers, fork_server=True)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        # The real broker creates no topic by itself.
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("rounds", 2, 1)])["rounds"].result(60)
        options = {
            "kafka.bootstrap.servers": address,
            "group.id": "rounds",
            "subscribe": "rounds",
            "startingOffsets": "earliest",
            "kafka.group.protocol": given.protocol,
        }
        frame = spark.readStream.format("kafka_group").options(**options).load()
        query = frame.select("offset").writeStream.format("memory").queryName("rounds")
        query = query.option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        for number in range(given.rounds):
            time.sleep(random.uniform(0, given.pause))
            produce(address, "rounds", [{"partition": number % 2, "value": b"v"}])
            began_s = time.monotonic()
            query.processAllAvailable()
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            early += spark.table("rounds").count() < number + 1
        query.stop()
    print(f"{given.kafka}, {given.protocol}: {early} of {given.rounds} calls returned early; the slowest: {slowest_s:.2f} s")
    return 1 if early else 0


if __name__ == "__main__":
    sys.exit(main())
