"""How a task reaches the engine of an asyncio consumer, on the consumer's loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from consumer_coord.confluent.kafka_exceptions import kafka_exceptions
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.partitions import Phase
from consumer_coord.group.commits import Entry
from consumer_coord.offsets import CommitResult
from consumer_coord.topic_partition import TopicPartition

T = TypeVar("T")


class Turn(Protocol):
    """Returns a context that provides the engine and excludes other tasks; ``in_callback``: whether a callback's task may."""

    def __call__(self, *, in_callback: bool = True) -> AbstractAsyncContextManager[Engine]: ...


class TaskAccess:
    """See :class:`~consumer_coord.consumer.shared_calls.Access`, also for the methods."""

    def __init__(
        self, start: Callable[[], Engine], turn: Turn, in_callback: Callable[[], bool], finish: Callable[[], None]
    ) -> None:
        """Reach the engine that ``start`` returns, after it has checked the loop; ``finish`` is :meth:`finish`."""
        self._start = start
        self._turn = turn
        self._in_callback = in_callback
        self.finish: Callable[[], None] = finish

    def opened(self) -> Engine:
        with kafka_exceptions():
            return self._start()

    def given(self, partitions: Any) -> list[Any]:
        return list(partitions)

    @property
    def callback(self) -> Phase | None:
        return self.opened().calling if self._in_callback() else None

    async def use(self, work: Callable[[Engine], T]) -> T:
        async with self._turn() as engine:
            return work(engine)

    async def run(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        async with self._turn() as engine:
            return await work(engine)

    async def change(self, work: Callable[[Engine], Coroutine[Any, Any, None]], *, in_callback: bool = True) -> None:
        async with self._turn(in_callback=in_callback) as engine:
            await work(engine)

    async def beside(self, work: Callable[[Engine], Coroutine[Any, Any, T]], limit_ms: float | None = None) -> T:
        with kafka_exceptions():
            return await work(self.opened())

    async def commit(self, entries: Mapping[TopicPartition, Entry], timeout_ms: float | None) -> CommitResult:
        return await self.opened().commit(entries, timeout_ms)
