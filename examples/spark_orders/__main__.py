"""``make demo-spark``: a pipeline that grows from one query to three while it runs, loses one to SIGKILL, and shrinks again.

    python -m examples.spark_orders                     on the embedded Kafka
    python -m examples.spark_orders --kafka host:port   on your Kafka (creates a topic "orders", and deletes it at the end)

At the end, the demo checks that every order was counted once, and draws the owner of each partition over time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from consumer_coord.spark.launcher import write_python_launcher
from examples.spark_orders.orders import TOPIC, Shop
from examples.spark_orders.picture import Holding, Mark, draw
from examples.web_page import add_argument, watched

GROUP = "order-pipeline"
PARTITIONS = 6
START_DEADLINE_S = 300.0


class Query:
    """A driver process of the pipeline, and its events."""

    def __init__(self, name: str, kafka: str, directory: Path) -> None:
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.ended_s: float | None = None
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.spark_orders.query", name, kafka, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(directory),
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self.events.append(json.loads(line))

    @property
    def owned(self) -> set[int]:
        """Return the partitions that the query owns according to its events."""
        found: set[int] = set()
        for event in list(self.events):
            if event["event"] == "owned":
                found |= set(event["partitions"])
            elif event["event"] == "revoked":
                found -= set(event["partitions"])
        return found

    @property
    def rows(self) -> int:
        """Return the number of orders that the query has read."""
        return sum(event["rows"] for event in list(self.events) if event["event"] == "batch")

    def check(self) -> None:
        """Raise an error if the process has ended."""
        if self._process.poll() is not None and self.ended_s is None:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
            raise SystemExit(f"the query {self.name} ended with {self._process.returncode}:\n{tail}")

    def stop(self) -> None:
        """Stop the query normally."""
        if self.ended_s is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._end(60)

    def kill(self) -> None:
        """Kill all processes of the query with SIGKILL: Python, JVM, planner, workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._end(60)

    def _end(self, timeout_s: float) -> None:
        self.ended_s = time.time()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Show:
    """Run the steps, with a line of progress each second."""

    def __init__(self, kafka: str, directory: Path) -> None:
        self.kafka = kafka
        self.directory = directory
        self.queries: list[Query] = []
        self.marks: list[tuple[float, str]] = []
        self.admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
        self.began_s = time.time()

    def start(self, *names: str) -> None:
        """Start queries at the same time."""
        self.mark(f"{' and '.join(names)} start" + ("s" if len(names) == 1 else ""))
        self.queries += [Query(name, self.kafka, self.directory) for name in names]

    def mark(self, text: str) -> None:
        """Record and print an event."""
        self.marks.append((time.time(), text))
        print(f"{time.time() - self.began_s:5.0f} s  {text}", flush=True)

    def watch(self, seconds: float) -> None:
        """Let the pipeline run for some seconds."""
        end = time.time() + seconds
        while time.time() < end:
            self._report()
            time.sleep(1)

    def await_shares(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until the living queries own every partition once."""
        end = time.time() + deadline_s
        while True:
            shares = [query.owned for query in self.queries if query.ended_s is None]
            owned = sorted(number for share in shares for number in share)
            if owned == list(range(PARTITIONS)) and all(shares):
                return
            if time.time() > end:
                raise SystemExit(
                    f"after {deadline_s:.0f} s the queries own {shares}, not every partition; logs: {self.directory}"
                )
            self._report()
            time.sleep(1)

    def _report(self) -> None:
        parts = []
        for query in self.queries:
            query.check()
            if query.ended_s is None:
                share = ",".join(map(str, sorted(query.owned))) or "-"
                parts.append(f"{query.name} owns {share:11} read {query.rows:6,}")
        print(f"{time.time() - self.began_s:5.0f} s  lag {self.lag():6,}   " + "   ".join(parts), flush=True)

    def lag(self) -> int:
        """Return the number of orders that the group has not committed."""
        request = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        try:
            committed = self.admin.list_consumer_group_offsets([request])[GROUP].result(10).topic_partitions
        except Exception:  # noqa: BLE001 - before the first join there is no such group
            committed = []
        done = sum(max(0, one.offset) for one in committed)
        return self._written() - int(done)

    # Retry, because a new topic has no leaders yet, and leaders may move.
    @retry(retry=retry_if_exception_type(KafkaException), stop=stop_after_delay(30), wait=wait_fixed(0.2), reraise=True)
    def _written(self) -> int:
        wanted = {TopicPartition(TOPIC, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        answers = list(self.admin.list_offsets(wanted).values())
        wait(answers, 10)
        return sum(int(one.result(0).offset) for one in answers)

    def drain(self, deadline_s: float = 120) -> None:
        """Wait until every order is read and committed."""
        end = time.time() + deadline_s
        while self.lag():
            if time.time() > end:
                raise SystemExit(f"the lag is still {self.lag()} after {deadline_s:.0f} s")
            self._report()
            time.sleep(1)

    def close(self) -> None:
        """End the processes that still run."""
        for query in self.queries:
            if query.ended_s is None:
                query.kill()


def check(show: Show, shop: Shop) -> str:
    """Check that the result has every order once after removing duplicates by key; print their number.

    The check runs in a separate process, like the queries; Spark's standard error goes to a file.
    """
    print("\nreading the result with Spark, to count every order", flush=True)
    (show.directory / "sold.json").write_text(json.dumps(shop.sold))
    names = [query.name for query in show.queries]
    log = show.directory / "check.log"
    with log.open("wb") as errors:
        run = subprocess.run(
            [sys.executable, "-m", "examples.spark_orders.check", str(show.directory), *names],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(show.directory),
            check=False,
        )
    if run.returncode != 0:
        raise SystemExit(f"the check ended with {run.returncode}; see {log}")
    found = json.loads(run.stdout.splitlines()[-1])
    if found["wrong"]:
        raise SystemExit(f"WRONG: {found['wrong']}")
    print(
        f"checked: {found['orders']:,} orders, each counted once, in {found['windows']} windows;"
        f" best seller: {found['best']}, {found['revenue']:,.2f}\n"
        f"duplicates: {found['again']:,} orders were written twice because of the kill, and removed by order_id",
        flush=True,
    )
    return f"{found['orders']:,} orders, none lost; {found['again']:,} written twice because of the kill, removed by key"


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of a process that runs Spark."""
    return {**os.environ, "PYSPARK_PYTHON": write_python_launcher(directory), "PYSPARK_DRIVER_PYTHON": sys.executable}


def picture(show: Show, summary: str) -> Path:
    """Draw the picture of the events."""
    first = show.queries[0].events[0]["at_ms"] / 1000 - 1
    last = max(query.ended_s or 0 for query in show.queries)
    holdings = []
    for query in show.queries:
        since: dict[int, float] = {}
        for event in query.events:
            at_s = event["at_ms"] / 1000
            for number in event.get("partitions", ()):
                if event["event"] == "owned":
                    since[number] = at_s
                elif number in since:
                    holdings.append(Holding(query.name, number, since.pop(number) - first, at_s - first))
        end = query.ended_s or last
        holdings += [Holding(query.name, number, at_s - first, end - first) for number, at_s in since.items()]
    rows = {
        query.name: [(one["at_ms"] / 1000 - first, one["rows"]) for one in query.events if one["event"] == "batch"]
        for query in show.queries
    }
    marks = [Mark(at_s - first, text) for at_s, text in show.marks if at_s >= first]
    path = show.directory / "spark-orders.svg"
    path.write_text(
        draw(
            holdings,
            rows,
            marks,
            partitions=PARTITIONS,
            end_s=last - first,
            title="Three Spark queries share one consumer group",
            summary=summary,
        )
    )
    return path


@contextlib.contextmanager
def broker(address: str | None) -> Iterator[str]:
    """Yield the address of a Kafka with the topic."""
    if address is None:
        from consumer_coord.broker.server import EmbeddedKafka

        with EmbeddedKafka(topics={TOPIC: PARTITIONS}) as kafka:
            yield kafka.bootstrap_servers
        return
    admin = AdminClient({"bootstrap.servers": address})
    try:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        raise SystemExit(
            f"{address} has a topic {TOPIC!r} already, and the demo would delete the topic at the end: delete the topic, or"
            " use another Kafka"
        ) from error
    try:
        yield address
    finally:
        admin.delete_topics([TOPIC])[TOPIC].result(30)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="make demo-spark", description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", help="host:port of a Kafka to use, instead of the embedded one")
    parser.add_argument("--rate", type=int, default=300, help="orders a second")
    parser.add_argument("--output", type=Path, help="where the result, the checkpoints and the picture go")
    add_argument(parser)
    given = parser.parse_args(arguments)
    directory: Path = given.output or Path(tempfile.gettempdir()) / "spark-orders"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with broker(given.kafka) as kafka, watched(given.web, kafka, GROUP, directory / "spark-orders.html"):
        show = Show(kafka, directory)
        shop = Shop(kafka, PARTITIONS, given.rate)
        try:
            show.start("query-1")
            show.await_shares()
            show.mark("the shop opens")
            shop.start()
            show.watch(3)
            show.start("query-2", "query-3")
            show.await_shares()
            show.watch(3)
            show.queries[2].kill()
            show.mark("query-3 is killed (SIGKILL)")
            show.await_shares()
            show.watch(3)
            show.mark("query-2 stops")
            show.queries[1].stop()
            show.await_shares()
            shop.close()
            show.mark("the last order")
            show.drain()
            show.queries[0].stop()
        finally:
            show.close()
            shop.stop()
    summary = check(show, shop)
    print(f"picture: {picture(show, summary)}")


if __name__ == "__main__":
    main()
