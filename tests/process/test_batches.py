"""Handlers that take several records at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tenacity

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from consumer_coord.process import Batches, Counts, DeadLetterError, DeadLetters, FailurePolicy, context
from tests.consumer.test_async_consumer import consumer
from tests.process.test_failures import LetterBox
from tests.process.test_thread_process import stop_when
from tests.support.consumer.embedded import consumer as blocking_consumer
from tests.support.producer import Producer
from tests.support.waiting import eventually_async

RECORDS, KEYS = 60, 3


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("orders", str(number), key=f"k{number % KEYS}")
        assert producer.flush(60) == 0
        yield running


class Handler:
    """Keeps the batches; fails at a batch with a certain record, the first ``times`` times."""

    def __init__(self, poison: int = -1, times: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.failed: list[tuple[int, list[int]]] = []
        self._poison, self._times = poison, times

    def __call__(self, messages: list[Any]) -> None:
        numbers = [int(message.value()) for message in messages]
        if self._poison in numbers and len(self.failed) < self._times:
            self.failed.append((context().attempt, numbers))
            raise ValueError("broken")
        self.batches.append(numbers)

    async def in_a_task(self, messages: list[Any]) -> None:
        self(messages)

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))


async def run(kafka: EmbeddedKafka, handler: Handler, until: Callable[[], bool], **arguments: Any) -> tuple[Counts, int]:
    async with consumer(kafka) as member:
        await member.subscribe(["orders"])
        stop = asyncio.Event()
        task = asyncio.create_task(member.process(handler.in_a_task, stop=stop, **arguments))
        await eventually_async(lambda: task.done() or until())
        stop.set()
        counts = await task
        (row,) = await member.committed([TopicPartition("orders", 0)])
        return counts, row.offset


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_a_call_has_the_next_records_of_a_key_or_of_a_partition(kafka: EmbeddedKafka, order: str) -> None:
    handler = Handler()
    counts, offset = asyncio.run(
        run(kafka, handler, lambda: handler.count == RECORDS, order=order, batches=Batches(10, wait=5.0))
    )
    assert all(len(batch) == 10 for batch in handler.batches)
    if order == "key":
        assert all(len({number % KEYS for number in batch}) == 1 for batch in handler.batches)
        for key in range(KEYS):
            of_key = [number for batch in handler.batches if batch[0] % KEYS == key for number in batch]
            assert of_key == list(range(key, RECORDS, KEYS))
    else:
        assert [number for batch in handler.batches for number in batch] == list(range(RECORDS))
    assert (counts.handled, offset) == (RECORDS, RECORDS)


def test_a_call_does_not_wait_longer_than_it_may(kafka: EmbeddedKafka) -> None:
    handler = Handler()
    batches = Batches(50, wait=0.05)
    asyncio.run(run(kafka, handler, lambda: handler.count == RECORDS, order="partition", batches=batches))
    assert [len(batch) for batch in handler.batches] == [50, 10]


def test_threads_take_lists_too(kafka: EmbeddedKafka) -> None:
    handler, stop = Handler(), threading.Event()
    with blocking_consumer(kafka) as member:
        member.subscribe(["orders"])
        threading.Thread(target=stop_when, args=(stop, lambda: handler.count == RECORDS)).start()
        counts = member.process(handler, workers=4, order="key", stop=stop, batches=Batches(20, wait=5.0))
        assert sorted(handler.batches) == [list(range(key, RECORDS, KEYS)) for key in range(KEYS)]
        assert counts.handled == RECORDS


def test_the_records_of_a_call_are_retried_and_skipped_together(kafka: EmbeddedKafka) -> None:
    handler = Handler(poison=13, times=2)
    counts, offset = asyncio.run(
        run(
            *(kafka, handler, lambda: handler.count == RECORDS - 10),
            order="partition",
            batches=Batches(10),
            on_failure=FailurePolicy(stop=tenacity.stop_after_attempt(2), then="skip"),
        )
    )
    assert handler.failed == [(1, list(range(10, 20))), (2, list(range(10, 20)))]
    assert (counts.handled, counts.failed, counts.retried, offset) == (50, 10, 10, RECORDS)


def test_each_record_of_a_call_becomes_a_letter_and_the_call_ends_with_the_last(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        handler, box = Handler(poison=13, times=1), LetterBox()
        async with consumer(kafka, auto_commit_interval_ms=5) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            policy = FailurePolicy(then=DeadLetters(box, "letters"))
            arguments: dict[str, Any] = {"order": "partition", "batches": Batches(10), "on_failure": policy, "stop": stop}
            task = asyncio.create_task(member.process(handler.in_a_task, **arguments))
            await eventually_async(lambda: len(box.letters) == 10)
            assert [letter.value for letter in box.letters] == [str(number).encode() for number in range(10, 20)]
            assert [letter.headers["dead-letter.offset"] for letter in box.letters] == [str(n) for n in range(10, 20)]

            async def committed() -> int:
                (row,) = await member.committed([TopicPartition("orders", 0)])
                return int(row.offset)

            async def is_committed(offset: int) -> bool:
                return await committed() == offset

            await eventually_async(lambda: is_committed(10))
            for letter in box.letters[:-1]:
                letter.answer(None)
            await eventually_async(lambda: box.polled_since_answers())
            assert handler.count == 10, "later records of the partition wait for the last letter"
            assert await committed() == 10
            box.letters[-1].answer(None)
            await eventually_async(lambda: is_committed(RECORDS))
            stop.set()
            counts = await task
            assert (counts.handled, counts.failed, counts.letters) == (50, 10, 10)

    asyncio.run(main())


def test_one_letter_that_is_refused_ends_the_process_before_the_call(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        # The third letter is refused, and refused again without the text.
        box = LetterBox(None, None, "too large", *[None] * 7, "no such topic")
        policy = FailurePolicy(then=DeadLetters(box, "letters"))
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(DeadLetterError, match="at offset 12 cannot be produced"):
                await member.process(
                    Handler(poison=13, times=1).in_a_task, order="partition", batches=Batches(10), on_failure=policy
                )
            (row,) = await member.committed([TopicPartition("orders", 0)])
            assert row.offset == 10

    asyncio.run(main())


@pytest.mark.parametrize(("most", "wait"), [(0, 0.0), (5, -1.0), (5, float("inf"))])
def test_wrong_arguments(most: int, wait: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Batches(most, wait)
