"""``poll`` fetches up to a hundred messages at once and returns them one at a time; applications cannot see the difference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import Message
from consumer_coord.consumer.librdkafka.plane import Librdkafka
from consumer_coord.consumer.partitions import Plan, Read
from consumer_coord.consumer.worker import Worker
from consumer_coord.errors import WakeupError
from consumer_coord.fetch import Fetcher, FetchStart
from consumer_coord.group.apply_changes import run_through
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.runtime.locks import Bell
from consumer_coord.topic_partition import TopicPartition as PartitionOf
from tests.support.consumer.embedded import BROKER, DEADLINE_S, consumer, held, poll_each, produce, row, take
from tests.support.environments import needs_librdkafka
from tests.support.waiting import eventually
from tests.support.white_box import coordinator_of, data_plane, librdkafka, waits_quietly

COUNT = 60


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as running:
        produce(running, "orders", {0: range(COUNT), 1: range(COUNT)})
        yield running


def note_assignments(begun: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Append the starts of every later assignment of a fetcher."""
    assign = Fetcher.assign

    def noting(self: Fetcher, starts: Mapping[PartitionOf, FetchStart]) -> None:
        begun.append(starts)
        assign(self, starts)

    monkeypatch.setattr(Fetcher, "assign", noting)


def _polled(one: GroupConsumer) -> list[Message]:
    """Poll a few messages; all other messages of both partitions are then read ahead."""
    messages = [message for message in (one.poll(10), one.poll(10), one.poll(10)) if message is not None]
    assert len(messages) == 3
    # The two partitions may be fetched in any order: read the other messages as poll does.
    data_plane(one).read_ahead(2 * COUNT - len(messages))
    assert {message.partition() for message in data_plane(one).ready} == {0, 1}
    return messages


def _next_offsets(messages: list[Message]) -> dict[int, int]:
    """Return partition -> the offset after the last delivered message."""
    ends = {0: 0, 1: 0}
    for message in messages:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset == ends[partition], "a message was left out, or delivered twice"
        ends[partition] = offset + 1
    return ends


def _positions(one: GroupConsumer) -> dict[int, int]:
    found = one.position([row(0), row(1)])
    return {each.partition: max(0, each.offset) for each in found}


def _committed(one: GroupConsumer) -> dict[int, int]:
    return {each.partition: max(0, each.offset) for each in one.committed([row(0), row(1)], 10)}


def _until_a_poll_finds_nothing(one: GroupConsumer) -> None:
    eventually(lambda: _is_quiet(one), "a poll after which only a message is expected")


def _takes_the_short_way(one: GroupConsumer) -> bool:
    polls = coordinator_of(one).application.polls
    assert one.poll(0.01) is None
    return coordinator_of(one).application.polls == polls + 1


class _Handle:
    """A substitute for confluent_kafka.Consumer that returns the waiting messages."""

    def __init__(self) -> None:
        self.waiting: list[str] = []

    def poll(self, timeout: float) -> str | None:
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, most: int, timeout: float) -> list[str]:
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken


def test_a_wait_that_a_message_ends_takes_what_came_with_it() -> None:
    plane = Librdkafka({"group.id": "g"})
    real, plane.handle = plane.handle, _Handle()
    assert plane.fetch_now(3, 1.0) == []
    plane.handle.waiting = ["a", "b", "c", "d", "e"]
    assert plane.dry
    assert plane.fetch_now(3, 1.0) == ["a", "b", "c"]
    assert plane.fetch_now(1, 1.0) == ["d"]
    real.close()


class _Plane:
    """A data plane that records the names of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "held_up":
            return lambda positions: False

        async def called(*_: object) -> dict[PartitionOf, OffsetAndMetadata]:
            self.calls.append(name)
            return {}

        return called


def test_a_call_that_came_to_its_end_leaves_nothing_to_put_right() -> None:
    plane: Any = _Plane()
    worker = Worker(plane, lambda error: False)
    one, at = PartitionOf("orders", 0), OffsetAndMetadata(0)
    plans = {
        "starts": Plan({one: Read(1, at, on=True)}),
        "a seek": Plan({one: Read(2, at, on=True)}),
        "a pause": Plan({one: Read(2, at, on=False)}),
        "resumes": Plan({one: Read(2, at, on=True)}),
        "ends": Plan(),
    }
    for step, plan in plans.items():
        run_through(worker.reconcile(plan))
        assert plane.calls[0] == "wait_idle", step
        assert set(plane.calls[1:]) & {"assign", "unassign"}, step
        plane.calls.clear()
        run_through(worker.reconcile(plan))
        assert plane.calls == [], step


def test_the_position_lies_before_what_was_read_ahead(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        assert _positions(one) == _next_offsets(messages)
        messages += one.consume(10, 5)
        assert _positions(one) == _next_offsets(messages), "consume continues where poll ended"


@needs_librdkafka
def test_a_position_is_known_after_a_repair_although_no_message_comes(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        assert len(take(one, 2 * COUNT)) == 2 * COUNT
        # An interrupt between the two halves of a call leaves this state.
        data_plane(one).interrupt()
        librdkafka(one).unassign([PartitionOf("orders", 0)])
        one.commit(asynchronous=False)
        assert _positions(one) == _committed(one) == {0: COUNT, 1: COUNT}


def test_polls_that_find_nothing_one_after_the_other_miss_nothing(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        take(one, 2 * COUNT)
        _until_a_poll_finds_nothing(one)
        # A heartbeat response that is due cuts some polls short, and these then continue as long polls.
        eventually(lambda: _takes_the_short_way(one), "a poll without the coroutines of a waiting poll", within_s=DEADLINE_S)
        produce(kafka, "orders", {0: range(COUNT, COUNT + 3)})
        assert [message.offset() for message in take(one, 3)] == list(range(COUNT, COUNT + 3))
        _until_a_poll_finds_nothing(one)
        one.wakeup()
        with pytest.raises(WakeupError):
            one.poll(DEADLINE_S)


@needs_librdkafka
def test_a_poll_after_one_that_found_nothing_waits_longer_than_a_slice(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    fetch = Librdkafka.fetch_now

    def producing(self: Librdkafka, most: int, wait_s: float) -> list[Message]:
        waits.append(wait_s)
        if len(waits) == 2:
            produce(kafka, "orders", {0: ["late"]})
        return fetch(self, most, wait_s)

    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        take(one, 2 * COUNT)
        _until_a_poll_finds_nothing(one)
        monkeypatch.setattr(Librdkafka, "fetch_now", producing)
        message = one.poll(DEADLINE_S)
        assert message is not None
        assert message.value() == b"late"


def test_a_consume_that_finds_too_few_messages_keeps_them(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []

    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        take(one, 2 * COUNT)
        _until_a_poll_finds_nothing(one)
        note_assignments(begun, monkeypatch)
        assert one.consume(5, 0.01) == []
        produce(kafka, "orders", {0: range(COUNT, COUNT + 5)})
        assert [message.offset() for message in one.consume(5, DEADLINE_S)] == list(range(COUNT, COUNT + 5))
        assert begun == []


def test_to_resume_what_is_not_paused_fetches_nothing_again(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []

    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        note_assignments(begun, monkeypatch)
        ends = time.monotonic() + DEADLINE_S
        while len(messages) < 2 * COUNT:
            assert time.monotonic() < ends
            one.resume(one.assignment())
            message = one.poll(0.05)
            messages += [] if message is None else [message]
        assert begun == []


def test_commits_cover_delivered_messages_only(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        one.commit(asynchronous=False)
        assert _committed(one) == _next_offsets(messages)
        messages += take(one, 3)
        one.commit(messages[-1], asynchronous=False)
        last = messages[-1].partition()
        assert last is not None
        assert _committed(one)[last] == _next_offsets(messages)[last]


def test_automatic_commits_at_close_leave_what_was_read_ahead_to_the_next_one(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
    with consumer(kafka) as two:
        two.subscribe(["orders"])
        messages += take(two, 2 * COUNT - len(messages))
    assert _next_offsets(messages) == {0: COUNT, 1: COUNT}


def test_a_seek_forgets_what_was_read_ahead_of_that_partition_alone(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        before = _next_offsets(messages)
        one.seek(row(0, 50))
        rest = take(one, COUNT - before[1] + COUNT - 50)
        assert [message.offset() for message in rest if message.partition() == 0] == list(range(50, COUNT))
        assert [message.offset() for message in rest if message.partition() == 1] == list(range(before[1], COUNT))


def test_a_paused_partition_delivers_nothing_and_resumes_at_its_position(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        before = _next_offsets(messages)
        one.pause([row(0)])
        assert _positions(one)[0] == before[0]
        others = take(one, COUNT - before[1])
        assert {message.partition() for message in others} == {1}
        assert one.poll(0.1) is None
        one.resume([row(0)])
        rest = take(one, COUNT - before[0])
        assert _next_offsets([*messages, *others, *rest]) == {0: COUNT, 1: COUNT}


def test_messages_read_ahead_are_dropped_with_their_partition(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one, consumer(kafka) as two:
        one.subscribe(["orders"])
        messages = _polled(one)
        two.subscribe(["orders"])
        # The first member continues to poll, one message at a time, while one of its partitions moves.
        eventually(lambda: len(held(one)) == len(held(two)) == 1, step=poll_each(one, two))
        assert one.kept
        messages += take([one, two], 2 * COUNT - len(messages))
    # Each offset of a partition is delivered once and in order, to either member.
    assert _next_offsets(messages) == {0: COUNT, 1: COUNT}


def test_a_wakeup_comes_before_what_was_read_ahead_and_loses_none_of_it(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        one.wakeup()
        with pytest.raises(WakeupError):
            one.poll(0)
        messages += take(one, 2 * COUNT - len(messages))
        assert _next_offsets(messages) == {0: COUNT, 1: COUNT}


def test_unsubscribing_drops_what_was_read_ahead(kafka: EmbeddedKafka) -> None:
    with consumer(kafka) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        one.unsubscribe()
        assert one.poll(0.1) is None
        one.subscribe(["orders"])
        messages += take(one, 2 * COUNT - len(messages))
        assert _next_offsets(messages) == {0: COUNT, 1: COUNT}


@needs_librdkafka
def test_waits_for_messages_are_short_while_a_commit_is_under_way(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``on_commit`` is called between two waits: a long wait would delay it by up to 0.1 s."""
    told: list[object] = []
    asked: list[int] = []
    #: Whether the outcome of a commit was pending, and the length of each wait for messages.
    waits: list[tuple[bool, float]] = []
    fetch = Librdkafka.fetch_now

    def noting(self: Librdkafka, most: int, wait_s: float) -> list[Message]:
        waits.append((len(told) < len(asked), wait_s))
        return fetch(self, most, wait_s)

    def on_commit(error: object, _: object) -> None:
        told.append(error)

    with consumer(kafka, enable_auto_commit=False, heartbeat_interval_ms=3_000, on_commit=on_commit) as one:
        one.subscribe(["orders"])
        take(one, 2 * COUNT)
        monkeypatch.setattr(Librdkafka, "fetch_now", noting)
        for offset in range(20):
            asked.append(offset)
            one.commit(offsets=[row(0, offset)])
            eventually(lambda: len(told) == len(asked), step=one.poll_and_keep)
        eventually(
            lambda: [wait_s for under_way, wait_s in waits if not under_way and wait_s > 0.005],
            "a wait longer than 5 ms",
            step=lambda: one.poll(0.1),
        )
    assert told == [None] * 20
    assert max(wait_s for under_way, wait_s in waits if under_way) <= 0.005


#: No heartbeat, whose response may announce a rebalance, is due during the test.
_RARE: Mapping[str, Any] = {"session.timeout.ms": 300_000, "heartbeat.interval.ms": 200_000}


def _is_quiet(one: GroupConsumer) -> bool:
    assert one.poll(0.01) is None
    return waits_quietly(one)


@needs_librdkafka
def test_a_quiet_poll_asks_librdkafka_once_and_nothing_else() -> None:
    with (
        EmbeddedKafka(topics={"orders": 2}, config=BROKER) as kafka,
        consumer(kafka, **_RARE) as one,
    ):
        one.subscribe(["orders"])
        eventually(lambda: _is_quiet(one), "a poll after which only a message is expected")
        plane, calls = librdkafka(one), 0
        real = plane.handle

        class Counted:
            def poll(self, timeout: float) -> Any:
                nonlocal calls
                calls += 1
                return real.poll(timeout)

        plane.handle = Counted()

        def calls_of_three_polls() -> int:
            before = calls
            assert [one.poll(0.01) for _ in range(3)] == [None] * 3
            return calls - before

        try:
            # After a join, heartbeats are early, and a poll that waits for one of them waits in slices.
            eventually(lambda: calls_of_three_polls() == 3, "one wait in librdkafka for each poll")
        finally:
            plane.handle = real
        produce(kafka, "orders", {0: range(3)})
        assert len(take(one, 3)) == 3


@needs_librdkafka
def test_a_consumer_with_nothing_to_fetch_waits_quietly_and_for_the_group() -> None:
    with (
        EmbeddedKafka(topics={"orders": 2}, config=BROKER) as kafka,
        consumer(kafka, **_RARE) as one,
    ):
        one.subscribe(["orders"])
        eventually(lambda: _is_quiet(one), "a poll after which only a message is expected")
        one.pause(one.assignment())
        eventually(lambda: _is_quiet(one), "a quiet poll without a partition to fetch")
        produce(kafka, "orders", {0: range(3)})
        assert [one.poll(0.01) for _ in range(5)] == [None] * 5
        application, plane = coordinator_of(one).application, librdkafka(one)
        bell, handle = application.bell, plane.handle
        waits: list[tuple[str, float]] = []

        class RungBell(Bell):
            def wait(self, timeout_s: float | None = None) -> bool:
                assert timeout_s is not None
                waits.append(("the group", timeout_s))
                application.wake()
                assert super().wait(DEADLINE_S), "news end the wait"
                return True

        class Recorded:
            def poll(self, timeout: float) -> Any:
                waits.append(("a message", timeout))
                return handle.poll(timeout)

            def consume(self, most: int, timeout: float) -> list[Message]:
                messages: list[Message] = handle.consume(most, timeout)
                return messages

        application.bell, plane.handle = RungBell(), Recorded()
        try:
            one.poll(0.1)
        finally:
            application.bell, plane.handle = bell, handle
        assert waits[:2] == [("the group", 0.1), ("a message", 0)]
        one.resume(one.assignment())
        assert len(take(one, 3)) == 3


def test_a_quiet_consumer_looks_again_when_a_rebalance_begins() -> None:
    with EmbeddedKafka(topics={"orders": 2}, config=BROKER) as kafka, consumer(kafka) as one:
        one.subscribe(["orders"])
        eventually(lambda: _is_quiet(one), "a poll after which only a message is expected")
        core = coordinator_of(one)

        async def rejoin() -> None:
            assert isinstance(core.protocol, ClassicProtocol)
            core.protocol.status.request_rejoin("a test")
            # No other code ran on the loop.
            assert not waits_quietly(one)

        one._coordinator.call(rejoin)
