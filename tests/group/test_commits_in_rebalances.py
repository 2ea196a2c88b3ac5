"""Commits while the group rebalances, and after losses (behaviours 82 and 84)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer_coord.errors import (
    CommitFailedError,
    RebalanceInProgressError,
    RequestTimedOutError,
)
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.topic_partition import TopicPartition
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import JoinGroupRequest, SyncGroupRequest
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.classic import classic
from tests.support.group.fake import (
    PASS,
    SILENCE,
    FakeBrokers,
    Pass,
    RealCoordinator,
    held_until,
    offsets_of,
)
from tests.support.group.member import TestMember, at, member, new_member, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


async def _two(brokers: RealCoordinator) -> tuple[TestMember, TestMember]:
    """Return two members of two processes that share the topic; the first one leads."""
    one, two = new_member(brokers), new_member(brokers)
    await one.join()
    two.coordinator.subscribe(["t"])
    two.start()
    await eventually_async(lambda: one.stable and two.stable and len(one.held) == 2 == len(two.held))
    assert one.coordinator.protocol.is_leader
    return one, two


async def _end(*members: TestMember) -> None:
    for each in members:
        assert not each.errors
        await each.stop()
        each.coordinator.release(each.held)
        await each.coordinator.close(1_000)
        await each.cluster.close()


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_while_the_group_prepares_a_rebalance_the_old_generation_commits() -> None:
    brokers = RealCoordinator()
    one, two = await _two(brokers)
    generation, (first, *_) = one.coordinator.generation, sorted(one.held)
    go = asyncio.Event()
    brokers.answer(JoinGroupRequest, PASS, held_until(go))
    two.coordinator.enforce_rebalance()
    await eventually_async(lambda: brokers.state == "PreparingRebalance")
    await pause(5)
    assert await one.coordinator.commit({first: OffsetAndMetadata(5)}) == {first: None}
    assert brokers.state == "PreparingRebalance"
    assert [request.generation_id_or_member_epoch for request in brokers.all(OffsetCommitRequest)] == [generation]
    go.set()
    await eventually_async(lambda: one.stable and two.stable)
    await _end(one, two)


@pytest.mark.behaviour(84)
@pytest.mark.parametrize("late", [True, False], ids=["old generation, 22", "new generation, 27"])
@in_virtual_time
async def test_a_commit_that_meets_the_completing_rebalance_is_sent_again_after_the_sync(late: bool) -> None:
    brokers = RealCoordinator()
    one, two = await _two(brokers)
    generation, held, (first, *_) = one.coordinator.generation, one.held, sorted(one.held)
    joined, synced = asyncio.Event(), asyncio.Event()
    brokers.always(SyncGroupRequest, held_until(synced))
    commit: asyncio.Future[Any] | None = None
    if late:
        # The commit was sent before the rebalance, and arrives during the rebalance.
        brokers.answer(OffsetCommitRequest, held_until(joined))
        commit = one.coordinator.start_commit({first: OffsetAndMetadata(5)}, timeout_ms=20_000)
        await pause(2)
    one.coordinator.enforce_rebalance()
    await eventually_async(lambda: brokers.state == "CompletingRebalance" and one.coordinator.generation == generation + 1)
    joined.set()
    if commit is None:
        commit = one.coordinator.start_commit({first: OffsetAndMetadata(5)}, timeout_ms=20_000)
    await pause(500)
    assert not commit.done()
    assert len(brokers.all(OffsetCommitRequest)) == 1, "it was sent again before the sync"
    synced.set()
    assert await commit == {first: None}
    sent = [request.generation_id_or_member_epoch for request in brokers.all(OffsetCommitRequest)]
    assert sent == ([generation] if late else [generation + 1]) + [generation + 1]
    assert one.held == held
    assert [what for what, _ in one.callbacks if what == "lost"] == []
    await eventually_async(lambda: one.stable and two.stable)
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
    brokers.answer(OffsetCommitRequest, held_until(go))
    commit = one.coordinator.start_commit({first: OffsetAndMetadata(5)}, timeout_ms=20_000)
    await pause(2)
    one.coordinator.enforce_rebalance()
    await eventually_async(lambda: brokers.state == "Stable" and one.coordinator.generation == generation + 1 and one.stable)
    go.set()
    assert await commit == {first: None}
    sent = [request.generation_id_or_member_epoch for request in brokers.all(OffsetCommitRequest)]
    assert sent == [generation, generation + 1]
    await _end(one, two)


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_of_a_refused_commit_only_what_was_held_throughout_is_sent_again() -> None:
    """The rebalance revokes a partition, a second partition waits to be revoked, and the others stay."""
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0, 1, 2]}
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        # The rebalance takes partition 2, and the application has not released it yet.
        brokers.assignment = {"t": [0, 1]}
        joined = asyncio.Event()

        async def old(request: OffsetCommitRequest) -> int:
            await joined.wait()
            return codes.ILLEGAL_GENERATION

        brokers.answer(OffsetCommitRequest, old)
        positions = {TopicPartition("t", number): OffsetAndMetadata(number + 10) for number in range(3)}
        commit = one.coordinator.start_commit(positions, timeout_ms=20_000)
        await pause(5)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.coordinator.assignment.to_revoke)
        one.coordinator.release(parts("t", 1))  # the application stops reading the partition without a rebalance
        joined.set()
        result = await commit
        assert result[T0] is None
        assert result[TopicPartition("t", 2)] is None, "a partition that waits to be revoked is still owned"
        assert isinstance(result[T1], CommitFailedError)
    assert offsets_of(brokers.all(OffsetCommitRequest)[1]) == {T0: 10, TopicPartition("t", 2): 12}


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_a_refused_commit_of_a_partition_that_was_not_held_says_so() -> None:
    """The record of the commit may have been in processing when the partition was revoked: no partition is lost."""
    brokers = FakeBrokers()
    brokers.leader = "zoe"
    brokers.assignment = {"t": [0]}
    async with member(brokers) as one:
        await one.join()
        joined = asyncio.Event()

        async def old(request: OffsetCommitRequest) -> int:
            await joined.wait()
            return codes.ILLEGAL_GENERATION

        brokers.answer(OffsetCommitRequest, old)
        commit = one.coordinator.start_commit({**at("t", 0, 5), **at("t", 1, 5)}, timeout_ms=20_000)
        await pause(5)
        generation = one.coordinator.generation
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.coordinator.generation > generation)
        joined.set()
        result = await commit
        assert result[T0] is None
        refused = result[T1]
        assert isinstance(refused, CommitFailedError)
        assert refused.code == codes.ILLEGAL_GENERATION
        assert "did not own the partition" in str(refused)
        assert "on_revoke" in str(refused)


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
        await eventually_async(lambda: one.coordinator.assignment.to_revoke == {T1})
        go = asyncio.Event()
        brokers.answer(OffsetCommitRequest, held_until(go))
        commit = one.coordinator.start_commit(at("t", 1, 5), timeout_ms=20_000)
        await pause(5)
        joins = len(brokers.all(JoinGroupRequest))
        one.coordinator.release([T1])
        await pause(1_000)
        assert len(brokers.all(JoinGroupRequest)) == joins
        go.set()
        assert await commit == {T1: None}
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == joins + 1)
        # A commit for partitions that stay delays nothing.
        await eventually_async(lambda: one.coordinator.protocol.state.value == "stable")
        hang = asyncio.Event()
        brokers.answer(OffsetCommitRequest, held_until(hang))
        commit = one.coordinator.start_commit(at("t", 0, 6), timeout_ms=20_000)
        await pause(5)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == joins + 2, within_s=0.1)
        hang.set()
        await commit


@pytest.mark.behaviour(84, 95)
@in_virtual_time
async def test_a_member_that_leaves_commits_although_its_leader_left_before_the_sync() -> None:
    """The join of the leaving member ends without SyncGroup; the group, preparing a rebalance, accepts its commit."""
    brokers = RealCoordinator()
    one, two = await _two(brokers)
    generation, (kept, *_) = one.coordinator.generation, sorted(two.held)
    never = asyncio.Event()

    async def hold_the_leader(request: SyncGroupRequest) -> Pass:
        if request.assignments:
            await never.wait()
        return PASS

    brokers.always(SyncGroupRequest, hold_the_leader)
    one.coordinator.enforce_rebalance()
    members = (one.coordinator, two.coordinator)
    await eventually_async(
        lambda: brokers.state == "CompletingRebalance" and {each.generation for each in members} == {generation + 1}
    )
    await two.stop()
    two.coordinator.prepare_to_leave()
    commit = two.coordinator.start_commit({kept: OffsetAndMetadata(5)}, timeout_ms=20_000)
    await pause(500)
    assert not commit.done(), "the group completes its rebalance"
    started = now_ms()
    await _end(one)
    assert await commit == {kept: None}
    assert now_ms() - started < 1_000
    await _end(two)


@pytest.mark.behaviour(84)
@in_virtual_time
async def test_an_offset_read_before_a_loss_is_not_committed_after_it() -> None:
    """The broker would accept it, because it does not check ownership. By then another member may have committed further."""
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        before = one.coordinator.assignment.ownerships([T0])
        go = asyncio.Event()
        brokers.answer(OffsetCommitRequest, held_until(go))
        first = one.coordinator.start_commit(at("t", 1, 1), timeout_ms=20_000)
        await pause(5)
        queued = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=20_000)
        classic(one.coordinator).status.lose("the test says so")
        await eventually_async(lambda: one.stable and one.held)
        assert one.coordinator.assignment.ownerships([T0]) != before
        go.set()
        await asyncio.gather(first, return_exceptions=True)
        for result in (await queued, await one.coordinator.commit(at("t", 0, 6), ownerships=before)):
            assert isinstance(result[T0], CommitFailedError)
            assert "lost or revoked" in str(result[T0])
        assert await one.coordinator.commit(at("t", 0, 2)) == {T0: None}
    assert [offsets_of(request).get(T0) for request in brokers.all(OffsetCommitRequest)] == [None, 2]


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
    commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
    await pause(50)
    await one.stop()
    started = now_ms()
    await one.coordinator.close(20_000)
    assert now_ms() - started < 100, "close waited for a SyncGroup that is no longer needed"
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
        commit = one.coordinator.start_commit(at("t", 0, 5), timeout_ms=60_000)
        await pause(50)
        started = now_ms()
        await one.coordinator.unsubscribe()
        assert now_ms() - started < 100
        assert isinstance((await commit)[T0], RebalanceInProgressError)
        brokers.always(SyncGroupRequest, None)
        brokers.always(OffsetCommitRequest, None)
        await one.join()
        assert await one.coordinator.commit(at("t", 0, 6)) == {T0: None}
