"""How a thread reaches the engine of a blocking consumer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from itertools import starmap
from operator import methodcaller
from typing import Any, Generic, ParamSpec, TypeVar

from consumer_coord.confluent.arguments import checked_rows
from consumer_coord.confluent.kafka_exceptions import drop_in_exceptions, to_kafka_exception
from consumer_coord.consumer.engine import GRACE_S, Engine
from consumer_coord.consumer.partitions import Phase
from consumer_coord.consumer.thread_turns import ThreadTurns
from consumer_coord.errors import CoordinatorError, RequestTimedOutError
from consumer_coord.group.commits import Entry
from consumer_coord.offsets import CommitResult
from consumer_coord.runtime.locks import Bell
from consumer_coord.threads.blocking_coordinator import BlockingCoordinator
from consumer_coord.topic_partition import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")

_SEND = methodcaller("send", None)


class Done(Generic[T]):
    """An awaitable with its result."""

    def __init__(self, result: T) -> None:
        self._result = result

    def __await__(self) -> Generator[None, None, T]:
        yield from ()
        return self._result


def run_blocking(work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **keywords: P.kwargs) -> T:
    """Run a coroutine that awaits nothing but :class:`Done` on the calling thread, and return its result."""
    try:
        # The coroutine is made and started without an instruction in between: if a signal handler raised there, Python would
        # warn that the coroutine was never awaited.
        next(map(_SEND, starmap(partial(work, *args, **keywords), ((),))))
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call of a blocking consumer has suspended")


class ThreadAccess:
    """See :class:`~consumer_coord.consumer.shared_calls.Access`, also for the methods, which block."""

    def __init__(
        self, engine: Engine, turns: ThreadTurns, coordinator: BlockingCoordinator, finish: Callable[[], None]
    ) -> None:
        """Reach an engine by a thread's turn or, beside it, by the coordinator's loop; ``finish`` is :meth:`finish`."""
        self._engine = engine
        self._turns = turns
        self._coordinator = coordinator
        self.finish: Callable[[], None] = finish

    def opened(self) -> Engine:
        self._turns.check_open()
        try:
            self._coordinator.check_process()
        except CoordinatorError as error:
            raise to_kafka_exception(error) from error.__cause__
        return self._engine

    def given(self, partitions: Any) -> list[Any]:
        return checked_rows(partitions)

    @property
    def callback(self) -> Phase | None:
        return self._engine.calling if self._turns.in_callback else None

    def use(self, work: Callable[[Engine], T]) -> Done[T]:
        return Done(self._turns.use(lambda: work(self._engine)))

    def run(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> Done[T]:
        return Done(self._turns.run(lambda: work(self._engine)))

    def change(self, work: Callable[[Engine], Coroutine[Any, Any, None]], *, in_callback: bool = True) -> Done[None]:
        self._turns.change(lambda: work(self._engine))
        return Done(None)

    def beside(self, work: Callable[[Engine], Coroutine[Any, Any, T]], limit_ms: float | None = None) -> Done[T]:
        with drop_in_exceptions():
            return Done(self._coordinator.call(lambda: work(self._engine), limit_ms))

    def commit(self, entries: Mapping[TopicPartition, Entry], timeout_ms: float | None) -> Done[CommitResult]:
        engine, bell = self._engine, Bell()
        ticket = engine.ticket(entries, timeout_ms, bell.set)
        engine.submit(ticket)
        limit_ms = engine.core.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        # The commit ends at its time limit. The additional time is for the case that the loop is blocked.
        if not bell.wait(limit_ms / 1000 + GRACE_S):
            return Done(dict.fromkeys(entries, RequestTimedOutError("the commit had no response in time")))
        return Done(ticket.answers)
