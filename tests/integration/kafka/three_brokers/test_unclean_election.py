"""The fetcher when a leader without the last records is elected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from consumer_coord.fetch import FetchStart, StopReason
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.topic_partition import TopicPartition
from tests.integration.kafka.test_fetcher import DEADLINE_S, read
from tests.support.fetch.world import Reader
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_an_unclean_election_is_found_and_reading_goes_on_where_the_logs_agree(kafka3: RealKafka) -> None:
    """Broker by broker: the follower misses records, and leads when the only one that has them is gone."""
    kafka = kafka3
    name = kafka.new_topic(1, replication_factor=2, config={"unclean.leader.election.enable": "true"})
    replicas = kafka.admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions[0]
    leader, follower = replicas.leader, next(one for one in replicas.replicas if one != replicas.leader)
    one = TopicPartition(name, 0)

    def write(count: int, mark: bytes) -> None:
        # Without idempotence, a batch that is sent again may follow later ones.
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "batch.num.messages": 5, "enable.idempotence": True}
        producer = Producer(settings)
        for number in range(count):
            producer.produce(name, mark + b"%d" % number, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def leader_is(broker: int) -> Callable[[], bool]:
        def look() -> bool:
            leads: int = kafka.admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions[0].leader
            return leads == broker

        return look

    async def story(reader: Reader, cluster: ClusterClient) -> None:
        await asyncio.to_thread(write, 20, b"both")
        await asyncio.to_thread(kafka.await_in_sync)
        reader.assign({one: FetchStart(1, 0)})
        await reader.read_to({one: 20})
        await asyncio.to_thread(kafka.stop, follower)
        await asyncio.to_thread(write, 10, b"lost")
        await reader.read_to({one: 30})
        await asyncio.to_thread(kafka.kill, leader)
        await asyncio.to_thread(kafka.restart, follower)
        await asyncio.to_thread(eventually, leader_is(follower), "the unclean leader")
        await asyncio.to_thread(write, 15, b"new")
        await reader.until(lambda: bool(reader.stopped))
        (stopped,) = reader.stopped
        assert (stopped.reason, stopped.offset, stopped.end_offset) == (StopReason.TRUNCATED, 30, 20)
        reader.assign({one: FetchStart(2, stopped.end_offset, stopped.end_epoch)})
        await reader.read_to({one: 35})

    reader = read(kafka, story)
    kafka.restart(leader)
    values = [value for _, _, _, value in reader.records[one]]
    expected = [(b"both", 20), (b"lost", 10), (b"new", 15)]
    assert values == [mark + b"%d" % number for mark, count in expected for number in range(count)]
    assert [row[0] for row in reader.records[one]] == [*range(30), *range(20, 35)]
