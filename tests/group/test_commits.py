"""Commits and committed offsets (behaviours 77 to 90, without automatic commits)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer_coord.broker.requests.handlers import SERVED
from consumer_coord.errors import (
    AuthorizationError,
    BrokerError,
    ClosedError,
    CommitFailedError,
    CoordinatorError,
    FencedError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicError,
)
from consumer_coord.group import commits as commit_lane
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from consumer_coord.wire.messages.group import FindCoordinatorRequest, JoinGroupRequest
from consumer_coord.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.support.group.fake import (
    DROP,
    PASS,
    SILENCE,
    FakeBrokers,
    Pass,
    RealCoordinator,
    commit_answer,
    held_until,
    offsets_of,
)
from tests.support.group.fetched import fetch_answer
from tests.support.group.member import EAGER, at, member, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


@pytest.mark.behaviour(77)
@in_virtual_time
async def test_a_commit_without_membership_is_a_simple_one() -> None:
    brokers = RealCoordinator()
    async with member(brokers) as one:
        position = {T0: OffsetAndMetadata(42, 3, "note")}
        assert await one.coordinator.commit(position) == {T0: None}
        assert await one.coordinator.committed([T0, T1]) == {T0: position[T0], T1: None}
    request = brokers.last(OffsetCommitRequest)
    assert (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id) == (-1, "", None)
    assert not brokers.all(JoinGroupRequest)


@pytest.mark.parametrize("offset", [-1, -1001])
@in_virtual_time
async def test_a_negative_offset_is_no_commit(offset: int) -> None:
    """Brokers store what a client commits, so -1001 is there for good, and asking again would find it again."""
    brokers = FakeBrokers()
    brokers.answer(OffsetFetchRequest, lambda request: fetch_answer(request, {T0: offset, T1: 7}))
    async with member(brokers) as one:
        assert await one.coordinator.committed([T0, T1]) == {T0: None, T1: OffsetAndMetadata(7)}


@in_virtual_time
async def test_a_commit_carries_the_generation_and_the_member() -> None:
    brokers = RealCoordinator()
    async with member(brokers, group_instance_id="till-1") as one:
        await one.join()
        assert await one.coordinator.commit(at("t", 0, 42)) == {T0: None}
        request = brokers.last(OffsetCommitRequest)
        assert request.generation_id_or_member_epoch == one.coordinator.generation == 1
        assert request.member_id == one.coordinator.member_id != ""
        assert request.group_instance_id == "till-1"


@pytest.mark.behaviour(78)
@in_virtual_time
async def test_earlier_commits_complete_before_a_later_commit_returns() -> None:
    brokers = FakeBrokers()

    async def slowly(request: OffsetCommitRequest) -> Pass:
        await asyncio.sleep(2)
        return PASS

    brokers.answer(OffsetCommitRequest, slowly, codes.COORDINATOR_LOAD_IN_PROGRESS)
    async with member(brokers) as one:
        await one.join()
        earlier = [one.coordinator.start_commit(at("t", 0, offset), timeout_ms=9_000) for offset in (1, 2, 3)]
        await one.coordinator.commit(at("t", 1, 9))
        assert all(future.done() and future.result() == {T0: None} for future in earlier)
        assert brokers.committed == {T0: 3, T1: 9}


@in_virtual_time
async def test_commits_during_a_pending_commit_are_merged_into_the_next() -> None:
    """So the order of commits is the order of the calls, and a slow broker gets few requests."""
    brokers = FakeBrokers()
    go = asyncio.Event()
    brokers.answer(OffsetCommitRequest, held_until(go))
    async with member(brokers) as one:
        await one.join()
        commits = [one.coordinator.start_commit(at("t", offset % 2, offset), timeout_ms=9_000) for offset in range(50)]
        await pause(100)
        commits += [one.coordinator.start_commit(at("t", 0, offset), timeout_ms=9_000) for offset in range(50, 90)]
        assert len(brokers.all(OffsetCommitRequest)) == 1
        go.set()
        await asyncio.gather(*commits)
    assert [offsets_of(request) for request in brokers.all(OffsetCommitRequest)] == [{T0: 48, T1: 49}, {T0: 89}]


@in_virtual_time
async def test_a_commit_that_finds_no_place_is_a_failed_future(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = FakeBrokers()
    monkeypatch.setattr(commit_lane, "MOST_WAITING", 1)
    async with member(brokers) as one:
        await one.join()
        first, second = (one.coordinator.start_commit(at("t", 0, offset)) for offset in (1, 2))
        with pytest.raises(RetriableError, match="wait for the coordinator: await them"):
            await second
        assert await first == {T0: None}
    closed = one.coordinator.start_commit(at("t", 0, 3))
    assert closed.done()
    with pytest.raises(ClosedError, match="commit before closing it"):
        await closed


@pytest.mark.behaviour(79)
@in_virtual_time
async def test_close_waits_for_commits_that_are_under_way() -> None:
    brokers = FakeBrokers()

    async def slowly(request: OffsetCommitRequest) -> Pass:
        await asyncio.sleep(2)
        return PASS

    brokers.answer(OffsetCommitRequest, slowly)
    one = new_member(brokers)
    await one.join()
    await one.stop()
    commit = one.coordinator.start_commit(at("t", 0, 7), timeout_ms=9_000)
    one.coordinator.release(one.held)
    await one.coordinator.close(5_000)
    assert commit.result() == {T0: None}
    assert brokers.kinds()[-2:] == ["OffsetCommit", "LeaveGroup"]
    with pytest.raises(ClosedError, match="commit before closing it"):
        await one.coordinator.commit(at("t", 0, 8))
    await one.cluster.close()


@pytest.mark.behaviour(80)
@in_virtual_time
async def test_an_unknown_topic_is_retried_for_a_moment() -> None:
    """The topic may be new; if it was deleted, nothing may wait for it long (confluent-kafka reports the error at once)."""
    brokers = FakeBrokers()
    unknown = {T0: codes.UNKNOWN_TOPIC_OR_PARTITION}
    brokers.answer(OffsetCommitRequest, *[lambda request: commit_answer(request, unknown)] * 2)
    async with member(brokers) as one:
        await one.join()
        both = {**at("t", 0, 5), **at("t", 1, 6)}
        assert await one.coordinator.commit(both) == {T0: None, T1: None}
        asked = [offsets_of(request) for request in brokers.all(OffsetCommitRequest)]
        assert asked == [{T0: 5, T1: 6}, {T0: 5}, {T0: 5}], "a committed offset was sent again"
        brokers.always(OffsetCommitRequest, lambda request: commit_answer(request, unknown))
        started = now_ms()
        result = await one.coordinator.commit({**at("t", 0, 7), **at("t", 1, 8)}, timeout_ms=30_000)
        assert 500 <= now_ms() - started < 1_000
        assert result[T1] is None
        assert isinstance(result[T0], UnknownTopicError)
        assert "t-0" in str(result[T0])
        assert one.stable


@pytest.mark.behaviour(86)
@in_virtual_time
async def test_a_join_waits_for_commits_no_longer_than_a_session() -> None:
    brokers = FakeBrokers()
    async with member(brokers, EAGER, session_timeout_ms=10_000, rebalance_timeout_ms=300_000) as one:
        await one.join()
        brokers.always(OffsetCommitRequest, lambda request: commit_answer(request, {T0: codes.REQUEST_TIMED_OUT}))
        commit = one.coordinator.start_commit(at("t", 0, 7), timeout_ms=300_000)
        started = now_ms()
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 3)
        assert now_ms() - started < 10_100
        brokers.always(OffsetCommitRequest, None)
        await asyncio.gather(commit, return_exceptions=True)


@pytest.mark.behaviour(81)
@in_virtual_time
async def test_metadata_that_is_too_large_is_an_error_for_that_partition_only() -> None:
    brokers = RealCoordinator(settings={"offset.metadata.max.bytes": 10})
    async with member(brokers) as one:
        await one.join()
        result = await one.coordinator.commit({T0: OffsetAndMetadata(5, -1, "x" * 11), T1: OffsetAndMetadata(6, -1, "x" * 10)})
        assert result[T1] is None
        error = result[T0]
        assert isinstance(error, CommitFailedError)
        assert error.code == codes.OFFSET_METADATA_TOO_LARGE
        assert "offset.metadata.max.bytes" in str(error)
        assert one.stable


@pytest.mark.behaviour(82)
@pytest.mark.parametrize("code", [codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID])
@in_virtual_time
async def test_a_commit_refused_out_of_the_blue_means_that_the_group_went_on_without_us(code: int) -> None:
    brokers = FakeBrokers()
    brokers.answer(OffsetCommitRequest, code)
    async with member(brokers) as one:
        await one.join()
        result = await one.coordinator.commit(at("t", 0, 5))
        error = result[T0]
        assert isinstance(error, CommitFailedError)
        assert error.code == code
        assert "max.poll.interval.ms" in str(error)
        await eventually_async(lambda: len(one.callbacks) == 3 and one.stable)
        assert [what for what, _ in one.callbacks] == ["assigned", "lost", "assigned"]
        assert one.coordinator.member_id == ("member-1" if code == codes.ILLEGAL_GENERATION else "member-2")
    assert len(brokers.all(OffsetCommitRequest)) == 1


@pytest.mark.behaviour(83)
@in_virtual_time
async def test_a_commit_of_a_fenced_instance_is_refused_for_good() -> None:
    brokers = FakeBrokers()
    brokers.answer(OffsetCommitRequest, codes.FENCED_INSTANCE_ID)
    async with member(brokers, group_instance_id="till-1") as one:
        await one.join()
        result = await one.coordinator.commit(at("t", 0, 5))
        assert isinstance(result[T0], FencedError)
        await eventually_async(lambda: one.errors)
        assert isinstance(one.errors[0], FencedError)
        assert one.held == frozenset()


# -- errors of the whole request ----------------------------------------------------------------------------------


@pytest.mark.behaviour(2)
@pytest.mark.parametrize("reply", [DROP, codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REQUEST_TIMED_OUT])
@in_virtual_time
async def test_retriable_errors_are_retried(reply: Any) -> None:
    brokers = FakeBrokers()
    brokers.answer(OffsetCommitRequest, reply, reply)
    async with member(brokers) as one:
        await one.join()
        assert await one.coordinator.commit(at("t", 0, 5)) == {T0: None}
    assert len(brokers.all(OffsetCommitRequest)) == 3


@pytest.mark.behaviour(89)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (codes.GROUP_AUTHORIZATION_FAILED, AuthorizationError),
        (codes.TOPIC_AUTHORIZATION_FAILED, AuthorizationError),
        (codes.INVALID_COMMIT_OFFSET_SIZE, BrokerError),
    ],
)
@in_virtual_time
async def test_a_commit_that_is_not_allowed_says_so(code: int, kind: type[CoordinatorError]) -> None:
    brokers = FakeBrokers()
    # The first refusal of a principal is excused: its token may have expired.
    brokers.answer(OffsetCommitRequest, code, code)
    async with member(brokers) as one:
        await one.join()
        error = (await one.coordinator.commit(at("t", 0, 5)))[T0]
        assert isinstance(error, kind)
        assert "t-0" in str(error)
        assert error.code == code


@pytest.mark.behaviour(89)
@pytest.mark.parametrize("code", [codes.GROUP_AUTHORIZATION_FAILED, codes.TOPIC_AUTHORIZATION_FAILED])
@in_virtual_time
async def test_fetching_committed_offsets_that_is_not_allowed_raises(code: int) -> None:
    brokers = FakeBrokers()
    if code == codes.GROUP_AUTHORIZATION_FAILED:
        brokers.answer(OffsetFetchRequest, code)
    else:
        brokers.answer(OffsetFetchRequest, lambda request: fetch_answer(request, {}, {T0: code}))
    async with member(brokers) as one:
        with pytest.raises(AuthorizationError, match="READ on"):
            await one.coordinator.committed([T0, T1])
        assert now_ms() < 100


@pytest.mark.behaviour(87)
@in_virtual_time
async def test_one_fetch_of_committed_offsets_is_shared_and_each_keeps_its_own_time() -> None:
    brokers = FakeBrokers()
    brokers.committed = {T0: 7}
    brokers.answer(OffsetFetchRequest, SILENCE)
    async with member(brokers) as one:
        hasty = asyncio.ensure_future(one.coordinator.committed([T0, T1], timeout_ms=50))
        patient = [asyncio.ensure_future(one.coordinator.committed([T1, T0], timeout_ms=20_000)) for _ in range(5)]
        await pause(40)
        assert len(brokers.all(OffsetFetchRequest)) == 1
        with pytest.raises(RequestTimedOutError, match="committed offsets of group 'orders'"):
            await hasty
        for found in await asyncio.gather(*patient):
            assert found == {T0: OffsetAndMetadata(7), T1: None}
        assert len(brokers.all(OffsetFetchRequest)) <= 3


@in_virtual_time
async def test_a_fetch_of_committed_offsets_ends_with_close() -> None:
    brokers = FakeBrokers()
    brokers.answer(OffsetFetchRequest, SILENCE)
    one = new_member(brokers)
    waiting = asyncio.ensure_future(one.coordinator.committed([T0], timeout_ms=60_000))
    await pause(50)
    await one.close(100)
    with pytest.raises(ClosedError):
        await waiting


@pytest.mark.behaviour(88)
@in_virtual_time
async def test_offsets_of_an_open_transaction_are_waited_for() -> None:
    brokers = FakeBrokers()
    brokers.committed = {T0: 7, T1: 8}
    unstable = {T1: codes.UNSTABLE_OFFSET_COMMIT}
    brokers.answer(OffsetFetchRequest, *[lambda request: fetch_answer(request, brokers.committed, unstable)] * 3)
    async with member(brokers) as one:
        found = await one.coordinator.committed([T0, T1])
        assert found == {T0: OffsetAndMetadata(7), T1: OffsetAndMetadata(8)}
        assert all(request.require_stable for request in brokers.all(OffsetFetchRequest))
        brokers.always(OffsetFetchRequest, lambda request: fetch_answer(request, brokers.committed, unstable))
        with pytest.raises(CoordinatorError, match=r"UNSTABLE_OFFSET_COMMIT|did not finish within"):
            await one.coordinator.committed([T0, T1], timeout_ms=2_000)


@pytest.mark.behaviour(4, 5)
@pytest.mark.parametrize("code", [codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE])
@in_virtual_time
async def test_a_fetch_goes_to_the_new_coordinator(code: int) -> None:
    brokers = FakeBrokers(brokers=2)

    def moved(_: object) -> int:
        brokers.coordinator = 1
        return code

    brokers.answer(OffsetFetchRequest, moved)
    async with member(brokers) as one:
        await one.coordinator.committed([T0])
    assert [seen.node for seen in brokers.seen if isinstance(seen.message, OffsetFetchRequest)] == [0, 1]
    assert len(brokers.all(FindCoordinatorRequest)) == 2


@pytest.mark.parametrize("newest", [2, 5, 7, 8, 9])
@in_virtual_time
async def test_committed_offsets_from_brokers_of_every_age(newest: int) -> None:
    brokers = RealCoordinator()
    async with member(brokers) as one:
        await one.coordinator.commit(at("t", 0, 5))
        await one.cluster.close()
    ours = api_for(OffsetFetchRequest).key
    rows = tuple(
        ApiVersion(api_key=key, min_version=api.min_version, max_version=newest if key == ours else api.max_version)
        for key, api in SERVED.items()
    )
    brokers.always(ApiVersionsRequest, ApiVersionsResponse(api_keys=rows))
    async with member(brokers) as one:
        assert await one.coordinator.committed([T0, T1]) == {T0: OffsetAndMetadata(5), T1: None}
    assert [seen.version for seen in brokers.seen if isinstance(seen.message, OffsetFetchRequest)] == [newest]


@pytest.mark.behaviour(90, 82)
@in_virtual_time
async def test_a_commit_after_leaving_is_refused_before_it_can_do_harm() -> None:
    """With generation -1 an empty group would accept the commit, without fencing."""
    brokers = RealCoordinator()
    async with member(brokers) as one:
        await one.join()
        await one.coordinator.commit(at("t", 0, 50))
        await one.coordinator.leave_group("the test leaves")
        result = await one.coordinator.commit(at("t", 0, 5))
        assert isinstance(result[T0], CommitFailedError)
        assert "not in the group" in str(result[T0])
        assert await one.coordinator.committed([T0]) == {T0: OffsetAndMetadata(50)}
        # Without a subscription the commit is an operator's, and is sent.
        await one.coordinator.unsubscribe()
        await pause(50)
        assert await one.coordinator.commit(at("t", 0, 6)) == {T0: None}
    assert len(brokers.all(OffsetCommitRequest)) == 2


@in_virtual_time
async def test_an_empty_commit_sends_no_request() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        assert await one.coordinator.commit({}) == {}
        assert await one.coordinator.committed([]) == {}
    assert brokers.seen == []
