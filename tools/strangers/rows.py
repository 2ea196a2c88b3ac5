"""The rows of the table: one operation of one client, as a program that raises if a Kafka does not do what it should."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.waiting import eventually

_WAIT_S = 90.0

#: A program: it gets the bootstrap servers, and raises if the operation fails, or has another result than with Apache Kafka.
Program = Callable[[str], None]


@attrs.frozen
class Row:
    """One operation of one client."""

    client: str
    operation: str
    program: Program
    #: Seconds after which the row counts as failed.
    deadline_s: float

    @property
    def name(self) -> str:
        """The name of the row on the command line."""
        return f"{self.client}: {self.operation}"


#: All rows, by name; the modules of the clients fill it when they are imported.
ROWS: dict[str, Row] = {}

TOOLS, STREAMS, CONNECT = "Java's tools and clients", "Kafka Streams", "Kafka Connect"
FRANZ, KADM, SARAMA = "franz-go", "franz-go's kadm", "Sarama"
CONFLUENT, AIOKAFKA, KAFKA_PYTHON, KCAT = "confluent-kafka", "aiokafka", "kafka-python", "kcat"
#: The clients, in the order of the table.
CLIENTS = (TOOLS, STREAMS, CONNECT, FRANZ, KADM, SARAMA, CONFLUENT, AIOKAFKA, KAFKA_PYTHON, KCAT)


def in_order() -> list[Row]:
    """Return all rows in the order of the table."""
    return sorted(ROWS.values(), key=lambda one: CLIENTS.index(one.client))


def row(client: str, operation: str, deadline_s: float = 120) -> Callable[[Program], Program]:
    """Make a function a row of the table."""

    def add(program: Program) -> Program:
        added = Row(client, operation, program, deadline_s)
        assert added.name not in ROWS, f"two rows are named {added.name}"
        ROWS[added.name] = added
        return program

    return add


def expect(found: object, expected: object, what: str) -> None:
    """Raise AssertionError if a result is not the expected one."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, expected {expected!r}")


def new_topic(servers: str, partitions: int = 1) -> str:
    """Create a topic with three replicas, and return its name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = unique_name("topic")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, replication_factor=3)])[topic].result(30)
    return topic


def committed_records(servers: str, topic: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """Return the keys and values of a topic with librdkafka's ``read_committed``, as soon as there are ``count``."""
    from confluent_kafka import Consumer, KafkaException

    config = {"bootstrap.servers": servers, "group.id": unique_name("audit"), "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    found: list[tuple[bytes | None, bytes]] = []

    def enough() -> bool:
        for message in consumer.consume(500, 0.2):
            if message.error():
                raise KafkaException(message.error())
            found.append((message.key(), message.value() or b""))
        return len(found) >= count

    eventually(enough, f"{count} committed records", within_s=_WAIT_S, shows=lambda: f"{len(found)} records")
    consumer.close()
    return found
