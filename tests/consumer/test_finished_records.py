"""Automatic commits cover finished records only: the next record was requested, or the consumer closed without an exception."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import KafkaError, KafkaException, Message, TopicPartition
from tests.support.consumer.embedded import BROKER, DEADLINE_S, KeepingConsumer, consumer, produce, row
from tests.support.white_box import librdkafka

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


def _commits_the_message(one: KeepingConsumer, message: Message) -> None:
    one.commit(message=message, asynchronous=False)


def _commits_the_offset(one: KeepingConsumer, message: Message) -> None:
    one.commit(offsets=[row(0, int(message.offset() or 0) + 1)], asynchronous=False)


def _commits_without_waiting(one: KeepingConsumer, message: Message) -> None:
    one.commit(message=message)


def _commits_everything(one: KeepingConsumer, _: Message) -> None:
    one.commit(asynchronous=False)


_COMMITS = [_commits_the_message, _commits_the_offset, _commits_without_waiting, _commits_everything]


@pytest.mark.parametrize("store", [True, False], ids=["delivered records", "stored offsets"])
@pytest.mark.parametrize("commit", _COMMITS)
def test_an_automatic_commit_is_never_below_a_commit_of_the_application(
    kafka: EmbeddedKafka, commit: Callable[[KeepingConsumer, Message], None], store: bool
) -> None:
    """The record is still being processed when the exception closes the consumer."""

    def run() -> None:
        with consumer(kafka, enable_auto_offset_store=store) as one:
            one.subscribe(["orders"])
            for offset in range(4):
                message = one.poll(DEADLINE_S)
                assert message is not None
                if offset == 1 and not store:
                    one.store_offsets(message)
            commit(one, message)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert _committed(kafka) == (2 if commit is _commits_everything and not store else 4)


def test_a_commit_during_a_batch_finishes_the_records_before_it(kafka: EmbeddedKafka) -> None:
    def run() -> None:
        with consumer(kafka) as one:
            one.subscribe(["orders"])
            batch = one.consume(10, DEADLINE_S)
            one.commit(message=batch[6], asynchronous=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert _committed(kafka) == 7


def test_after_a_seek_back_a_former_commit_finishes_no_record(kafka: EmbeddedKafka) -> None:
    def run() -> None:
        with consumer(kafka) as one:
            one.subscribe(["orders"])
            one.commit(message=one.consume(10, DEADLINE_S)[-1], asynchronous=False)
            one.seek(row(0, 2))
            assert [message.offset() for message in one.consume(3, DEADLINE_S)] == [2, 3, 4]
            assert one.poll(DEADLINE_S) is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert _committed(kafka) == 5


def test_an_automatic_commit_repeats_a_failed_commit(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        assert len(one.consume(10, DEADLINE_S)) == 10
        with pytest.raises(KafkaException, match="is longer than the brokers"):
            one.commit(offsets=[TopicPartition("orders", 0, 10, metadata="x" * 10_000)], asynchronous=False)
    assert _committed(kafka) == 10


def test_a_record_of_a_partition_that_is_no_longer_read_stays_unfinished(kafka: EmbeddedKafka) -> None:
    """The application stops reading the partition after processing raised."""

    def run() -> None:
        with consumer(kafka) as one:
            one.subscribe(["orders"])
            try:
                _polls(one)
            except ZeroDivisionError:
                one.incremental_unassign([row(0)])
                raise

    with pytest.raises(ZeroDivisionError):
        run()
    assert _committed(kafka) == 3


def test_a_record_that_a_callback_polled_is_not_committed_if_its_processing_raised(kafka: EmbeddedKafka) -> None:
    polled: list[int] = []

    def error_cb(error: KafkaError) -> None:
        message = one.poll(DEADLINE_S)
        assert message is not None
        polled.append(int(message.offset()))
        raise ZeroDivisionError

    def run() -> None:
        with one:
            one.poll(DEADLINE_S)

    one = consumer(kafka, error_cb=error_cb)
    one.assign([row(0, 0)])
    librdkafka(one).reported.append(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(ZeroDivisionError):
        run()
    assert polled == [0]
    assert _committed(kafka) == 0
