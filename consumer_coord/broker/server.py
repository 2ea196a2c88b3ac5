"""The embedded Kafka: a cluster in this process, with its own thread and event loop, which listens on loopback addresses.

Use it for demos and tests only; in production, use Apache Kafka. ``docs/embedded-kafka.md`` lists the missing features.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from consumer_coord.broker.client_metrics import PushedMetrics, check_subscription
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.connection import Listener, RequestMemory
from consumer_coord.broker.data_dir import DataDirectory
from consumer_coord.broker.faults import Fault, FaultHook
from consumer_coord.broker.topic_settings import check_topic_settings
from consumer_coord.errors import ClosedError, ConfigurationError
from consumer_coord.runtime.locks import Bell
from consumer_coord.runtime.outcome import start_on
from consumer_coord.wire.apis import APIS

T = TypeVar("T")

#: By default, Kafka waits three seconds for more members of a new group. The embedded Kafka does not wait, as in the settings
#: of Kafka's quick start.
_DEFAULTS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0}
_IDLE_CHECK_S = 10.0
_API_KEYS = {api.name: api.key for api in APIS.values()}


def _checked(topics: Any) -> dict[str, int]:
    """Return name -> number of partitions; raise TypeError or ValueError if the argument is invalid."""
    if topics is None:
        return {}
    if not isinstance(topics, Mapping):
        raise TypeError(f"topics takes a dictionary, name -> number of partitions, such as {{'orders': 3}}, not {topics!r}")
    for name, partitions in topics.items():
        if not isinstance(name, str) or not isinstance(partitions, int) or partitions < 1:
            raise ValueError(f"topics: {name!r} needs a number of partitions that is at least 1, not {partitions!r}")
    return dict(topics)


class EmbeddedKafka:
    """A Kafka cluster inside this process; use it with ``with`` or ``async with``.

    ``topics`` (name -> number of partitions) are created at the start. ``config`` has broker settings by Kafka's dotted names.
    ``racks`` are the racks of the brokers. With ``data_dir``, topics, records, groups and offsets survive a restart, even after
    a kill of the process; only one cluster at a time can use a directory. With an equal ``seed``, generated ids are equal.
    Brokers are numbered from 0, and broker 0 listens on ``port``, or on any free port if ``port`` is 0.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        brokers: int = 1,
        *,
        config: Mapping[str, object] | None = None,
        racks: Sequence[str | None] = (),
        data_dir: str | Path | None = None,
        seed: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if brokers < 1:
            raise ConfigurationError(f"a cluster must have at least one broker, not {brokers}")
        if not 0 <= port <= 65_535:
            raise ConfigurationError(f"the port of a broker is a number from 0 to 65535, not {port}")
        self._topics = _checked(topics)
        self._brokers = brokers
        self._config = BrokerConfig.from_mapping({**_DEFAULTS, **(config or {})})
        self._racks = racks
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._random = random.Random(seed)
        self._host = host
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: BrokerCluster | None = None
        self._listeners: list[Listener] = []
        self._failures: list[BaseException] = []
        self._memory = RequestMemory(self._config.queued_max_request_bytes)
        self._storage: DataDirectory | None = None

    # -- start and stop

    def start(self) -> EmbeddedKafka:
        """Start all brokers; return when clients can connect.

        Raise :class:`OSError` for an unavailable address, and :class:`~consumer_coord.errors.ConfigurationError` for a
        ``data_dir`` that is invalid, damaged, or in use.
        """
        if self._thread is not None:
            raise ClosedError("this EmbeddedKafka was started before: create a new one")
        started = Bell()
        problem: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(started, problem), name="embedded-kafka", daemon=True)
        self._thread.start()
        started.wait()
        if problem:
            self._thread.join()
            raise problem[0]
        return self

    def close(self) -> None:
        """Stop all brokers and wait for the thread; idempotent.

        If a broker has failed since the start, raise its error, because this is a bug of the broker that must fail the test.
        """
        loop, thread = self._loop, self._thread
        self._loop = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        if self._failures:
            raise self._failures.pop(0)

    def __enter__(self) -> EmbeddedKafka:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> EmbeddedKafka:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # -- addresses

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as the setting ``bootstrap.servers``."""
        return ",".join(f"{node.host}:{node.port}" for node in self._running.nodes)

    @property
    def brokers(self) -> Sequence[int]:
        """The ids of all brokers."""
        return tuple(node.broker_id for node in self._running.nodes)

    @property
    def cluster_id(self) -> str:
        """The cluster's id, which a ``data_dir`` preserves."""
        return self._running.cluster_id

    # -- topics

    def topics(self) -> Mapping[str, int]:
        """Return topic -> number of partitions, without Kafka's internal topics."""

        def present() -> Mapping[str, int]:
            topics = self._running.topics.by_name.values()
            return {topic.name: len(topic.partitions) for topic in topics if not topic.internal}

        return self._call(present)

    @property
    def open_connections(self) -> int:
        """The current number of client connections to the brokers."""
        return self._call(lambda: sum(listener.open_connections for listener in self._listeners))

    def create_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        """Add a topic; raise :class:`~consumer_coord.errors.ConfigurationError` for an unknown or illegal setting."""
        checked = check_topic_settings(configs or {})
        self._call(lambda: self._running.create_topic(name, partitions, configs=checked))

    def clean_topic(self, name: str) -> None:
        """Delete records older than ``retention.ms``; with ``cleanup.policy=compact``, keep only the last record of each key.

        Kafka does this from time to time, and leaves the newest segment of a log as it is. Here, all records take part except
        those of open transactions and the newest batch, so that a test can read a log with gaps. Raise :class:`KeyError` if the
        topic does not exist.
        """
        self._call(lambda: self._running.clean_topic(name))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Add partitions to a topic, up to a total of ``partitions``."""
        self._call(lambda: self._running.grow_topic(name, partitions))

    def delete_topic(self, name: str) -> None:
        """Remove a topic and its committed offsets."""
        self._call(lambda: self._running.delete_topic(name))

    def recreate_topic(self, name: str, partitions: int = 1, *, configs: Mapping[str, str] | None = None) -> None:
        """Delete a topic and at once create a new topic with the same name, so that the name always exists for clients."""
        checked = check_topic_settings(configs or {})

        def recreate() -> None:
            self._running.delete_topic(name)
            self._running.create_topic(name, partitions, configs=checked)

        self._call(recreate)

    # -- faults

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker as a crash does: its connections end, and its partitions and groups move to other brokers."""

        async def stop() -> None:
            await self._listeners[broker_id].close()
            self._running.stop(broker_id)

        self._run_on_loop(stop())

    def start_broker(self, broker_id: int) -> None:
        """Restart a stopped broker at its former address."""

        async def start() -> None:
            node = self._running.node(broker_id)
            if not node.up:
                await self._listeners[broker_id].open(node.host, node.port)
                self._running.start(broker_id)

        self._run_on_loop(start())

    def coordinator_id(self, group_id: str) -> int | None:
        """Return the id of the broker that coordinates a group; None if the group has no coordinator at present."""
        node = self._call(lambda: self._running.coordinator_of(group_id))
        return None if node is None else node.broker_id

    def move_coordinator(self, group_id: str, to: int) -> None:
        """Make broker ``to`` the coordinator of a group, and of all other groups in its partition of ``__consumer_offsets``."""
        self._call(lambda: self._running.move_coordinator(self._running.coordinator_partition(group_id), to))

    def move_leader(self, topic: str, partition: int, to: int, *, end_offset: int | None = None) -> None:
        """Make broker ``to`` the leader of a partition. With ``end_offset``, remove later records (unclean election)."""
        self._call(lambda: self._running.move_leader(topic, partition, to, end_offset))

    def add_fault(self, api: str | int, fault: Fault, *, nth: int = 1, times: int = 1, broker_id: int | None = None) -> None:
        """Apply a fault to the ``nth`` request of an API (``"JoinGroup"`` or 11) and the ``times`` - 1 requests after it."""
        api_key = api if isinstance(api, int) else _API_KEYS[api]
        self._call(lambda: self._running.faults.add(api_key, fault, nth=nth, times=times, broker_id=broker_id))

    def add_request_hook(self, hook: FaultHook) -> None:
        """Call ``hook`` with every request, on the brokers' thread; the function may return a fault."""
        self._call(lambda: self._running.faults.add_hook(hook))

    def set_disk_full(self, full: bool = True) -> None:
        """Simulate full disks: all writes of records, groups and offsets fail. With ``full=False``, end the simulation."""

        def set_full() -> None:
            self._running.faults.is_full = full

        self._call(set_full)

    def clear_faults(self) -> None:
        """Remove all faults; stopped brokers remain stopped."""
        self._call(lambda: self._running.faults.clear())

    def subscribe_to_metrics(self, *prefixes: str, interval_ms: int = 1_000) -> None:
        """Subscribe to clients' metrics whose names begin with a prefix (KIP-714); ``*``: to all; without prefixes: to none.

        Needs the setting ``client.metrics.enable``.
        """
        settings = {"metrics": ",".join(prefixes), "interval.ms": str(interval_ms)} if prefixes else {}
        cluster = self._running
        self._call(lambda: cluster.client_metrics.subscribe("embedded", check_subscription(settings)))

    def pushed_metrics(self) -> Sequence[PushedMetrics]:
        """Return the last thousand pushes of clients' metrics, the latest last."""
        cluster = self._running
        return self._call(lambda: tuple(cluster.client_metrics.pushes))

    def group_state(self, group_id: str) -> str | None:
        """Return a group's state as in DescribeGroups, for instance ``Stable``; None if the group does not exist."""

        def state() -> str | None:
            node = self._running.coordinator_of(group_id)
            if node is None:
                return None
            group = node.coordinator.group(group_id) or node.coordinator.consumer_group(group_id)
            return None if group is None else group.state.value

        return self._call(state)

    # -- the brokers' thread

    @property
    def _running(self) -> BrokerCluster:
        if self._cluster is None or self._loop is None:
            raise ClosedError("this EmbeddedKafka is not running")
        return self._cluster

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop's thread, and return its result."""

        async def call() -> T:
            return function()

        return self._run_on_loop(call())

    def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise ClosedError("this EmbeddedKafka is not running")
        return start_on(self._loop, work).result()

    def _run(self, started: Bell, problem: list[BaseException]) -> None:
        loop = asyncio.new_event_loop()
        try:
            try:
                loop.run_until_complete(self._open())
            except BaseException as error:  # noqa: BLE001  # raised by the thread that waits for the start
                problem.append(error)
                return
            finally:
                if not problem:
                    self._loop = loop
                started.set()
            loop.run_forever()
        finally:
            loop.run_until_complete(self._shut())
            loop.close()

    async def _open(self) -> None:
        if self._data_dir is not None:
            self._storage = DataDirectory.open(self._data_dir, self._config)
        self._cluster = BrokerCluster(
            self._config,
            self._topics,
            self._brokers,
            random=self._random,
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
            racks=self._racks,
            storage=self._storage,
        )
        for node in self._cluster.nodes:
            listener = Listener(node, self._config, self._memory, self._failures)
            self._listeners.append(listener)
            await listener.open(self._host, self._port if node.broker_id == 0 else 0)
        self._cluster.start_all()
        asyncio.get_running_loop().call_later(_IDLE_CHECK_S, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - self._config.connections_max_idle_ms / 1000
        for listener in self._listeners:
            listener.close_idle(before)
        loop.call_later(_IDLE_CHECK_S, self._close_idle)

    async def _shut(self) -> None:
        for listener in self._listeners:
            await listener.close()
        if self._cluster is not None:
            self._cluster.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._storage is not None:
            self._storage.close()
