"""No member sends requests in a storm, whatever responses a broker gives, and for however long."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from consumer_coord.errors import CoordinatorError
from consumer_coord.simulation.checkers import MOST_REQUESTS
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import MetadataRequest
from consumer_coord.wire.messages.group import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from consumer_coord.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.support.group.fake import DROP, FakeBrokers, Reply
from tests.support.group.member import COOPERATIVE, EAGER, TestMember, at, new_member, parts
from tests.support.group.virtual import in_virtual_time, pause

#: Every error of the group protocol, an unknown error, and a closed connection.
ANSWERS: tuple[Reply, ...] = (
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.NOT_COORDINATOR,
    codes.ILLEGAL_GENERATION,
    codes.INCONSISTENT_GROUP_PROTOCOL,
    codes.UNKNOWN_MEMBER_ID,
    codes.REBALANCE_IN_PROGRESS,
    codes.GROUP_AUTHORIZATION_FAILED,
    codes.MEMBER_ID_REQUIRED,
    codes.GROUP_MAX_SIZE_REACHED,
    codes.FENCED_INSTANCE_ID,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.UNSTABLE_OFFSET_COMMIT,
    12_345,
    DROP,
)


async def _use(one: TestMember) -> None:
    """Commit and fetch committed offsets, whatever the responses are."""
    while True:
        with contextlib.suppress(CoordinatorError):
            await one.coordinator.commit(at("t", 0, 1), timeout_ms=2_000)
        with contextlib.suppress(CoordinatorError):
            await one.coordinator.committed(parts("t", 0), timeout_ms=2_000)
        await asyncio.sleep(0.5)


@pytest.mark.thorough
@pytest.mark.parametrize("assignors", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])
@pytest.mark.parametrize(
    "request_class",
    [
        FindCoordinatorRequest,
        JoinGroupRequest,
        SyncGroupRequest,
        HeartbeatRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        LeaveGroupRequest,
    ],
)
@in_virtual_time
async def test_no_answer_makes_a_storm(request_class: type[Any], assignors: Any) -> None:
    for answer in ANSWERS:
        brokers = FakeBrokers()
        one = new_member(brokers, assignors)
        await one.join()
        user = asyncio.get_running_loop().create_task(_use(one))
        await pause(1_000)
        brokers.always(request_class, answer)
        one.coordinator.enforce_rebalance()
        await pause(5_000)
        each_second = Counter(int(seen.at_ms / 1000) for seen in brokers.seen)
        most = max(each_second.values())
        assert most <= MOST_REQUESTS, f"{answer} makes {most} requests a second: {Counter(brokers.kinds()).most_common(3)}"
        user.cancel()
        brokers.always(request_class, None)
        await one.close(1_000)


@pytest.mark.parametrize("code", [codes.MEMBER_ID_REQUIRED, codes.REBALANCE_IN_PROGRESS])
@in_virtual_time
async def test_a_join_that_repeats_for_ever_is_reported_to_the_application(code: int) -> None:
    brokers = FakeBrokers()
    brokers.always(SyncGroupRequest if code == codes.REBALANCE_IN_PROGRESS else JoinGroupRequest, code)
    one = new_member(brokers, default_api_timeout_ms=20_000)
    one.coordinator.subscribe(["t"])
    one.start()
    await pause(60_000)
    assert any("could not be joined" in str(error) for error in one.errors)
    assert len(brokers.all(JoinGroupRequest)) < 60 * 5
    await one.close(1_000)


@in_virtual_time
async def test_an_application_that_polls_despite_errors_makes_no_storm_of_joins() -> None:
    brokers = FakeBrokers()
    brokers.always(JoinGroupRequest, codes.GROUP_AUTHORIZATION_FAILED)
    one = new_member(brokers)
    one.coordinator.subscribe(["t"])
    one.start(every_ms=1)
    await pause(60_000)
    assert {error.code for error in one.errors} == {codes.GROUP_AUTHORIZATION_FAILED}
    # With growing pauses: at its usual pace alone the member would join four times a second.
    assert 50 <= len(brokers.all(JoinGroupRequest)) <= 80
    await one.close(1_000)


@in_virtual_time
async def test_metadata_that_cannot_be_had_is_asked_for_with_a_backoff() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    brokers.always(MetadataRequest, DROP)
    one.cluster.refresh_soon()
    await pause(20_000)
    each_second = Counter(int(seen.at_ms / 1000) for seen in brokers.seen)
    assert max(each_second.values()) <= MOST_REQUESTS
    brokers.always(MetadataRequest, None)
    await one.close(1_000)
