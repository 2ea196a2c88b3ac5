"""Lag in seconds against the simulation's clock: a producer and a group at known times, and the age that follows from them."""

from __future__ import annotations

import asyncio
import random

from consumer_coord.environment import Environment
from consumer_coord.lag.group_lag import read_lags
from consumer_coord.lag.partition_lag import Commits, LagPolicy
from consumer_coord.net.answers import Results
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.retry import Deadline
from consumer_coord.simulation.consumer import Inline
from consumer_coord.topic_partition import TopicPartition
from tests.support.group.fake import WALL_CLOCK_MS, RealCoordinator
from tests.support.group.virtual import in_virtual_time, now_ms

T0 = TopicPartition("t", 0)
#: The time between two look-ups.
INTERVAL_MS = 500


def clock_ms() -> int:
    return WALL_CLOCK_MS + int(now_ms())


@in_virtual_time
async def test_the_error_is_at_most_one_look_up_interval() -> None:
    chance = random.Random(11)
    brokers = RealCoordinator({"t": 1})
    partition = brokers.cluster.topics.partition("t", 0)
    assert partition is not None
    log = partition.log
    #: The time of each record by its offset; None for a marker or an aborted record.
    times: list[float | None] = []
    position = 0

    async def produce() -> None:
        for _ in range(200):
            await asyncio.sleep(chance.expovariate(4))
            count, kind = chance.randrange(1, 5), chance.choice(("plain", "commit", "abort"))
            if kind == "plain":
                log.append_records([(None, b"v")] * count, clock_ms(), 0)
                times.extend([clock_ms()] * count)
            else:
                log.append_records([(None, b"v")] * count, clock_ms(), 0, 7, 0)
                log.append_marker(clock_ms(), 0, 7, 0, committed=kind == "commit")
                times.extend([*([clock_ms() if kind == "commit" else None] * count), None])

    async def consume() -> None:
        nonlocal position
        while True:
            # Slow at times, and at times faster than the producer.
            await asyncio.sleep(chance.choice((0.05, 0.3, 0.3, 12.0)))
            position = min(len(times), position + chance.choice((1, 5, 1_000)))

    config = ClientConfig(bootstrap_servers=brokers.bootstrap, client_id="test")
    cluster = ClusterClient(config, Environment(brokers, random.Random(7), clock_ms, Inline()), None)
    producing, consuming = asyncio.ensure_future(produce()), asyncio.ensure_future(consume())
    ages = []
    try:
        while not producing.done():
            await asyncio.sleep(INTERVAL_MS / 1000)
            at, offset, written = clock_ms(), position, len(times)
            unread = [time for time in times[offset:] if time is not None]
            commits: Commits = Results({T0: OffsetAndMetadata(offset)})
            lags = await read_lags(cluster, {"g": commits}, LagPolicy(seconds=True), Deadline.after(INTERVAL_MS))
            lag = lags.groups["g"][T0]
            assert lag.seconds is not None, lag
            truth = (at - unread[0]) / 1000 if unread else 0.0
            assert abs(lag.seconds - truth) <= INTERVAL_MS / 1000
            if len(times) == written:
                assert (lag.records == 0) == (not unread), "markers and aborted records are no lag"
            ages.append(truth)
    finally:
        consuming.cancel()
        await producing
        await cluster.close()
    assert max(ages) > 5, "the group was late at times"
    assert min(ages) == 0, "and had read everything at times"
