"""The check of the cluster id and broker id in ApiVersions v5 (KIP-1242): the embedded Kafka responds as Apache Kafka does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.support.broker.differential import RealBroker


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a broker of the kind in ``request.param`` listens."""
    if request.param == "embedded":
        with EmbeddedKafka() as kafka:
            yield kafka.bootstrap_servers
    else:
        yield request.getfixturevalue("kafka").bootstrap_servers


@pytest.mark.parametrize("servers", ["embedded", pytest.param("real", marks=pytest.mark.kafka)], indirect=True)
def test_a_broker_that_is_not_the_one_meant_says_so(servers: str) -> None:
    host, _, port = servers.partition(":")

    async def main() -> None:
        broker = RealBroker(host, int(port))
        metadata = await broker.call("shared", MetadataRequest(topics=()), 12)
        assert isinstance(metadata, MetadataResponse)
        cluster, node = metadata.cluster_id, metadata.brokers[0].node_id

        async def ask(cluster_id: str | None, node_id: int, *, name: str = "test", version: int = 5) -> int:
            answer = await broker.call("shared", ApiVersionsRequest(name, "1", cluster_id, node_id), version)
            assert isinstance(answer, ApiVersionsResponse)
            assert bool(answer.api_keys) == (answer.error_code == codes.NONE)
            return answer.error_code

        try:
            assert await ask(cluster, node) == codes.NONE
            assert await ask(None, -1) == codes.NONE
            assert await ask("other", node) == codes.REBOOTSTRAP_REQUIRED
            assert await ask(cluster, node + 1) == codes.REBOOTSTRAP_REQUIRED
            assert await ask(None, node) == await ask(cluster, -1) == codes.INVALID_REQUEST, "both are given, or none"
            assert await ask(cluster, node, name="a client") == codes.INVALID_REQUEST
            assert await ask("other", node, version=4) == codes.NONE, "which has no place for it"
        finally:
            await broker.close()

    asyncio.run(main())
