"""An error of the coordinator carries only the value that it is about; brokers that are too old get a separate error."""

from __future__ import annotations

from typing import Any

import pytest

from consumer_coord.admin.offset_access import delete_offsets
from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.net.cluster import ClusterClient
from consumer_coord.net.connection import Connection
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import APIS, api_for
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from consumer_coord.wire.messages.group import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from consumer_coord.wire.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest
from tests.support.group.consumer_protocol import SESSION_MS, Broker, joined
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import at, member, new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async


@pytest.mark.parametrize(
    ("code", "settings", "says"),
    [
        (codes.INVALID_SESSION_TIMEOUT, {"session_timeout_ms": 10_000}, "session.timeout.ms=10000"),
        (codes.FENCED_INSTANCE_ID, {"group_instance_id": "till-3"}, "group.instance.id=till-3"),
        (codes.GROUP_MAX_SIZE_REACHED, {}, "group.max.size"),
        (codes.UNKNOWN_SERVER_ERROR, {}, "message.max.bytes"),
        (codes.GROUP_AUTHORIZATION_FAILED, {}, "READ on the group"),
        (codes.INCONSISTENT_GROUP_PROTOCOL, {}, "this member offers cooperative-sticky"),
    ],
)
@in_virtual_time
async def test_a_refused_join_names_the_value_and_nothing_irrelevant(code: int, settings: dict[str, Any], says: str) -> None:
    brokers = FakeBrokers()
    brokers.always(JoinGroupRequest, code)
    async with member(brokers, **settings) as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(Exception, match="refused") as refused:
            await one.coordinator.join_group_if_needed(5_000)
    told = str(refused.value)
    assert says in told
    assert ("offers" in told) is (code == codes.INCONSISTENT_GROUP_PROTOCOL)


@in_virtual_time
async def test_the_error_of_a_static_member_before_2_3_names_setting_and_version() -> None:
    brokers = FakeBrokers()
    brokers.newest[api_for(JoinGroupRequest).key] = 4
    async with member(brokers, group_instance_id="till-3") as one:
        one.coordinator.subscribe(["t"])
        with pytest.raises(UnsupportedVersionError, match=r"group\.instance\.id needs Apache Kafka 2\.3 or newer") as refused:
            await one.coordinator.join_group_if_needed(5_000)
    assert "JoinGroupRequest" not in str(refused.value)


@in_virtual_time
async def test_the_error_of_a_missing_api_names_the_version_that_has_it() -> None:
    brokers = FakeBrokers()

    def without_offset_delete(request: ApiVersionsRequest) -> ApiVersionsResponse:
        served = [api for api in APIS.values() if api.key != api_for(OffsetDeleteRequest).key]
        rows = (ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in served)
        return ApiVersionsResponse(api_keys=tuple(rows))

    brokers.always(ApiVersionsRequest, without_offset_delete)
    cluster = new_cluster(brokers)
    try:
        with pytest.raises(
            UnsupportedVersionError, match=r"does not support OffsetDelete, which needs Apache Kafka 2\.4 or newer"
        ):
            await delete_offsets(cluster, "g", [TopicPartition("t", 0)], Deadline.after(5_000))
    finally:
        await cluster.close()


REFUSED = pytest.mark.parametrize(
    "code", [codes.GROUP_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED, codes.SASL_AUTHENTICATION_FAILED]
)


class Tokens:
    """An authenticator that counts how often a connection authenticated, and how often its token was dropped."""

    def __init__(self) -> None:
        self.used = self.dropped = 0

    async def authenticate(self, connection: Connection) -> int:
        """See :class:`consumer_coord.net.connection.Authenticator`."""
        self.used += 1
        return 0

    def forget(self) -> None:
        """See :class:`consumer_coord.net.connection.Authenticator`."""
        self.dropped += 1


def secured(brokers: Any) -> tuple[ClusterClient, Tokens]:
    """Return a cluster client that authenticates."""
    tokens = Tokens()
    return new_cluster(brokers, authenticator=tokens), tokens


@REFUSED
@pytest.mark.parametrize("kind", [HeartbeatRequest, OffsetCommitRequest, JoinGroupRequest, SyncGroupRequest])
@in_virtual_time
async def test_a_member_that_is_refused_once_authenticates_again_and_stays(code: int, kind: type[Any]) -> None:
    """A token that has just expired is no reason to read records twice."""
    brokers = FakeBrokers()
    cluster, tokens = secured(brokers)
    one = new_member(brokers, cluster=cluster)
    await one.join()
    held, used = one.held, tokens.used
    for _ in range(2):
        dropped = tokens.dropped
        brokers.answer(kind, code)
        if kind in (JoinGroupRequest, SyncGroupRequest):
            one.coordinator.enforce_rebalance()
        answers = await one.coordinator.commit(at("t", 0, 5))
        await pause(8_000)
        assert one.stable
        assert answers == {TopicPartition("t", 0): None}
        assert tokens.dropped == dropped + 1
    assert tokens.used > used
    assert one.held == held
    assert "lost" not in [kind for kind, _ in one.callbacks]
    assert not one.errors
    await one.close()


@REFUSED
@pytest.mark.parametrize("kind", [HeartbeatRequest, OffsetCommitRequest, JoinGroupRequest])
@in_virtual_time
async def test_a_member_that_is_refused_again_tells_its_application(code: int, kind: type[Any]) -> None:
    brokers = FakeBrokers()
    cluster, tokens = secured(brokers)
    one = new_member(brokers, cluster=cluster)
    await one.join()
    brokers.always(kind, code)
    if kind is OffsetCommitRequest:
        answers = await one.coordinator.commit(at("t", 0, 5))
        assert codes.error_name(code) in str(answers[TopicPartition("t", 0)])
    else:
        if kind is JoinGroupRequest:
            one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.errors)
        assert codes.error_name(code) in str(one.errors[0])
    assert tokens.dropped == 1
    await one.close(1_000)


@REFUSED
@in_virtual_time
async def test_a_member_of_the_consumer_protocol_that_is_refused_once_authenticates_again_and_stays(code: int) -> None:
    broker = Broker()
    cluster, tokens = secured(broker)
    one = await joined(broker, cluster=cluster)
    held = one.held
    broker.answer(ConsumerGroupHeartbeatRequest, code)
    await eventually_async(lambda: tokens.dropped == 1)
    await pause(2 * SESSION_MS)
    assert one.stable
    assert one.held == held
    assert "lost" not in [kind for kind, _ in one.callbacks]
    broker.always(ConsumerGroupHeartbeatRequest, code)
    await eventually_async(lambda: one.errors)
    assert codes.error_name(code) in str(one.errors[0])
    assert tokens.dropped == 2
    broker.always(ConsumerGroupHeartbeatRequest, None)
    await one.close(1_000)
