"""Bounded reads (``spark.read``): the rows of Spark's own connector, and tables of SQL."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition

from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from tests.support.spark.compaction import EAGER, compact
from tests.support.spark.producing import produce
from tests.support.spark.queries import Queries, await_end

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Frame = Callable[..., Any]
#: Timestamp of the record with the value v<n>: this plus n seconds, in milliseconds.
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def frame(spark: Any, kafka: KafkaCluster) -> Frame:
    """``frame(source, name=value, ...)``: a bounded read with these options."""

    def read(source: str, options: Mapping[str, str]) -> Any:
        return spark.read.format(source).options(**{"kafka.bootstrap.servers": kafka.bootstrap_servers, **options}).load()

    return read


def rows(data: Any) -> list[tuple[Any, ...]]:
    """All columns of all records, by topic, partition and offset."""
    found = [tuple(row) for row in data.select("topic", "partition", "offset", "*").collect()]
    return sorted(found, key=lambda row: row[:3])


def both(frame: Frame, options: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """The rows of this source, after a comparison with those of Spark's connector."""
    ours, theirs = frame("kafka_group", options), frame("kafka", {"kafka.isolation.level": "read_committed", **options})
    assert ours.dtypes == theirs.dtypes
    found = rows(ours)
    assert found == rows(theirs)
    return found


@pytest.fixture(scope="session")
def orders(kafka: KafkaCluster) -> str:
    """A topic with 30 records in partitions 0 to 2: nulls, tombstones, headers; partition 3 is empty."""
    topic = kafka.new_topic(partitions=4, prefix="orders", config={"retention.ms": "-1"})
    records = [
        {
            "partition": number % 3,
            "key": None if number % 5 == 0 else f"k{number}",
            "value": None if number % 7 == 0 else f"v{number}",
            "timestamp": FIRST_MS + 1000 * number,
            "headers": [("a", b"1"), ("b", None), ("a", b"")] if number % 2 else None,
        }
        for number in range(30)
    ]
    produce(kafka.bootstrap_servers, topic, records)
    return topic


def by_partition(topic: str, *values: int) -> str:
    return f'{{"{topic}":{{{",".join(f""" "{number}":{value} """ for number, value in enumerate(values))}}}}}'


#: Options with TOPIC for the topic -> the number of rows.
READS: list[tuple[dict[str, Any], int]] = [
    ({}, 30),
    ({"includeHeaders": "true"}, 30),
    ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 30),
    ({"startingOffsets": (2, -2, 10, 0), "endingOffsets": (9, -1, 10, 0)}, 7 + 10),
    ({"startingTimestamp": FIRST_MS + 9_500, "endingTimestamp": FIRST_MS + 20_000, "strategy": "latest"}, 10),
    ({"startingOffsetsByTimestamp": (FIRST_MS, FIRST_MS + 4_000, FIRST_MS, FIRST_MS), "strategy": "latest"}, 29),
    ({"endingOffsetsByTimestamp": (FIRST_MS + 1, FIRST_MS, FIRST_MS + 90_000_000, 0)}, 1 + 0 + 10),
    ({"assign": "[0,3]"}, 10),
    ({"minPartitions": "9"}, 30),
    ({"maxRecordsPerPartition": "4"}, 30),
    ({"minPartitions": "5", "maxRecordsPerPartition": "3"}, 30),
]


@pytest.mark.parametrize(("given", "count"), READS, ids=lambda given: " ".join(given) if isinstance(given, dict) else None)
def test_the_rows_are_those_of_sparks_connector(frame: Frame, orders: str, given: dict[str, Any], count: int) -> None:
    options = {name: by_partition(orders, *value) if isinstance(value, tuple) else str(value) for name, value in given.items()}
    if "strategy" in options:
        options["startingOffsetsByTimestampStrategy"] = options.pop("strategy")
    if "assign" in options:
        options["assign"] = f'{{"{orders}":{options["assign"]}}}'
    else:
        options["subscribe"] = orders
    assert len(both(frame, options)) == count


def test_a_pattern_reads_the_topics_that_match_and_none_is_no_row(
    frame: Frame, topic: NewTopicFactory, kafka: KafkaCluster
) -> None:
    first = topic(partitions=2, prefix="pattern-x")
    second = topic(prefix="pattern-y")
    for name in (first, second):
        produce(kafka.bootstrap_servers, name, [{"partition": 0, "value": b"v"}])
    assert len(both(frame, {"subscribePattern": f"{first}|{second}"})) == 2
    assert both(frame, {"subscribePattern": "no-such-topic-.*"}) == []


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_are_read_as_by_the_connector(
    frame: Frame, topic: NewTopicFactory, kafka: KafkaCluster, isolation: str
) -> None:
    """Committed, aborted and open ones; control records leave holes, and ends lie after the last record."""
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(90)
    for number, commits in enumerate([True, False, True, None]):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(name, f"v{number}", partition=partition)
        producer.flush(90)
        if commits:
            producer.commit_transaction(90)
        elif commits is False:
            producer.abort_transaction(90)
    try:
        found = both(frame, {"subscribe": name, "kafka.isolation.level": isolation})
        assert len(found) == {"read_committed": 4, "read_uncommitted": 8}[isolation]
        assert both(frame, {"subscribe": name, "kafka.isolation.level": isolation, "startingOffsets": by_partition(name, 2, 3)})
    finally:
        producer.abort_transaction(90)


@pytest.mark.slow
def test_the_holes_of_compaction(frame: Frame, topic: NewTopicFactory, kafka: KafkaCluster) -> None:
    name = topic(partitions=1, config=EAGER)
    produce(kafka.bootstrap_servers, name, [{"key": f"k{number % 5}", "value": f"v{number}"} for number in range(100)])
    compact(kafka, name, first_kept=95)
    ends = by_partition(name, 100)
    for start in (0, 50, 97):
        options = {"subscribe": name, "startingOffsets": by_partition(name, start), "endingOffsets": ends}
        assert [row[2] for row in both(frame, options)] == list(range(max(95, start), 100))


def test_the_actions_of_a_frame_read_the_same_range(frame: Frame, topic: NewTopicFactory, kafka: KafkaCluster) -> None:
    name = topic()
    produce(kafka.bootstrap_servers, name, [{"value": b"v"}] * 5)
    data = frame("kafka_group", {"subscribe": name})
    assert data.count() == 5
    produce(kafka.bootstrap_servers, name, [{"value": b"v"}] * 3)
    assert len(data.collect()) == 5
    assert frame("kafka_group", {"subscribe": name}).count() == 8


def test_deleted_records_obey_fail_on_data_loss(frame: Frame, topic: NewTopicFactory, kafka: KafkaCluster) -> None:
    name = topic(partitions=2)
    produce(kafka.bootstrap_servers, name, [{"partition": number % 2, "value": b"v"} for number in range(20)])
    for future in kafka.admin.delete_records([TopicPartition(name, 0, 6)]).values():
        future.result(90)
    options = {"subscribe": name, "startingOffsets": by_partition(name, 2, 2)}
    with pytest.raises(Exception, match=r"data loss in topic .*, partition 0, offsets 2 to 10.*failOnDataLoss=false"):
        frame("kafka_group", options).collect()
    assert len(both(frame, {**options, "failOnDataLoss": "false"})) == 4 + 8
    assert len(both(frame, {"subscribe": name})) == 4 + 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "no-such-topic: the topic does not exist; correct the option subscribe"),
        ({"startingOffsets": "latest"}, "startingOffsets='latest' must be earliest, group or JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest' must be latest or JSON"),
        ({"startingTimestamp": str(FIRST_MS + 90_000_000)}, "no record at or after the time"),
        ({"startingOffsets": '{"TOPIC":{"0":1}}'}, "startingOffsets leaves out TOPIC-1, TOPIC-2, TOPIC-3"),
        (
            {"startingOffsets": '{"TOPIC":{"0":5,"1":5,"2":5,"3":0}}', "endingOffsets": '{"TOPIC":{"0":4,"1":5,"2":5,"3":0}}'},
            "TOPIC-0 starts at offset 5 .*, after its end at 4",
        ),
        (
            {"assignor": "cooperative-sticky", "group.id": "billing"},
            "option assignor='cooperative-sticky': spark.read joins no group",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_fails_with_the_connector_or_has_no_meaning_is_an_error(
    frame: Frame, orders: str, options: dict[str, str], message: str
) -> None:
    given = {"subscribe": orders, **{name: value.replace("TOPIC", orders) for name, value in options.items()}}
    with pytest.raises(Exception, match=message.replace("TOPIC", orders)):
        frame("kafka_group", given).collect()
    if "assignor" not in given:
        with pytest.raises(Exception):  # noqa: B017 - the connector's error is none of this project
            frame("kafka", given).collect()


def test_group_starts_at_the_groups_commits_and_changes_nothing(
    frame: Frame, kafka: KafkaCluster, orders: str, group: str
) -> None:
    commits = [TopicPartition(orders, 0, 4), TopicPartition(orders, 1, 10)]
    plain = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    plain.commit(offsets=commits, asynchronous=False)
    plain.close()
    found = rows(frame("kafka_group", {"subscribe": orders, "group.id": group, "startingOffsets": "group"}))
    assert [row[1:3] for row in found] == [(0, offset) for offset in range(4, 10)] + [(2, offset) for offset in range(10)]
    wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(orders, number) for number in range(2)])]
    (after,) = (future.result(90) for future in kafka.admin.list_consumer_group_offsets(wanted).values())
    assert [one.offset for one in after.topic_partitions] == [4, 10]
    (described,) = (future.result(90) for future in kafka.admin.describe_consumer_groups([group]).values())
    assert described.members == []
    with pytest.raises(Exception, match="has no commit for subscribe="):
        frame("kafka_group", {"subscribe": orders, "group.id": f"{group}-x", "startingOffsets": "group"}).collect()


@pytest.fixture
def table(spark: Any, kafka: KafkaCluster, orders: str) -> Iterator[Callable[..., str]]:
    """``table(**options)`` creates a table of the topic, and returns its name."""
    names = (f"orders_{time.time_ns()}_{number}" for number in itertools.count())
    made: list[str] = []

    def create(**options: str) -> str:
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": orders, **options}
        listed = ", ".join(f"'{name}' '{value}'" for name, value in given.items())
        name = next(names)
        spark.sql(f"CREATE TABLE {name} USING kafka_group OPTIONS ({listed})")
        made.append(name)
        return name

    yield create
    for name in made:
        spark.sql(f"DROP TABLE {name}")


def test_select_from_a_table_reads_with_the_tables_options(
    spark: Any, frame: Frame, orders: str, table: Callable[..., str]
) -> None:
    name = table(includeHeaders="true", endingOffsets=by_partition(orders, 5, 5, 5, 0))
    ours = spark.sql(f"SELECT * FROM {name}")
    assert rows(ours) == rows(
        frame("kafka", {"subscribe": orders, "includeHeaders": "true", "endingOffsets": by_partition(orders, 5, 5, 5, 0)})
    )
    (count,) = spark.sql(f"SELECT count(*) FROM {name} WHERE partition = 1 AND headers IS NOT NULL").first()
    assert count == 3
    # The options of a query override the table's, also one that excludes another.
    assert spark.sql(f"SELECT offset FROM {name} WITH ('endingTimestamp' = '{FIRST_MS + 6_000}')").count() == 6


def test_a_stream_of_a_table_needs_no_options(queries: Queries, spark: Any, orders: str, table: Callable[..., str]) -> None:
    name = table(startingOffsets="earliest", **{"group.id": queries.group})
    query, found = queries.write(spark.readStream.table(name), now=True)
    await_end(query)
    assert len(found.seen) == 30


def test_a_table_keeps_no_secret(spark: Any, orders: str, table: Callable[..., str]) -> None:
    name = table(
        **{
            "kafka.sasl.username": "me",
            "kafka.sasl.password": "hush",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.default.api.timeout.ms": "1000",
        }
    )
    assert "hush" not in spark.table(name).schema.json()
    with pytest.raises(Exception, match=r"a table does not keep the secret kafka\.sasl\.password: pass it with each query"):
        spark.table(name).collect()
    # The broker has no SASL listener, so the error shows that the password was used.
    with pytest.raises(Exception, match="is a listener without SASL"):
        spark.read.option("kafka.sasl.password", "hush").table(name).collect()
