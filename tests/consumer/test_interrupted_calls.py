"""An exception that ends poll, consume or close early loses no record, leaves no lock held, and stops no partition."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from tests.support.consumer.embedded import BROKER, DEADLINE_S, GROUP, held, produce, row, take
from tests.support.consumer.embedded import consumer as keeping_consumer
from tests.support.consumer.interrupts import Interrupt, keep_quiet_in_destructors
from tests.support.waiting import eventually
from tests.support.white_box import data_plane, turns_of

COUNT = 3_000
INTERRUPTS = 60


@pytest.fixture(autouse=True)
def _quiet_destructors(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_quiet_in_destructors(monkeypatch)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 3}, config=BROKER) as running:
        produce(running, "orders", {number: range(COUNT // 3) for number in range(3)})
        yield running


def plain_consumer(kafka: EmbeddedKafka, **settings: Any) -> GroupConsumer:
    return GroupConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            **{key if callable(value) else key.replace("_", "."): value for key, value in settings.items()},
        }
    )


def _inside_the_client(frame: FrameType | None) -> bool:
    """Return whether a signal arrived while code of the client ran, or code that the client called.

    Callbacks of Python's garbage collector (hypothesis has one) do not count: an exception in such a callback is printed and
    dropped.
    """
    if frame is not None and frame.f_code.co_name == "gc_callback":
        return False
    while frame is not None:
        if "/consumer_coord/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@pytest.mark.slow
@pytest.mark.behaviour(24)
@pytest.mark.parametrize("how", ["poll", "consume"])
def test_a_signal_handler_that_raises_again_and_again_skips_nothing(kafka: EmbeddedKafka, how: str) -> None:
    """The signals come from another thread at random times; each may arrive between any two bytecodes of the client."""
    ended = threading.Event()
    main = threading.get_ident()

    def raise_interrupt(_: int, frame: FrameType | None) -> None:
        if _inside_the_client(frame):
            raise Interrupt

    def interrupt() -> None:
        while not ended.wait(0.003):
            signal.pthread_kill(main, signal.SIGUSR1)

    one = plain_consumer(kafka, enable_auto_commit=False)
    one.subscribe(["orders"])
    behind: dict[int, int] = {0: 0, 1: 0, 2: 0}
    raised = 0
    former = signal.signal(signal.SIGUSR1, raise_interrupt)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        while sum(behind.values()) < COUNT or raised < INTERRUPTS:
            try:
                batch = one.consume(50, 0.02) if how == "consume" else [one.poll(0.02)]
            except Interrupt:
                raised += 1
                continue
            for message in batch:
                if message is not None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset == behind[partition], "a record was skipped, or delivered twice"
                    behind[partition] += 1
    finally:
        ended.set()
        thread.join(DEADLINE_S)
        signal.signal(signal.SIGUSR1, former)
    assert behind == dict.fromkeys(range(3), COUNT // 3)
    assert one.poll(0) is None
    assert held(one) == [0, 1, 2]
    one.close()
    assert kafka.group_state(GROUP) == "Empty"


@pytest.mark.parametrize("how", ["poll", "consume"])
def test_callbacks_of_librdkafka_that_raise_skip_nothing(kafka: EmbeddedKafka, how: str) -> None:
    raised = 0

    def stats(text: str) -> None:
        assert json.loads(text)
        # On a busy machine each poll comes later than the next statistics: without a limit, polls would only deliver
        # statistics.
        if raised < 200:
            raise Interrupt

    # A callback per millisecond would be too many for a busy machine, and the backlog would grow.
    one = plain_consumer(kafka, stats_cb=stats, statistics_interval_ms=20)
    one.subscribe(["orders"])
    offsets: dict[int, list[int]] = {number: [] for number in range(3)}
    while sum(map(len, offsets.values())) < COUNT or raised < 20:
        try:
            batch = one.consume(40, 0.02) if how == "consume" else [one.poll(0.02)]
        except Interrupt:
            raised += 1
            continue
        for message in batch:
            if message is not None:
                offsets[message.partition() or 0].append(message.offset() or 0)
    assert all(found == list(range(COUNT // 3)) for found in offsets.values())
    one.close()


@pytest.mark.behaviour(42)
def test_rebalance_callbacks_that_raise_skip_nothing(kafka: EmbeddedKafka) -> None:
    def failing(*_: Any) -> None:
        raise Interrupt

    one = plain_consumer(kafka)
    one.subscribe(["orders"], on_assign=failing, on_revoke=failing)
    offsets: list[tuple[int, int]] = []

    def read(count: int) -> None:
        while len(offsets) < count:
            try:
                message = one.poll(0.1)
            except Interrupt:
                continue
            if message is not None:
                offsets.append((message.partition() or 0, message.offset() or 0))

    read(100)
    with keeping_consumer(kafka) as two:
        two.subscribe(["orders"])
        ends: Callable[[], bool] = lambda: len(held(two)) == 1 and len(held(one)) == 2  # noqa: E731
        while not ends():
            two.poll_and_keep()
            read(len(offsets) + 1)
    with pytest.raises(Interrupt):
        one.close()
    one.close()
    for partition in range(3):
        found = [offset for number, offset in offsets if number == partition]
        assert found == list(range(len(found)))


@pytest.mark.behaviour(45)
def test_a_close_that_was_interrupted_is_closed_by_another_call(kafka: EmbeddedKafka) -> None:
    def failing(*_: Any) -> None:
        raise Interrupt

    with keeping_consumer(kafka) as one:
        one.subscribe(["orders"], on_revoke=failing)
        eventually(lambda: held(one) == [0, 1, 2], step=one.poll_and_keep)
        with pytest.raises(Interrupt):
            one.close()
    assert kafka.group_state(GROUP) == "Empty"


@pytest.mark.behaviour(24)
def test_a_position_lies_before_what_only_an_interrupted_call_had(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("more")
    with keeping_consumer(kafka) as one:
        one.subscribe(["more"])
        eventually(lambda: data_plane(one).assigned, step=one.poll_and_keep)
        produce(kafka, "more", {0: range(5)})
        data_plane(one).lose(2)
        assert one.position([row(0, topic="more")])[0].offset <= 0
        assert [message.offset() for message in take(one, 5)] == list(range(5))
        assert one.position([row(0, topic="more")])[0].offset == 5


@pytest.mark.behaviour(24)
def test_a_close_of_a_manual_assignment_commits_nothing_that_only_an_interrupted_call_had(kafka: EmbeddedKafka) -> None:
    with keeping_consumer(kafka) as one:
        one.assign([row(0, 3)])
        data_plane(one).lose(2)
    with keeping_consumer(kafka) as two:
        assert two.committed([row(0)], 10)[0].offset == 3


def test_calls_that_await_nothing_need_no_step_on_the_loop(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[Any] = []
    with keeping_consumer(kafka, enable_auto_offset_store=False) as one:

        def on_assign(_: object, partitions: list[Any]) -> None:
            inside.extend((one.assignment(), one.position(partitions), one.paused()))

        one.subscribe(["orders"], on_assign=on_assign)
        (message,) = take(one, 1)
        assert [len(each) for each in inside] == [3, 3, 0]
        at = row(message.partition())
        with monkeypatch.context() as patched:
            patched.setattr(turns_of(one), "on_loop", lambda work: pytest.fail("a step on the loop"))
            one.store_offsets(message)
            assert [each.offset for each in one.position([at])] == [message.offset() + 1]
            assert len(one.assignment()) == 3
            assert not one.paused()
        (committed,) = one.commit(asynchronous=False) or []
        assert (committed.partition, committed.offset) == (message.partition(), message.offset() + 1)
