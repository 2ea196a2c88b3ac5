"""Members of the consumer protocol in virtual time, with the production brokers and a record of the requests."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.group.consumer_protocol.states import State
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatAssignment as HeartbeatAssignment
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatRequest as HeartbeatRequest
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatResponse as HeartbeatResponse
from consumer_coord.wire.messages.group import ConsumerGroupHeartbeatResponseTopicPartitions as TopicPartitions
from tests.support.group.fake import GROUP, RealCoordinator
from tests.support.group.member import TestMember, new_cluster, new_member
from tests.support.waiting import eventually_async

_seeds = itertools.count(100)

INTERVAL_MS = 3_000
SESSION_MS = 10_000


class Broker(RealCoordinator):
    """A production broker that computes targets at once; a test may script its responses to requests."""

    def __init__(self, topics: Mapping[str, int] | None = None, **settings: object) -> None:
        """Start a broker; ``settings`` are the broker's, with ``_`` for dots."""
        super().__init__(topics)
        loop = asyncio.get_running_loop()
        config = {
            "offsets.topic.num.partitions": 1,
            "group.consumer.assignment.interval.ms": 0,
            "group.consumer.heartbeat.interval.ms": INTERVAL_MS,
            "group.consumer.session.timeout.ms": SESSION_MS,
            "group.consumer.regex.refresh.interval.ms": 10_000,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.cluster = BrokerCluster(
            BrokerConfig.from_mapping(config),
            self.topics,
            random=random.Random(5),
            wall_clock_ms=lambda: 1_700_000_000_000 + int(loop.time() * 1000),
        )
        self.cluster.start_all()

    @property
    def consumer_group(self) -> ConsumerGroup:
        """The group of its coordinator."""
        found = self.cluster.nodes[0].coordinator.consumer_group(GROUP)
        assert found is not None
        return found

    @property
    def heartbeats(self) -> list[HeartbeatRequest]:
        """All received heartbeats."""
        return self.all(HeartbeatRequest)

    @property
    def heartbeat_times(self) -> list[float]:
        """The times of the heartbeats, in milliseconds."""
        return self.times(HeartbeatRequest)

    def of(self, one: TestMember) -> list[HeartbeatRequest]:
        """Return the heartbeats of one member."""
        member_id = one.coordinator.protocol._speaking.member_id  # type: ignore[attr-defined]
        return [request for request in self.heartbeats if request.member_id == member_id]

    def create_topic(self, name: str, partitions: int) -> None:
        """Create another topic."""
        self.cluster.create_topic(name, partitions)


def modern_member(broker: Any, *, cluster: ClusterClient | None = None, **settings: Any) -> TestMember:
    """Return a member with ``group.protocol=consumer``; ``settings`` are fields of CoordinatorConfig.

    Each member has a separate client with separate random numbers, unless it shares ``cluster``; metadata is refreshed often.
    """
    if cluster is None:
        cluster = new_cluster(broker, metadata_max_age_ms=5_000)
        cluster.environment = attrs.evolve(cluster.environment, random=random.Random(next(_seeds)))
    return new_member(broker, (), cluster=cluster, group_protocol="consumer", **settings)


def state_of(one: TestMember) -> State:
    """Return the state of a member."""
    state = one.coordinator.protocol.state
    assert isinstance(state, State)
    return state


async def joined(broker: Any, topics: tuple[str, ...] = ("t",), **settings: Any) -> TestMember:
    """Return a member that has joined; its application polls every 10 ms."""
    one = modern_member(broker, **settings)
    await one.join(topics)
    return one


async def shared(*members: TestMember, partitions: int = 4) -> None:
    """Wait until the members together hold all partitions, in equal numbers, and each holds its target."""
    await eventually_async(
        lambda: (
            sum(len(one.held) for one in members) == partitions
            and len(frozenset().union(*(one.held for one in members))) == partitions
            and max(len(one.held) for one in members) - min(len(one.held) for one in members) <= 1
            and all(one.stable for one in members)
        )
    )


def target(epoch: int, partitions: Mapping[uuid.UUID, Sequence[int]]) -> HeartbeatResponse:
    """Return a response with partitions to hold."""
    rows = [TopicPartitions(topic_id=topic_id, partitions=row) for topic_id, row in partitions.items()]
    return HeartbeatResponse(
        member_epoch=epoch, heartbeat_interval_ms=INTERVAL_MS, assignment=HeartbeatAssignment(topic_partitions=rows)
    )


def topic_id_of(one: TestMember) -> uuid.UUID:
    """Return the id of the only topic of which a member holds partitions."""
    [(topic_id, _)] = one.coordinator.protocol._holdings.owned  # type: ignore[attr-defined]
    assert isinstance(topic_id, uuid.UUID)
    return topic_id


__all__ = [
    "INTERVAL_MS",
    "SESSION_MS",
    "Broker",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "joined",
    "modern_member",
    "shared",
    "state_of",
    "target",
    "topic_id_of",
]
