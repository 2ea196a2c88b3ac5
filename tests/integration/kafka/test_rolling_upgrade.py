"""Three brokers are upgraded one after the other from Kafka 4.3 to 4.4, under groups of both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer_coord.testing.jars import KAFKA_4_3
from consumer_coord.testing.real_kafka import RealKafka
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from tests.conftest import fetched, fetched_or_skipped
from tests.support.broker.differential import RealBroker
from tests.support.go import go_program
from tests.support.java import ToolJars, run_kafka_tool
from tests.support.kafka.four_clients import CLIENTS, PARTITIONS, PROTOCOLS, Group, Writing, ends_of
from tests.support.members import Members, await_shared

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BROKERS = 3


@pytest.fixture
def old_brokers() -> Iterator[RealKafka]:
    """Three brokers of Kafka 4.3."""
    with RealKafka(fetched(KAFKA_4_3), brokers=BROKERS, properties={"min.insync.replicas": "2"}) as cluster:
        yield cluster


def serves_4_4(kafka: RealKafka) -> list[bool]:
    """For each broker, whether it knows ApiVersions v5, which came with Kafka 4.4."""

    async def ask(address: str) -> bool:
        host, _, port = address.partition(":")
        broker = RealBroker(host, int(port))
        try:
            answer = await broker.call("shared", ApiVersionsRequest("test", "1"), 5)
            assert isinstance(answer, ApiVersionsResponse)
            return answer.error_code == codes.NONE
        finally:
            await broker.close()

    async def main() -> list[bool]:
        return [await ask(address) for address in kafka.bootstrap_servers.split(",")]

    return asyncio.run(main())


@pytest.mark.timeout(900)
def test_brokers_are_upgraded_under_running_members_and_nothing_is_lost(
    old_brokers: RealKafka,
    kafka_libs: Path,
    tool_jars: ToolJars,
    members: Members,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetched_or_skipped(lambda: go_program("group_member"))
    kafka = old_brokers
    name = kafka.new_topic(PARTITIONS, replication_factor=BROKERS)
    assert serves_4_4(kafka) == [False] * BROKERS
    groups = [Group(kafka, members, f"{protocol}-upgrade", name, protocol) for protocol in PROTOCOLS]
    with Writing(kafka.bootstrap_servers, name):
        for group in groups:
            for client in CLIENTS:
                group.start(client)
            await_shared(list(group.running.values()), {name: PARTITIONS}, at_least=2, deadline_s=120)
        for broker in range(1, BROKERS + 1):
            kafka.await_in_sync()
            kafka.upgrade(kafka_libs, broker)
        kafka.await_in_sync()
        assert serves_4_4(kafka) == [True] * BROKERS
        features = ("--bootstrap-server", kafka.bootstrap_servers, "upgrade", "--release-version", "4.4")
        upgraded = run_kafka_tool(tool_jars, "FeatureCommand", *features)
        assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
        for group in groups:
            await_shared(list(group.running.values()), {name: PARTITIONS}, at_least=2, deadline_s=120)
    ends = ends_of(kafka, name)
    for group in groups:
        counted = group.check_nothing_is_lost(ends)
        with capsys.disabled():
            print(f"\n{counted}")
