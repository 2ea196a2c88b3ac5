"""An error of the coordinator carries only the value that it is about; brokers that are too old get a separate error."""

from __future__ import annotations

from typing import Any

import pytest

from consumer_coord.admin.offset_access import delete_offsets
from consumer_coord.errors import UnsupportedVersionError
from consumer_coord.retry import Deadline
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import APIS, api_for
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from consumer_coord.wire.messages.group import JoinGroupRequest
from consumer_coord.wire.messages.offsets import OffsetDeleteRequest
from tests.support.group.fake import FakeBrokers
from tests.support.group.member import member, new_cluster
from tests.support.group.virtual import in_virtual_time


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
