"""A check of features with any version of Kafka: members, all assignors, a custom one, static members, commands, Spark.

By hand, one broker at a time::

    python -m tests.support.kafka.brokers_matrix --version 2.8.2 [--only static]

fetches the jars of that version and starts a broker: 2.x with a ZooKeeper, from 3.3 on in KRaft mode.  With
``--bootstrap-server``, it uses a running broker of any version.  It prints a line for each check and ends with 1 if one
failed.  ``docs/brokers.md`` has the results, with the date.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from assignors import RangeAssignor
from consumer_coord import GroupConsumer
from consumer_coord.cli import main as command
from consumer_coord.testing.jars import Coordinate, fetch_unpinned
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.jar_sets import LOGGING
from tests.support.kafka.zookeeper_kafka import ZooKeeperKafka

DEADLINE_S = 180
PARTITIONS = 4
RECORDS = 40


class OwnAssignor(RangeAssignor):
    """A custom assignor, with a name that no broker and no other client knows."""

    name = "own-range"


@contextlib.contextmanager
def members(servers: str, group: str, settings: Mapping[str, Any], count: int = 2) -> Iterator[list[GroupConsumer]]:
    """Yield members of one group; each static member gets its own instance id."""
    made = []
    for number in range(count):
        own = {key: f"{value}-{number}" if key == "group.instance.id" else value for key, value in settings.items()}
        common: dict[str, Any] = {"bootstrap.servers": servers, "group.id": group}
        if settings.get("group.protocol") != "consumer":
            common["session.timeout.ms"] = 10_000
        made.append(GroupConsumer({**common, "auto.offset.reset": "earliest", **own}))
    try:
        yield made
    finally:
        for member in made:
            member.close()


def read_all(servers: str, topic: str, group: str, settings: Mapping[str, Any]) -> None:
    """Let two members share the topic and read every record once."""
    with members(servers, group, settings) as both:
        for member in both:
            member.subscribe([topic])
        seen: list[bytes] = []
        ends = time.monotonic() + DEADLINE_S
        while len(seen) < RECORDS or not all(member.assignment() for member in both):
            assert time.monotonic() < ends, f"{len(seen)} of {RECORDS} records, {[len(one.assignment()) for one in both]}"
            for member in both:
                for message in member.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    seen.append(message.value() or b"")
        # Commit the ends, not each member's positions: the first member may have read everything before the second joined.
        for member in both:
            owned = [TopicPartition(row.topic, row.partition, RECORDS // PARTITIONS) for row in member.assignment()]
            member.commit(offsets=owned, asynchronous=False)
    assert sorted(set(seen)) == sorted(b"%d" % number for number in range(RECORDS))


def run(servers: str, *arguments: str) -> str:
    """Run a command that must succeed, and return its output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command([*arguments, "--bootstrap-server", servers])
    assert code == 0, f"{arguments[0]} ended with {code}: {err.getvalue()}"
    return out.getvalue()


def query(servers: str, topic: str, group: str) -> None:
    """Let a streaming query of the group read every record once."""
    from pyspark.sql import SparkSession

    from consumer_coord.spark import KafkaGroupSource
    from consumer_coord.spark.launcher import write_python_launcher
    from tests.support.spark.drivers import QUICK_JVM

    launcher = tempfile.TemporaryDirectory()
    os.environ["PYSPARK_PYTHON"] = write_python_launcher(launcher.name)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for key, value in QUICK_JVM.items():
        builder = builder.config(key, value)
    session = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    seen: list[bytes] = []
    try:
        session.sparkContext.setLogLevel("ERROR")
        session.dataSource.register(KafkaGroupSource)
        options = {"kafka.bootstrap.servers": servers, "group.id": group, "subscribe": topic, "startingOffsets": "earliest"}
        frame = session.readStream.format("kafka_group").options(**options).load()
        with tempfile.TemporaryDirectory() as directory:
            writer = frame.writeStream.option("checkpointLocation", directory).trigger(availableNow=True)
            batches = writer.foreachBatch(lambda batch, _: seen.extend(bytes(row.value) for row in batch.collect()))
            running = batches.start()
            assert running.awaitTermination(4 * DEADLINE_S), "the query did not end"
    finally:
        session.stop()
        launcher.cleanup()
    assert sorted(seen) == sorted(b"%d" % number for number in range(RECORDS))


def checks(servers: str, topic: str) -> Mapping[str, Callable[[], object]]:
    """Return the checks by name."""
    group = f"matrix-{uuid.uuid4().hex[:6]}"

    def with_assignor(name: str) -> Callable[[], object]:
        return lambda: read_all(servers, topic, f"{group}-{name}", {"partition.assignment.strategy": name})

    def operate() -> None:
        read_all(servers, topic, group, {})
        assert group in run(servers, "list")
        assert topic in run(servers, "describe", group)
        run(servers, "describe", group, "--members", "--verbose")
        assert topic in run(servers, "lag", group)
        run(servers, "lag", group, "--count", "1")
        run(servers, "reset", group, "--to-earliest", "--all-topics", "--execute")

    return {
        **{name: with_assignor(name) for name in ("range", "roundrobin", "sticky", "cooperative-sticky", "load")},
        "own assignor": with_assignor("tests.support.kafka.brokers_matrix:OwnAssignor"),
        "static": lambda: read_all(servers, topic, f"{group}-static", {"group.instance.id": "till"}),
        "consumer protocol": lambda: read_all(servers, topic, f"{group}-consumer", {"group.protocol": "consumer"}),
        "list, describe, lag, top, reset": operate,
        "delete-offsets": lambda: run(servers, "delete-offsets", group, "--topic", topic),
        "delete": lambda: run(servers, "delete", f"{group}-range"),
        "spark": lambda: query(servers, topic, f"{group}-spark"),
    }


def play(servers: str, only: str | None = None, without: Collection[str] = ()) -> dict[str, str]:
    """Run the checks; return "ok" or the error for each name."""
    topic = f"matrix-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0
    outcome = {}
    for name, check in checks(servers, topic).items():
        if name not in without and (only is None or only in name):
            try:
                check()
                outcome[name] = "ok"
            except Exception as error:  # noqa: BLE001 - shown in the table
                outcome[name] = f"{type(error).__name__}: {error}"
    return outcome


def fetch(version: str) -> Path:
    """Fetch the jars of a version; brokers before 2.4 are available for Scala 2.12 only."""
    scala = "2.12" if tuple(map(int, version.split(".")[:2])) < (2, 4) else "2.13"
    return fetch_unpinned(f"kafka-{version}", [Coordinate("org.apache.kafka", f"kafka_{scala}", version), *LOGGING])


def broker_of(libs: Path) -> RealKafka:
    """Return a broker with these jars, which is not started."""
    (core,) = (path for path in libs.glob("kafka_2.1?-*.jar"))
    old = core.stem.rpartition("-")[2].startswith("2.")
    return ZooKeeperKafka(libs) if old else RealKafka(libs)


def main() -> int:
    """Run the checks with one broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--version", help="such as 2.8.2")
    where.add_argument("--libs", type=Path, help="a directory with a broker's jars")
    where.add_argument("--bootstrap-server")
    parser.add_argument("--only", help="the checks with this in their names")
    parser.add_argument("--without", action="append", default=[], help="a check to omit; may be repeated")
    arguments = parser.parse_args()
    if arguments.bootstrap_server is not None:
        outcome = play(arguments.bootstrap_server, arguments.only, arguments.without)
    else:
        with broker_of(arguments.libs or fetch(arguments.version)) as kafka:
            outcome = play(kafka.bootstrap_servers, arguments.only, arguments.without)
    for name, what in outcome.items():
        print(f"{name}: {what}")
    return 0 if all(what == "ok" for what in outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
