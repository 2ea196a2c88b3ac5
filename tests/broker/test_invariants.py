"""Whatever requests come in whatever order, together: what must always hold of a group."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from consumer_coord.broker.classic_group import GroupMetadata, GroupState
from consumer_coord.broker.cluster import BrokerCluster
from consumer_coord.broker.config import BrokerConfig
from consumer_coord.broker.group_store import StoreHooks
from consumer_coord.broker.kafka_apis import ClientConnection, KafkaApis
from consumer_coord.errors import DisconnectedError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import decode_response, encode_request
from tests.support.broker.sequences import Move, Player

GROUP = "group"
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 500,
    "group.min.session.timeout.ms": 1_000,
    "group.max.size": 4,
}


def check(group: GroupMetadata, generations: dict[GroupMetadata, int], max_size: int) -> None:
    """The invariants of one group."""
    assert group.generation_id >= generations.get(group, 0), "generations only grow"
    generations[group] = group.generation_id
    waiting = [member for member in group.members.values() if member.awaiting_join is not None]
    assert group.awaiting_join_count == len(waiting)
    assert set(group.static_members.values()) <= set(group.members)
    for instance_id, member_id in group.static_members.items():
        assert group.members[member_id].group_instance_id == instance_id
    assert not set(group.pending_join_members) & set(group.members)
    assert (group.leader_id is None) == (not group.members), "a group with members has a leader"
    assert group.leader_id is None or group.leader_id in group.members
    assert len(group.members) <= max_size + 1, "one may join again while the group is being cut down"
    match group.state:
        case GroupState.EMPTY:
            assert not group.members
        case GroupState.PREPARING_REBALANCE:
            assert group.join_operation is not None
            assert group.join_operation.pending, "the join phase ends some time"
            assert not any(member.awaiting_sync for member in group.members.values())
        case GroupState.COMPLETING_REBALANCE:
            assert group.members
            assert not waiting
            assert group.protocol_name is not None
            assert group.sync_operation is not None or not group.pending_sync_members
        case GroupState.STABLE:
            assert group.members
            assert all(member.group_instance_id for member in waiting), "a returning static member waits for the log"
            assert not any(member.awaiting_sync for member in group.members.values())
            assert all(group.protocol_name in member.protocol_names for member in group.members.values())
    for member in group.members.values():
        alive = member.heartbeat is not None and member.heartbeat.pending
        assert alive or member.has_satisfied_heartbeat, f"no session timer runs for {member.member_id}"


@pytest.mark.behaviour(125, 132)
@pytest.mark.parametrize("first_seed", range(0, 60, 10))
def test_random_concurrent_requests_keep_every_invariant(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        virtual.run(_history(seed), seed=seed, strict=True)


async def _history(seed: int) -> None:
    rng = Random(seed)
    loop = asyncio.get_running_loop()
    hooks = StoreHooks(
        append_error=lambda _: error_codes.NOT_ENOUGH_REPLICAS if rng.random() < 0.05 else 0,
        append_delay_ms=lambda _: rng.choice((0, 0, 0, 40)),
        loading_delay_ms=lambda _: rng.choice((0, 300)),
    )
    cluster = BrokerCluster(
        BrokerConfig.from_mapping(SETTINGS),
        {"orders": 2},
        brokers=2,
        random=Random(seed),
        wall_clock_ms=lambda: round(loop.time() * 1000),
        hooks=hooks,
    )
    cluster.start_all()
    player = Player(rng, GROUP, "orders")
    # By the group itself: one that was deleted or loaded again begins where its log says.
    generations: dict[GroupMetadata, int] = {}
    tasks = []

    async def one(index: int, move: Move) -> None:
        node = cluster.coordinator_of(GROUP) if rng.random() < 0.9 else rng.choice(cluster.nodes)
        if node is None:
            return
        request = encode_request(move.message, move.version, 1, "client")
        try:
            answer = await KafkaApis(node).handle(request, ClientConnection())
        except DisconnectedError:
            return
        assert answer is not None
        response = decode_response(api_for(type(move.message)).response, move.version, answer)[1]
        player.received(index, move.message, move.version, response)

    for index in range(150):
        move = player.next_move()
        tasks.append(asyncio.ensure_future(one(index, move)))
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.05, 0.4)))
        player.sent(index, move, not tasks[-1].done())
        _trouble(cluster, rng)
        for group in _groups(cluster):
            check(group, generations, int(SETTINGS["group.max.size"]))
    # All waiting requests are answered in the end, without another request.
    await asyncio.sleep(600)
    assert all(task.done() for task in tasks)
    for task in tasks:
        task.result()
    for group in _groups(cluster):
        assert group.state in (GroupState.EMPTY, GroupState.DEAD), "and all sessions ended"
    cluster.close()


def _trouble(cluster: BrokerCluster, rng: Random) -> None:
    """Now and then another coordinator, a broker that stops, or all brokers started again."""
    trouble = rng.random()
    if trouble < 0.02 and all(node.up for node in cluster.nodes):
        cluster.move_coordinator(0, rng.randrange(2))
    elif trouble < 0.03 and sum(node.up for node in cluster.nodes) == 2:
        cluster.stop(rng.randrange(2))
    elif trouble < 0.06:
        for node in cluster.nodes:
            cluster.start(node.broker_id)


def _groups(cluster: BrokerCluster) -> list[GroupMetadata]:
    return [group for node in cluster.nodes for shard in node.coordinator.shards for group in shard.groups.values()]
