"""An address that now belongs to another broker, and brokers that a client must look up again (KIP-1242, KIP-1102)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from consumer_coord.errors import DisconnectedError, RequestTimedOutError
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.codec import Request, encode_response
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from tests.support.group.fake import SILENCE, Drop, FakeBrokers
from tests.support.group.member import new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async


class Addresses(FakeBrokers):
    """Three brokers, the first of which is in ``bootstrap.servers``; each may have become a broker of another cluster."""

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        super().__init__(topics, brokers=3)
        #: node -> the cluster that its address leads to
        self.clusters = dict.fromkeys(self.nodes, "fake")

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        return (("broker-0", 9092),)

    async def serve(self, node: int, request: Request, frame: bytes) -> bytes | Drop:
        self.cluster_id = self.clusters[node]
        sought = request.message
        newest = self.newest.get(request.api_key, request.version)
        if isinstance(sought, ApiVersionsRequest) and request.version > newest:
            served = (ApiVersion(request.api_key, 0, newest),)
            refusal = ApiVersionsResponse(error_code=codes.UNSUPPORTED_VERSION, api_keys=served)
            return encode_response(refusal, 0, request.correlation_id)
        here = (None, self.cluster_id)
        if isinstance(sought, ApiVersionsRequest) and (sought.cluster_id not in here or sought.node_id not in (-1, node)):
            refusal = ApiVersionsResponse(error_code=codes.REBOOTSTRAP_REQUIRED)
            return encode_response(refusal, request.version, request.correlation_id)
        return await super().serve(node, request, frame)

    def asked(self, node: int) -> list[object]:
        """Return the requests that a broker received, except ApiVersions."""
        return [seen.message for seen in self.seen if seen.node == node and not isinstance(seen.message, ApiVersionsRequest)]


@in_virtual_time
async def test_a_connection_names_the_broker_that_is_meant() -> None:
    brokers = Addresses()
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    await client.request(client.metadata.brokers[2], MetadataRequest(topics=()), timeout_ms=1_000)
    first, second = brokers.all(ApiVersionsRequest)
    assert (first.cluster_id, first.node_id) == (None, -1), "the cluster of bootstrap.servers is unknown"
    assert (second.cluster_id, second.node_id) == ("fake", 2)
    await client.close()


@in_virtual_time
async def test_an_older_broker_is_asked_in_its_newest_version() -> None:
    """The broker still learns the client's name (KIP-511), and the next connection begins with that version."""
    brokers = Addresses()
    brokers.newest[api_for(ApiVersionsRequest).key] = 3
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    await client.request(client.metadata.brokers[2], MetadataRequest(topics=()), timeout_ms=1_000)
    asked = [(seen.version, seen.message) for seen in brokers.seen if isinstance(seen.message, ApiVersionsRequest)]
    assert [version for version, _ in asked] == [4, 3, 3]
    assert all(message.client_software_name == "consumer-coord" for _, message in asked)
    # The cluster is upgraded: its next response reports this, and the connection after that names its broker.
    brokers.newest.clear()
    brokers.disconnect()
    for node in (1, 2):
        await client.request(client.metadata.brokers[node], MetadataRequest(topics=()), timeout_ms=1_000)
    asked = [(seen.version, seen.message) for seen in brokers.seen if isinstance(seen.message, ApiVersionsRequest)][3:]
    assert [(version, message.cluster_id) for version, message in asked] == [(3, None), (5, "fake")]
    await client.close()


@in_virtual_time
async def test_a_broker_of_another_cluster_is_asked_nothing() -> None:
    brokers = Addresses()
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    brokers.clusters[2] = "other"
    with pytest.raises(DisconnectedError, match=r"broker-2:9092 is not broker 2 of cluster fake \(REBOOTSTRAP_REQUIRED\)"):
        await client.request(client.metadata.brokers[2], MetadataRequest(topics=()), timeout_ms=1_000)
    assert brokers.asked(2) == []
    assert client.metadata.brokers == {}, "bootstrap.servers return the new addresses"
    await client.refresh(Deadline.after(1_000))
    assert (client.metadata.cluster_id, sorted(client.metadata.brokers)) == ("fake", [0, 1, 2])
    await client.close()


@in_virtual_time
async def test_a_member_whose_coordinator_became_another_clusters_finds_the_new_one() -> None:
    brokers = Addresses()
    brokers.coordinator = 2
    one = new_member(brokers)
    await one.join()
    assert any(isinstance(message, JoinGroupRequest) for message in brokers.asked(2))
    before = len(brokers.asked(2))
    brokers.clusters[2], brokers.coordinator = "other", 1
    brokers.disconnect()
    await eventually_async(lambda: any(isinstance(message, HeartbeatRequest) for message in brokers.asked(1)))
    assert len(brokers.asked(2)) == before
    assert one.coordinator.generation == 1, "the coordinator moved, and the member is still in its generation"
    await one.close()


@in_virtual_time
async def test_metadata_of_another_cluster_is_not_believed() -> None:
    """Brokers before Kafka 4.4 do not compare cluster ids, so a connection may lead to another cluster."""
    brokers = Addresses({"orders": 2})
    brokers.newest[api_for(ApiVersionsRequest).key] = 4
    client = new_cluster(brokers)
    client.watch(frozenset({"orders"}), lambda metadata: None)
    await eventually_async(lambda: client.metadata.topics)
    brokers.clusters.update({1: "other", 2: "other"})
    brokers.down = {0}
    brokers.disconnect()
    with pytest.raises(RequestTimedOutError):
        await client.refresh(Deadline.after(5_000))
    assert any(brokers.asked(node) for node in (1, 2)), "another cluster received the request"
    assert client.metadata.cluster_id is None
    assert list(client.metadata.topics) == ["orders"], "the topics are unchanged"
    brokers.down = set()
    await eventually_async(lambda: client.metadata.cluster_id == "fake")
    await client.close()


@in_virtual_time
async def test_bootstrap_servers_may_lead_to_a_new_cluster() -> None:
    """A development cluster may be created again under its old address."""
    brokers = Addresses()
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    brokers.clusters = dict.fromkeys(brokers.nodes, "new")
    brokers.disconnect()
    await client.refresh(Deadline.after(5_000))
    assert client.metadata.cluster_id == "new"
    await client.close()


@in_virtual_time
async def test_brokers_can_send_a_client_back_to_bootstrap_servers() -> None:
    brokers = Addresses()
    client = new_cluster(brokers)
    await client.refresh(Deadline.after(1_000))
    brokers.answer(MetadataRequest, codes.REBOOTSTRAP_REQUIRED)
    await client.refresh(Deadline.after(5_000))
    assert sorted(client.metadata.brokers) == [0, 1, 2]
    asked = [seen.node for seen in brokers.seen if isinstance(seen.message, MetadataRequest)]
    assert asked[-1] == 0, "the only broker in bootstrap.servers"
    brokers.always(MetadataRequest, codes.REBOOTSTRAP_REQUIRED)
    with pytest.raises(DisconnectedError, match="the bootstrap servers answered Metadata with REBOOTSTRAP_REQUIRED"):
        await client.refresh(Deadline.after(5_000))
    await client.close()


@in_virtual_time
async def test_brokers_that_stay_silent_are_left_for_bootstrap_servers() -> None:
    """The addresses accept connections and send no response, like a load balancer whose servers are gone."""
    brokers = Addresses({"orders": 1})
    client = new_cluster(brokers, rebootstrap_trigger_ms=60_000)
    client.watch(frozenset({"orders"}), lambda metadata: None)
    await eventually_async(lambda: client.metadata.topics)
    # The cluster moved: bootstrap.servers name new machines.
    brokers.nodes = [1, 2]
    await client.refresh(Deadline.after(1_000))
    brokers.always(MetadataRequest, SILENCE)
    client.refresh_soon()
    await pause(50_000)
    asked = [seen.node for seen in brokers.seen if isinstance(seen.message, MetadataRequest)]
    assert set(asked[2:]) == {1, 2}
    await pause(60_000)
    asked = [seen.node for seen in brokers.seen if isinstance(seen.message, MetadataRequest)]
    assert 0 in asked[2:]
    await client.close()
