"""Calls end at their time limits, and waiting inside them counts as polling: tests on an embedded Kafka."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, DEADLINE_S, consumer, held, produce, row, take
from tests.support.waiting import eventually


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2, "other": 2}, config=BROKER) as running:
        produce(running, "orders", {0: range(20)})
        yield running


def _seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


#: Slack beyond a time limit; these tests look for calls that used separate time-outs, of 20 s and more.
MOMENT_S = 8.0


@pytest.mark.behaviour(95)
@pytest.mark.parametrize("assigned", [False, True], ids=["subscribed", "assigned"])
def test_close_ends_at_its_time_limit_while_the_broker_is_away(kafka: EmbeddedKafka, assigned: bool) -> None:
    one = consumer(kafka, session_timeout_ms=30_000)
    if assigned:
        one.assign([row(0, 0)])
    else:
        one.subscribe(["orders"])
    assert len(take(one, 20)) == 20
    kafka.stop_broker(kafka.brokers[0])
    assert _seconds(lambda: one.close(1)) < 1 + MOMENT_S


@pytest.mark.behaviour(95)
def test_close_reports_each_asynchronous_commit_without_a_response(kafka: EmbeddedKafka) -> None:
    told: list[tuple[object, int]] = []
    one = consumer(
        kafka,
        enable_auto_commit=False,
        on_commit=lambda error, rows: told.extend((error, each.offset) for each in rows),
    )
    one.subscribe(["orders"])
    assert len(take(one, 20)) == 20
    kafka.add_fault("OffsetCommit", Fault(delay_ms=120_000), times=50)
    for offset in (3, 5, 8):
        one.commit(offsets=[row(0, offset)])
    assert _seconds(lambda: one.close(1)) < 1 + MOMENT_S
    assert [offset for _, offset in told] == [3, 5, 8]
    assert all(error is not None for error, _ in told)
    kafka.clear_faults()


def test_consume_that_waits_for_more_messages_is_polling(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, max_poll_interval_ms=1_000) as one:
        one.subscribe(["orders"])
        eventually(lambda: held(one) == [0, 1], step=one.poll_and_keep)
        generation = one.generation()
        # More than there are: the call waits for three times max.poll.interval.ms with messages in process.
        assert len(one.kept) + len(GroupConsumer.consume(one, 100, 3)) == 20
        assert one.generation() == generation
        assert one.metrics()["partition-lost-total"] == 0


@pytest.mark.behaviour(62, 86)
def test_a_deleted_topic_does_not_hold_up_poll(kafka: EmbeddedKafka) -> None:
    produce(kafka, "other", {0: range(10)})
    with consumer(kafka, metadata_max_age_ms=200) as one:
        one.subscribe(["orders", "other"])
        assert len(take(one, 30)) == 30
        kafka.delete_topic("other")
        longest = 0.0
        ends = time.monotonic() + DEADLINE_S
        while {each.topic for each in one.assignment()} != {"orders"}:
            assert time.monotonic() < ends
            longest = max(longest, _seconds(lambda: one.poll(0.05)))
        assert longest < MOMENT_S
        produce(kafka, "orders", {1: range(3)})
        assert len(take(one, 3)) == 3


@pytest.mark.behaviour(86)
def test_a_commit_before_a_revoke_that_is_never_answered_ends_with_the_session(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, session_timeout_ms=2_000, max_poll_interval_ms=300_000) as one, consumer(kafka) as two:
        one.subscribe(["orders"])
        assert len(take(one, 20)) == 20
        kafka.add_fault("OffsetCommit", Fault(delay_ms=120_000), times=50)
        two.subscribe(["orders"])
        longest = 0.0
        ends = time.monotonic() + DEADLINE_S
        while len(held(one)) != 1 or len(held(two)) != 1:
            assert time.monotonic() < ends
            longest = max(longest, _seconds(one.poll_and_keep))
            two.poll_and_keep()
        assert longest < MOMENT_S
        kafka.clear_faults()


def _dropped(kafka: EmbeddedKafka) -> weakref.ref[GroupConsumer]:
    one = consumer(kafka, session_timeout_ms=30_000)
    one.subscribe(["orders"])
    eventually(lambda: held(one) == [0, 1], step=one.poll_and_keep)
    return weakref.ref(one)


def test_a_consumer_that_is_dropped_is_collected_and_leaves_the_group(kafka: EmbeddedKafka) -> None:
    gone = _dropped(kafka)
    gc.collect()
    assert gone() is None, "a consumer that the application dropped is still referenced"
    ends = time.monotonic() + 20
    while kafka.group_state("billing") != "Empty":
        assert time.monotonic() < ends, "the session would have lasted 30 s"
