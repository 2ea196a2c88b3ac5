"""After an outage, the first record arrives within a second of the broker's return; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from consumer_coord.fetch import Fetcher, FetchStart
from consumer_coord.topic_partition import TopicPartition
from tests.support.fetch.world import Reader, World, play

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("outage_s", [2, 5, 20, 100])
def test_records_arrive_within_a_second_of_the_brokers_return(brokers: int, seed: int, outage_s: int) -> None:
    async def test(world: World) -> None:
        reader = Reader(Fetcher(world.client()))
        expected = world.write(T0)
        reader.assign({T0: FetchStart(1, 0), T1: FetchStart(1, 0)})
        await reader.read_to({T0: 1})
        # Every broker stops, as in an outage of the network or of the whole cluster.
        for node in world.cluster.nodes:
            world.cluster.stop(node.broker_id)
            world.network.disconnect(node.host)
        await asyncio.sleep(outage_s + seed / 10)
        attempts = world.network.connections
        for node in world.cluster.nodes:
            world.cluster.start(node.broker_id)
        expected += world.write(T0)
        async with asyncio.timeout(1):
            await reader.read_to({T0: 2})
        assert reader.records[T0] == expected
        assert world.network.connections - attempts <= 2 + 2 * brokers
        await reader.fetcher.close()

    play(test, brokers=brokers, seed=seed)
