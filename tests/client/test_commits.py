"""Commits and committed offsets (behaviours 77 to 90, but for the automatic ones)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from consumer_coord.broker.requests import SERVED
from consumer_coord.errors import (
    AuthorizationError,
    BrokerError,
    ClosedError,
    CommitFailedError,
    CoordinatorError,
    FencedError,
    RebalanceInProgressError,
    RequestTimedOutError,
)
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.apis import api_for
from consumer_coord.wire.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.client.support.fake import (
    DROP,
    PASS,
    SILENCE,
    FakeBrokers,
    Pass,
    RealCoordinator,
    commit_answer,
    fetch_answer,
)
from tests.client.support.member import TestMember, at, member, new_member, parts
from tests.client.support.virtual import in_virtual_time, now_ms, pause, until

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def _offsets(request: OffsetCommitRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, row.partition_index): row.committed_offset
        for topic in request.topics
        for row in topic.partitions
    }


def _held_until(event: asyncio.Event) -> Callable[[Any], Awaitable[Pass]]:
    """A request waits at the broker until the event, and is then handled as usual."""

    async def wait(_: Any) -> Pass:
        await event.wait()
        return PASS

    return wait


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
async def test_what_was_committed_before_is_answered_before_a_later_commit_returns() -> None:
    brokers = FakeBrokers()

    async def slowly(request: OffsetCommitRequest) -> Pass:
        await asyncio.sleep(2)
        return PASS

    brokers.answer(OffsetCommitRequest, slowly, codes.COORDINATOR_LOAD_IN_PROGRESS)
    async with member(brokers) as one:
        await one.join()
        earlier = [one.coordinator.offsets.start_commit(at("t", 0, offset), timeout_ms=9_000) for offset in (1, 2, 3)]
        await one.coordinator.commit(at("t", 1, 9))
        assert all(future.done() and future.result() == {T0: None} for future in earlier)
        assert brokers.committed == {T0: 3, T1: 9}


@in_virtual_time
async def test_one_commit_is_under_way_and_the_next_takes_all_that_came_meanwhile() -> None:
    """So the order of commits is the order of the calls, and a slow broker is not buried under requests."""
    brokers = FakeBrokers()
    go = asyncio.Event()
    brokers.answer(OffsetCommitRequest, _held_until(go))
    async with member(brokers) as one:
        await one.join()
        commits = [one.coordinator.offsets.start_commit(at("t", offset % 2, offset), timeout_ms=9_000) for offset in range(50)]
        await pause(100)
        commits += [one.coordinator.offsets.start_commit(at("t", 0, offset), timeout_ms=9_000) for offset in range(50, 90)]
        assert len(brokers.all(OffsetCommitRequest)) == 1
        go.set()
        await asyncio.gather(*commits)
    assert [_offsets(request) for request in brokers.all(OffsetCommitRequest)] == [{T0: 48, T1: 49}, {T0: 89}]


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
    commit = one.coordinator.offsets.start_commit(at("t", 0, 7), timeout_ms=9_000)
    one.coordinator.let_go(one.held)
    await one.coordinator.close(5_000)
    assert commit.result() == {T0: None}
    assert brokers.kinds()[-2:] == ["OffsetCommit", "LeaveGroup"]
    with pytest.raises(ClosedError, match="before close"):
        await one.coordinator.commit(at("t", 0, 8))
    await one.cluster.close()


@pytest.mark.behaviour(80)
@in_virtual_time
async def test_an_unknown_topic_is_retried_until_it_is_known_or_time_is_up() -> None:
    brokers = FakeBrokers()
    unknown = {T0: codes.UNKNOWN_TOPIC_OR_PARTITION}
    brokers.answer(OffsetCommitRequest, *[lambda request: commit_answer(request, unknown)] * 2)
    async with member(brokers) as one:
        await one.join()
        both = {**at("t", 0, 5), **at("t", 1, 6)}
        assert await one.coordinator.commit(both) == {T0: None, T1: None}
        asked = [_offsets(request) for request in brokers.all(OffsetCommitRequest)]
        assert asked == [{T0: 5, T1: 6}, {T0: 5}, {T0: 5}], "what was committed was sent again"
        brokers.always(OffsetCommitRequest, lambda request: commit_answer(request, unknown))
        started = now_ms()
        with pytest.raises(RequestTimedOutError, match=r"t-0.*UNKNOWN_TOPIC_OR_PARTITION"):
            await one.coordinator.commit(at("t", 0, 7), timeout_ms=3_000)
        assert now_ms() - started == pytest.approx(3_000, abs=5)


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
        await until(lambda: len(one.told) == 3 and one.stable)
        assert [what for what, _ in one.told] == ["assigned", "lost", "assigned"]
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
        await until(lambda: one.errors)
        assert isinstance(one.errors[0], FencedError)
        assert one.held == frozenset()


# -- commits and rebalances, against the real coordinator ------------------------------------------------------------


async def _two(brokers: RealCoordinator) -> tuple[TestMember, TestMember]:
    """Two members of two processes that share the topic; the first one leads."""
    one, two = new_member(brokers), new_member(brokers)
    await one.join()
    two.coordinator.subscribe(["t"])
    two.start()
    await until(lambda: one.stable and two.stable and len(one.held) == 2 == len(two.held))
    assert one.coordinator.is_leader
    return one, two


async def _end(*members: TestMember) -> None:
    for each in members:
        assert not each.errors
        await each.stop()
        each.coordinator.let_go(each.held)
        await each.coordinator.close(1_000)
        await each.cluster.close()


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_while_the_group_prepares_a_rebalance_the_old_generation_commits() -> None:
    brokers = RealCoordinator()
    one, two = await _two(brokers)
    generation, (first, *_) = one.coordinator.generation, sorted(one.held)
    go = asyncio.Event()
    brokers.answer(JoinGroupRequest, PASS, _held_until(go))
    two.coordinator.enforce_rebalance()
    await until(lambda: brokers.state == "PreparingRebalance")
    await pause(5)
    assert await one.coordinator.commit({first: OffsetAndMetadata(5)}) == {first: None}
    assert brokers.state == "PreparingRebalance"
    assert [request.generation_id_or_member_epoch for request in brokers.all(OffsetCommitRequest)] == [generation]
    go.set()
    await until(lambda: one.stable and two.stable)
    await _end(one, two)


@pytest.mark.behaviour(84)
@pytest.mark.parametrize("late", [True, False], ids=["old generation, 22", "new generation, 27"])
@in_virtual_time
async def test_a_commit_that_meets_the_completing_rebalance_is_sent_again_after_the_sync(late: bool) -> None:
    brokers = RealCoordinator()
    one, two = await _two(brokers)
    generation, held, (first, *_) = one.coordinator.generation, one.held, sorted(one.held)
    joined, synced = asyncio.Event(), asyncio.Event()
    brokers.always(SyncGroupRequest, _held_until(synced))
    commit: asyncio.Future[Any] | None = None
    if late:
        # It was sent before the rebalance, and arrives in the middle of it.
        brokers.answer(OffsetCommitRequest, _held_until(joined))
        commit = one.coordinator.offsets.start_commit({first: OffsetAndMetadata(5)}, timeout_ms=20_000)
        await pause(2)
    one.coordinator.enforce_rebalance()
    await until(lambda: brokers.state == "CompletingRebalance" and one.coordinator.generation == generation + 1)
    joined.set()
    if commit is None:
        commit = one.coordinator.offsets.start_commit({first: OffsetAndMetadata(5)}, timeout_ms=20_000)
    await pause(500)
    assert not commit.done()
    assert len(brokers.all(OffsetCommitRequest)) == 1, "it was sent again before the sync"
    synced.set()
    assert await commit == {first: None}
    sent = [request.generation_id_or_member_epoch for request in brokers.all(OffsetCommitRequest)]
    assert sent == ([generation] if late else [generation + 1]) + [generation + 1]
    assert one.held == held
    assert [what for what, _ in one.told if what == "lost"] == []
    await until(lambda: one.stable and two.stable)
    assert one.coordinator.metrics()["commit-resent-total"] == 1
    assert await one.coordinator.committed([first]) == {first: OffsetAndMetadata(5)}
    await _end(one, two)


@pytest.mark.behaviour(84, 82)
@in_virtual_time
async def test_a_commit_with_an_old_generation_that_arrives_after_the_sync_is_sent_again_at_once() -> None:
    brokers = RealCoordinator()
    one, two = await _two(brokers)
    generation, (first, *_) = one.coordinator.generation, sorted(one.held)
    go = asyncio.Event()
    brokers.answer(OffsetCommitRequest, _held_until(go))
    commit = one.coordinator.offsets.start_commit({first: OffsetAndMetadata(5)}, timeout_ms=20_000)
    await pause(2)
    one.coordinator.enforce_rebalance()
    await until(lambda: brokers.state == "Stable" and one.coordinator.generation == generation + 1 and one.stable)
    go.set()
    assert await commit == {first: None}
    sent = [request.generation_id_or_member_epoch for request in brokers.all(OffsetCommitRequest)]
    assert sent == [generation, generation + 1]
    await _end(one, two)


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_of_a_refused_commit_only_what_was_held_throughout_is_sent_again() -> None:
    """One partition is given up in the rebalance, one waits to be given up, the rest stays."""
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0, 1, 2]}
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        # The rebalance takes 2 away, and the application has not let go of it yet.
        brokers.assignment = {"t": [0, 1]}
        joined = asyncio.Event()

        async def old(request: OffsetCommitRequest) -> int:
            await joined.wait()
            return codes.ILLEGAL_GENERATION

        brokers.answer(OffsetCommitRequest, old)
        positions = {TopicPartition("t", number): OffsetAndMetadata(number + 10) for number in range(3)}
        commit = one.coordinator.offsets.start_commit(positions, timeout_ms=20_000)
        await pause(5)
        one.coordinator.enforce_rebalance()
        await until(lambda: one.coordinator.assignment.to_revoke)
        one.coordinator.let_go(parts("t", 1))  # the application stops reading it of its own accord
        joined.set()
        result = await commit
        assert result[T0] is None
        assert result[TopicPartition("t", 2)] is None, "what waits to be revoked is still held"
        assert isinstance(result[T1], CommitFailedError)
    assert _offsets(brokers.all(OffsetCommitRequest)[1]) == {T0: 10, TopicPartition("t", 2): 12}


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_the_join_that_gives_a_partition_up_waits_for_its_commits_and_for_no_others() -> None:
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0, 1]}
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        brokers.assignment = {"t": [0]}
        one.coordinator.enforce_rebalance()
        await until(lambda: one.coordinator.assignment.to_revoke == {T1})
        go = asyncio.Event()
        brokers.answer(OffsetCommitRequest, _held_until(go))
        commit = one.coordinator.offsets.start_commit(at("t", 1, 5), timeout_ms=20_000)
        await pause(5)
        joins = len(brokers.all(JoinGroupRequest))
        one.coordinator.let_go([T1])
        await pause(1_000)
        assert len(brokers.all(JoinGroupRequest)) == joins
        go.set()
        assert await commit == {T1: None}
        await until(lambda: len(brokers.all(JoinGroupRequest)) == joins + 1)
        # A commit for what stays holds nothing up.
        await until(lambda: one.coordinator.state.value == "stable")
        hang = asyncio.Event()
        brokers.answer(OffsetCommitRequest, _held_until(hang))
        commit = one.coordinator.offsets.start_commit(at("t", 0, 6), timeout_ms=20_000)
        await pause(5)
        one.coordinator.enforce_rebalance()
        await until(lambda: len(brokers.all(JoinGroupRequest)) == joins + 2, 100)
        hang.set()
        await commit


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_an_offset_read_before_a_loss_is_not_committed_after_it() -> None:
    """The broker would take it: it does not look at who owns what. Meanwhile somebody else may have got further."""
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        before = one.coordinator.assignment.ownerships([T0])
        go = asyncio.Event()
        brokers.answer(OffsetCommitRequest, _held_until(go))
        first = one.coordinator.offsets.start_commit(at("t", 1, 1), timeout_ms=20_000)
        await pause(5)
        queued = one.coordinator.offsets.start_commit(at("t", 0, 5), timeout_ms=20_000)
        one.coordinator._lose("the test says so")
        await until(lambda: one.stable and one.held)
        assert one.coordinator.assignment.ownerships([T0]) != before
        go.set()
        await asyncio.gather(first, return_exceptions=True)
        for result in (await queued, await one.coordinator.commit(at("t", 0, 6), ownerships=before)):
            assert isinstance(result[T0], CommitFailedError)
            assert "lost or given up" in str(result[T0])
        assert await one.coordinator.commit(at("t", 0, 2)) == {T0: None}
    assert [_offsets(request).get(T0) for request in brokers.all(OffsetCommitRequest)] == [None, 2]


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_a_commit_that_waits_for_a_sync_ends_at_its_own_time_limit_and_with_close() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    brokers.always(SyncGroupRequest, SILENCE)
    brokers.always(OffsetCommitRequest, codes.REBALANCE_IN_PROGRESS)
    one.coordinator.enforce_rebalance()
    await pause(100)
    started = now_ms()
    with pytest.raises(RequestTimedOutError, match="still rebalancing"):
        await one.coordinator.commit(at("t", 0, 5), timeout_ms=3_000)
    assert now_ms() - started == pytest.approx(3_000, abs=5)
    commit = one.coordinator.offsets.start_commit(at("t", 0, 5), timeout_ms=60_000)
    await pause(50)
    await one.stop()
    started = now_ms()
    await one.coordinator.close(20_000)
    assert now_ms() - started < 100, "close waited for a sync that nobody waits for any more"
    assert isinstance((await commit)[T0], RebalanceInProgressError)
    await one.cluster.close()


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_unsubscribing_does_not_wait_for_a_sync_either() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        brokers.always(SyncGroupRequest, SILENCE)
        brokers.always(OffsetCommitRequest, codes.REBALANCE_IN_PROGRESS)
        one.coordinator.enforce_rebalance()
        await pause(100)
        commit = one.coordinator.offsets.start_commit(at("t", 0, 5), timeout_ms=60_000)
        await pause(50)
        started = now_ms()
        await one.coordinator.unsubscribe()
        assert now_ms() - started < 100
        assert isinstance((await commit)[T0], RebalanceInProgressError)
        brokers.always(SyncGroupRequest, None)
        brokers.always(OffsetCommitRequest, None)
        await one.join()
        assert await one.coordinator.commit(at("t", 0, 6)) == {T0: None}


# -- errors that concern the whole ------------------------------------------------------------------------------------


@pytest.mark.behaviour(2)
@pytest.mark.parametrize("reply", [DROP, codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REQUEST_TIMED_OUT])
@in_virtual_time
async def test_what_is_retriable_is_retried(reply: Any) -> None:
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
    brokers.answer(OffsetCommitRequest, code)
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
    """With generation -1 an empty group would take it, unfenced."""
    brokers = RealCoordinator()
    async with member(brokers) as one:
        await one.join()
        await one.coordinator.commit(at("t", 0, 50))
        await one.coordinator.leave_group("the test leaves")
        result = await one.coordinator.commit(at("t", 0, 5))
        assert isinstance(result[T0], CommitFailedError)
        assert "not in the group" in str(result[T0])
        assert await one.coordinator.committed([T0]) == {T0: OffsetAndMetadata(50)}
        # Without a subscription it is an operator's commit, and goes through.
        await one.coordinator.unsubscribe()
        await pause(50)
        assert await one.coordinator.commit(at("t", 0, 6)) == {T0: None}
    assert len(brokers.all(OffsetCommitRequest)) == 2


@in_virtual_time
async def test_a_commit_of_nothing_asks_nobody() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        assert await one.coordinator.commit({}) == {}
        assert await one.coordinator.committed([]) == {}
    assert brokers.seen == []
