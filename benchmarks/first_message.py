"""Benchmark (h): time to an application's first message, and time in which a moving partition is not read.

``python -m benchmarks.first_message [--rounds 7] [--only start ...]``

* *process*: the first consumer of a process, from before the import of the client to the first message;
* *start*: from ``subscribe()`` to the first message, with one topic and with a hundred topics, in plain text and over TLS;
* *committed*: like *start*, for a group that has commits with leader epochs;
* *appears*: from the first record of a topic that is created while the consumer runs, to the first message;
* *leave*, *join*: two members, of which one closes or starts while records arrive every few milliseconds. The time of a moved
  partition is from the last record that its former owner read to the first record that its next owner read; the longest time
  counts.

*ours-columns* reads with ``consume_arrow``. Each measurement is a separate process. The clients run in turns within each round.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import confluent_kafka
import pyarrow as pa
from confluent_kafka import Producer, TopicPartition

from benchmarks import cluster
from benchmarks.results import Results, add_options, from_options, spread
from benchmarks.table import markdown, number
from consumer_coord.testing.real_kafka import Listener, RealKafka
from tests.support.secured import Authority
from tests.support.waiting import eventually

CLIENTS = ("confluent-kafka", "ours", "ours-columns")
CASES = ("process", "start", "start-100-topics", "start-tls", "start-100-topics-tls", "committed", "appears", "leave", "join")
GOAL = 0.8
ROW = "first message"
PARTITIONS = 4
_DEADLINE_S = 60.0
#: The whole program of a process that reads one message, and prints the seconds since the start of the process.
_PROGRAM = """
import time
began = time.monotonic()
import json, sys
client, topic, settings = json.loads(sys.argv[1])
if client == "confluent-kafka":
    from confluent_kafka import Consumer
else:
    from consumer_coord import GroupConsumer as Consumer
consumer = Consumer(settings)
consumer.subscribe([topic])
if client == "ours-columns":
    while not len(consumer.consume_arrow(timeout=0.1)):
        pass
else:
    message = None
    while message is None:
        message = consumer.poll(0.1)
    assert message.error() is None, message.error()
print(json.dumps(time.monotonic() - began), flush=True)
consumer.close()
"""
_groups = itertools.count(1)


@attrs.frozen
class Place:
    """The broker and the topics of a measurement."""

    #: The address of the listener in plain text.
    bootstrap_servers: str
    topics: Sequence[str]
    #: The settings with which a consumer connects.
    settings: Mapping[str, str]


def _settings(client: str, place: Place, group: str) -> dict[str, Any]:
    return {
        **place.settings,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "topic.metadata.refresh.interval.ms": 500,
        "metadata.max.age.ms": 900_000 if client == "confluent-kafka" else 500,
    }


class Reader:
    """A consumer of any client, which reads one record at a time."""

    def __init__(self, client: str, settings: Mapping[str, Any]) -> None:
        self._columns = client == "ours-columns"
        kind: Any = confluent_kafka.Consumer
        if client != "confluent-kafka":
            from consumer_coord import GroupConsumer

            kind = GroupConsumer
        self._consumer = kind(dict(settings))
        self.subscribe = self._consumer.subscribe
        self.close = self._consumer.close

    def read(self, timeout_s: float) -> tuple[str, int] | None:
        """Return the topic and the partition of the next record, or None if none comes in time."""
        if self._columns:
            batch = self._consumer.consume_arrow(1, timeout=timeout_s, columns=("topic", "partition"))
            return tuple(pa.record_batch(batch).to_pylist()[0].values()) if len(batch) else None
        message = self._consumer.poll(timeout_s)
        return None if message is None or message.error() is not None else (message.topic(), message.partition())

    def first(self, until: Callable[[str], bool] = lambda topic: True, within_s: float = _DEADLINE_S) -> float:
        """Wait for the first record of a topic that fits, and return the time of its arrival."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            if (found := self.read(0.1)) is not None and until(found[0]):
                return time.monotonic()
        raise TimeoutError("no record came")


def _reader(client: str, place: Place, group: str) -> Reader:
    return Reader(client, _settings(client, place, group))


def _start(client: str, place: Place) -> float:
    return _starts(client, place, f"first-{next(_groups)}-{time.time_ns()}")


def _starts(client: str, place: Place, group: str) -> float:
    reader = _reader(client, place, group)
    began = time.monotonic()
    reader.subscribe(list(place.topics))
    took = reader.first() - began
    reader.close()
    return took


def _committed(client: str, place: Place) -> float:
    group = f"first-{next(_groups)}-{time.time_ns()}"
    commit_all(_settings("confluent-kafka", place, group), place.topics)
    return _starts(client, place, group)


def commit_all(settings: Mapping[str, Any], topics: Sequence[str]) -> None:
    """Commit the first record of each partition, with its leader epoch."""
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe(list(topics))
    seen: set[tuple[str, int]] = set()
    ends = time.monotonic() + _DEADLINE_S
    while len(seen) < len(topics) * PARTITIONS:
        assert time.monotonic() < ends, "the partitions have no records"
        message = consumer.poll(0.1)
        if message is None or message.error() is not None or (where := (message.topic(), message.partition())) in seen:
            continue
        seen.add(where)
        here = TopicPartition(*where, message.offset(), leader_epoch=message.leader_epoch())
        consumer.commit(offsets=[here], asynchronous=False)
    consumer.close()


def _appears(client: str, place: Place) -> float:
    from confluent_kafka.admin import AdminClient, NewTopic

    known = place.topics[0]
    prefix = f"later-{time.time_ns()}"
    reader = _reader(client, place, f"first-{prefix}")
    reader.subscribe([f"^{prefix}.*", f"^{known}$"])
    reader.first()
    admin = AdminClient({"bootstrap.servers": place.bootstrap_servers})
    for future in admin.create_topics([NewTopic(f"{prefix}-topic", PARTITIONS, 1)]).values():
        future.result()
    producer = Producer({"bootstrap.servers": place.bootstrap_servers})
    producer.produce(f"{prefix}-topic", b"first")
    producer.flush()
    began = time.monotonic()
    took = reader.first(lambda topic: topic != known) - began
    reader.close()
    return took


class _Reading:
    """A member on a thread, with the times of its first and last read of each partition."""

    def __init__(self, client: str, place: Place, group: str) -> None:
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.ending = False
        self._reader = _reader(client, place, group)
        self._reader.subscribe(list(place.topics))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.ending:
            if (found := self._reader.read(0.05)) is not None:
                self.last[found[1]] = time.monotonic()
                self.first.setdefault(found[1], self.last[found[1]])
        self._reader.close()

    def end(self) -> None:
        """Close the member."""
        self.ending = True
        self._thread.join()


def _moves(client: str, place: Place, *, joins: bool) -> float:
    producer = Producer({"bootstrap.servers": place.bootstrap_servers, "linger.ms": 0})
    ended = threading.Event()

    def produce() -> None:
        for number_ in itertools.count():
            if ended.wait(0.002):
                return
            producer.produce(place.topics[0], b"x", partition=number_ % PARTITIONS)
            producer.poll(0)

    writing = threading.Thread(target=produce)
    writing.start()
    group = f"moves-{time.time_ns()}"
    one = _Reading(client, place, group)
    eventually(lambda: len(one.first) == PARTITIONS, "a record of each partition", within_s=_DEADLINE_S)
    two: _Reading | None = None
    try:
        two = _Reading(client, place, group)
        eventually(lambda: two is not None and len(two.first) == PARTITIONS // 2, "half for each", within_s=_DEADLINE_S)
        moved = set(two.first)
        if joins:
            return max(two.first[partition] - one.last[partition] for partition in moved)
        time.sleep(1.0)
        last = one.last
        gone = [partition for partition in range(PARTITIONS) if partition not in moved]
        one.end()
        eventually(lambda: two is not None and len(two.first) == PARTITIONS, "all for one", within_s=_DEADLINE_S)
        return max(two.first[partition] - last[partition] for partition in gone)
    finally:
        one.end()
        if two is not None:
            two.end()
        ended.set()
        writing.join()
        producer.flush()


MEASURES: Mapping[str, Callable[[str, Place], float]] = {
    "start": _start,
    "committed": _committed,
    "appears": _appears,
    "leave": lambda client, place: _moves(client, place, joins=False),
    "join": lambda client, place: _moves(client, place, joins=True),
}


@contextlib.contextmanager
def tls_broker(directory: Path) -> Iterator[tuple[RealKafka, dict[str, str]]]:
    """Run a broker that also has a TLS listener; yield the broker and the settings of its clients."""
    authority = Authority(directory / "authority")
    server = authority.issue("broker", host="127.0.0.1")
    store = directory / "broker.pem"
    store.write_bytes(server.key.read_bytes() + server.certificate.read_bytes())
    properties = {
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(store),
    }
    listeners = [Listener("TLS", "SSL")]
    with RealKafka(cluster.libs(), listeners=listeners, properties=properties, jvm_arguments=("-Xmx1g",)) as kafka:
        yield (
            kafka,
            {
                "bootstrap.servers": kafka.bootstrap("TLS"),
                "security.protocol": "SSL",
                "ssl.ca.location": str(authority.ca),
            },
        )


def fill(kafka: RealKafka, count: int) -> list[str]:
    """Create topics with a record in each partition."""
    topics = [kafka.new_topic(PARTITIONS) for _ in range(count)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for topic in topics:
        for partition in range(PARTITIONS):
            producer.produce(topic, b"record", partition=partition)
    producer.flush()
    return topics


def table(results: Results, row: str, cases: Sequence[str], unit: str) -> str:
    """Return each client's median with the spread, and the medians of our ratios to the peer in each round."""
    ours = [client for client in CLIENTS if client != "confluent-kafka"]
    lines = []
    for case in cases:
        figures = [spread(results.figure(row, case, client, unit)) for client in CLIENTS]
        ratios = [results.ratio(row, case, client, "confluent-kafka", unit).median for client in ours]
        lines.append([case, *figures, *map(number, ratios), str(GOAL)])
    head = ["case", *(f"{client}, {unit}" for client in CLIENTS), *(f"{client}, of the peer's" for client in ours), "goal"]
    return markdown(head, lines)


def _command(measure: str, client: str, place: Place) -> list[str]:
    """Return the command of one measurement, which prints the seconds."""
    if measure == "process":
        setup = client, place.topics[0], _settings(client, place, f"first-{next(_groups)}-{time.time_ns()}")
        return [sys.executable, "-c", _PROGRAM, json.dumps(setup)]
    return [sys.executable, "-m", "benchmarks.first_message", "--child", measure, client, json.dumps(attrs.asdict(place))]


def run(measure: str, client: str, place: Place) -> float:
    """Return the seconds of one measurement, in a separate process."""
    answer = subprocess.run(_command(measure, client, place), capture_output=True, text=True, check=True, timeout=180).stdout
    return float(json.loads(answer))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.first_message", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    add_options(parser, "first_message")
    options = parser.parse_args(arguments)
    if options.child:
        case, client, place = options.child
        print(json.dumps(MEASURES[case](client, Place(**json.loads(place)))))
        return
    with tempfile.TemporaryDirectory() as directory, tls_broker(Path(directory)) as (kafka, tls):
        many = any("100" in case for case in options.only)
        topics = fill(kafka, 100 if many else 1)
        results = from_options(options)
        for case in options.only:
            place = Place(
                kafka.bootstrap_servers,
                topics if "100" in case else topics[:1],
                tls if case.endswith("-tls") else {"bootstrap.servers": kafka.bootstrap_servers},
            )
            measure = "start" if case.startswith("start") else case

            def once(client: str, measure: str = measure, place: Place = place) -> Mapping[str, float]:
                return {"s": run(measure, client, place)}

            results.complete(ROW, case, CLIENTS, options.rounds, once)
        print(f"\nseconds, medians of {options.rounds} (least-most):\n\n{table(results, ROW, options.only, 's')}", flush=True)


if __name__ == "__main__":
    main()
