"""``on_commit`` of a blocking consumer: it is called on the thread that polls, before the next message is returned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaException
from tests.support.consumer.embedded import BROKER, DEADLINE_S, KeepingConsumer, consumer, produce, row
from tests.support.waiting import eventually

COUNT = 300


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(config=BROKER, topics={"orders": 1}) as running:
        produce(running, "orders", {0: range(COUNT)})
        yield running


class Reader:
    """A consumer without automatic commits, the outcomes of its commits, and the offsets that it received."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.outcomes: list[tuple[int, int]] = []
        self.offsets: list[int] = []
        #: Called by ``on_commit`` with the next outcomes.
        self.then: Callable[[], object] = lambda: None
        self.consumer: KeepingConsumer = consumer(kafka, enable_auto_commit=False, on_commit=self.on_commit)
        self.consumer.subscribe(["orders"])

    def on_commit(self, error: Any, rows: Any) -> None:
        assert error is None
        self.outcomes.append((threading.get_ident(), rows[0].offset))
        self.then()

    def read(self, timeout: float = DEADLINE_S) -> Any:
        message = self.consumer.poll(timeout)
        if message is not None:
            self.offsets.append(message.offset())
        return message

    def commit_and_wait(self, message: Any) -> None:
        """Commit without a poll, and wait for the response: the broker serves the requests of a connection in order."""
        self.consumer.commit(message)
        eventually(lambda: self.consumer.committed([row(0)])[0].offset == message.offset() + 1)


@pytest.fixture
def reader(kafka: EmbeddedKafka) -> Iterator[Reader]:
    made = Reader(kafka)
    with made.consumer:
        yield made


def test_outcomes_are_reported_by_the_next_poll_although_messages_wait(reader: Reader) -> None:
    for _ in range(10):
        message = reader.read()
        reader.commit_and_wait(message)
        before = len(reader.outcomes)
        reader.read()
        assert reader.outcomes[before:] == [(threading.get_ident(), message.offset() + 1)]
    assert reader.offsets == list(range(20))


def test_an_exception_of_on_commit_leaves_poll_and_neither_a_message_nor_an_outcome_is_lost(reader: Reader) -> None:
    def fails() -> None:
        if len(reader.outcomes) % 2:
            raise ZeroDivisionError

    reader.then = fails
    first, second = reader.read(), reader.read()
    reader.consumer.commit(first)
    reader.commit_and_wait(second)
    with pytest.raises(ZeroDivisionError):
        reader.read()
    assert [offset for _, offset in reader.outcomes] == [1]
    reader.read()
    assert [offset for _, offset in reader.outcomes] == [1, 2]
    assert reader.offsets == [0, 1, 2]


def test_on_commit_sees_the_last_message_as_finished(reader: Reader) -> None:
    found: list[Any] = []
    message = reader.read()
    reader.commit_and_wait(message)
    reader.read()
    reader.read()
    reader.then = lambda: found.append(reader.consumer.commit(asynchronous=False))
    reader.commit_and_wait(message)
    reader.read()
    assert [one.offset for (one,) in found] == [3], "three messages were processed when poll was called"


@pytest.mark.parametrize("waits", [False, True], ids=["messages", "idle"])
def test_a_close_in_on_commit_comes_before_the_next_message(reader: Reader, waits: bool) -> None:
    while len(reader.offsets) < (COUNT if waits else 1):
        message = reader.read()
    reader.then = reader.consumer.close
    reader.commit_and_wait(message)
    before = list(reader.offsets)
    assert reader.read() is None
    assert reader.offsets == before
    with pytest.raises(KafkaException, match="closed"):
        reader.read()


def test_a_poll_that_waits_reports_outcomes(reader: Reader) -> None:
    while len(reader.offsets) < COUNT:
        message = reader.read()
    reader.consumer.commit(message)
    eventually(lambda: reader.outcomes, step=lambda: reader.read(0.05))
    assert reader.outcomes[-1][1] == COUNT


def test_seek_in_on_commit_decides_the_next_message(reader: Reader) -> None:
    message = reader.read()
    reader.then = lambda: reader.consumer.seek(row(0, 200))
    reader.commit_and_wait(message)
    assert reader.read().offset() == 200
