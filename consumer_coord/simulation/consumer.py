"""The consumer of a simulated member: the production consumer, over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from assignors.base import Assignor
from consumer_coord.columns import ArrowColumns
from consumer_coord.confluent.topic_partitions import Positions, Rows, committed_rows
from consumer_coord.consumer.arrow_arguments import entries_of
from consumer_coord.consumer.async_consumer import AsyncGroupConsumer
from consumer_coord.consumer.engine import Engine
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.environment import RunBlocking
from consumer_coord.group.commits import Ticket
from consumer_coord.group.subscription import NOTHING
from consumer_coord.simulation.columns import FetchWitness
from consumer_coord.simulation.loop import run_inline

#: Called with the completed ticket of a commit, which has the positions and the outcome.
Told = Callable[[Ticket], None]


class Inline(RunBlocking):
    """Runs the assignor inline, because a simulation has no threads."""

    def __call__(self, function, /):  # type: ignore[no-untyped-def]  # the protocol has the types
        """Run the function at once; return its finished future."""
        return run_inline(asyncio.get_running_loop(), function)


class SimulatedConsumer(AsyncGroupConsumer):
    """The asyncio consumer, which also reports the outcomes of commits, and calls the application between two waits."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        assignors: Sequence[Assignor] | None,
        *,
        report: Callable[[Ticket], None],
        events: Callable[[], Awaitable[None]],
    ) -> None:
        """Create the consumer as any application does."""
        super().__init__(settings, assignors=assignors)
        self._report = report
        self._happened = events

    @property
    def engine(self) -> Engine:
        """The engine of this consumer."""
        assert self._made is not None
        return self._made

    @property
    def witness(self) -> FetchWitness:
        """What is fetched, for checkers."""
        reader = self.engine.reader
        assert isinstance(reader, Reader)
        return FetchWitness(reader)

    @property
    def begun(self) -> bool:
        """Whether the consumer has been used, so that it has an engine."""
        return self._made is not None

    @property
    def subscribed(self) -> bool:
        """Whether the consumer has a subscription. ``unsubscribe()`` removes the subscription only after the last callback."""
        return self._shared.subscribed is not NOTHING

    async def consume_some(self, count: int, timeout: float) -> list[Any]:
        """Wait for one message, and return up to ``count``."""
        return await self._take(1, count, timeout)

    async def commit_now(self, timeout: float, wanted: Positions | None = None) -> Rows:
        """Commit the given positions, or all finished positions, and wait for the response."""
        rows = await self.commit(None, None if wanted is None else committed_rows(wanted), asynchronous=False, timeout=timeout)
        assert rows is not None
        return rows

    async def commit_later(self, wanted: Positions | None) -> Ticket | None:
        """Commit the given positions, or all finished positions, without waiting. A later call reports the outcome."""
        # Like ``commit``: the ownership of given positions is that of the moment of the call.
        entries = None if wanted is None else self.engine.entries(wanted)
        async with self._used() as engine:
            if entries is None:
                entries = engine.entries(engine.finished())
            if not entries:
                return None
            await engine.commits.make_room()
            return engine.commit_later(entries)

    async def commit_batch_later(self, batch: ArrowColumns) -> Ticket:
        """Commit a batch without waiting, like :meth:`commit_later`."""
        entries = entries_of(batch)
        assert entries is not None
        async with self._used() as engine:
            await engine.commits.make_room()
            return engine.commit_later(entries)

    async def _report_outcomes(self) -> None:
        for ticket in self.engine.commits.take():
            self._report(ticket)

    async def _deliver_events(self) -> None:
        await super()._deliver_events()
        await self._happened()
