"""The thread that takes messages from librdkafka, with a handle in memory: records, events, positions, errors, bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka import cimpl

from consumer_coord.confluent import OFFSET_INVALID, KafkaError
from consumer_coord.confluent import TopicPartition as Row
from consumer_coord.consumer.librdkafka import pump
from consumer_coord.consumer.librdkafka.handle import Librdkafka
from consumer_coord.consumer.librdkafka.pump import Pump
from consumer_coord.consumer.reading.chunks import MessageChunk, ReadingEvent
from consumer_coord.errors import FatalError
from consumer_coord.fetch import FetchStart, Stopped, StopReason
from consumer_coord.topic_partition import TopicPartition
from tests.support.waiting import eventually_async

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Message:
    """A message, or an event with an error."""

    def __init__(self, partition: TopicPartition | None, offset: int | None, error: KafkaError | None = None) -> None:
        self.at, self._offset, self._error = partition, offset, error

    def __len__(self) -> int:
        return 10

    def topic(self) -> str | None:
        return None if self.at is None else self.at.topic

    def partition(self) -> int | None:
        return None if self.at is None else self.at.partition

    def offset(self) -> int | None:
        return self._offset

    def leader_epoch(self) -> None:
        return None

    def error(self) -> KafkaError | None:
        return self._error


class Handle:
    """A handle that returns what a test puts into it, and notes its calls."""

    def __init__(self, *_: object) -> None:
        self.waiting: list[Message] = []
        self.calls: list[tuple[str, list[tuple[int, int]]]] = []
        self.positions: dict[int, int] = {}
        self.failure: Exception | None = None
        self.closed_by: int | None = None
        self._never = threading.Event()

    def poll(self, timeout: float) -> Message | None:
        if not self.waiting:
            self._never.wait(min(timeout, 0.002))
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, most: int, timeout: float) -> list[Message]:
        if self.failure is not None:
            raise self.failure
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def incremental_assign(self, rows: list[Row]) -> None:
        self.calls.append(("assign", [(row.partition, row.offset) for row in rows]))

    def incremental_unassign(self, rows: list[Row]) -> None:
        self.calls.append(("unassign", [(row.partition, 0) for row in rows]))

    def position(self, rows: list[Row]) -> list[Row]:
        return [Row(row.topic, row.partition, self.positions.get(row.partition, OFFSET_INVALID)) for row in rows]

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return (3, 9)

    def list_topics(self, *_: object, **__: object) -> Any:
        return cimpl_metadata()

    def close(self) -> None:
        self.closed_by = threading.get_ident()


def cimpl_metadata() -> Any:
    from confluent_kafka.admin import ClusterMetadata

    return ClusterMetadata()


def play(monkeypatch: pytest.MonkeyPatch, story: Callable[[Pump, Handle], Awaitable[None]]) -> None:
    """Run a story with a pump over a handle in memory, and check that the thread closes the handle."""
    monkeypatch.setattr(cimpl, "Consumer", Handle)

    async def main() -> None:
        librdkafka = Librdkafka({"group.id": "g"})
        one = Pump(librdkafka, on_ready=lambda: None, on_event=lambda: None)
        handle: Handle = librdkafka.handle
        try:
            await story(one, handle)
        finally:
            await one.close()
        assert handle.closed_by not in (None, threading.get_ident())

    asyncio.run(main())


async def next_item(one: Pump) -> Any:
    """Return the next item of a pump."""
    found: list[Any] = []
    await eventually_async(lambda: found, step=lambda: _more(one, found))
    return found[0]


async def _more(one: Pump, found: list[Any]) -> None:
    found.extend(one.take(1))
    await asyncio.sleep(0.001)


async def assigned(one: Pump, handle: Handle, starts: dict[TopicPartition, FetchStart]) -> None:
    """Assign partitions, and wait until the thread has done so."""
    before = len(handle.calls)
    one.assign(starts)
    await eventually_async(lambda: any(name == "assign" for name, _ in handle.calls[before:]))


def test_messages_have_the_serial_number_of_the_assignment_that_brought_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Pump, handle: Handle) -> None:
        await assigned(one, handle, {T0: FetchStart(1, 5)})
        handle.waiting = [Message(T0, 5), Message(T0, 6)]
        chunk = await next_item(one)
        assert isinstance(chunk, MessageChunk)
        assert (chunk.serial, chunk.start, chunk.end, len(chunk.messages)) == (1, 5, 7, 2)
        await assigned(one, handle, {T0: FetchStart(2, 0)})
        handle.waiting = [Message(T0, 0), Message(T1, 3)]
        chunk = await next_item(one)
        assert (chunk.serial, chunk.start, chunk.end) == (2, 0, 1)
        assert handle.calls == [("assign", [(0, 5)]), ("unassign", [(0, 0)]), ("assign", [(0, 0)])]
        one.unassign([T0])
        await eventually_async(lambda: handle.calls[-1] == ("unassign", [(0, 0)]))
        handle.waiting = [Message(T0, 1)]
        await eventually_async(lambda: not handle.waiting)
        assert not one.ready, "neither partition is assigned"

    play(monkeypatch, story)


def test_an_offset_out_of_range_ends_the_reading_and_an_event_about_another_offset_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(one: Pump, handle: Handle) -> None:
        await assigned(one, handle, {T0: FetchStart(1, 5)})
        lapsed = KafkaError(KafkaError._AUTO_OFFSET_RESET)
        for offset in (1_000, None):
            handle.calls.clear()
            handle.waiting = [Message(T0, offset, lapsed)]
            again = [("unassign", [(0, 0)]), ("assign", [(0, 5)])]
            await eventually_async(lambda: handle.calls == again)  # noqa: B023 - awaited at once
            assert not one.ready
        handle.waiting = [Message(T0, 5, lapsed)]
        stopped = await next_item(one)
        assert isinstance(stopped, Stopped)
        assert (stopped.serial, stopped.reason, stopped.offset) == (1, StopReason.OUT_OF_RANGE, 5)

    play(monkeypatch, story)


def test_events_are_passed_on_also_those_of_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Pump, handle: Handle) -> None:
        await assigned(one, handle, {T0: FetchStart(1, 0)})
        refused = Message(None, None, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
        end = Message(T0, 0, KafkaError(KafkaError._PARTITION_EOF))
        handle.waiting = [refused, end]
        found: list[Any] = []
        await eventually_async(lambda: len(found) == 2, step=lambda: _more(one, found))
        assert all(isinstance(event, ReadingEvent) for event in found)
        assert [(event.message, event.at) for event in found] == [(refused, None), (end, T0)]

    play(monkeypatch, story)


def test_positions_pass_what_has_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Pump, handle: Handle) -> None:
        await assigned(one, handle, {T0: FetchStart(1, 0)})
        handle.positions[0] = 4
        chunk = await next_item(one)
        assert (chunk.start, chunk.end, list(chunk.messages)) == (0, 4, [])
        await eventually_async(lambda: one.watermarks(T0) == (3, 9))

    play(monkeypatch, story)


def test_the_thread_waits_while_enough_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "_MOST_MESSAGES", 10)
    monkeypatch.setattr(pump, "_BATCH", 5)

    async def story(one: Pump, handle: Handle) -> None:
        await assigned(one, handle, {T0: FetchStart(1, 0)})
        handle.waiting = [Message(T0, offset) for offset in range(30)]
        await eventually_async(lambda: len(handle.waiting) <= 20)
        await asyncio.sleep(0.05)
        assert len(handle.waiting) >= 15
        offsets: list[int] = []
        while len(offsets) < 30:
            offsets += [message.offset() for message in (await next_item(one)).messages]
        assert offsets == list(range(30))

    play(monkeypatch, story)


def test_an_error_of_the_handle_is_raised_by_the_next_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Pump, handle: Handle) -> None:
        await assigned(one, handle, {T0: FetchStart(1, 0)})
        handle.failure = RuntimeError("broken")
        await eventually_async(lambda: one.ready)
        with pytest.raises(FatalError, match="librdkafka: broken"):
            one.take(1)

    play(monkeypatch, story)
