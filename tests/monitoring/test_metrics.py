"""The metrics of a coordinator, with Java's names and meaning."""

from __future__ import annotations

import math

import pytest

from consumer_coord.group.metrics import NAMES, Metrics


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


#: ``consumer-coordinator-metrics`` of the Java client (AbstractCoordinator, ConsumerCoordinator, KafkaConsumerMetrics).
# fmt: off
JAVA = [
    "heartbeat-response-time-max", "heartbeat-rate", "heartbeat-total", "last-heartbeat-seconds-ago", "join-time-avg",
    "join-time-max", "join-rate", "join-total", "sync-time-avg", "sync-time-max", "sync-rate", "sync-total",
    "rebalance-latency-avg", "rebalance-latency-max", "rebalance-latency-total", "rebalance-total",
    "rebalance-rate-per-hour", "failed-rebalance-total", "failed-rebalance-rate-per-hour",
    "last-rebalance-seconds-ago", "commit-latency-avg", "commit-latency-max", "commit-rate", "commit-total",
    "assigned-partitions", "last-poll-seconds-ago", "time-between-poll-avg", "time-between-poll-max",
    "poll-idle-ratio-avg", "partition-assigned-latency-avg", "partition-assigned-latency-max",
    "partition-revoked-latency-avg", "partition-revoked-latency-max", "partition-lost-latency-avg",
    "partition-lost-latency-max",
]
# fmt: on


def test_java_s_names_are_there_from_the_start() -> None:
    metrics = Metrics(Clock())
    metrics.gauge("assigned-partitions", lambda: 3.0)
    metrics.gauge("lease-suspended-seconds-total", lambda: 0.0)
    figures = metrics.snapshot()
    assert set(figures) == set(NAMES)
    assert set(JAVA) <= set(figures)
    assert (figures["join-total"], figures["join-rate"], figures["assigned-partitions"]) == (0.0, 0.0, 3.0)
    assert math.isnan(figures["join-time-avg"])
    assert math.isnan(figures["join-time-max"])
    assert figures["last-heartbeat-seconds-ago"] == -1.0


def test_averages_maxima_and_rates_look_a_minute_back() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.record("join", 900.0)
    clock.now += 61
    metrics.record("join", 10.0)
    metrics.record("join", 30.0)
    figures = metrics.snapshot()
    assert figures["join-total"] == 3.0
    assert (figures["join-time-avg"], figures["join-time-max"]) == (20.0, 30.0)
    assert figures["join-rate"] == pytest.approx(2 / 60)


def test_a_rate_begins_with_the_coordinator() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.record("rebalance", 40.0)
    clock.now += 10
    figures = metrics.snapshot()
    assert figures["rebalance-rate-per-hour"] == pytest.approx(360)
    assert figures["rebalance-latency-total"] == 40.0


def test_seconds_ago() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.last_heartbeat_at = clock.now
    clock.now += 2.5
    assert metrics.snapshot()["last-heartbeat-seconds-ago"] == 2.5


def test_many_events_take_bounded_memory_and_count_in_the_rate() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    for number in range(12_000):
        clock.now = 100.0 + number / 100
        metrics.record("commit", 4.0 if number % 2 else 2.0)
    figures = metrics.snapshot()
    assert metrics.count("commit") == 12_000
    assert figures["commit-rate"] == pytest.approx(100, rel=0.02)
    assert figures["commit-latency-avg"] == pytest.approx(3, rel=0.01)
    assert figures["commit-latency-max"] == 4.0
    assert len(metrics._sensors["commit"].samples) <= 62


def test_an_event_that_no_table_knows_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Metrics(Clock()).record("jion")
