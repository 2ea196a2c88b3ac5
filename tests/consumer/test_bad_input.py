"""Bad input to the consumers and the embedded Kafka raises an error that names the remedy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer, BlockingCoordinator, GroupConsumer, TopicPartition
from consumer_coord.assignor_loading import load_assignors
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException
from consumer_coord.errors import ConfigurationError, FatalError, NothingToCommitError
from tests.support.consumer.embedded import BROKER, consumer, produce, row, take
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        yield running


@pytest.mark.parametrize(
    "make",
    [
        lambda given: GroupConsumer(**given),
        lambda given: GroupConsumer(given),
        lambda given: AsyncGroupConsumer(given),
        lambda given: AsyncGroupConsumer({}, **given),
        BlockingCoordinator,
    ],
)
def test_settings_in_kafka_pythons_spelling_are_answered_with_their_names_here(make: Any) -> None:
    says = r"no setting is called 'bootstrap_servers', 'group_id'; did you mean 'bootstrap\.servers', 'group\.id'\?"
    with pytest.raises(ConfigurationError, match=says):
        make({"bootstrap_servers": NOWHERE, "group_id": "g"})


@pytest.mark.parametrize("call", ["position", "committed", "pause", "resume", "assign", "incremental_assign", "end_offsets"])
def test_one_partition_in_the_place_of_a_list_is_refused(call: str, kafka: EmbeddedKafka) -> None:
    """kafka-python and aiokafka accept one partition; a TopicPartition of this package is also a tuple."""

    async def main() -> None:
        async with AsyncGroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}) as member:
            with pytest.raises(TypeError, match=r"list of TopicPartition.*not 'orders'"):
                await getattr(member, call)(TopicPartition("orders", 0))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("auto_offset_reset", "auto.offset.reset"),
        ("fetch_max_wait_ms", "fetch.wait.max.ms"),
        ("sasl_plain_username", "sasl.username"),
        ("ssl_cafile", "ssl.ca.location"),
        ("fetch.max.wait.ms", "fetch.wait.max.ms"),
    ],
)
def test_a_setting_of_another_client_is_answered_with_its_name_here(name: str, here: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}['\"]; did you mean '{here}'"):
        GroupConsumer({"bootstrap.servers": NOWHERE, "group.id": "g", name: "1"})


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("org.apache.kafka.clients.consumer.RangeAssignor", "range"),
        ("org.apache.kafka.clients.consumer.RoundRobinAssignor", "roundrobin"),
        ("org.apache.kafka.clients.consumer.StickyAssignor", "sticky"),
        ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", "cooperative-sticky"),
        ("StickyPartitionAssignor", "sticky"),
    ],
)
def test_an_assignor_of_another_client_is_answered_with_its_name_here(name: str, here: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}'; did you mean '{here}'"):
        load_assignors([name])


@pytest.mark.parametrize("servers", ["http://kafka:9092", "kafka://kafka:9092/", "redis://user@kafka"])
def test_a_url_is_no_broker(servers: str) -> None:
    for make in (GroupConsumer, AsyncGroupConsumer):
        with pytest.raises(ConfigurationError, match=f"'{servers}' is a URL, .* give host:port"):
            make({"bootstrap.servers": servers, "group.id": "g"})
    GroupConsumer({"bootstrap.servers": f"PLAINTEXT://{NOWHERE}", "group.id": "g"}).close()


@pytest.mark.parametrize("method", ["poll", "consume"])
def test_a_time_limit_that_is_a_text_is_quoted(kafka: EmbeddedKafka, method: str) -> None:
    arguments = {"poll": ("1",), "consume": (5, "1")}[method]
    with consumer(kafka) as one, pytest.raises(TypeError, match="timeout takes a number of seconds, or None, not '1'"):
        getattr(one, method)(*arguments)
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        eventually(lambda: one.assignment(), step=one.poll_and_keep)
        one.poll(0.05)
        with pytest.raises(TypeError, match="timeout takes a number of seconds, or None, not '1'"):
            getattr(one, method)(*arguments)
        assert one.poll(0) is None, "the call released its turn"
    with consumer(kafka) as one, pytest.raises(TypeError, match="num_messages takes a whole number, not '7'"):
        one.consume("7")  # type: ignore[arg-type]  # wrong on purpose

    async def main() -> None:
        async with AsyncGroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}) as member:
            with pytest.raises(TypeError, match="timeout takes a number of seconds, or None, not '1'"):
                await getattr(member, method)(*arguments)

    asyncio.run(main())


def test_nothing_to_commit_is_no_fatal_error(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one, pytest.raises(NothingToCommitError, match="nothing to commit") as raised:
        one.commit(asynchronous=False)
    assert not isinstance(raised.value, FatalError)
    assert isinstance(raised.value, KafkaException)
    assert (raised.value.args[0].code(), raised.value.args[0].fatal()) == (KafkaError._NO_OFFSET, False)

    async def main() -> None:
        async with AsyncGroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}) as member:
            with pytest.raises(NothingToCommitError, match="nothing to commit"):
                await member.commit(asynchronous=False)
            assert await member.commit() is None

    asyncio.run(main())


def test_a_partition_that_does_not_exist_is_logged(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    with consumer(kafka, enable_auto_commit=False) as one, caplog.at_level(logging.WARNING):
        one.assign([row(99, 0)])
        expected = (
            "partition orders-99 does not exist: the topic's partition count is 2. Reading begins when the partition is created"
        )
        eventually(lambda: [record.getMessage() for record in caplog.records] == [expected])
        caplog.clear()
        admin = pytest.importorskip("confluent_kafka.admin").AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_partitions([pytest.importorskip("confluent_kafka.admin").NewPartitions("orders", 4)])["orders"].result(180)
        one.assign([row(1, 0), row(3, 0)])
        assert not caplog.records, "the topic has grown"


@pytest.mark.parametrize("offset", [None, OFFSET_BEGINNING, OFFSET_END])
def test_a_partition_without_a_leader_is_logged_and_delays_no_other(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, offset: int | None
) -> None:
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka, auto_offset_reset="earliest") as one, caplog.at_level(logging.WARNING):
        one.assign([row(99, offset), row(0, None if offset == OFFSET_END else offset)])
        assert len(take(one, 3)) == 3
        expected = "the start of orders-99 is not known yet: the cluster has no leader for orders-99: does the topic exist?"
        eventually(lambda: expected in [one.getMessage() for one in caplog.records], step=one.poll_and_keep)


@pytest.mark.parametrize("offset", [-3, -999, -1002, -1999])
def test_a_negative_number_without_meaning_is_no_offset(kafka: EmbeddedKafka, offset: int) -> None:
    with consumer(kafka) as one:
        with pytest.raises(KafkaException, match=f"orders-0: {offset} is not an offset; use OFFSET_BEGINNING"):
            one.assign([row(0, offset)])
        one.assign([row(0, 0)])
        with pytest.raises(KafkaException, match=f"orders-0: {offset} is not an offset; use OFFSET_BEGINNING"):
            one.seek(row(0, offset))


@pytest.mark.parametrize("topics", [["a"], "a", {"a"}])
def test_topics_of_the_embedded_kafka_have_a_number_of_partitions(topics: Any) -> None:
    with pytest.raises(TypeError, match=r"topics takes a dictionary, name -> number of partitions, such as \{'orders': 3\}"):
        EmbeddedKafka(topics=topics)


@pytest.mark.parametrize("partitions", [0, -1, "3", None])
def test_a_topic_of_the_embedded_kafka_has_partitions(partitions: Any) -> None:
    with pytest.raises(ValueError, match="'a' needs a number of partitions that is at least 1"):
        EmbeddedKafka(topics={"a": partitions})


@pytest.mark.parametrize("call", ["assign", "incremental_assign", "incremental_unassign"])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row(0, 1), row(1), row(0, 5)], "orders-0 is given more than once"),
        ([row(0), row(-3)], "a partition's number is 0 or more"),
    ],
    ids=["twice", "negative"],
)
def test_partitions_that_are_given_twice_or_do_not_exist_are_refused(
    call: str, rows: list[Any], says: str, kafka: EmbeddedKafka
) -> None:
    with consumer(kafka) as one:
        with pytest.raises(KafkaException, match=f"{call}: .*{says}") as raised:
            getattr(one, call)(rows)
        assert raised.value.args[0].code() == KafkaError._INVALID_ARG
        assert one.assignment() == []

    async def main() -> None:
        async with AsyncGroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}) as member:
            with pytest.raises(ConfigurationError, match=f"{call}: .*{says}"):
                await getattr(member, call)(rows)

    asyncio.run(main())
