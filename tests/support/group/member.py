"""A member in virtual time: the production coordinator, and an application that polls."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import attrs

from assignors import CooperativeStickyAssignor, RangeAssignor
from assignors.base import Assignor, Member, Plan, RebalanceProtocol
from assignors.base import Cluster as ClusterView
from consumer_coord.config import CoordinatorConfig
from consumer_coord.environment import Environment
from consumer_coord.errors import CoordinatorError
from consumer_coord.group.apply_changes import Holder, apply_changes
from consumer_coord.group.coordinator import ConsumerCoordinator
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Authenticator
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.simulation.consumer import Inline
from consumer_coord.topic_partition import TopicPartition
from tests.support.group.fake import GROUP
from tests.support.waiting import eventually_async

COOPERATIVE: Sequence[Assignor] = (CooperativeStickyAssignor(),)
EAGER: Sequence[Assignor] = (RangeAssignor(),)


def parts(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    """Return partitions of one topic."""
    return frozenset(TopicPartition(topic, number) for number in numbers)


def at(topic: str, number: int, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the position of one partition."""
    return {TopicPartition(topic, number): OffsetAndMetadata(offset)}


class ScriptedAssignor(Assignor):
    """Returns the plans of the function ``plan``, with the given rebalance protocol."""

    name = "scripted"

    def __init__(
        self,
        plan: Callable[[ClusterView, Mapping[str, Member]], Plan],
        protocol: RebalanceProtocol = RebalanceProtocol.COOPERATIVE,
    ) -> None:
        self.plan = plan
        self.protocols = (protocol,)
        self.clusters: list[ClusterView] = []
        self.groups: list[Mapping[str, Member]] = []

    def assign(self, cluster: ClusterView, members: Mapping[str, Member]) -> Plan:
        """Return the plan of the function."""
        self.clusters.append(cluster)
        self.groups.append(members)
        return self.plan(cluster, members)


def everything_to_first(cluster: ClusterView, members: Mapping[str, Member]) -> Plan:
    """Return a plan that assigns all partitions to the first member."""
    first = min(members)
    everything = {topic: range(count) for topic, count in cluster.partitions.items()}
    return {member: everything if member == first else {} for member in members}


@attrs.define(eq=False)
class TestMember(Holder):
    """A coordinator, its cluster client, and the callbacks of its application."""

    __test__ = False

    coordinator: ConsumerCoordinator
    cluster: ClusterClient
    #: ("lost" | "revoked" | "assigned", partitions), in order
    callbacks: list[tuple[str, frozenset[TopicPartition]]] = attrs.field(factory=list)
    errors: list[CoordinatorError] = attrs.field(factory=list)
    application: asyncio.Task[None] | None = None
    #: Awaited after the application was notified of a revocation, and before the revocation is confirmed.
    on_revoke: Callable[[frozenset[TopicPartition]], Coroutine[Any, Any, None]] | None = None

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.callbacks.append(("assigned", partitions))

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.callbacks.append(("revoked", partitions))
        if self.on_revoke is not None:
            await self.on_revoke(partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.callbacks.append(("lost", partitions))

    @property
    def held(self) -> frozenset[TopicPartition]:
        """The partitions that the application holds."""
        return self.coordinator.assignment.held

    @property
    def stable(self) -> bool:
        """Whether the member is in the group and holds its target."""
        coordinator = self.coordinator
        return coordinator.protocol.joined and coordinator.assignment.reconciled

    async def poll(self) -> None:
        """Poll once, as an application: raise errors of the background tasks, and carry out the group's assignment."""
        self.coordinator.application.record_poll()
        await apply_changes(self.coordinator, self)

    async def poll_for_ever(self, every_ms: float = 10) -> None:
        """Poll for ever, as an application that continues after errors; keep the errors."""
        while True:
            try:
                await self.poll()
            except CoordinatorError as error:
                self.errors.append(error)
            await asyncio.sleep(every_ms / 1000)

    def start(self, every_ms: float = 10) -> None:
        """Start an application that polls in the background."""
        self.application = asyncio.get_running_loop().create_task(self.poll_for_ever(every_ms), name="application")

    async def stop(self) -> None:
        """Stop the application's polls."""
        if self.application is not None:
            self.application.cancel()
            await asyncio.gather(self.application, return_exceptions=True)
            self.application = None

    async def join(self, topics: Iterable[str] = ("t",), within_ms: float = 60_000) -> None:
        """Subscribe, and poll until the group is stable; the application continues to poll."""
        self.coordinator.subscribe(topics)
        if self.application is None:
            self.start()
        await eventually_async(lambda: self.stable, within_s=within_ms / 1000)

    def forget_coordinator(self) -> None:
        """Make the member forget its group's coordinator, which it must know."""
        link = self.coordinator._context.link
        assert link.coordinator is not None
        link.forget(link.coordinator, "the test says so")

    async def close(self, timeout_ms: float | None = None) -> None:
        """Revoke all partitions and close."""
        await self.stop()
        self.coordinator.release(self.held)
        await self.coordinator.close(timeout_ms)
        await self.cluster.close()


def new_member(
    brokers: Any,
    assignors: Sequence[Assignor] = COOPERATIVE,
    *,
    cluster: ClusterClient | None = None,
    client: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TestMember:
    """Return a member of the group, with short times unless ``settings`` (fields of CoordinatorConfig) differ."""
    cluster = cluster or new_cluster(brokers, **(client or {}))
    times: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "heartbeat_interval_ms": 3_000,
        "rebalance_timeout_ms": 60_000,
        "request_timeout_ms": 5_000,
        "default_api_timeout_ms": 20_000,
    }
    config = CoordinatorConfig(**{"group_id": GROUP, **times, **settings})
    return TestMember(ConsumerCoordinator(config, cluster, assignors), cluster)


def new_cluster(
    brokers: Any, run_blocking: Any = None, authenticator: Authenticator | None = None, **settings: Any
) -> ClusterClient:
    """Return a cluster client for scripted brokers; slow work runs inline unless ``run_blocking`` is given."""
    values: dict[str, Any] = {
        "request_timeout_ms": 5_000,
        "connection_setup_timeout_ms": 3_000,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000,
        **settings,
    }
    config = ClientConfig(bootstrap_servers=brokers.bootstrap, client_id="test", **values)
    environment = Environment(brokers, random.Random(7), lambda: 1_700_000_000_000, run_blocking or Inline())
    return ClusterClient(config, environment, authenticator)


@contextlib.asynccontextmanager
async def member(brokers: Any, assignors: Sequence[Assignor] = COOPERATIVE, **settings: Any) -> AsyncIterator[TestMember]:
    """Yield a member, and close it at the end."""
    made = new_member(brokers, assignors, **settings)
    try:
        yield made
    finally:
        await made.close(1_000)
