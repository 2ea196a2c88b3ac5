"""Retry topics: a failed record is handled again after each delay, in the same group, and others do not wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from consumer_coord.errors import IllegalStateError
from consumer_coord.process import DeadLetterError, DeadLetters, FailurePolicy, RetryTopics, context
from tests.consumer.test_async_consumer import consumer
from tests.process.test_failures import LetterBox
from tests.process.test_thread_process import stop_when
from tests.support.consumer.embedded import consumer as blocking_consumer
from tests.support.environments import needs_librdkafka
from tests.support.producer import Producer
from tests.support.waiting import eventually_async

POISON = b"3"
RETRY, LATER = "orders.billing.retry.0.2", "orders.billing.retry.0.5"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1, RETRY: 2, LATER: 1, "letters": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number), key=f"k{number % 5}", headers=[("trace", b"7")], timestamp=1_000 + number)
        assert producer.flush(60) == 0
        yield running


class Handler:
    """Fails at :data:`POISON` the first ``times`` times; keeps what it has handled: value, topic, attempt, and when."""

    def __init__(self, times: int) -> None:
        self.failed: list[tuple[str, int, float]] = []
        self.handled: list[tuple[bytes, str, int]] = []
        self._times = times

    def __call__(self, message: Any) -> None:
        if message.value() == POISON and len(self.failed) < self._times:
            self.failed.append((message.topic(), context().attempt, time.time()))
            raise ValueError("broken")
        self.handled.append((message.value(), message.topic(), context().attempt))

    async def in_a_task(self, message: Any) -> None:
        self(message)


def letters(kafka: EmbeddedKafka, topic: str = "letters") -> list[Any]:
    """Return the records of a topic."""
    with blocking_consumer(kafka, group_id="reader") as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        watermarks = reader.get_watermark_offsets(TopicPartition(topic, 0))
        assert watermarks is not None
        _, end = watermarks
        found: list[Any] = reader.consume(end, 10) if end else []
        return found


async def run(kafka: EmbeddedKafka, handle: Any, policy: FailurePolicy, until: Callable[[], bool]) -> Any:
    async with consumer(kafka) as member:
        await member.subscribe(["orders"])
        stop = asyncio.Event()
        task = asyncio.create_task(member.process(handle, on_failure=policy, stop=stop))
        await eventually_async(lambda: task.done() or until())
        stop.set()
        counts = await task
        assert member.subscription() == {"orders"}
        rows = [TopicPartition("orders", 0), TopicPartition(RETRY, 0), TopicPartition(RETRY, 1), TopicPartition(LATER, 0)]
        return counts, [row.offset for row in await member.committed(rows)]


@needs_librdkafka
def test_a_record_is_handled_again_when_it_is_due_and_then_becomes_a_dead_letter(kafka: EmbeddedKafka) -> None:
    """With confluent-kafka's producer."""
    handler, producer = Handler(3), Producer({"bootstrap.servers": kafka.bootstrap_servers})
    policy = FailurePolicy(then=RetryTopics(producer, [0.2, 0.5], then=DeadLetters(producer, "letters")))
    counts, offsets = asyncio.run(run(kafka, handler.in_a_task, policy, lambda: bool(letters(kafka))))
    assert [(topic, attempt) for topic, attempt, _ in handler.failed] == [("orders", 1), (RETRY, 2), (LATER, 3)]
    first, second, third = [at for _, _, at in handler.failed]
    assert second - first >= 0.2
    assert third - second >= 0.5
    assert sorted(value for value, _, _ in handler.handled) == sorted(b"%d" % n for n in range(10) if n != 3)
    assert (counts.handled, counts.failed, counts.letters) == (9, 3, 3)
    assert (offsets[0], sorted(offsets[1:3])[1], offsets[3]) == (10, 1, 1)
    (letter,) = letters(kafka)
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"k3", POISON, 1_003)
    assert dict(letter.headers()) == {
        "trace": b"7",
        "dead-letter.topic": b"orders",
        "dead-letter.partition": b"0",
        "dead-letter.offset": b"3",
        "dead-letter.group": b"billing",
        "dead-letter.attempts": b"3",
        "dead-letter.exception": b"ValueError",
        "dead-letter.text": b"broken",
    }


@needs_librdkafka
def test_threads_handle_a_record_again_too(kafka: EmbeddedKafka) -> None:
    handler, stop = Handler(1), threading.Event()
    policy = FailurePolicy(then=RetryTopics(Producer({"bootstrap.servers": kafka.bootstrap_servers}), [0.2, 0.5]))
    with blocking_consumer(kafka) as member:
        member.subscribe(["orders"])
        threading.Thread(target=stop_when, args=(stop, lambda: len(handler.handled) == 10)).start()
        counts = member.process(handler, workers=4, on_failure=policy, stop=stop)
        assert handler.handled[-1] == (POISON, RETRY, 2)
        assert (counts.handled, counts.failed, counts.letters) == (10, 1, 1)


def test_a_record_of_another_program_is_handled_at_once(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(LATER, "a stranger's", headers=[("retry.due", b"soon"), ("retry.topic", b"\xff")])
    assert producer.flush(60) == 0
    handler = Handler(0)
    policy = FailurePolicy(then=RetryTopics(LetterBox(), [0.2, 0.5]))
    asyncio.run(run(kafka, handler.in_a_task, policy, lambda: len(handler.handled) == 11))
    assert (b"a stranger's", LATER, 1) in handler.handled


def test_a_clock_that_is_ahead_delays_a_record_by_no_more_than_its_delay(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    told = {"topic": "orders", "partition": "0", "offset": "3", "attempts": "1", "due": str(round(1000 * time.time()) + 10**9)}
    producer.produce(RETRY, "early", partition=0, headers=[(f"retry.{name}", value) for name, value in told.items()])
    assert producer.flush(60) == 0
    handler = Handler(0)
    policy = FailurePolicy(then=RetryTopics(LetterBox(), [0.2, 0.5]))
    asyncio.run(run(kafka, handler.in_a_task, policy, lambda: len(handler.handled) == 11))
    assert (b"early", RETRY, 2) in handler.handled


def test_a_retry_that_is_refused_ends_the_process_before_its_record(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        policy = FailurePolicy(then=RetryTopics(LetterBox("too large", "no such topic"), [0.2, 0.5]))
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(DeadLetterError, match=r"retry of the record of orders-0 at offset 3 .*0\.2.*: no such topic"):
                await member.process(Handler(1).in_a_task, on_failure=policy)
            (row,) = await member.committed([TopicPartition("orders", 0)])
            assert row.offset == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("topics", "delays", "why"),
    [
        (["orders"], [0.2, 600], r"create them first: orders\.billing\.retry\.600"),
        (["^ord.*"], [0.2, 0.5], "subscription to topics by their names"),
        ([], [0.2, 0.5], "subscription to topics by their names"),
    ],
    ids=["a topic is missing", "a pattern", "no subscription"],
)
def test_what_is_missing_is_an_error_at_the_start(
    kafka: EmbeddedKafka, topics: list[str], delays: list[float], why: str
) -> None:
    async def main() -> None:
        async with consumer(kafka) as member:
            if topics:
                await member.subscribe(topics)
            with pytest.raises(IllegalStateError, match=why):
                await member.process(Handler(0).in_a_task, on_failure=FailurePolicy(then=RetryTopics(LetterBox(), delays)))
            await member.subscribe(["orders"])
            assert await member.consume(10, 10), "the consumer can be read by other calls again"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("delays", "then", "why"),
    [
        ([], "stop", "numbers of seconds"),
        ([0], "stop", "above 0"),
        ([5, 5], "stop", "must differ"),
        ([5], "letters", "then must"),
    ],
)
def test_wrong_arguments(delays: list[float], then: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RetryTopics(LetterBox(), delays, then)
