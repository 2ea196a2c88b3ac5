"""The data plane of columns, on top of the fetcher, in virtual time."""

from __future__ import annotations

from typing import Any

from consumer_coord.config import Config, CoordinatorConfig
from consumer_coord.consumer.fetch_plane import FetchPlane
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from tests.support.fetch.world import World, play

T0 = TopicPartition("t", 0)


def test_a_truncation_behind_the_position_does_not_move_it_forward() -> None:
    """The epoch of a position inside a response is that of the last batch, so the logs may agree beyond the position."""

    async def test(world: World) -> None:
        world.write(T0, 3)
        world.cluster.move_leader("t", 0, 1)
        world.write(T0, 3)
        world.cluster.move_leader("t", 0, 2, 3)
        config = Config(client=ClientConfig(bootstrap_servers=()), coordinator=CoordinatorConfig(group_id="g"))
        plane = FetchPlane(world.client(), config, topic_id=lambda one: None, wake=lambda: None, on_ready=lambda: None)
        events: list[Any] = []
        await plane.assign({T0: OffsetAndMetadata(1, 1)})
        while not events:
            await plane.fetch(1, 1.0, events.extend)
        (ended,) = events
        assert ended.error().resume_at == OffsetAndMetadata(1, 0)
        await plane.close()

    play(test, brokers=3)
