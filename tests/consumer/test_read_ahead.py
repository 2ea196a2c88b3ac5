"""``poll`` decodes some hundred messages at once and returns them one at a time; applications cannot see the difference."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.confluent import Message
from consumer_coord.errors import WakeupError
from consumer_coord.fetch import Fetcher, FetchStart
from consumer_coord.group.classic_protocol.join_and_sync import ClassicProtocol
from consumer_coord.runtime.blocking_call import BlockingCall
from consumer_coord.runtime.locks import Bell
from consumer_coord.topic_partition import TopicPartition as PartitionOf
from tests.support.consumer.embedded import BROKER, DEADLINE_S, consumer, held, poll_each, produce, row, take
from tests.support.waiting import eventually
from tests.support.white_box import coordinator_of, data_plane, waits_quietly

COUNT = 60
#: No heartbeat, whose response may announce a rebalance, is due during the test.
_RARE: Mapping[str, Any] = {"session.timeout.ms": 300_000, "heartbeat.interval.ms": 200_000}


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


def test_the_position_lies_before_what_was_read_ahead(kafka: EmbeddedKafka) -> None:
    with consumer(kafka, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        assert _positions(one) == _next_offsets(messages)
        messages += one.consume(10, 5)
        assert _positions(one) == _next_offsets(messages), "consume continues where poll ended"


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


def test_a_pause_that_ends_before_the_next_poll_costs_no_step_of_the_loop(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(kafka, **_RARE, enable_auto_commit=False) as one:
        one.subscribe(["orders"])
        messages = _polled(one)
        data_plane(one).read_ahead(2 * COUNT - len(messages))
        steps: list[BlockingCall] = []
        run = BlockingCall.run

        def counted(call: BlockingCall, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            steps.append(call)
            return run(call, work)

        monkeypatch.setattr(BlockingCall, "run", counted)
        for _ in range(5):
            one.pause(one.assignment())
            assert one.paused() == frozenset(one.assignment())
            one.resume(one.assignment())
            assert one.paused() == frozenset()
            messages += take(one, 1)
        assert not steps
        one.pause([row(0)])
        messages += take(one, 1)
        assert steps
        assert messages[-1].partition() == 1
        one.resume([row(0)])
        messages += take(one, 2 * COUNT - len(messages))
        assert _next_offsets(messages) == {0: COUNT, 1: COUNT}


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


def _is_quiet(one: GroupConsumer) -> bool:
    assert one.poll(0.01) is None
    return waits_quietly(one)


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
        application, waits = coordinator_of(one).application, list[float]()
        bell = application.bell

        class RungBell(Bell):
            def wait(self, timeout_s: float | None = None) -> bool:
                assert timeout_s is not None
                waits.append(timeout_s)
                application.wake()
                assert super().wait(DEADLINE_S), "news end the wait"
                return True

        application.bell = RungBell()
        try:
            one.poll(0.1)
        finally:
            application.bell = bell
        assert waits[:1] == [0.1]
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


def test_records_may_arrive_while_a_long_call_makes_room(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with consumer(kafka, librdkafka_enable=False) as one:
        one.subscribe(["orders"])
        _polled(one)
        reader = data_plane(one).reader
        advance, before = Fetcher.advance, len(reader.items())

        def as_records_arrive(self: Fetcher, partition: PartitionOf, serial: int, offset: int) -> None:
            if len(reader.items()) == before:
                produce(kafka, "orders", {0: range(1), 1: range(1)})
                eventually(lambda: len(reader.items()) > before)
            advance(self, partition, serial, offset)

        monkeypatch.setattr(Fetcher, "advance", as_records_arrive)
        reader.exceed()
        assert len(reader.items()) > before
