"""The Fetches from all brokers, shared by all fetchers of one client that have the same settings."""

from __future__ import annotations

import asyncio
from typing import Final

from consumer_coord.errors import CoordinatorError, FatalError
from consumer_coord.fetch.broker_fetches import BrokerFetches
from consumer_coord.fetch.lanes import Lane
from consumer_coord.fetch.leaders import Leaders
from consumer_coord.fetch.partition_state import Owner
from consumer_coord.fetch.values import FetchConfig
from consumer_coord.log_text import get_logger
from consumer_coord.net.cluster import ClusterClient

logger: Final = get_logger(__name__)


class SharedFetches:
    """The Fetches from each broker: fifty idle consumers in a process have one connection to each broker for them, not fifty.

    A fetch session contains each partition only once, so if several fetchers read the same partition, there are more sessions.
    """

    def __init__(self, cluster: ClusterClient, config: FetchConfig) -> None:
        self.leaders: Leaders = Leaders(cluster)
        self._cluster = cluster
        self._config = config
        self._users: dict[Owner, None] = {}
        self._brokers: dict[int, BrokerFetches] = {}
        self._tasks: dict[Lane, asyncio.Task[None]] = {}

    @classmethod
    def join(cls, user: Owner, cluster: ClusterClient, config: FetchConfig) -> SharedFetches:
        """Return the Fetches of the open fetchers with this client and these settings; ``user`` must :meth:`leave`."""
        shared: SharedFetches = cluster.shared.setdefault((cls, config), cls(cluster, config))
        shared._users[user] = None
        return shared

    @property
    def by_id(self) -> bool:
        """True if the last request to every broker named topics by id."""
        return all(broker.by_id for broker in self._brokers.values())

    def fetches_from(self, broker_id: int) -> BrokerFetches:
        """Return the Fetches from a broker."""
        if broker_id not in self._brokers:
            self._brokers[broker_id] = BrokerFetches(self._cluster, self._config, self.leaders, broker_id, self._run)
        return self._brokers[broker_id]

    def _run(self, broker: BrokerFetches, lane: Lane) -> None:
        running = asyncio.get_running_loop().create_task(broker.run(lane), name=f"fetch from broker {broker.broker_id}")
        running.add_done_callback(lambda done: self._ended(broker, lane, done))
        self._tasks[lane] = running

    async def leave(self, user: Owner) -> None:
        """Remove a fetcher, which has no partition.

        After the last fetcher, end the tasks, and the fetch sessions at brokers to which a connection is open.
        """
        self._users.pop(user, None)
        if self._users:
            return
        self._cluster.shared.pop((type(self), self._config), None)
        tasks, self._tasks = self._tasks, {}
        for running in tasks.values():
            running.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        await asyncio.gather(*(broker.end_sessions() for broker in self._brokers.values()))

    def _ended(self, broker: BrokerFetches, lane: Lane, running: asyncio.Task[None]) -> None:
        """Report the error that ended a lane: an error that the application must correct, or a crash."""
        if self._tasks.pop(lane, None) is None or running.cancelled():
            return
        broker.lanes.remove(lane)
        error = running.exception()
        if isinstance(error, FatalError):
            failure: CoordinatorError = error
        else:
            logger.error("a task of the fetcher crashed", exc_info=error)
            failure = CoordinatorError(f"{running.get_name()!r} crashed: {error!r}; please report this")
            failure.__cause__ = error
        for owner in dict.fromkeys(state.owner for state in broker.partitions):
            owner.fail(broker, failure)
        if isinstance(error, FatalError):
            broker.check()
