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


def _poll(times: PollTimes, clock: Clock, *, waits_s: float, works_s: float, left: int = 0) -> None:
    began = clock.now
    clock.now += waits_s
    times.record_fetch(began, left)
    clock.now += works_s


def test_one_poll_has_no_time_between() -> None:
    clock = Clock()
    times = PollTimes(clock)
    assert all(math.isnan(value) for value in times.figures().values())
    _poll(times, clock, waits_s=1, works_s=1)
    assert set(times.figures()) == set(NAMES)
    assert all(math.isnan(value) for value in times.figures().values())


def test_time_between_polls_and_the_part_that_is_idle() -> None:
    clock = Clock()
    times = PollTimes(clock)
    _poll(times, clock, waits_s=0.1, works_s=0.3)
    _poll(times, clock, waits_s=0.3, works_s=0.9)
    _poll(times, clock, waits_s=0.0, works_s=0.0)
    figures = times.figures()
    assert figures["time-between-poll-avg"] == pytest.approx(800)
    assert figures["time-between-poll-max"] == pytest.approx(1_200)
    assert figures["poll-idle-ratio-avg"] == pytest.approx(0.25)


def test_polls_that_were_read_ahead_for_count_too() -> None:
    clock = Clock()
    times = PollTimes(clock)
    _poll(times, clock, waits_s=0.0, works_s=10.0, left=99)
    _poll(times, clock, waits_s=0.0, works_s=0.0)
    figures = times.figures()
    assert figures["time-between-poll-avg"] == pytest.approx(100)
    assert figures["time-between-poll-max"] == pytest.approx(100)


def test_polls_in_vain_count_as_polls_that_are_recorded_alone() -> None:
    clocks = Clock(), Clock()
    alone, together = (PollTimes(clock) for clock in clocks)
    for waits_s, works_s in [(0.1, 0.0)] * 40 + [(0.1, 3.0)] + [(0.05, 0.0)] * 7 + [(0.1, 0.0)]:
        _poll(alone, clocks[0], waits_s=waits_s, works_s=works_s)
        began = clocks[1].now
        clocks[1].now += waits_s
        together.record_in_vain(began, waits_s)
        clocks[1].now += works_s
    for times, clock in zip((alone, together), clocks, strict=True):
        _poll(times, clock, waits_s=0.0, works_s=0.0)
    assert together.figures() == pytest.approx(alone.figures())
    assert together.figures()["time-between-poll-max"] == pytest.approx(3_100)
    assert together.last_at == alone.last_at


def test_poll_times_cover_a_minute_and_bounded_memory() -> None:
    clock = Clock()
    times = PollTimes(clock)
    _poll(times, clock, waits_s=0.0, works_s=50.0)
    for _ in range(3_000):
        _poll(times, clock, waits_s=0.05, works_s=0.05)
    figures = times.figures()
    assert figures["time-between-poll-max"] == pytest.approx(100)
    assert figures["poll-idle-ratio-avg"] == pytest.approx(0.5)
    assert len(times._past) <= 61


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
    clock = Clock()
    metrics = Metrics(clock)
    assert metrics.snapshot()["last-poll-seconds-ago"] == -1
    _poll(metrics.polls, clock, waits_s=0.5, works_s=0.25)
    assert metrics.snapshot()["last-poll-seconds-ago"] == pytest.approx(0.75)
    # A later time from a heartbeat counts: polls then returned messages that had been read ahead.
    metrics.last_poll_at = clock()
    assert metrics.snapshot()["last-poll-seconds-ago"] == 0
