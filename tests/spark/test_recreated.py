"""A topic that is deleted and made again under a query: no record of the new one is skipped, nothing of the old one counts.

The membership without Spark, on the embedded Kafka: batches are finished at once by the test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import attrs
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_coord.broker.group_offsets import OffsetCoordinator
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.spark import query
from consumer_coord.spark.checkpoint import Offsets
from consumer_coord.spark.errors import DataLossError
from consumer_coord.spark.options import parse_options
from consumer_coord.spark.query_membership import QueryMembership
from tests.support.spark.producing import produce
from tests.support.waiting import eventually

OLD, NEW = 400, 1_000


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as kafka:
        write(kafka, OLD)
        yield kafka


def write(kafka: EmbeddedKafka, count: int) -> None:
    produce(kafka.bootstrap_servers, "orders", [{"partition": number % 2, "value": b"v"} for number in range(2 * count)])


def make_again(kafka: EmbeddedKafka, count: int = NEW) -> None:
    kafka.recreate_topic("orders", 2)
    write(kafka, count)


@attrs.define
class Query:
    """A membership, and a Spark that finishes each batch at once; ``read`` is topic id -> partition -> what batches held."""

    membership: QueryMembership
    offsets: Offsets = attrs.field(factory=lambda: Offsets("billing"))
    read: dict[str, dict[int, list[tuple[int, int]]]] = attrs.field(factory=dict)

    def plan(self) -> bool:
        planned = self.membership.next_batch(self.offsets)
        if planned is None:
            return False
        self.offsets = planned
        for partition, span in planned.spans():
            if span.start < span.end:
                topic_id = str(planned.topics[partition.topic].id)
                self.read.setdefault(topic_id, {}).setdefault(partition.partition, []).append((span.start, span.end))
        return True

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            self.plan()
            return condition()

        eventually(met, what)

    def read_up_to(self, end: int, topics: int) -> Callable[[], bool]:
        """True when as many topics were met, and of the last one everything up to ``end`` was read, without a gap."""

        def met() -> bool:
            last = list(self.read.values())[-1] if self.read else {}
            return len(self.read) == topics and all(whole(last.get(number, [])) == (0, end) for number in (0, 1))

        return met


def whole(spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """First and last offset of spans that follow each other."""
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end == start, f"a gap or an overlap: {spans}"
    return (spans[0][0], spans[-1][1]) if spans else None


@pytest.fixture
def start(embedded: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Query]]:
    # One thread plans for all queries here: no query can revoke a partition while another one waits for its assignment.
    monkeypatch.setattr(query, "SHARE_WAIT_S", 0.0)
    made: list[Query] = []

    def one(**options: str) -> Query:
        settings = {
            "kafka.bootstrap.servers": embedded.bootstrap_servers,
            "group.id": "billing",
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "40",
            **options,
        }
        made.append(Query(QueryMembership(parse_options(settings))))
        return made[-1]

    yield one
    for each in made:
        each.membership.leave()


def committed(kafka: EmbeddedKafka) -> Mapping[int, int]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    request = ConsumerGroupTopicPartitions("billing", [TopicPartition("orders", number) for number in (0, 1)])
    answer = admin.list_consumer_group_offsets([request])["billing"].result(90)
    return {found.partition: found.offset for found in answer.topic_partitions}


@pytest.mark.parametrize("count", [NEW, OLD, 30])
def test_it_begins_anew_with_more_the_same_and_fewer_records(
    embedded: EmbeddedKafka, start: Callable[..., Query], count: int
) -> None:
    """If the new topic has as many records as before, only the topic id is different."""
    query = start()
    query.until(query.read_up_to(OLD, 1), "the old topic's records")
    make_again(embedded, count)
    query.until(query.read_up_to(count, 2), "the new topic's records, from the first on")
    query.until(lambda: committed(embedded) == {0: count, 1: count}, "their commits")


def test_in_the_middle_of_the_old_topic(embedded: EmbeddedKafka, start: Callable[..., Query]) -> None:
    query = start()
    query.until(lambda: len(query.read) == 1, "a first batch")
    make_again(embedded)
    query.until(query.read_up_to(NEW, 2), "the new topic's records, from the first on")


def test_with_fail_on_data_loss_it_is_an_error_soon(embedded: EmbeddedKafka, start: Callable[..., Query]) -> None:
    query = start(failOnDataLoss="true")
    query.until(lambda: len(query.read) == 1, "a first batch")
    make_again(embedded)
    with pytest.raises(DataLossError, match=r"'orders'.*deleted"):
        eventually(lambda: not query.plan() and False, "an error", within_s=5)


def test_no_position_of_the_old_topic_is_committed_to_the_new_one(embedded: EmbeddedKafka, start: Callable[..., Query]) -> None:
    query = start()
    query.until(query.read_up_to(OLD, 1), "the old topic's records")
    query.until(lambda: committed(embedded) == {0: OLD, 1: OLD}, "their commits")
    write(embedded, 1)
    query.until(query.read_up_to(OLD + 1, 1), "one more")
    make_again(embedded)
    query.plan()
    assert all(offset < OLD for offset in committed(embedded).values())
    query.until(query.read_up_to(NEW, 2), "the new topic's records, from the first on")


def test_a_second_query_that_takes_over_begins_where_the_first_one_is(
    embedded: EmbeddedKafka, start: Callable[..., Query]
) -> None:
    """``latest`` must not apply to a recreated topic; in a new group it would skip all records."""
    first = start()
    first.until(lambda: len(first.read) == 1, "a first batch")
    make_again(embedded)
    first.until(lambda: len(first.read) == 2, "a batch of the new topic")
    second = start(startingOffsets="latest")

    def shared() -> bool:
        first.plan()
        second.plan()
        held = [len(query.membership.status.to_json()["partitions"].get("orders", ())) for query in (first, second)]
        return held == [1, 1]

    eventually(shared, "one partition each")

    def everything() -> bool:
        first.plan()
        second.plan()
        return committed(embedded) == {0: NEW, 1: NEW}

    eventually(everything, "everything read")
    new = list(first.read.values())[-1]
    both = {number: sorted(new.get(number, []) + list(second.read.values())[-1].get(number, [])) for number in (0, 1)}
    assert [whole(spans) for spans in both.values()] == [(0, NEW)] * 2


def test_a_plain_commit_that_outlived_its_topic_is_not_followed(
    embedded: EmbeddedKafka, start: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's coordinator was loading when the topic was deleted. A plain consumer's commit does not contain a topic id."""
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap_servers, "log_level": 0})
    commits = [TopicPartition("orders", number, 300) for number in (0, 1)]
    request = ConsumerGroupTopicPartitions("billing", commits)
    admin.alter_consumer_group_offsets([request])["billing"].result(90)
    monkeypatch.setattr(OffsetCoordinator, "delete_topic", lambda self, topics: None)
    make_again(embedded)
    assert committed(embedded) == {0: 300, 1: 300}, "the commit is still reported by name"
    query = start(startingOffsets="latest")
    query.until(query.read_up_to(NEW, 1), "the new topic's records, from the first on")
