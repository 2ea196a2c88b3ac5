"""The poll times of an application, in Java's metrics."""

from __future__ import annotations

import math
import time

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.group.metrics import Metrics
from consumer_coord.group.poll_metrics import NAMES, PollTimes
from tests.support.consumer.embedded import BROKER, consumer, held, produce, take
from tests.support.waiting import eventually


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Polls:
    """An application whose polls are recorded."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.times = PollTimes(self.clock)
        self.number = 0

    def poll(self, *, waits_s: float, works_s: float, quiet: bool = False) -> None:
        """Poll once, and work for a time."""
        self.number += 1
        began = self.clock.now
        self.clock.now += waits_s
        if quiet:
            self.times.record_quiet(began, self.number, waits_s)
        else:
            self.times.record(began, self.number)
        self.clock.now += works_s


def test_one_poll_has_no_time_between() -> None:
    polls = Polls()
    assert all(math.isnan(value) for value in polls.times.figures().values())
    polls.poll(waits_s=1, works_s=1)
    assert set(polls.times.figures()) == set(NAMES)
    assert all(math.isnan(value) for value in polls.times.figures().values())


def test_time_between_polls_and_the_part_that_is_idle() -> None:
    polls = Polls()
    polls.poll(waits_s=0.1, works_s=0.3)
    polls.poll(waits_s=0.3, works_s=0.9)
    polls.poll(waits_s=0.0, works_s=0.0)
    figures = polls.times.figures()
    assert figures["time-between-poll-avg"] == pytest.approx(800)
    assert figures["time-between-poll-max"] == pytest.approx(1_200)
    assert figures["poll-idle-ratio-avg"] == pytest.approx(0.25)


def test_polls_that_are_not_recorded_count_too() -> None:
    polls = Polls()
    polls.poll(waits_s=0.0, works_s=10.0)
    polls.number += 99
    polls.poll(waits_s=0.0, works_s=0.0)
    figures = polls.times.figures()
    assert figures["time-between-poll-avg"] == pytest.approx(100)
    assert figures["time-between-poll-max"] == pytest.approx(100)


def test_a_poll_that_waits_twice_is_one_poll() -> None:
    polls = Polls()
    polls.poll(waits_s=0.1, works_s=0.2)
    polls.number -= 1
    polls.poll(waits_s=0.3, works_s=0.4)
    polls.poll(waits_s=0.0, works_s=0.0)
    figures = polls.times.figures()
    assert figures["time-between-poll-avg"] == pytest.approx(1_000)
    assert figures["poll-idle-ratio-avg"] == pytest.approx(0.4)


def test_quiet_polls_count_as_polls_that_are_recorded_alone() -> None:
    alone, together = Polls(), Polls()
    for waits_s, works_s in [(0.1, 0.0)] * 40 + [(0.1, 3.0)] + [(0.05, 0.0)] * 7 + [(0.1, 0.0)]:
        alone.poll(waits_s=waits_s, works_s=works_s)
        together.poll(waits_s=waits_s, works_s=works_s, quiet=True)
    for polls in (alone, together):
        polls.poll(waits_s=0.0, works_s=0.0)
    assert together.times.figures() == pytest.approx(alone.times.figures())
    assert together.times.figures()["time-between-poll-max"] == pytest.approx(3_100)
    assert together.times.last_at == alone.times.last_at


def test_poll_times_cover_a_minute_and_bounded_memory() -> None:
    polls = Polls()
    polls.poll(waits_s=0.0, works_s=50.0)
    for _ in range(3_000):
        polls.poll(waits_s=0.05, works_s=0.05)
    figures = polls.times.figures()
    assert figures["time-between-poll-max"] == pytest.approx(100)
    assert figures["poll-idle-ratio-avg"] == pytest.approx(0.5)
    assert len(polls.times._past) <= 61


@pytest.mark.parametrize("method", ["consume", "consume_arrow"])
def test_a_call_that_returns_many_records_is_one_poll(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[int] = []
    record = PollTimes.record

    def noted(self: PollTimes, began: float, number: int) -> None:
        recorded.append(number)
        record(self, began, number)

    monkeypatch.setattr(PollTimes, "record", noted)
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as kafka:
        produce(kafka, "orders", {0: range(1_000), 1: range(1_000)})
        with consumer(kafka) as one:
            one.subscribe(["orders"])
            calls = records = 0
            while records < 2_000:
                calls += 1
                records += len(getattr(one, method)(100, timeout=5))
            assert sorted(set(recorded)) == list(range(1, calls + 1))


def test_a_consumer_reports_its_polls_and_its_callbacks() -> None:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as kafka:
        produce(kafka, "orders", {0: range(5)})
        with consumer(kafka) as one:
            one.subscribe(["orders"], on_assign=lambda *_: time.sleep(0.02))
            eventually(lambda: len(held(one)) == 2, step=one.poll_and_keep)
            take(one, 5)
            figures = one.metrics()
            assert figures["time-between-poll-avg"] > 0
            assert 0 < figures["poll-idle-ratio-avg"] <= 1
            assert figures["partition-assigned-latency-max"] > 10, "the callback slept for 20"
            assert math.isnan(figures["partition-revoked-latency-avg"]), "nothing was revoked, and no callback called"


def test_the_last_poll_is_known_before_the_next_heartbeat() -> None:
    polls = Polls()
    metrics = Metrics(polls.clock)
    metrics.polls = polls.times
    assert metrics.snapshot()["last-poll-seconds-ago"] == -1
    polls.poll(waits_s=0.5, works_s=0.25)
    assert metrics.snapshot()["last-poll-seconds-ago"] == pytest.approx(0.75)
    # A later time from a heartbeat counts: polls then returned messages that had been read ahead.
    metrics.last_poll_at = polls.clock()
    assert metrics.snapshot()["last-poll-seconds-ago"] == 0
