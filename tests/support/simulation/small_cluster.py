"""Simulated brokers and processes with clients, for tests of one client instead of a whole history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.partition_log import PartitionLog
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.simulation import loop as virtual
from consumer_coord.simulation.handlers import HandlerRules
from consumer_coord.simulation.network import Server
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.virtual_kafka import VirtualKafka


class SmallCluster:
    """Simulated brokers on the running loop, which must be a virtual one."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        rules: HandlerRules | None = None,
        serve: Callable[[Server], Server] = lambda apis: apis,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual.VirtualTimeLoop)
        self.loop = loop
        self.kafka = VirtualKafka(
            loop, 1, config=BrokerConfig(), brokers=brokers, topics=topics or {}, handlers=rules, serve=serve
        )
        self.network = self.kafka.network
        self.cluster = self.kafka.cluster
        self.cluster.start()

    @property
    def servers(self) -> str:
        """The value of ``bootstrap.servers``."""
        return ",".join(f"{host}:{port}" for host, port in self.cluster.bootstrap)

    def process(self, name: str) -> Process:
        """Return a new process whose clients connect to these brokers."""
        process = Process.on(self.loop, name)
        process.consumer_coord_environment = self.kafka.environment(process, Random(3))
        return process

    def client(self, process: Process) -> ClusterClient:
        """Return a client of a process; the process must close it."""
        return self.kafka.client(process, Random(3))

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """Return the log of a partition."""
        found = self.cluster.kafka.topics.partition(topic, partition)
        assert found is not None
        return found.log

    async def run(self, process: Process, program: Coroutine[Any, Any, None]) -> None:
        """Run a program in a process to its end; raise what it raises."""
        await asyncio.wait({task := process.create_task(program)})
        task.result()

    def close(self) -> None:
        """Stop the brokers."""
        self.cluster.close()


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an asynchronous test in virtual time."""

    def run() -> None:
        virtual.run(test(), max_time_s=600)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
