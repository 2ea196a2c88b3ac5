"""The reader of a consumer, on top of the fetcher, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from consumer_coord.config import Config, CoordinatorConfig
from consumer_coord.consumer.partitions import Plan, Read
from consumer_coord.consumer.reading.chunks import OutOfRange
from consumer_coord.consumer.reading.reader import Reader
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from tests.support.fetch.world import World, play

T0 = TopicPartition("t", 0)


async def out_of_range(world: World, read: Read) -> OutOfRange:
    """Read partition 0 until its reading ends, and return the reason."""
    config = Config(client=ClientConfig(bootstrap_servers=()), coordinator=CoordinatorConfig(group_id="g"))
    ended = asyncio.Event()
    lease = SimpleNamespace(clock=asyncio.get_running_loop().time)
    core: Any = SimpleNamespace(cluster=world.client(), application=SimpleNamespace(wake=ended.set), lease=lease)
    loop: Any = SimpleNamespace(records_arrived=lambda: None)
    reader = Reader(core, config, loop)
    reader.apply(Plan({T0: read}))
    await ended.wait()
    ((why, serial),) = reader.out_of_range.values()
    assert serial == read.serial
    await reader.close()
    return why


def test_a_truncation_behind_the_position_does_not_move_it_forward() -> None:
    """The epoch of a position inside a response is that of the last batch, so the logs may agree beyond the position."""

    async def test(world: World) -> None:
        world.write(T0, 3)
        world.cluster.move_leader("t", 0, 1)
        world.write(T0, 3)
        world.cluster.move_leader("t", 0, 2, 3)
        ended = await out_of_range(world, Read(1, OffsetAndMetadata(1, 1), on=True))
        assert ended.resume_at == OffsetAndMetadata(1, 0)

    play(test, brokers=3)
