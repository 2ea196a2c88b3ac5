"""Simulated brokers, their network, and the processes of their clients, on one virtual clock.

Everything that plays a Kafka in virtual time begins with a :class:`VirtualKafka`: the histories with their checkers,
deployments, Spark queries, and users' programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from consumer_coord.broker.config import BrokerConfig
from consumer_coord.environment import Environment
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.simulation.brokers import NewLog, OffsetsObserver, OnRecord, SimulatedCluster
from consumer_coord.simulation.consumer import Inline
from consumer_coord.simulation.exactly_once import ExactlyOnceRules
from consumer_coord.simulation.handlers import HandlerRules
from consumer_coord.simulation.loop import VirtualTimeLoop
from consumer_coord.simulation.network import NetworkConfig, Server, SimulatedNetwork
from consumer_coord.simulation.process import Process
from consumer_coord.simulation.scenario import Fetching


class VirtualKafka:
    """Brokers that clients reach over a network that fails as TCP does. ``seed`` determines every delay and every id."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        seed: int,
        *,
        config: BrokerConfig,
        topics: Mapping[str, int],
        brokers: int = 1,
        latency_ms: float = 1.0,
        racks: Sequence[str | None] = (),
        on_record: OnRecord | None = None,
        fetching: Fetching | None = None,
        handlers: HandlerRules | None = None,
        exactly_once: ExactlyOnceRules | None = None,
        offsets_observer: OffsetsObserver | None = None,
        new_log: NewLog | None = None,
        serve: Callable[[Server], Server] = lambda apis: apis,
    ) -> None:
        """Create the brokers, which start with ``cluster.start()``.

        ``on_record`` and the following: see
        :class:`~consumer_coord.simulation.brokers.SimulatedCluster`.
        """
        self.loop = loop
        self.network: SimulatedNetwork = SimulatedNetwork(loop, Random(f"{seed}-network"), NetworkConfig(latency_ms=latency_ms))
        self.cluster: SimulatedCluster = SimulatedCluster(
            loop,
            self.network,
            Random(f"{seed}-brokers"),
            config=config,
            brokers=brokers,
            topics=topics,
            racks=racks,
            on_record=on_record,
            fetching=fetching,
            seed=seed,
            handlers=handlers,
            exactly_once=exactly_once,
            offsets_observer=offsets_observer,
            new_log=new_log,
            serve=serve,
        )

    def environment(self, process: Process, random: Random) -> Environment:
        """Return what the core of a client in ``process`` receives: the way to these brokers, their clock, no threads."""
        return Environment(self.network.connector(process), random, self.cluster.wall_clock_ms, Inline())

    def client(self, process: Process, random: Random, **settings: Any) -> ClusterClient:
        """Return a client for a program in ``process``; call this in the process. ``settings``: of ``ClientConfig``."""
        settings = {"bootstrap_servers": self.cluster.bootstrap, "client_id": process.name, **settings}
        return ClusterClient(ClientConfig(**settings), self.environment(process, random))

    def lag(self, client: str, broker: str, extra_ms: float) -> Callable[[], None]:
        """Delay frames between two hosts, until the returned function is called."""

        def delay(extra_ms: float) -> None:
            self.network.slow(client, broker, extra_ms)
            self.network.slow(broker, client, extra_ms)

        delay(extra_ms)
        return lambda: delay(0)

    def block(self, links: Sequence[tuple[str, str]]) -> Callable[[], None]:
        """Let no frame pass these links (source, target), until the returned function is called."""
        for source, target in links:
            self.network.block(source, target)

        def over() -> None:
            for source, target in links:
                self.network.unblock(source, target)

        return over

    def links(self, client: str) -> Sequence[tuple[str, str]]:
        """Return the links between a client and all brokers, in both directions."""
        brokers = [node.host for node in self.cluster.kafka.nodes]
        return [(client, broker) for broker in brokers] + [(broker, client) for broker in brokers]

    def kill(self, process: Process) -> None:
        """Kill a process of a client: its kernel closes the connections."""
        process.kill()
        self.network.vanish(process)
