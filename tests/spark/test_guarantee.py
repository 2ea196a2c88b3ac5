"""The guarantee of docs/spark-guarantee.md, row by row: what is read, and what is committed.

Queries without Spark, on the embedded Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import RetriableError
from consumer_coord.leaders import list_offsets as leaders
from consumer_coord.leaders.list_offsets import Listed, list_available, list_offsets
from consumer_coord.spark import log_ends
from consumer_coord.spark.errors import DataLossError, MissingTopicError
from tests.support.spark.memberships import Run, prepared, run, together
from tests.support.spark.producing import produce

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders-a": 2}) as broker:
        yield broker


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Runs that end with the test."""
    started: list[Run] = []
    yield started
    for each in started:
        each.stopping.set()
    for each in started:
        assert each.thread is not None
        each.thread.join(90)


def fill(kafka: EmbeddedKafka, topic: str, count: int) -> None:
    """Write ``count`` records, half of them to each of two partitions."""
    produce(kafka.bootstrap_servers, topic, [{"partition": number % 2, "value": b"v"} for number in range(count)])


def committed(kafka: EmbeddedKafka, topic: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    request = ConsumerGroupTopicPartitions("billing", [TopicPartition(topic, number) for number in (0, 1)])
    answer = admin.list_consumer_group_offsets([request])["billing"].result(90)
    return [found.offset for found in answer.topic_partitions]


@PROTOCOLS
def test_a_query_that_joins_skips_nothing_of_a_topic_that_came_after_the_group(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str
) -> None:
    """The query that runs has not seen the topic yet, because its metadata is old; the one that joins has."""
    options = {"subscribePattern": "orders-.*", "startingOffsets": "latest", "kafka.group.protocol": protocol}
    fill(kafka, "orders-a", 10)
    runs.append(first := run(kafka.bootstrap_servers, options))
    together(runs, lambda: first.owned == 2, "the first query's partitions")
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-b", 28)
    runs.append(second := run(kafka.bootstrap_servers, options))
    together(runs, lambda: first.count("orders-b") + second.count("orders-b") == 28, "every record of the new topic")
    together(runs, lambda: committed(kafka, "orders-b") == [14, 14], "their commits")
    assert first.count("orders-a") + second.count("orders-a") == 0, "what was there before the group is not asked for"


@PROTOCOLS
@pytest.mark.parametrize("extended", ["pattern", "list"])
def test_a_topic_that_was_created_while_the_query_was_stopped_is_read_from_its_beginning(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str, extended: str
) -> None:
    before = {"subscribePattern": "orders-.*"} if extended == "pattern" else {"subscribe": "orders-a"}
    after = before if extended == "pattern" else {"subscribe": "orders-a,orders-b"}
    options = {"startingOffsets": "latest", "kafka.group.protocol": protocol}
    runs.append(first := run(kafka.bootstrap_servers, {**options, **before}))
    together(runs, lambda: first.owned == 2, "its partitions")
    fill(kafka, "orders-a", 4)
    together(runs, lambda: first.count("orders-a") == 4, "a batch")
    first.stop()
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-b", 14)
    runs.append(again := run(kafka.bootstrap_servers, {**options, **after}, first.offsets))
    together(runs, lambda: again.count("orders-b") == 14, "every record of the new topic")
    together(runs, lambda: committed(kafka, "orders-b") == [7, 7], "their commits")


@PROTOCOLS
def test_a_topic_that_the_query_waits_for_is_read_from_its_beginning(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str
) -> None:
    options = {"subscribe": "orders-b", "startingOffsets": "latest", "kafka.group.protocol": protocol}
    runs.append(query := run(kafka.bootstrap_servers, {**options, "kafka.metadata.max.age.ms": "300"}))
    together(runs, lambda: "the topic does not exist" in str(query.membership.status.problem), "word of the missing topic")
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-b", 14)
    together(runs, lambda: query.count("orders-b") == 14, "every record")
    assert query.membership.status.problem is None


def test_queries_that_start_together_both_start_at_the_latest_offset(kafka: EmbeddedKafka, runs: list[Run]) -> None:
    """Neither takes the other's first commit for a sign that the group had begun long before."""
    fill(kafka, "orders-a", 40)
    for _ in range(2):
        runs.append(run(kafka.bootstrap_servers, {"subscribe": "orders-a", "startingOffsets": "latest"}))
    together(runs, lambda: [each.owned for each in runs] == [1, 1], "a partition each")
    fill(kafka, "orders-a", 6)
    together(runs, lambda: sum(each.count("orders-a") for each in runs) >= 6, "the new records")
    together(runs, lambda: committed(kafka, "orders-a") == [23, 23], "their commits")
    assert sum(each.count("orders-a") for each in runs) == 6


@PROTOCOLS
def test_available_now_reads_what_was_there_although_the_metadata_is_new(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str
) -> None:
    """Next to an idle query of another topic; the first metadata response names no topic."""
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-b", 20)
    runs.append(idle := run(kafka.bootstrap_servers, {"subscribe": "orders-a", "kafka.group.protocol": protocol}))
    together(runs, lambda: idle.owned == 2, "the idle query's partitions")
    for _ in range(3):
        options = {"subscribe": "orders-b", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
        runs.append(query := run(kafka.bootstrap_servers, options, now=True))
        query.finish()
    assert [each.count("orders-b") for each in runs[1:]] == [20, 0, 0]
    assert committed(kafka, "orders-b") == [10, 10]


@PROTOCOLS
def test_available_now_reads_a_topic_that_its_first_metadata_did_not_show(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str
) -> None:
    """The records of the run are decided from metadata that was requested after the run began."""
    options = {"subscribePattern": "orders-.*", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    query = prepared(kafka.bootstrap_servers, options, now=True)
    coordinator = query.membership.open()
    coordinator.join_group_if_needed(30_000)
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-b", 20)
    runs.append(query.start())
    assert query.finish().count("orders-b") == 20
    assert committed(kafka, "orders-b") == [10, 10]


def test_available_now_waits_for_end_offsets(kafka: EmbeddedKafka, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """The leaders are away when the query plans its batches. Without the end offsets, the run must not end."""
    fill(kafka, "orders-a", 20)
    failures = iter([RetriableError("no leader")] * 5)

    async def away(*arguments: Any, **named: Any) -> Listed:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await list_available(*arguments, **named)

    monkeypatch.setattr(log_ends, "list_available", away)
    runs.append(query := run(kafka.bootstrap_servers, {"subscribe": "orders-a", "startingOffsets": "earliest"}, now=True))
    assert query.finish().count("orders-a") == 20
    assert query.membership.status.problem is None


def test_a_partition_without_a_leader_does_not_stop_the_others(
    kafka: EmbeddedKafka, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.append(query := run(kafka.bootstrap_servers, {"subscribe": "orders-a", "startingOffsets": "earliest"}))
    together(runs, lambda: query.owned == 2, "its partitions")

    async def without_1(cluster: Any, wanted: Mapping[Any, int], *arguments: Any, **named: Any) -> Listed:
        led = {one: stamp for one, stamp in wanted.items() if one.partition != 1}
        result = await list_offsets(cluster, led, *arguments, **named)
        away_now = dict.fromkeys(wanted.keys() - led.keys(), RetriableError("orders-a-1 has no leader"))
        return Listed(result.found, {**result.failed, **away_now})

    with monkeypatch.context() as away:
        away.setattr(leaders, "list_offsets", without_1)
        together(runs, lambda: "orders-a-1 has no leader" in str(query.membership.status.problem), "word of it")
        fill(kafka, "orders-a", 20)
        together(runs, lambda: query.count("orders-a") == 10, "the other partition's records")
    together(runs, lambda: query.count("orders-a") == 20, "the records")
    assert query.membership.status.problem is None


@PROTOCOLS
def test_two_available_now_runs_of_one_group_read_everything_between_them(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str
) -> None:
    fill(kafka, "orders-a", 40)
    for _ in range(2):
        options = {"subscribe": "orders-a", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
        runs.append(run(kafka.bootstrap_servers, options, now=True))
    for each in runs:
        each.finish()
    assert sum(each.count("orders-a") for each in runs) == 40
    assert committed(kafka, "orders-a") == [20, 20]


@PROTOCOLS
def test_available_now_waits_for_a_partition_that_a_slow_member_hands_over(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str
) -> None:
    """A query with a long trigger interval gives a partition back only at its next trigger."""
    options = {"subscribe": "orders-a", "startingOffsets": "latest", "kafka.group.protocol": protocol}
    runs.append(slow := run(kafka.bootstrap_servers, options))
    together(runs, lambda: slow.owned == 2, "the slow query's partitions")
    slow.going.clear()
    fill(kafka, "orders-a", 20)
    runs.append(query := run(kafka.bootstrap_servers, options, now=True))
    together(runs, lambda: "the group has not assigned " in str(query.membership.status.problem), "word of it")
    together(runs, lambda: bool(slow.membership.open().pending_change().revoked), "the request to revoke")
    slow.going.set()
    assert query.finish().count("orders-a") == 10
    together(runs, lambda: slow.count("orders-a") >= 10, "the other query's own partition")
    assert query.membership.status.problem is None


@PROTOCOLS
def test_a_problem_is_reported_until_the_query_has_recovered(kafka: EmbeddedKafka, runs: list[Run], protocol: str) -> None:
    options = {"subscribe": "orders-a", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    runs.append(query := run(kafka.bootstrap_servers, {**options, "kafka.request.timeout.ms": "1000"}))
    together(runs, lambda: query.owned == 2, "its partitions")
    kafka.stop_broker(0)
    together(runs, lambda: query.membership.status.problem is not None, "word of the outage", 60)
    kafka.start_broker(0)
    fill(kafka, "orders-a", 6)
    together(runs, lambda: query.count("orders-a") == 6, "the records", 60)
    together(runs, lambda: committed(kafka, "orders-a") == [3, 3], "their commits", 60)
    together(runs, lambda: query.membership.status.problem is None, "the end of the problem", 60)


@PROTOCOLS
@pytest.mark.parametrize(
    "subscription", [{"subscribe": "orders-a,orders-b"}, {"subscribePattern": "orders-.*"}], ids=["list", "pattern"]
)
def test_a_topic_that_was_deleted_while_the_query_was_stopped_is_a_loss(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str, subscription: dict[str, str]
) -> None:
    kafka.create_topic("orders-b", 2)
    options = {**subscription, "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    fill(kafka, "orders-a", 10)
    fill(kafka, "orders-b", 10)
    runs.append(first := run(kafka.bootstrap_servers, options, now=True))
    first.finish()
    fill(kafka, "orders-a", 10)
    fill(kafka, "orders-b", 10)
    kafka.delete_topic("orders-b")
    runs.append(again := run(kafka.bootstrap_servers, options, first.offsets, now=True))
    with pytest.raises(DataLossError, match=r"'orders-b': the topic was deleted; unread records .*0 from 5, 1 from 5"):
        again.finish()
    runs.append(accepting := run(kafka.bootstrap_servers, {**options, "failOnDataLoss": "false"}, first.offsets, now=True))
    accepting.finish()
    assert list(accepting.offsets.topics) == ["orders-a"]
    assert committed(kafka, "orders-a") == [10, 10]


@PROTOCOLS
def test_a_topic_that_is_deleted_while_the_query_runs_is_a_loss(kafka: EmbeddedKafka, runs: list[Run], protocol: str) -> None:
    kafka.create_topic("orders-b", 2)
    options = {"subscribe": "orders-a,orders-b", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    runs.append(query := run(kafka.bootstrap_servers, options))
    together(runs, lambda: query.owned == 4, "its partitions")
    kafka.delete_topic("orders-b")
    with pytest.raises(DataLossError, match="'orders-b': the topic was deleted"):
        together(runs, lambda: False, "the loss")


@PROTOCOLS
@pytest.mark.parametrize("again", [0, 1, 2], ids=["deleted", "created again with fewer partitions", "created again"])
def test_without_fail_on_data_loss_a_run_ends_without_the_deleted_topic(
    kafka: EmbeddedKafka, runs: list[Run], protocol: str, again: int, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-a", 60)
    fill(kafka, "orders-b", 60)
    options = {"subscribe": "orders-a,orders-b", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    options |= {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "20"}
    runs.append(query := prepared(kafka.bootstrap_servers, options, now=True))
    query.between = lambda batch: kafka.delete_topic("orders-b") if batch == 1 else None
    if again:
        query.between = lambda batch: kafka.recreate_topic("orders-b", again) if batch == 1 else None
    query.start().finish()
    assert query.count("orders-a") == 60
    assert "data loss in topic 'orders-b'" in caplog.text


@PROTOCOLS
@pytest.mark.parametrize("once", [True, False], ids=["once", "now"])
def test_a_run_waits_for_brokers_that_are_away(kafka: EmbeddedKafka, runs: list[Run], protocol: str, once: bool) -> None:
    fill(kafka, "orders-a", 10)
    kafka.stop_broker(0)
    options = {"subscribe": "orders-a", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    runs.append(query := prepared(kafka.bootstrap_servers, options, now=True))
    query.once = once
    query.start()
    together(runs, lambda: query.membership.status.problem is not None, "word of it", 60)
    kafka.start_broker(0)
    assert query.finish().count("orders-a") == 10


@PROTOCOLS
@pytest.mark.parametrize("once", [True, False], ids=["once", "now"])
def test_a_run_fails_if_a_topic_does_not_exist(kafka: EmbeddedKafka, runs: list[Run], protocol: str, once: bool) -> None:
    options = {"subscribe": "orders-a,ordres", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    runs.append(query := prepared(kafka.bootstrap_servers, options, now=True))
    query.once = once
    with pytest.raises(MissingTopicError, match=r"ordres: the topic does not exist.*correct the option subscribe"):
        query.start().finish()


@PROTOCOLS
def test_a_topic_that_is_subscribed_again_goes_on_at_its_commit(kafka: EmbeddedKafka, runs: list[Run], protocol: str) -> None:
    kafka.create_topic("orders-b", 2)
    fill(kafka, "orders-b", 10)
    both = {"subscribe": "orders-a,orders-b", "startingOffsets": "earliest", "kafka.group.protocol": protocol}
    runs.append(first := run(kafka.bootstrap_servers, both, now=True))
    first.finish()
    runs.append(second := run(kafka.bootstrap_servers, {**both, "subscribe": "orders-a"}, first.offsets, now=True))
    second.finish()
    fill(kafka, "orders-b", 4)
    runs.append(third := run(kafka.bootstrap_servers, both, second.offsets, now=True))
    assert third.finish().count("orders-b") == 4
