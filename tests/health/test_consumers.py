"""``consumer.health()`` of both consumers, with both data planes, on an embedded Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.health import Health, Owed, PartitionHealth, Reason
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire.codec import Request
from consumer_coord.wire.messages.log import FetchRequest
from consumer_coord.wire.messages.offsets import ListOffsetsRequest
from tests.support.consumer.embedded import BROKER, KeepingConsumer, change_log, consumer, produce, row, take
from tests.support.waiting import eventually, eventually_async

#: A limit that a healthy partition keeps on a busy machine, and one that any record passes.
LONG_S, SHORT_S = 600.0, 0.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER, brokers=1) as running:
        yield running


@pytest.fixture(params=["own Fetch", "librdkafka"])
def librdkafka(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "librdkafka")


class Frozen:
    """While :attr:`on`, brokers answer no Fetch and no ListOffsets: the leaders of a broker that was stopped."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.on = False
        kafka.add_request_hook(self._fault)

    def _fault(self, _: int, request: Request) -> Fault | None:
        asks_a_leader = isinstance(request.message, FetchRequest | ListOffsetsRequest)
        return Fault(wait_until=lambda: not self.on) if self.on and asks_a_leader else None


def of(health: Health, number: int) -> PartitionHealth | None:
    """Return the health of a partition of the topic; None if the consumer does not own it."""
    return next((one for one in health.partitions if one.partition == number), None)


def finds(one: KeepingConsumer, number: int, expected: Callable[[PartitionHealth], bool], limit_s: float = LONG_S) -> Health:
    """Poll until a look finds what is expected about a partition; return the health."""
    looks: list[Health] = []

    def found() -> Health | None:
        looks.append(one.health(limit_s))
        partition = of(looks[-1], number)
        return looks[-1] if partition is not None and expected(partition) else None

    return eventually(found, step=one.poll_and_keep, shows=lambda: looks[-1]) or looks[-1]


def owes_nothing(partition: PartitionHealth) -> bool:
    return partition.owed is Owed.NO


def because(reason: Reason) -> Callable[[PartitionHealth], bool]:
    return lambda partition: partition.reason is reason


def test_a_consumer_that_has_read_everything_is_healthy(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    produce(kafka, "orders", {0: range(3)})
    with consumer(kafka, librdkafka_enable=librdkafka) as one:
        assert one.health().healthy, "nobody subscribed"
        one.subscribe(["orders"])
        assert len(take(one, 3)) == 3
        finds(one, 0, owes_nothing)
        health = finds(one, 1, owes_nothing)
        assert health.healthy
        assert health.live
        assert health.joined
        assert health.lease_s is not None
        assert 0 < health.lease_s <= 10.0
        assert [(part.topic, part.partition, part.records) for part in health.partitions] == [
            ("orders", 0, 0),
            ("orders", 1, 0),
        ]


def test_a_frozen_leader_is_named_and_is_healthy_again_afterwards(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    """The consumer has read everything and polls on; it is not known any longer that there are no records."""
    frozen = Frozen(kafka)
    with consumer(kafka, librdkafka_enable=librdkafka) as one:
        one.subscribe(["orders"])
        finds(one, 1, owes_nothing)
        frozen.on = True
        health = finds(one, 1, because(Reason.LEADER_SILENT), SHORT_S)
        silent = of(health, 1)
        assert silent is not None
        assert silent.owed is Owed.UNKNOWN
        assert silent.records is None
        assert silent.since_s > 1.0
        assert not health.healthy
        assert health.live, "a restart would not wake the broker"
        assert any(text.startswith("orders-1: unknown whether there are records for ") for text in health.problems)
        assert "leader does not answer: broker 0 has not answered for" in " ".join(health.problems)
        later = finds(one, 1, lambda part: part.since_s > silent.since_s)
        assert later.healthy, "the limit is long"
        frozen.on = False
        assert finds(one, 1, owes_nothing).healthy


def test_records_that_the_application_does_not_take_are_its_own_affair(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    """Until max.poll.interval.ms, and the look runs while no thread polls."""
    with consumer(kafka, librdkafka_enable=librdkafka) as one:
        one.subscribe(["orders"])
        finds(one, 0, owes_nothing)
        produce(kafka, "orders", {0: range(4)})
        looks: list[Health] = []

        def busy() -> PartitionHealth | None:
            looks.append(one.health(SHORT_S))
            found = of(looks[-1], 0)
            return found if found is not None and found.reason is Reason.APPLICATION_BUSY else None

        found = eventually(lambda: (part := busy()) and "not polled for" in part.detail and part, shows=lambda: looks[-1])
        assert isinstance(found, PartitionHealth)
        assert (found.owed, found.records, found.excused) == (Owed.YES, 4, True)
        assert looks[-1].healthy
        assert len(take(one, 4)) == 4
        finds(one, 0, owes_nothing)


def test_a_paused_partition_is_healthy_and_says_so(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    with consumer(kafka, librdkafka_enable=librdkafka) as one:
        one.subscribe(["orders"])
        finds(one, 0, owes_nothing)
        one.pause([row(0)])
        produce(kafka, "orders", {0: range(4)})
        health = finds(one, 0, because(Reason.PAUSED), SHORT_S)
        assert all(part.excused for part in health.partitions if part.owed is not Owed.NO)
        one.resume([row(0)])
        assert len(take(one, 4)) == 4


def test_an_open_transaction_is_the_reason(kafka: EmbeddedKafka) -> None:
    """Its records are beyond the last stable offset; after its end they are delivered, or never."""

    def begin(log: PartitionLog) -> None:
        log.append_records([(None, b"%d" % number) for number in range(3)], 1_000, 0, 7, 0)

    with consumer(kafka, isolation_level="read_committed") as one:
        one.subscribe(["orders"])
        finds(one, 0, owes_nothing)
        change_log(kafka, begin)
        health = finds(one, 0, because(Reason.OPEN_TRANSACTION), SHORT_S)
        found = of(health, 0)
        assert found is not None
        assert (found.owed, found.records) == (Owed.YES, 3)
        later = finds(one, 0, lambda part: part.reason is Reason.OPEN_TRANSACTION and part.since_s > 0, SHORT_S)
        assert [text.split(":")[0] for text in later.problems] == ["orders-0"]
        change_log(kafka, lambda log: log.append_marker(1_000, 0, 7, 0, True))
        assert len(take(one, 3)) == 3
        assert finds(one, 0, owes_nothing).healthy


def test_a_marker_at_the_end_of_the_log_is_no_record(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    def append(log: PartitionLog) -> None:
        log.append_records([(None, b"%d" % number) for number in range(3)], 1_000, 0, 7, 0)
        log.append_marker(1_000, 0, 7, 0, True)

    with consumer(kafka, librdkafka_enable=librdkafka, isolation_level="read_committed") as one:
        one.subscribe(["orders"])
        change_log(kafka, append)
        assert len(take(one, 3)) == 3
        assert finds(one, 0, owes_nothing).healthy


def test_a_position_that_is_being_looked_up_is_the_reason(kafka: EmbeddedKafka) -> None:
    frozen = Frozen(kafka)
    frozen.on = True
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        found = of(finds(one, 0, because(Reason.LOOKING_UP), SHORT_S), 0)
        assert found is not None
        assert found.owed is Owed.UNKNOWN
        frozen.on = False
        finds(one, 0, owes_nothing)


def test_handlers_are_named_while_the_consumer_polls_on(kafka: EmbeddedKafka) -> None:
    """What polls while handlers run pauses partitions, and reports which handlers run since when."""
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        finds(one, 0, owes_nothing)
        one.pause([row(0)])
        one.report_handlers(lambda: {TopicPartition("orders", 0): 12.0})
        health = finds(one, 0, because(Reason.HANDLER_BUSY), SHORT_S)
        assert all(part.excused for part in health.partitions if part.partition == 0)


def test_an_own_fetch_asks_nothing_of_brokers_for_its_health(kafka: EmbeddedKafka) -> None:
    asked: list[int] = []
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        finds(one, 0, owes_nothing)

        def hear(_: int, request: Request) -> None:
            if isinstance(request.message, ListOffsetsRequest):
                asked.append(request.api_key)

        kafka.add_request_hook(hear)
        for _ in range(50):
            one.health()
        assert not asked


def test_another_thread_may_ask_while_one_polls(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    with consumer(kafka, librdkafka_enable=librdkafka) as one:
        one.subscribe(["orders"])
        finds(one, 0, owes_nothing)
        thread = threading.Thread(target=one.poll)
        thread.start()
        try:
            for _ in range(5):
                assert one.health(LONG_S).healthy
        finally:
            produce(kafka, "orders", {0: range(1)})
            thread.join()


def test_the_asyncio_consumer_answers_while_a_task_polls(kafka: EmbeddedKafka, librdkafka: bool) -> None:
    frozen = Frozen(kafka)
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "billing",
        "librdkafka.enable": librdkafka,
    }

    async def main() -> None:
        async with AsyncGroupConsumer(settings) as one:
            await one.subscribe(["orders"])
            polls = asyncio.create_task(one.poll())

            async def finds(expected: Callable[[PartitionHealth], bool], limit_s: float) -> Health | None:
                health = await one.health(limit_s)
                found = of(health, 0)
                return health if found is not None and expected(found) else None

            health = await eventually_async(lambda: finds(owes_nothing, LONG_S))
            assert health is not None
            assert health.healthy
            frozen.on = True
            health = await eventually_async(lambda: finds(because(Reason.LEADER_SILENT), SHORT_S))
            assert health is not None
            assert not health.healthy
            frozen.on = False
            await eventually_async(lambda: finds(owes_nothing, LONG_S))
            polls.cancel()
            await asyncio.wait({polls})

    asyncio.run(main())
