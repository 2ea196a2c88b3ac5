"""The consumer of a simulated member: the production consumer and engine over the simulated network and data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs

from assignors.base import Assignor
from consumer_coord.columns import ArrowColumns
from consumer_coord.config import Config, CoordinatorConfig
from consumer_coord.confluent.rows import Positions, Rows, committed_rows
from consumer_coord.consumer.arrow_arguments import entries_of
from consumer_coord.consumer.async_consumer import AsyncGroupConsumer
from consumer_coord.consumer.engine import Engine
from consumer_coord.environment import RunBlocking
from consumer_coord.group.commits import Ticket
from consumer_coord.group.subscription import NOTHING
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.simulation.columns import FetchWitness
from consumer_coord.simulation.data_plane import SimulatedPlane
from consumer_coord.simulation.scenario import Fetching
from consumer_coord.topic_partition import TopicPartition

#: Called with the completed ticket of a commit, which has the positions and the outcome.
Told = Callable[[Ticket], None]


class Inline(RunBlocking):
    """Runs the assignor inline, because a simulation has no threads."""

    def __call__(self, function, /):  # type: ignore[no-untyped-def]  # the protocol has the types
        """Run the function at once; return its finished future."""
        return asyncio.get_running_loop().run_in_executor(None, function)


class OwnCluster:
    """Lends the only client of one process, whereas production code shares a client between consumers."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster

    def acquire(self, config: ClientConfig) -> ClusterClient:
        """Return the only client, for any configuration."""
        return self.cluster

    async def release(self, config: ClientConfig) -> None:
        """Close the client's connections."""
        await self.cluster.close()


class SimulatedConsumer(AsyncGroupConsumer):
    """The asyncio consumer, which also reports the outcomes of commits. A batch ends with the available messages."""

    def __init__(
        self,
        coordinator: CoordinatorConfig,
        cluster: ClusterClient,
        assignors: Sequence[Assignor],
        plane: SimulatedPlane,
        *,
        auto_store: bool = True,
        fetching: Fetching | None = None,
        report: Callable[[Ticket], None],
        events: Callable[[], Awaitable[None]],
    ) -> None:
        """Create the consumer. With ``fetching``, the consumer reads columns with these settings."""
        config = Config(
            client=ClientConfig(bootstrap_servers=cluster.config.bootstrap_servers),
            coordinator=coordinator,
            strategy=(),
            isolation_level="read_uncommitted",
            librdkafka={},
        )
        if fetching is not None:
            config = attrs.evolve(
                config,
                isolation_level="read_committed" if fetching.transactions else "read_uncommitted",
                fetch_min_bytes=fetching.fetch_min_bytes,
                fetch_wait_max_ms=fetching.fetch_wait_max_ms,
                fetch_max_bytes=fetching.fetch_max_bytes,
                max_partition_fetch_bytes=fetching.max_partition_fetch_bytes,
                queued_max_messages_kbytes=fetching.queued_max_messages_kbytes,
            )
        # The simulated librdkafka checks leader epochs; the consumer does this only for columns.
        self._checks_commits = fetching is not None
        self._on_commit = None
        self._auto_store = auto_store
        self._report = report
        self._happened = events
        self.plane = plane
        clusters = OwnCluster(cluster)
        self._set_up(config, assignors, plane, lambda: clusters)

    @property
    def engine(self) -> Engine:
        """The engine of this consumer."""
        assert self._made is not None
        return self._made

    @property
    def witness(self) -> SimulatedPlane | FetchWitness:
        """The data plane in use, for checkers."""
        return self.plane if self._arrow is None else FetchWitness(self._arrow.plane)

    @property
    def sees_ends(self) -> bool:
        """Whether the data plane in use sees what leaders say about the ends of logs: this package's own Fetch."""
        return self._made is not None and self._made.worker.plane.log_ends() is not None

    @property
    def subscribed(self) -> bool:
        """Whether the consumer has a subscription. ``unsubscribe()`` removes the subscription only after the last callback."""
        return self._subscription is not NOTHING

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
        async with self._used() as engine:
            positions = engine.finished() if wanted is None else wanted
            if not positions:
                return None
            await engine.commits.make_room()
            return engine.commit_later(engine.entries(positions))

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
        await self._report_outcomes()
        await self._happened()


def runs_of(messages: Sequence[Any]) -> list[tuple[TopicPartition, int, int]]:
    """Return (partition, first offset, end offset) of each run of consecutive records, without events."""
    runs: list[tuple[TopicPartition, int, int]] = []
    for message in messages:
        if message.error() is not None:
            continue
        partition, offset = TopicPartition(message.topic(), message.partition()), message.offset()
        if runs and runs[-1][0] == partition and runs[-1][2] == offset:
            runs[-1] = (partition, runs[-1][1], offset + 1)
        else:
            runs.append((partition, offset, offset + 1))
    return runs
