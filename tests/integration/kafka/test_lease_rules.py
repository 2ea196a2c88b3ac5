"""The assumptions of ``lease.py`` on a real broker: the requests that renew a session, and the reasons of a removal."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import attrs
import pytest

from assignors import RangeAssignor
from consumer_coord.config import CoordinatorConfig
from consumer_coord.group.classic_protocol import requests
from consumer_coord.group.generation import Generation
from consumer_coord.net.connection import Connection
from consumer_coord.net.group_requests import find_coordinator
from consumer_coord.net.shared_clusters import real_environment
from consumer_coord.net.tcp import TcpConnector
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory
from consumer_coord.wire import error_codes as codes

pytestmark = pytest.mark.kafka

_SESSION_S = 6.0
_REBALANCE_S = 4.0


@attrs.define
class _Raw:
    """A member that sends what the test says: JoinGroup and SyncGroup on one connection, the rest on another."""

    config: CoordinatorConfig
    topic: str
    waits: Connection
    quick: Connection
    member: Generation = attrs.field(factory=Generation)

    async def join(self) -> int:
        message = requests.join_group(self.config, self.member, [RangeAssignor()], [self.topic], {}, "")
        answer = await self.waits.request(message, timeout_ms=60_000)
        if answer.error_code in (codes.NONE, codes.MEMBER_ID_REQUIRED):
            self.member = Generation(answer.generation_id, answer.member_id, answer.protocol_name)
        code: int = answer.error_code
        return await self.join() if code == codes.MEMBER_ID_REQUIRED else code

    async def sync(self) -> int:
        answer = await self.waits.request(requests.sync_group(self.config, self.member, ()), timeout_ms=60_000)
        code: int = answer.error_code
        return code

    async def beat(self, member: Generation | None = None) -> int:
        answer = await self.quick.request(requests.heartbeat(self.config, member or self.member), timeout_ms=60_000)
        code: int = answer.error_code
        return code

    def close(self) -> None:
        self.waits.close()
        self.quick.close()


async def _open(kafka: KafkaCluster, group: str, topic: str) -> _Raw:
    host, port = kafka.bootstrap_servers.split(",")[0].rsplit(":", 1)
    how: dict[str, Any] = {"client_id": "raw", "software_version": "0", "timeout_ms": 10_000}
    environment = real_environment(TcpConnector())
    config = CoordinatorConfig(
        group_id=group, session_timeout_ms=int(_SESSION_S * 1000), rebalance_timeout_ms=int(_REBALANCE_S * 1000)
    )
    return _Raw(
        config,
        topic,
        await Connection.open(environment, host, int(port), **how),
        await Connection.open(environment, host, int(port), **how),
    )


async def _alone(kafka: KafkaCluster, group: str, topic: str) -> _Raw:
    """The only member of its group, synced."""
    one = await _open(kafka, group, topic)
    for _ in range(100):
        # The first coordinator of a fresh cluster takes a moment, from when it is first asked for.
        if await one.join() == codes.NONE:
            break
        await one.quick.request(find_coordinator(group), timeout_ms=60_000)
        await asyncio.sleep(0.1)
    assert await one.sync() == codes.NONE
    return one


async def _heartbeats_while_a_join_waits(kafka: KafkaCluster, group: str, topic: str) -> None:
    one = await _alone(kafka, group, topic)
    former = one.member
    other = await _open(kafka, group, topic)
    waiting = asyncio.create_task(other.join())
    while await one.beat() != codes.REBALANCE_IN_PROGRESS:
        await asyncio.sleep(0.05)
    assert await one.join() == codes.NONE
    assert await waiting == codes.NONE
    # Now one joins, and the other does not.
    follower, leader = (one, other) if one.member.member_id < other.member.member_id else (other, one)
    former = follower.member
    again = asyncio.create_task(other.join() if follower is other else one.join())
    await asyncio.sleep(0.5)
    if not again.done():
        # In CompletingRebalance a join with the same metadata is answered at once; otherwise it waits for the leader.
        assert await follower.beat(former) == codes.REBALANCE_IN_PROGRESS
        assert await leader.join() == codes.NONE
    assert await again == codes.NONE
    one.close()
    other.close()


async def _a_late_sync_renews_no_session(kafka: KafkaCluster, group: str, topic: str) -> None:
    one = await _alone(kafka, group, topic)
    await asyncio.sleep(0.7 * _SESSION_S)
    assert await one.sync() == codes.NONE
    await asyncio.sleep(0.6 * _SESSION_S)
    assert await one.beat() == codes.UNKNOWN_MEMBER_ID
    one.close()


async def _who_does_not_sync_is_dropped_although_it_beats(kafka: KafkaCluster, group: str, topic: str) -> None:
    one = await _open(kafka, group, topic)
    assert await one.join() == codes.NONE
    began = asyncio.get_running_loop().time()
    while (code := await one.beat()) == codes.NONE:
        assert asyncio.get_running_loop().time() - began < _SESSION_S + _REBALANCE_S
        await asyncio.sleep(0.2)
    assert code in (codes.UNKNOWN_MEMBER_ID, codes.REBALANCE_IN_PROGRESS)
    assert asyncio.get_running_loop().time() - began > 0.9 * _REBALANCE_S
    one.close()


def test_what_renews_a_session_and_what_does_not(kafka: KafkaCluster, topic: NewTopicFactory, group: str) -> None:
    name = topic(partitions=1)

    async def all_at_once() -> None:
        (await _alone(kafka, f"{group}-first", name)).close()
        await asyncio.gather(
            _heartbeats_while_a_join_waits(kafka, f"{group}-a", name),
            _a_late_sync_renews_no_session(kafka, f"{group}-b", name),
            _who_does_not_sync_is_dropped_although_it_beats(kafka, f"{group}-c", name),
        )

    random.seed(0)
    asyncio.run(all_at_once())
