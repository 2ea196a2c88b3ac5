"""Automatic commits cover finished records only: the next record was requested, or the consumer closed without an exception."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, DEADLINE_S, KeepingConsumer, consumer, produce, row

COUNT = 20


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(config=BROKER, topics={"orders": 1}) as running:
        produce(running, "orders", {0: range(COUNT)})
        yield running


def _committed(kafka: EmbeddedKafka) -> int:
    with consumer(kafka) as other:
        (found,) = other.committed([row(0)], DEADLINE_S)
        return max(0, int(found.offset))


def _polls(one: KeepingConsumer) -> None:
    """Receive records 0 to 3; processing record 3 raises."""
    for offset in range(4):
        message = one.poll(DEADLINE_S)
        assert message is not None
        assert message.offset() == offset
    raise ZeroDivisionError


def _consumes(one: KeepingConsumer) -> None:
    """Receive records 0 to 2 and 3 to 9; processing the second batch raises."""
    assert len(one.consume(3, DEADLINE_S)) == 3
    assert len(one.consume(7, DEADLINE_S)) == 7
    raise ZeroDivisionError


def _iterates(one: KeepingConsumer) -> None:
    for message in one:
        if message.offset() == 3:
            raise ZeroDivisionError


@pytest.mark.parametrize("process", [_polls, _consumes, _iterates])
def test_a_record_whose_processing_raised_is_not_committed(
    kafka: EmbeddedKafka, process: Callable[[KeepingConsumer], None]
) -> None:
    def run() -> None:
        with consumer(kafka) as one:
            one.subscribe(["orders"])
            process(one)

    with pytest.raises(ZeroDivisionError):
        run()
    assert _committed(kafka) == 3


def test_a_close_in_finally_after_processing_raised_commits_what_was_finished(kafka: EmbeddedKafka) -> None:
    def run() -> None:
        one = consumer(kafka)
        one.subscribe(["orders"])
        try:
            _polls(one)
        finally:
            one.close()

    with pytest.raises(ZeroDivisionError):
        run()
    assert _committed(kafka) == 3


def test_a_close_without_an_exception_commits_the_last_record(kafka: EmbeddedKafka) -> None:
    """Check the same rule inside the handler of an exception that is older than the consumer."""
    try:
        raise KeyError
    except KeyError:
        one = consumer(kafka)
        one.subscribe(["orders"])
        with pytest.raises(ZeroDivisionError):
            _polls(one)
        one.close()
    assert _committed(kafka) == 4


def test_the_request_of_one_thread_does_not_finish_the_record_of_another(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, auto_commit_interval_ms=10) as one:
        one.subscribe(["orders"])
        received, end = threading.Event(), threading.Event()

        def work_slowly() -> None:
            message = one.poll(DEADLINE_S)
            assert message is not None
            assert message.offset() == 0
            received.set()
            assert end.wait(DEADLINE_S)

        thread = threading.Thread(target=work_slowly)
        thread.start()
        assert received.wait(DEADLINE_S)
        for offset in range(1, COUNT):
            message = one.poll(DEADLINE_S)
            assert message is not None
            assert message.offset() == offset
        assert one.poll(0.2) is None
        assert max(0, one.committed([row(0)], DEADLINE_S)[0].offset) == 0
        end.set()
        thread.join()
    assert _committed(kafka) == COUNT
