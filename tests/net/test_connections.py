"""The first requests of a connection to a broker, and how members share connections."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from consumer_coord import GroupConsumer
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.environment import Environment
from consumer_coord.errors import ClosedError, DisconnectedError
from consumer_coord.net.client_config import ClientConfig
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Versioned
from consumer_coord.net.connections import Connections
from consumer_coord.net.metadata import Broker
from consumer_coord.retry import Deadline
from consumer_coord.simulation.consumer import Inline
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from consumer_coord.wire.messages.group import JoinGroupRequest
from tests.support.consumer.embedded import BROKER, DEADLINE_S
from tests.support.group.fake import DROP, PASS, FakeBrokers, held_until
from tests.support.group.member import new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually, eventually_async


def _asked(brokers: FakeBrokers) -> set[int]:
    """Return the connections on which a broker received ApiVersions."""
    return {seen.connection for seen in brokers.seen if isinstance(seen.message, ApiVersionsRequest)}


def _asked_in(brokers: FakeBrokers) -> list[int]:
    """Return the version of each ApiVersions request."""
    return [seen.version for seen in brokers.seen if isinstance(seen.message, ApiVersionsRequest)]


def _joined(brokers: FakeBrokers) -> list[int]:
    """Return the connection of each JoinGroup."""
    return [seen.connection for seen in brokers.seen if isinstance(seen.message, JoinGroupRequest)]


@in_virtual_time
async def test_a_broker_is_asked_once_for_its_versions() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    assert _joined(brokers), "the member joined"
    assert len(_asked(brokers)) == 1
    assert not _asked(brokers) & set(_joined(brokers)), "a join has a separate connection, without ApiVersions"
    await one.close()


@in_virtual_time
async def test_a_broker_that_came_back_is_asked_again() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    # The broker returns with an older version.
    brokers.newest[api_for(JoinGroupRequest).key] = 5
    brokers.disconnect()
    one.coordinator.enforce_rebalance()
    count = len(_joined(brokers))
    await eventually_async(lambda: len(_joined(brokers)) > count)
    assert len(_asked(brokers)) == 2
    last = [seen for seen in brokers.seen if isinstance(seen.message, JoinGroupRequest)][-1]
    assert last.version == 5
    await one.close()


@in_virtual_time
async def test_a_connection_that_ends_at_its_first_request_makes_the_next_one_ask() -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, DROP)
    one = new_member(brokers)
    await one.join()
    first, *_, last = _joined(brokers)
    assert first not in _asked(brokers)
    assert last in _asked(brokers), "a broker that supports other versions than it reported may close the connection so"
    await one.close()


def _brokers_of(brokers: FakeBrokers) -> list[Broker]:
    return [Broker(node, f"broker-{node}", 9092) for node in brokers.nodes]


@in_virtual_time
async def test_clients_that_differ_in_their_client_id_share_connections() -> None:
    brokers = FakeBrokers()
    environment = Environment(brokers, random.Random(7), lambda: 0, Inline())
    configs = [ClientConfig(bootstrap_servers=brokers.bootstrap, client_id=name) for name in ("one", "two")]
    connections = Connections(configs[0], environment)
    one, two = (ClusterClient(config, environment, connections=connections) for config in configs)
    (broker,) = _brokers_of(brokers)
    for client in (one, two):
        await client.request(broker, MetadataRequest(topics=()), timeout_ms=1_000)
    asked = [seen for seen in brokers.seen if isinstance(seen.message, MetadataRequest)]
    assert [seen.client_id for seen in asked] == ["one", "two"], "each request names its client"
    assert len({seen.connection for seen in asked}) == 1
    await one.close()
    with pytest.raises(ClosedError):
        await one.request(broker, MetadataRequest(topics=()), timeout_ms=1_000)
    await two.request(broker, MetadataRequest(topics=()), timeout_ms=1_000)
    assert len(brokers.opened) == 1, "the client that ended left the other's connection open"
    await two.close()
    await connections.close()
    assert brokers.open == 0


class _Following:
    """Asks for metadata ``count`` times, each time as what follows the last response."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.seen: list[int] = []

    def question(self, newest: int | None = None) -> Versioned:
        return Versioned(MetadataRequest, lambda _: MetadataRequest(topics=()), newest, self._decode, True, self._follow)

    def _decode(self, version: int, frame: bytes) -> int:
        self.seen.append(version)
        return len(self.seen)

    def _follow(self, answer: int) -> tuple[Versioned, float] | None:
        assert answer == len(self.seen)
        self.left -= 1
        # A version that the broker does not support ends the sequence.
        return (self.question(None if self.left else -1), 1_000) if self.left >= 0 else None


@in_virtual_time
async def test_what_follows_a_response_is_sent_in_the_same_turn_and_the_caller_gets_the_last_response() -> None:
    brokers = FakeBrokers()
    client = new_cluster(brokers)
    (broker,) = _brokers_of(brokers)
    following = _Following(3)
    assert await client.request(broker, following.question(), timeout_ms=1_000, waits=True) == 3, "the last one was not sent"
    asked = [seen for seen in brokers.seen if isinstance(seen.message, MetadataRequest)]
    assert len(asked) == 3
    assert len({seen.connection for seen in asked}) == 1
    await client.close()


@in_virtual_time
async def test_a_connection_that_ends_while_a_following_request_waits_fails_the_caller() -> None:
    brokers = FakeBrokers()
    client = new_cluster(brokers)
    (broker,) = _brokers_of(brokers)
    following = _Following(10**9)
    waiting = asyncio.create_task(client.request(broker, following.question(), timeout_ms=1_000, waits=True))
    await eventually_async(lambda: len(following.seen) > 3)
    brokers.disconnect()
    with pytest.raises(DisconnectedError):
        await waiting
    await client.close()


@in_virtual_time
async def test_of_idle_connections_the_two_that_were_used_last_are_kept() -> None:
    brokers = FakeBrokers(brokers=5)
    client = new_cluster(brokers)
    for broker in _brokers_of(brokers):
        await client.request(broker, MetadataRequest(topics=()), timeout_ms=1_000)
    assert brokers.open == 5
    await pause(9_000)
    assert brokers.open == 5
    first = _brokers_of(brokers)[0]
    await client.request(first, MetadataRequest(topics=()), timeout_ms=1_000)
    await pause(2_000)
    assert brokers.open == 2
    assert client.open_connection(first) is not None, "the connection in use stays"
    await pause(600_000)
    assert brokers.open == 0, "connections.max.idle.ms is over"
    await client.close()


@in_virtual_time
async def test_connections_max_idle_ms_of_0_closes_no_connection() -> None:
    brokers = FakeBrokers({"orders": 2})
    client = new_cluster(brokers, connections_max_idle_ms=0)
    watch = client.watch(frozenset({"orders"}), lambda metadata: None)
    await eventually_async(lambda: client.metadata.topics)
    asked = len(brokers.all(MetadataRequest))
    await pause(200_000)
    assert len(brokers.all(MetadataRequest)) == asked
    client.unwatch(watch)
    await pause(5_000_000)
    assert brokers.open == 1
    await client.close()


@in_virtual_time
async def test_a_topic_that_a_watch_needs_again_during_a_refresh_stays_known() -> None:
    brokers = FakeBrokers({"orders": 2, "bills": 1})
    client = new_cluster(brokers)
    seen: list[set[str]] = []
    watch = client.watch(frozenset({"orders", "bills"}), lambda metadata: seen.append(set(metadata.topics)))
    await eventually_async(lambda: seen)
    client.change_watch(watch, frozenset({"orders"}))
    answering = asyncio.Event()
    brokers.answer(MetadataRequest, held_until(answering))
    refresh = asyncio.create_task(client.refresh(Deadline.after(10_000)))
    await eventually_async(lambda: len(brokers.all(MetadataRequest)) == 2)
    client.change_watch(watch, frozenset({"orders", "bills"}))
    answering.set()
    await refresh
    assert seen == [{"orders", "bills"}] * 2
    await client.close()


class _Members:
    """Consumers of one group, each read by a separate thread; callbacks record the partitions of each one."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self.held: list[set[int]] = [set() for _ in range(count)]
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(make(number), number)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, consumer: Any, number: int) -> None:
        held = self.held[number]
        consumer.subscribe(
            ["orders"],
            on_assign=lambda _, rows: held.update(row.partition for row in rows),
            on_revoke=lambda _, rows: held.difference_update(row.partition for row in rows),
        )
        while not self._ending.is_set():
            consumer.poll(0.05)
        consumer.close()

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.mark.slow
def test_a_process_has_two_connections_more_than_librdkafka_at_most() -> None:
    count = 8
    with EmbeddedKafka(topics={"orders": count}, config=BROKER) as kafka:
        settings = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": 500,
        }
        peers = _Members(lambda number: confluent_kafka.Consumer({**settings, "group.id": "librdkafka"}), count)
        try:
            eventually(lambda: all(len(held) == 1 for held in peers.held))
            of_librdkafka = kafka.open_connections
        finally:
            peers.end()
        eventually(lambda: kafka.open_connections == 0)
        ours = _Members(lambda number: GroupConsumer({**settings, "group.id": "ours", "client.id": f"worker-{number}"}), count)
        try:
            eventually(lambda: all(len(held) == 1 for held in ours.held))
            # The connections of the joins are released after a few seconds.
            eventually(lambda: kafka.open_connections <= of_librdkafka + 2)
            assert kafka.open_connections >= count, "every member reads"
        finally:
            ours.end()


@pytest.mark.parametrize(("newest", "sent"), [(3, [4, 4, 3]), (0, [4, 4, 3, 0])])
@in_virtual_time
async def test_a_broker_that_closes_on_newer_api_versions_is_asked_with_older_ones(newest: int, sent: list[int]) -> None:
    """Azure Event Hubs closes the connection, and reports a newer version than it answers."""
    brokers = FakeBrokers()
    brokers.always(ApiVersionsRequest, lambda _: DROP if brokers.seen[-1].version > newest else PASS)
    one = new_member(brokers)
    await one.join()
    assert _asked_in(brokers) == sent
    brokers.disconnect()
    count = len(sent)
    await eventually_async(lambda: len(_asked_in(brokers)) > count, "another connection")
    assert _asked_in(brokers)[count:] == [newest], "the version is remembered"
    await one.close()


@in_virtual_time
async def test_a_broker_that_restarts_is_asked_again_with_the_newest_api_versions() -> None:
    brokers = FakeBrokers()
    brokers.answer(ApiVersionsRequest, DROP, DROP, DROP, DROP)
    one = new_member(brokers)
    await one.join()
    assert _asked_in(brokers) == [4, 4, 3, 0, 4]
    await one.close()


@in_virtual_time
async def test_a_broker_that_offers_no_version_at_all_is_asked_again() -> None:
    brokers = FakeBrokers()
    brokers.answer(ApiVersionsRequest, ApiVersionsResponse(), ApiVersionsResponse(api_keys=[ApiVersion(3, -1, -1)]))
    one = new_member(brokers)
    await one.join()
    assert _asked_in(brokers) == [4, 4, 4]
    await one.close()


@in_virtual_time
async def test_a_closed_client_ends_its_requests_without_retries() -> None:
    brokers = FakeBrokers()
    brokers.down = {0}
    cluster = new_cluster(brokers)
    asks = asyncio.ensure_future(cluster.request_any(MetadataRequest(topics=[]), Deadline.after(60_000)))
    await pause(100)
    await cluster.close()
    await pause(2_000)
    assert asks.done(), "no request is retried on a closed client"
    with pytest.raises(ClosedError, match="is closed"):
        await asks
