"""A signal handler that raises at any point of poll, consume, commit, a revocation or close loses nothing.

The consumer, its engine and its coordinator are real, on an embedded Kafka. With librdkafka, a thread of its own calls the
handle, and no signal handler runs there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, consumer, produce
from tests.support.consumer.signal_points import interrupted
from tests.support.white_box import coordinator_of, data_plane

PARTITIONS = 3


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": PARTITIONS}, config=BROKER) as running:
        yield running


#: How many batches each partition has ahead for the own Fetch.
AHEAD = 50
IN_BATCH = 20


def more(kafka: EmbeddedKafka) -> None:
    """Write another batch to each partition."""
    produce(kafka, "orders", dict.fromkeys(range(PARTITIONS), range(IN_BATCH)))


@pytest.fixture
def reads(kafka: EmbeddedKafka) -> dict[str, Any]:
    """Small responses and little read-ahead, so that the partitions take turns."""
    for _ in range(AHEAD):
        more(kafka)
    return {"max_partition_fetch_bytes": 1, "queued_min_messages": 10}


class Reading:
    """The received messages, and the offset that each partition must deliver next."""

    def __init__(self, one: GroupConsumer, more: Callable[[], object] = lambda: None) -> None:
        self.one = one
        self.more = more
        #: The offset at which each partition needs more records.
        self.enough = 0
        self.next: dict[int, int] = {}
        self.again = 0

    def take(self, messages: list[Any], where: str | None) -> None:
        for message in messages:
            expected = self.next.get(message.partition(), message.offset())
            assert message.offset() <= expected, f"skipped {expected} after an interrupt at {where}"
            self.again += expected - message.offset()
            self.next[message.partition()] = message.offset() + 1

    def all_are_read(self, where: str | None) -> None:
        """Poll until every partition has delivered a message."""
        while self.next and max(self.next.values()) >= self.enough:
            self.more()
            self.enough += IN_BATCH
        missing, ends = set(range(PARTITIONS)), time.monotonic() + 20
        while missing:
            assert time.monotonic() < ends, f"{missing} are stranded after an interrupt at {where}"
            message = self.one.poll(0.05)
            if message is not None:
                self.take([message], where)
                missing.discard(message.partition())


def _at_every_point(call: Callable[[int], str | None], *, step: int = 1, least: int) -> None:
    """Run ``call`` with an interrupt at each point, until no point is left."""
    at = reached = 0
    quiet = 0
    while quiet < 3:
        where = call(at)
        quiet = quiet + 1 if where is None else 0
        reached += where is not None
        at += step
        assert at < 20_000
    assert reached >= least, f"only {reached} points were interrupted"


@pytest.fixture
def reading(kafka: EmbeddedKafka, reads: dict[str, Any]) -> Iterator[Reading]:
    with consumer(kafka, auto_commit_interval_ms=20, heartbeat_interval_ms=1_000, **reads) as one:
        one.subscribe(["orders"])
        reading = Reading(one, lambda: more(kafka))
        reading.all_are_read(None)
        yield reading


#: How often a call is tried until a point is reached: what was fetched ahead decides whether it waits, or takes a short path.
TRIES = 16


def test_poll(reading: Reading) -> None:
    def poll(at: int) -> str | None:
        # Each poll takes one message of the many that were fetched in advance.
        for _ in range(130):
            with interrupted(at) as points:
                message = reading.one.poll(0.05)
            if points.raised_at is not None:
                message = reading.one.poll(0.05)
            reading.take([message] if message else [], points.raised_at)
            if points.raised_at is not None:
                return points.raised_at
        return None

    _at_every_point(poll, least=30)
    reading.all_are_read("the end")
    assert reading.again == 0


def test_a_poll_after_one_that_found_nothing(reading: Reading) -> None:
    one = reading.one

    def poll(at: int) -> str | None:
        for _ in range(TRIES):
            reading.take(one.consume(len(data_plane(one).ready), 0.05), None)
            with interrupted(at) as points:
                message = one.poll(0.05)
            if points.raised_at is not None:
                message = one.poll(0.05)
            reading.take([message] if message else [], points.raised_at)
            if points.raised_at is not None:
                return points.raised_at
        return None

    _at_every_point(poll, least=10)
    reading.all_are_read("the end")
    assert reading.again == 0


def test_consume(reading: Reading) -> None:
    one = reading.one

    def consume(at: int) -> str | None:
        for trial in range(TRIES):
            if trial % 2:
                reading.take(one.consume(len(data_plane(one).ready), 0.05), None)
            with interrupted(at) as points:
                messages = one.consume(5, 0.05)
            if points.raised_at is None:
                reading.take(messages, None)
            reading.take(one.consume(2, 0.05), points.raised_at)
            if points.raised_at is not None:
                return points.raised_at
        return None

    _at_every_point(consume, least=30)
    reading.all_are_read("the end")
    assert reading.again == 0


def test_commit_seek_and_pause(reading: Reading) -> None:
    one = reading.one

    def use(at: int) -> str | None:
        row = one.assignment()[at % PARTITIONS]
        row.offset = reading.next[row.partition]
        with interrupted(at) as points:
            one.commit(asynchronous=False)
            one.pause([row])
            one.seek(row)
            one.resume([row])
            one.position([row])
        one.resume([row])
        for committed in one.commit(asynchronous=False) or []:
            assert committed.error is None
            assert committed.offset <= reading.next[committed.partition]
        reading.all_are_read(points.raised_at)
        return points.raised_at

    _at_every_point(use, least=60)
    assert reading.again == 0


@pytest.mark.slow
def test_a_hand_over(reading: Reading) -> None:
    core = coordinator_of(reading.one)

    def hand_over(at: int) -> str | None:
        target = core.assignment.target
        first = min(target.partitions)
        # The group takes one partition back; the member releases it, and gets it again in the next round.
        core.assignment.publish(target.generation, target.partitions - {first})
        core.application.wake()
        where = None
        ends = time.monotonic() + 20
        while core.assignment.target.partitions != target.partitions or core.assignment.held != target.partitions:
            assert time.monotonic() < ends, f"stuck after an interrupt at {where}"
            with interrupted(at if where is None else -1) as points:
                message = reading.one.poll(0.02)
            if points.raised_at is None:
                reading.take([message] if message else [], where)
            where = where or points.raised_at
        reading.all_are_read(where)
        return where

    _at_every_point(hand_over, least=60)


def test_close(kafka: EmbeddedKafka, reads: dict[str, Any]) -> None:
    def close(at: int) -> str | None:
        one = consumer(kafka, heartbeat_interval_ms=1_000, enable_auto_commit=False, **reads)
        one.subscribe(["orders"])
        reading = Reading(one)
        reading.all_are_read(None)
        with interrupted(at) as points:
            one.close(5)
        one.close(5)
        assert kafka.group_state("billing") in ("Empty", "Dead", None), points.raised_at
        return points.raised_at

    _at_every_point(close, step=2, least=20)
