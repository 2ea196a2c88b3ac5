"""What the drivers have in common, with a clock of the test."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from consumer_coord.confluent import KafkaError, KafkaException
from consumer_coord.finished_offsets_text import encode
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.process.dead_letters import Letter
from consumer_coord.process.offset_to_commit import Holding
from consumer_coord.process.processing import SHORT_WAIT_S, WAIT_S, Processing, ProcessSettings
from consumer_coord.process.work import Record
from consumer_coord.record_tracker import TrackedReading
from consumer_coord.topic_partition import TopicPartition
from tests.process.test_work import FakeMessage, start_all

P0 = TopicPartition("orders", 0)


@attrs.frozen
class Delivered(FakeMessage):
    """A message of the first partition, or an event."""

    event: Any = None

    def error(self) -> Any:
        return self.event

    def topic(self) -> str:
        return P0.topic

    def partition(self) -> int:
        return P0.partition


class Driver(Processing):
    """A driver that runs nothing, and records what it is told."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.lost: list[tuple[int, str | None, bool]] = []
        self.ends: list[float] = []
        arguments: dict[str, Any] = {
            "concurrency": 4,
            "order": "key",
            "drain_timeout": 25.0,
            "most_records": 100,
            "most_bytes": 1 << 20,
            "metadata_max_bytes": 4096,
            "on_failure": None,
            "batches": None,
        }
        super().__init__(ProcessSettings.checked(**arguments | settings), "billing", lambda: self.now)

    def expect_end(self, holding: Holding, after_s: float) -> None:
        self.ends.append(after_s)

    def lose(self, records: Sequence[Record], *, at_once: bool) -> None:
        self.lost += [(record.offset, record.reason, at_once) for record in records]

    def letter_answered(self, letter: Letter, refused: Any) -> None:
        raise AssertionError("no policy")


def reading(number: int = 1, *, releasing: bool = False, metadata: str = "") -> Mapping[TopicPartition, TrackedReading]:
    return {P0: TrackedReading(number, OffsetAndMetadata(0, metadata=metadata), releasing)}


def reads(*offsets: int) -> tuple[Driver, list[Record]]:
    """Return a driver whose handlers run for these records, each with a key of its own."""
    driver = Driver()
    driver.look_at_readings(reading())
    driver.deliver([Delivered(offset, str(offset).encode()) for offset in offsets])
    return driver, start_all(driver.work)


def test_a_wait_for_room_is_half_as_long_as_the_handlers_need() -> None:
    driver, _ = reads(*range(3))
    assert driver.work.room() is None
    assert driver.wait_s() == WAIT_S
    driver.deliver([Delivered(offset, str(offset).encode()) for offset in range(3, 100)])
    assert driver.work.room() == frozenset()
    driver.now = 1.0
    assert driver.wait_s() == WAIT_S, "no handler has ended"
    for _ in range(10):
        driver.work.finish(next(iter(driver.work.running)))
        start_all(driver.work)
    driver.now = 1.01
    # Forty records to go, ten in a hundredth of a second.
    assert driver.wait_s() == pytest.approx(0.02)
    for _ in range(45):
        driver.work.finish(next(iter(driver.work.running)))
        start_all(driver.work)
    assert driver.wait_s() == SHORT_WAIT_S, "there may be room"
    assert driver.work.room() is None


def test_a_handler_that_runs_long_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    driver, _ = reads(7, 8)
    with caplog.at_level(logging.WARNING, "consumer_coord.process"):
        for driver.now in (0.0, 30.0, 59.9):
            driver.tell_of_progress()
        assert not caplog.records
        for driver.now in (60.0, 61.0, 119.0):
            driver.tell_of_progress()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "the handler of the record of orders-0 at offset 7, with the key b'7', has been running for 60 s, in attempt 1; 1 other"
    )


def test_a_revoked_partition_is_drained_and_released() -> None:
    driver, (record, other) = reads(0, 1)
    assert not driver.may_release(P0, 1)
    assert not driver.may_release(P0, 1)
    assert driver.ends == [25.0], "the time of its handlers begins once"
    driver.settle(record, None)
    assert not driver.may_release(P0, 1)
    driver.settle(other, None)
    assert driver.may_release(P0, 1)
    assert driver.finished(P0, 1, OffsetAndMetadata(5)) == OffsetAndMetadata(5), "behind the markers after its last record"
    driver.look_at_readings({})
    assert driver.finished(P0, 1, OffsetAndMetadata(5)) is None, "nothing is known of a former reading"
    assert driver.may_release(P0, 1)


def test_the_end_of_a_lease_loses_what_runs_once() -> None:
    driver, _ = reads(0, 1)
    driver.look_at_lease(leased=False)
    driver.look_at_lease(leased=False)
    assert sorted(driver.lost) == [(0, "timeout", False), (1, "timeout", False)]
    driver.look_at_lease(leased=True)
    assert not driver.work.suspended


@pytest.mark.parametrize(("readings", "reason"), [({}, "lost"), (reading(2), "revoked")])
def test_a_reading_that_ends_loses_what_runs(readings: Mapping[TopicPartition, TrackedReading], reason: str) -> None:
    driver, _ = reads(0)
    driver.look_at_readings(readings)
    assert driver.lost == [(0, reason, False)]


def test_a_partition_that_is_kept_goes_on() -> None:
    driver, (record,) = reads(0)
    driver.deliver([Delivered(1, b"0")])
    assert not driver.may_release(P0, 1)
    driver.look_at_readings(reading(releasing=True))
    driver.settle(record, None)
    assert start_all(driver.work) == []
    driver.look_at_readings(reading())
    assert [one.offset for one in start_all(driver.work)] == [1]


def test_an_event_among_records_is_raised_after_all_records_are_known() -> None:
    """The consumer's position is behind them, so a record that is not known would count as finished."""
    driver = Driver()
    driver.look_at_readings(reading())
    event = Delivered(1, None, event=KafkaError(KafkaError._PARTITION_EOF))
    end = Delivered(3, None, event=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    driver.deliver([Delivered(0, b"0"), event, Delivered(1, b"1")])
    with pytest.raises(KafkaException):
        driver.deliver([Delivered(2, b"2"), end, Delivered(3, b"3")])
    assert [one.offset for one in start_all(driver.work)] == [0, 1, 2, 3]


def begins_behind_finished() -> Driver:
    """Return a driver whose partition has the records 0 to 3; the former owner has finished 1 and 2."""
    driver = Driver(order="none")
    driver.look_at_readings(reading(metadata=encode(0, [(1, 3)], 4096)))
    driver.deliver([Delivered(offset, None) for offset in range(4)])
    return driver


def test_a_leader_that_does_not_tell_where_the_log_ends_is_asked_again() -> None:
    driver = begins_behind_finished()
    assert driver.to_check() == {P0}
    driver.know_log_ends({})
    assert start_all(driver.work) == [], "what is not known is no answer"
    assert driver.finished(P0, 1, OffsetAndMetadata(4)) == OffsetAndMetadata(0, metadata=encode(0, [(1, 3)], 4096))
    assert driver.to_check() == frozenset(), "not at once"
    driver.now = 1.0
    assert driver.to_check() == {P0}
    driver.know_log_ends({P0: 4})
    assert [record.offset for record in start_all(driver.work)] == [0, 3]
    driver.now = 9.0
    assert driver.to_check() == frozenset()


def test_after_a_minute_records_are_handled_again(caplog: pytest.LogCaptureFixture) -> None:
    driver = begins_behind_finished()
    driver.now = 59.0
    driver.know_log_ends({})
    assert start_all(driver.work) == []
    driver.now = 60.0
    with caplog.at_level(logging.WARNING, "consumer_coord.process"):
        driver.know_log_ends({})
    assert [record.offset for record in start_all(driver.work)] == [0, 1, 2, 3]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("because for 60 s, no leader told where the log ends")


def test_a_partition_that_is_lost_is_not_asked_about() -> None:
    driver = begins_behind_finished()
    driver.look_at_readings({})
    driver.know_log_ends({})
    driver.now = 5.0
    assert driver.to_check() == frozenset()
