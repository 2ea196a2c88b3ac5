"""A group with one member each of this library, librdkafka, Java and franz-go, and a producer that never pauses."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType

from confluent_kafka import Consumer, Producer, TopicPartition

from consumer_coord.testing.kafka_cluster import KafkaCluster
from tests.support.admin import set_consumer_timeouts
from tests.support.churn_checks import Batch, lost_records, repeated_records
from tests.support.members import Client, Member, Members, Setting
from tests.support.waiting import eventually

CLIENTS: tuple[Client, ...] = ("ours", "confluent-kafka", "java", "franz-go")
PROTOCOLS = ("classic", "consumer")
PARTITIONS = 8
#: Approximate number of records that the producer writes to each partition in a second.
RATE = 50


class Writing:
    """A producer in a separate thread, which writes to every partition of a topic from start to end."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writing")

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._ends.wait(1 / RATE):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"record", partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(360) == 0


class Group:
    """A group with one member of each client."""

    def __init__(self, kafka: KafkaCluster, members: Members, name: str, topic: str, protocol: str) -> None:
        self.name = name
        self._kafka = kafka
        self._members = members
        self._topic = topic
        self._settings: dict[str, Setting] = {"enable.auto.commit": True, "auto.commit.interval.ms": 500}
        if protocol == "consumer":
            self._settings["group.protocol"] = "consumer"
            set_consumer_timeouts(kafka.admin, name, session_ms=10_000, heartbeat_ms=500)
        self.running: dict[Client, Member] = {}
        self._all: list[Member] = []

    def start(self, client: Client) -> None:
        """Start the member of a client."""
        self.running[client] = self._members.start(
            client,
            self.name,
            [self._topic],
            assignors=["cooperative-sticky"],
            config=self._settings,
            bootstrap_servers=self._kafka.bootstrap_servers,
        )
        self._all.append(self.running[client])

    def lost(self, ends: Mapping[int, int]) -> int:
        """Return how many records no member reported."""
        return lost_records(batches(self._all), ends)

    def check_nothing_is_lost(self, ends: Mapping[int, int]) -> str:
        """Wait until the members have reported all records; return a line with the counts."""
        eventually(lambda: self.lost(ends) == 0, "the last records of all partitions", within_s=270)
        eventually(lambda: self._lag(ends) == 0, "commits of all of them")
        again = repeated_records(batches(self._all), ends)
        return f"{self.name}: {sum(ends.values())} records, none lost, {again} read again"

    def _lag(self, ends: Mapping[int, int]) -> int:
        settings = {"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": self.name}
        reader = Consumer(settings)
        try:
            rows = reader.committed([TopicPartition(self._topic, number) for number in ends], timeout=90)
            return sum(ends[row.partition] - max(0, row.offset) for row in rows)
        finally:
            reader.close()


def batches(members: Iterable[Member]) -> list[Batch]:
    """Return what the members read, for the checks."""
    return [
        Batch(member.name, one.at_ns, one.generation, {one.partition: (one.first, one.last, one.count)})
        for member in members
        for one in member.records
    ]


def ends_of(kafka: KafkaCluster, topic: str) -> dict[int, int]:
    """Return partition -> the offset after its last record."""
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "ends"})
    try:
        return {
            number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=90)[1] for number in range(PARTITIONS)
        }
    finally:
        reader.close()
