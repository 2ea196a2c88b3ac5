"""The tasks that send Fetch requests, shared by all fetchers of one client that have the same settings."""

from __future__ import annotations

import asyncio
from typing import Final

from consumer_coord.errors import CoordinatorError, FatalError
from consumer_coord.fetch.broker import BrokerFetches
from consumer_coord.fetch.leaders import Leaders
from consumer_coord.fetch.partition_state import FetchState, Owner
from consumer_coord.fetch.values import FetchConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.printable import get_logger

logger: Final = get_logger(__name__)


class SharedFetches:
    """The tasks for each broker. Fifty idle consumers in a process have one connection to each broker for Fetches, not fifty.

    While a Fetch waits for new records of idle partitions, a second task fetches the other partitions. When the first Fetch
    ends, the first task takes over the partitions that have become idle; until then, the Fetches of the second task wait only
    briefly. A fetch session contains each partition only once, so if several fetchers read the same partition, there are more
    tasks.
    """

    def __init__(self, cluster: ClusterClient, config: FetchConfig) -> None:
        self.leaders: Leaders = Leaders(cluster)
        self._cluster = cluster
        self._config = config
        self._users: dict[Owner, None] = {}
        self._brokers: dict[int, list[BrokerFetches]] = {}
        self._tasks: dict[BrokerFetches, asyncio.Task[None]] = {}

    @classmethod
    def join(cls, user: Owner, cluster: ClusterClient, config: FetchConfig) -> SharedFetches:
        """Return the tasks of the open fetchers with this client and these settings; ``user`` must :meth:`leave`."""
        shared: SharedFetches = cluster.shared.setdefault((cls, config), cls(cluster, config))
        shared._users[user] = None
        return shared

    @property
    def by_id(self) -> bool:
        """True if the last request of every task named topics by id."""
        return all(task.by_id for task in self._tasks)

    def task_for(self, broker_id: int, state: FetchState) -> BrokerFetches:
        """Return the task that fetches a partition from a broker without delay; start the task if necessary."""
        tasks = self._brokers.setdefault(broker_id, [])
        possible = [one for one in tasks if one.partitions.get(state.partition, state) is state]
        for task in sorted(possible, key=lambda one: one is not state.task):
            if task.serves(state):
                return task
        task = BrokerFetches(self._cluster, self._config, self.leaders, broker_id, tasks)
        running = asyncio.get_running_loop().create_task(task.run(), name=f"fetch from broker {broker_id}")
        running.add_done_callback(lambda done: self._ended(task, done))
        self._tasks[task] = running
        tasks.append(task)
        return task

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
        await asyncio.gather(*(task.end_session() for task in tasks))

    def _ended(self, task: BrokerFetches, running: asyncio.Task[None]) -> None:
        """Report the error that ended a task: an error that the application must correct, or a crash."""
        if self._tasks.pop(task, None) is None or running.cancelled():
            return
        self._brokers[task.broker_id].remove(task)
        error = running.exception()
        if isinstance(error, FatalError):
            failure: CoordinatorError = error
        else:
            logger.error("a task of the fetcher crashed", exc_info=error)
            failure = CoordinatorError(f"{running.get_name()!r} crashed: {error!r}; please report this")
            failure.__cause__ = error
        for owner in dict.fromkeys(state.owner for state in task.partitions.values()):
            owner.fail(failure)
