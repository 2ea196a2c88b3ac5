"""Members of the consumer protocol (KIP-848) that send requests to a coordinator on the bench."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from consumer_coord.broker.consumer_group.group import ConsumerGroup
from consumer_coord.broker.request_context import RequestContext
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from tests.support.broker.bench import GROUP, Bench

INTERVAL_MS = 1_000
SESSION_MS = 10_000
REBALANCE_MS = 5_000
MODERN: Mapping[str, object] = {
    "group.consumer.heartbeat.interval.ms": INTERVAL_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.assignment.interval.ms": 0,
}


class Client:
    """A member: its subscription, its epoch, and the partitions it owns.

    The member revokes partitions at once, unless ``holds_on``; its next heartbeat reports them.
    """

    def __init__(
        self,
        bench: Bench,
        member_id: str,
        topics: Sequence[str] = ("orders",),
        *,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        self.bench = bench
        self.member_id = member_id
        self.topics = topics
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.epoch = 0
        self.owned: dict[uuid.UUID, tuple[int, ...]] = {}
        self.assigned: dict[uuid.UUID, tuple[int, ...]] = {}
        self.holds_on = False

    @property
    def partitions(self) -> list[int]:
        """The numbers of the owned partitions, without their topics."""
        return sorted(number for numbers in self.owned.values() for number in numbers)

    async def join(self) -> ConsumerGroupHeartbeatResponse:
        """Send the first heartbeat, which has all fields."""
        self.epoch, self.owned, self.assigned = 0, {}, {}
        return await self.beat(full=True)

    async def beat(self, full: bool = False, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        """Send one heartbeat, which reports the owned partitions, and follow the response."""
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "topic_partitions": tuple(
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in self.owned.items()
            ),
        }
        if full:
            values |= {
                "rebalance_timeout_ms": self.rebalance_ms,
                "subscribed_topic_names": tuple(self.topics),
                "subscribed_topic_regex": self.regex,
                "server_assignor": self.assignor,
            }
        request = ConsumerGroupHeartbeatRequest(**(values | changes))
        response = await self.bench.coordinator.consumer_group_heartbeat(RequestContext(1, "client"), request)
        if response.error_code == 0:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = {one.topic_id: tuple(one.partitions) for one in response.assignment.topic_partitions}
            if not self.holds_on:
                self.owned = dict(self.assigned)
        return response

    async def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        """Leave the group; with epoch -2 only for a while."""
        return await self.beat(member_epoch=epoch, topic_partitions=None)


async def settle_all(*clients: Client, rounds: int = 6) -> None:
    """Let all members send heartbeats until no partition moves."""
    for _ in range(rounds):
        for client in clients:
            response = await client.beat()
            assert response.error_code == 0, response


def group_of(bench: Bench) -> ConsumerGroup:
    """Return the group, which must exist."""
    group = bench.coordinator.consumer_group(GROUP)
    assert group is not None
    return group
