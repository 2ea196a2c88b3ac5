"""Planning of bounded reads on the embedded Kafka, and reading of what was planned; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.errors import ConfigurationError, NoOffsetError, RetriableError
from consumer_coord.spark import kept_readers
from consumer_coord.spark.bounded_read import plan_ranges
from consumer_coord.spark.errors import DataLossError, MissingTopicError
from consumer_coord.spark.options import parse_bounded_options
from consumer_coord.spark.source import KafkaGroupSource
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.codec import Request
from tests.support.spark.producing import produce

#: Records of each of the partitions 0 and 1; partition 2 is empty.
RECORDS = 10
FIRST_MS = 1_000

LIST_OFFSETS = 2
#: OffsetCommit, OffsetFetch, FindCoordinator, JoinGroup, and ConsumerGroupHeartbeat.
ABOUT_GROUPS = {8, 9, 10, 11, 68}

Spans = dict[int, tuple[int, int]]
Plan = Callable[..., Spans]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 3, "empty": 1}, brokers=2) as broker:
        write(broker)
        yield broker
    kept_readers.close_all()


def write(kafka: EmbeddedKafka) -> None:
    records = [{"partition": number % 2, "value": b"v", "timestamp": FIRST_MS + number // 2} for number in range(2 * RECORDS)]
    produce(kafka.bootstrap_servers, "orders", records)


@pytest.fixture
def options(kafka: EmbeddedKafka) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": "orders"}


@pytest.fixture
def plan(options: dict[str, str]) -> Plan:
    """``plan(name=value, ...)``: the ranges of the topic, as partition -> (start, end)."""

    def planned(**changes: str) -> Spans:
        base = options if "assign" not in changes else {**options, "subscribe": ""}
        given = {name: value for name, value in {**base, **changes}.items() if value}
        ranges = plan_ranges(parse_bounded_options(given))
        assert {each.topic for each in ranges} <= {"orders"}
        return {each.partition: (each.start, each.end) for each in ranges}

    return planned


def read(options: dict[str, str], between: Callable[[], None] = lambda: None) -> list[tuple[int, int]]:
    """Partition and offset of each record; ``between`` is called after planning."""
    source = KafkaGroupSource(options)
    reader = source.reader(source.schema())
    tasks = reader.partitions()
    between()
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted((row["partition"], row["offset"]) for row in rows)


def commit(kafka: EmbeddedKafka, group: str, *offsets: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()


def test_everything_is_read_and_nothing_is_asked_about_a_group(kafka: EmbeddedKafka, options: dict[str, str]) -> None:
    asked: set[int] = set()

    def note(broker: int, request: Request) -> Fault | None:
        if request.client_id == "the-reader":  # another test's client may still look for a broker that had this port
            asked.add(request.api_key)
        return None

    kafka.add_request_hook(note)
    options["kafka.client.id"] = "the-reader"
    assert read(options) == [(partition, offset) for partition in (0, 1) for offset in range(RECORDS)]
    assert LIST_OFFSETS in asked
    assert not asked & ABOUT_GROUPS


def test_each_kind_of_limit(plan: Plan) -> None:
    both = {0: (0, RECORDS), 1: (0, RECORDS)}
    assert (
        plan()
        == plan(startingOffsets="earliest", endingOffsets="latest")
        == plan(subscribePattern="ord.*", subscribe="")
        == both
    )
    assert plan(subscribe="orders,empty") == both
    assert plan(startingOffsets='{"orders":{"0":3,"1":-2,"2":0}}') == {0: (3, 10), 1: (0, 10)}
    assert plan(endingOffsets='{"orders":{"0":3,"1":-1,"2":0}}') == {0: (0, 3), 1: (0, 10)}
    assert plan(assign='{"orders":[1,2]}') == {1: (0, 10)}
    assert plan(endingTimestamp=str(FIRST_MS + 4)) == {0: (0, 4), 1: (0, 4)}
    late = {"startingTimestamp": str(FIRST_MS + 6), "startingOffsetsByTimestampStrategy": "latest"}
    assert plan(**late) == {0: (6, 10), 1: (6, 10)}
    assert plan(**late, endingTimestamp=str(FIRST_MS + 8)) == {0: (6, 8), 1: (6, 8)}
    stamps = f'{{"orders":{{"0":{FIRST_MS + 2},"1":{FIRST_MS + 99},"2":0}}}}'
    assert plan(endingOffsetsByTimestamp=stamps) == {0: (0, 2), 1: (0, 10)}
    with pytest.raises(NoOffsetError, match="startingTimestamp: no record at or after the time in orders-2 at 1006"):
        plan(startingTimestamp=str(FIRST_MS + 6))


def test_json_names_exactly_the_partitions_to_read(plan: Plan) -> None:
    with pytest.raises(ConfigurationError, match="startingOffsets leaves out orders-1, orders-2: name every partition"):
        plan(startingOffsets='{"orders":{"0":3}}')
    with pytest.raises(ConfigurationError, match="endingOffsets names orders-9, which this read does not contain"):
        plan(endingOffsets='{"orders":{"0":3,"1":3,"2":0,"9":0}}')


def test_limits_beyond_the_log(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NoOffsetError, match="startingOffsets: orders-0 at 11, but the log ends at 10"):
        plan(assign='{"orders":[0]}', startingOffsets='{"orders":{"0":11}}')
    far = {"assign": '{"orders":[0]}', "endingOffsets": '{"orders":{"0":90}}'}
    with pytest.raises(NoOffsetError, match="endingOffsets: orders-0 at 90, but the log ends at 10"):
        plan(**far)
    assert plan(**far, failOnDataLoss="false") == {0: (0, 10)}
    assert "orders-0 at 90, but the log ends at 10" in caplog.text
    with pytest.raises(ConfigurationError, match=r"orders-0 starts at offset 5 \(startingOffsets\), after its end at 3"):
        plan(assign='{"orders":[0]}', startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":3}}')


def test_an_end_before_the_first_offset_is_a_loss(kafka: EmbeddedKafka, plan: Plan) -> None:
    delete(kafka, 6)
    early = {"endingOffsets": '{"orders":{"0":4,"1":4,"2":0}}'}
    with pytest.raises(DataLossError, match=r"data loss in orders-0 starts at offset 6 .*, after its end at 4"):
        plan(**early)
    assert plan(**early, failOnDataLoss="false") == {1: (0, 4)}


def delete(kafka: EmbeddedKafka, before: int) -> None:
    """Delete the first records of partition 0."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for future in admin.delete_records([TopicPartition("orders", 0, before)]).values():
        future.result(60)


def test_a_topic_or_a_partition_that_does_not_exist_is_an_error(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(MissingTopicError, match="nope: the topic does not exist; correct the option subscribe"):
        plan(subscribe="orders,nope")
    with pytest.raises(MissingTopicError, match="nope: the topic does not exist; correct the option assign"):
        plan(assign='{"nope":[0]}')
    with pytest.raises(MissingTopicError, match="assign names orders-7, which the topic does not have"):
        plan(assign='{"orders":[0,7]}')
    assert plan(subscribe="", subscribePattern="nope.*") == {}
    assert "matches no topic" in caplog.text


def test_a_partition_whose_look_up_fails_is_an_error_that_names_it(kafka: EmbeddedKafka, plan: Plan) -> None:
    """Never "nothing": the partitions of the other broker alone would be silent loss."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    leaders = {number: one.leader for number, one in admin.list_topics("orders", 60).topics["orders"].partitions.items()}
    assert len(set(leaders.values())) == 2
    for leader in set(leaders.values()):
        kafka.add_fault("ListOffsets", Fault(error_code=codes.NOT_LEADER_OR_FOLLOWER), times=10_000, broker_id=leader)
        mine = "|".join(f"orders-{number}" for number, one in leaders.items() if one == leader)
        with pytest.raises(RetriableError, match=rf"not be read within 500 ms: .*({mine}).*are the brokers of kafka"):
            plan(**{"kafka.default.api.timeout.ms": "500"})
        kafka.clear_faults()


@pytest.mark.parametrize("delay_ms", [0, 100_000])
def test_brokers_that_do_not_answer_are_an_error(kafka: EmbeddedKafka, plan: Plan, delay_ms: int) -> None:
    fault = Fault(delay_ms=delay_ms) if delay_ms else Fault(drop="request")
    kafka.add_fault("ListOffsets", fault, times=10_000)
    with pytest.raises(RetriableError, match=r"not be read within 500 ms: .*orders-\d"):
        plan(**{"kafka.default.api.timeout.ms": "500"})


def test_a_refused_look_up_is_an_error_at_once(kafka: EmbeddedKafka, plan: Plan) -> None:
    kafka.add_fault("ListOffsets", Fault(error_code=codes.TOPIC_AUTHORIZATION_FAILED), times=9)
    with pytest.raises(Exception, match=r"orders-\d"):
        plan()


def test_a_look_up_that_fails_for_a_while_is_repeated(kafka: EmbeddedKafka, plan: Plan) -> None:
    kafka.add_fault("ListOffsets", Fault(error_code=codes.NOT_LEADER_OR_FOLLOWER), times=3)
    kafka.add_fault("Metadata", Fault(drop="request"), times=2)
    assert plan() == {0: (0, RECORDS), 1: (0, RECORDS)}


def test_group_starts_at_the_commits_and_partitions_without_one_at_the_earliest(kafka: EmbeddedKafka, plan: Plan) -> None:
    commit(kafka, "billing", TopicPartition("orders", 0, 4))
    at_commits = {"startingOffsets": "group", "group.id": "billing"}
    assert plan(**at_commits) == {0: (4, 10), 1: (0, 10)}
    assert plan(**at_commits, **{"kafka.group.protocol": "consumer"}) == {0: (4, 10), 1: (0, 10)}
    assert plan(**at_commits, endingOffsets='{"orders":{"0":2,"1":2,"2":0}}') == {1: (0, 2)}, "the group has read that"
    assert kafka.group_state("billing") == "Empty"
    with pytest.raises(NoOffsetError, match=r"group\.id='biling' has no commit for subscribe='orders'"):
        plan(**{**at_commits, "group.id": "biling"})


def test_a_commit_of_a_deleted_topic_is_no_start(kafka: EmbeddedKafka, plan: Plan) -> None:
    commit(kafka, "billing", TopicPartition("orders", 0, 9), TopicPartition("orders", 1, 9))
    kafka.recreate_topic("orders", 3)
    write(kafka)
    commit(kafka, "billing", TopicPartition("orders", 1, 5))
    assert plan(startingOffsets="group", **{"group.id": "billing"}) == {0: (0, 10), 1: (5, 10)}


def test_a_commit_beyond_the_log_is_a_loss(kafka: EmbeddedKafka, plan: Plan) -> None:
    commit(kafka, "billing", TopicPartition("orders", 0, 40))
    at_commits = {"startingOffsets": "group", "group.id": "billing"}
    with pytest.raises(
        DataLossError, match="orders-0: its log was truncated at offset 10, although the group has committed 40"
    ):
        plan(**at_commits)
    assert plan(**at_commits, failOnDataLoss="false") == {1: (0, 10)}


def test_records_that_are_deleted_after_planning_obey_fail_on_data_loss(kafka: EmbeddedKafka, options: dict[str, str]) -> None:
    with pytest.raises(
        DataLossError, match="topic 'orders', partition 0, offsets 0 to 10: the partition holds offsets 6 to 10"
    ):
        read(options, lambda: delete(kafka, 6))
    write(kafka)
    left = [(0, offset) for offset in range(8, 20)] + [(1, offset) for offset in range(20)]
    assert read({**options, "failOnDataLoss": "false"}, lambda: delete(kafka, 8)) == left


def test_a_topic_that_is_made_again_after_planning_obeys_fail_on_data_loss(
    kafka: EmbeddedKafka, options: dict[str, str]
) -> None:
    def make_again() -> None:
        kafka.recreate_topic("orders", 3)
        write(kafka)

    with pytest.raises(DataLossError, match="the topic was deleted and created again"):
        read(options, make_again)
    assert read({**options, "failOnDataLoss": "false"}, make_again) == []


def test_packing_options_hold_for_bounded_reads(options: dict[str, str]) -> None:
    source = KafkaGroupSource({**options, "maxRecordsPerPartition": "4"})
    sizes = [sum(one.size for one in task.ranges) for task in source.reader(source.schema()).partitions()]
    assert sum(sizes) == 2 * RECORDS
    assert max(sizes) <= 4
    source = KafkaGroupSource({**options, "minPartitions": "7"})
    assert len(source.reader(source.schema()).partitions()) >= 7
