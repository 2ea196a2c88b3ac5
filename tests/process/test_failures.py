"""Handlers that fail: attempts, time limits, records that are skipped, and dead letters."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import tenacity

from consumer_coord import AsyncGroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import TopicPartition
from consumer_coord.process import DeadLetterError, DeadLetters, FailurePolicy, context
from tests.consumer.test_async_consumer import consumer
from tests.process.test_thread_process import stop_when
from tests.support.consumer.embedded import consumer as blocking_consumer
from tests.support.environments import needs_librdkafka
from tests.support.producer import Producer
from tests.support.waiting import eventually, eventually_async

POISON = 3
#: The records' own; the second resembles a header of retry topics.
HEADERS = [("trace", b"7"), ("retry.of", b"mine")]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1, "letters": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", str(number), key=f"k{number % 5}", headers=HEADERS, timestamp=1_000 + number)
        assert producer.flush(60) == 0
        yield running


class Handler:
    """Fails at the record :data:`POISON`, the first ``times`` times; sets ``stop`` when ten records are handled or failed."""

    def __init__(self, times: int, error: Callable[[], BaseException] = lambda: ValueError("broken")) -> None:
        self.stop = asyncio.Event()
        self.attempts: list[int] = []
        self.handled: list[int] = []
        self._times = times
        self._error = error

    async def __call__(self, message: Any) -> None:
        number = int(message.value())
        if number == POISON:
            self.attempts.append(context().attempt)
            if len(self.attempts) <= self._times:
                raise self._error()
        self.handled.append(number)


async def committed(member: AsyncGroupConsumer) -> int:
    (row,) = await member.committed([TopicPartition("orders", 0)])
    return int(row.offset)


async def process(kafka: EmbeddedKafka, handler: Handler, policy: FailurePolicy, until: Callable[[], bool]) -> tuple[Any, int]:
    """Process until a condition is true; return the counts and the committed offset."""
    async with consumer(kafka) as member:
        await member.subscribe(["orders"])
        stop = asyncio.Event()
        task = asyncio.create_task(member.process(handler, on_failure=policy, stop=stop))
        await eventually_async(lambda: task.done() or until())
        stop.set()
        return await task, await committed(member)


def test_a_record_is_handled_again_after_a_wait_and_its_key_waits(kafka: EmbeddedKafka) -> None:
    handler = Handler(2)
    policy = FailurePolicy(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(0.05))
    counts, offset = asyncio.run(process(kafka, handler, policy, lambda: len(handler.handled) == 10))
    assert handler.attempts == [1, 2, 3]
    # Only the other record of its key has waited for it.
    assert handler.handled[-2:] == [3, 8]
    assert (counts.handled, counts.retried, offset) == (10, 2, 10)


def test_a_wait_has_no_slot(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        handler = Handler(1)
        policy = FailurePolicy(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_fixed(3600))
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            task = asyncio.create_task(member.process(handler, on_failure=policy, stop=stop, concurrency=1))
            await eventually_async(lambda: len(handler.handled) == 8)
            stop.set()
            assert (await task).handled == 8
            assert await committed(member) == POISON

    asyncio.run(main())


@pytest.mark.parametrize(
    ("policy", "attempts"),
    [
        (FailurePolicy(then="skip"), [1]),
        (FailurePolicy(stop=tenacity.stop_after_attempt(3), then="skip"), [1, 2, 3]),
        (
            FailurePolicy(stop=tenacity.stop_after_attempt(3), retry=tenacity.retry_if_exception_type(OSError), then="skip"),
            [1],
        ),
        (FailurePolicy(stop=tenacity.stop_before_delay(5), wait=tenacity.wait_fixed(10), then="skip"), [1]),
    ],
    ids=["one attempt", "three attempts", "another exception", "no time for a second attempt"],
)
def test_a_record_is_skipped_with_a_log_line(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, policy: FailurePolicy, attempts: list[int]
) -> None:
    handler = Handler(9)
    with caplog.at_level(logging.WARNING, "consumer_coord.process"):
        counts, offset = asyncio.run(process(kafka, handler, policy, lambda: len(handler.handled) == 9))
    assert handler.attempts == attempts
    assert (counts.handled, counts.failed, offset) == (9, 1, 10)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "the record of orders-0 at offset 3 is skipped, because its handler failed in attempt"
        f" {len(attempts)}: ValueError('broken')"
    )


def test_cancelled_error_of_a_handler_is_a_failure_like_any_other(kafka: EmbeddedKafka) -> None:
    handler = Handler(1, asyncio.CancelledError)
    policy = FailurePolicy(stop=tenacity.stop_after_attempt(2))
    counts, offset = asyncio.run(process(kafka, handler, policy, lambda: len(handler.handled) == 10))
    assert (counts.handled, handler.attempts, offset) == (10, [1, 2], 10)


def test_an_attempt_has_a_time_limit(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        deadlines, seen, stop = list[float | None](), list[int](), asyncio.Event()

        async def handle(message: Any) -> None:
            if message.offset() == POISON and context().attempt == 1:
                deadlines.append(context().deadline)
                await asyncio.Event().wait()
            seen.append(message.offset())
            if len(seen) == 10:
                stop.set()

        policy = FailurePolicy(stop=tenacity.stop_after_attempt(2), timeout=0.05)
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            assert (await member.process(handle, on_failure=policy, stop=stop)).retried == 1
            assert deadlines[0] is not None
            assert deadlines[0] < asyncio.get_running_loop().time()

    asyncio.run(main())


@attrs.define
class Letter:
    """A call of ``produce``."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: dict[str, Any]
    timestamp: int
    answer: Callable[[Any], object]


class LetterBox:
    """A producer whose acknowledgements a test gives; a poll calls the callbacks."""

    def __init__(self, *refuses: Any, full: int = 0) -> None:
        self.letters: list[Letter] = []
        self.answers_at_once = bool(refuses)
        self._refuses = list(refuses)
        self._full = full
        self._due: list[Callable[[], object]] = []

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        on_delivery: Callable[[Any, Any], object],
        timestamp: int,
        headers: Any,
    ) -> None:
        if self._full:
            self._full -= 1
            raise BufferError("Local: Queue full")

        def answer(refused: Any) -> None:
            self._due.append(lambda: on_delivery(refused, None))

        self.letters.append(Letter(topic, value, key, dict(headers), timestamp, answer))
        if self.answers_at_once:
            answer(self._refuses.pop(0) if self._refuses else None)

    def poll(self, timeout: float) -> int:
        due, self._due = self._due, []
        for call in due:
            call()
        return len(due)

    def polled_since_answers(self) -> bool:
        """Return whether the process has heard all answers."""
        return not self._due


def test_a_dead_letter_counts_when_it_is_acknowledged(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        handler, box = Handler(1), LetterBox()
        policy = FailurePolicy(then=DeadLetters(box, "letters"))
        async with consumer(kafka, auto_commit_interval_ms=5) as member:
            await member.subscribe(["orders"])
            stop = asyncio.Event()
            task = asyncio.create_task(member.process(handler, on_failure=policy, stop=stop))
            await eventually_async(lambda: len(handler.handled) == 8 and box.letters)
            (letter,) = box.letters
            assert (letter.topic, letter.value, letter.key, letter.timestamp) == ("letters", b"3", b"k3", 1_003)
            assert letter.headers == {
                **dict(HEADERS),
                "dead-letter.topic": "orders",
                "dead-letter.partition": "0",
                "dead-letter.offset": "3",
                "dead-letter.group": "billing",
                "dead-letter.attempts": "1",
                "dead-letter.exception": "ValueError",
                "dead-letter.text": "broken",
            }
            await eventually_async(lambda: is_committed(member, POISON))
            letter.answer(None)
            await eventually_async(lambda: is_committed(member, 10))
            stop.set()
            counts = await task
            assert (counts.handled, counts.failed) == (9, 1)

    asyncio.run(main())


async def is_committed(member: AsyncGroupConsumer, offset: int) -> bool:
    return await committed(member) == offset


def test_a_letter_that_is_refused_is_sent_again_without_the_text_and_then_ends_the_process(kafka: EmbeddedKafka) -> None:
    async def main() -> None:
        handler, box = Handler(1), LetterBox("too large", "no such topic")
        policy = FailurePolicy(then=DeadLetters(box, "letters"))
        async with consumer(kafka) as member:
            await member.subscribe(["orders"])
            with pytest.raises(DeadLetterError, match=r"orders-0 at offset 3 cannot be produced.*: no such topic") as raised:
                await member.process(handler, on_failure=policy)
            assert isinstance(raised.value.__cause__, ValueError)
            assert ["dead-letter.text" in letter.headers for letter in box.letters] == [True, False]
            assert await committed(member) == POISON

    asyncio.run(main())


def test_a_letter_waits_for_room_in_the_queue_of_the_producer(kafka: EmbeddedKafka) -> None:
    handler, box = Handler(1), LetterBox(None, full=3)
    policy = FailurePolicy(then=DeadLetters(box, "letters"))
    counts, offset = asyncio.run(process(kafka, handler, policy, lambda: len(handler.handled) == 9 and bool(box.letters)))
    assert len(box.letters) == 1
    assert "dead-letter.text" in box.letters[0].headers
    assert (counts.failed, offset) == (1, 10)


def test_an_exception_of_the_policy_or_of_the_producer_ends_the_process(kafka: EmbeddedKafka) -> None:
    def wait(state: Any) -> float:
        raise ZeroDivisionError("of the policy")

    class Sick(LetterBox):
        def poll(self, timeout: float) -> int:
            raise ZeroDivisionError("of error_cb")

    async def main() -> None:
        for policy, text in (
            (FailurePolicy(wait=wait), "of the policy"),
            (FailurePolicy(then=DeadLetters(Sick(), "letters")), "of error_cb"),
        ):
            async with consumer(kafka) as member:
                await member.subscribe(["orders"])
                with pytest.raises(ZeroDivisionError, match=text):
                    await member.process(Handler(1), on_failure=policy, drain_timeout=0.01)
                assert await committed(member) == POISON

    asyncio.run(main())


@needs_librdkafka
def test_letters_and_retries_of_threads(kafka: EmbeddedKafka) -> None:
    """With confluent-kafka's producer."""
    stop, attempts, handled = threading.Event(), list[int](), list[int]()

    def handle(message: Any) -> None:
        number = int(message.value())
        if number == POISON:
            attempts.append(context().attempt)
            raise ValueError("broken")
        handled.append(number)

    policy = FailurePolicy(
        stop=tenacity.stop_after_attempt(2),
        wait=tenacity.wait_fixed(0.02),
        then=DeadLetters(Producer({"bootstrap.servers": kafka.bootstrap_servers}), "letters"),
    )
    with blocking_consumer(kafka) as member, blocking_consumer(kafka, group_id="letters") as reader:
        member.subscribe(["orders"])
        threading.Thread(target=stop_when, args=(stop, lambda: len(handled) == 9)).start()
        counts = member.process(handle, workers=4, on_failure=policy, stop=stop)
        assert attempts == [1, 2]
        assert (counts.handled, counts.failed, counts.retried) == (9, 1, 1)
        (row,) = member.committed([TopicPartition("orders", 0)])
        assert row.offset == 10
        reader.subscribe(["letters"])
        eventually(lambda: reader.kept, step=reader.poll_and_keep)
        (letter,) = reader.take(1)
        assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"k3", b"3", 1_003)
        assert dict(letter.headers() or ())["dead-letter.attempts"] == b"2"


def test_a_function_that_returns_too_late_has_failed(kafka: EmbeddedKafka) -> None:
    def handle(message: Any) -> None:
        if message.offset() == POISON:
            eventually(lambda: False if (at := context().deadline) is None else time.monotonic() > at, every_s=0.01)

    with blocking_consumer(kafka) as member:
        member.subscribe(["orders"])
        with pytest.raises(TimeoutError, match="longer than"):
            member.process(handle, on_failure=FailurePolicy(timeout=0.05))
        (row,) = member.committed([TopicPartition("orders", 0)])
        assert row.offset == POISON


@pytest.mark.parametrize(
    ("arguments", "why"),
    [({"then": "letters"}, "then must be"), ({"retry_share": 0}, "retry_share"), ({"timeout": 0}, "timeout must be")],
)
def test_wrong_policies(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FailurePolicy(**arguments)
