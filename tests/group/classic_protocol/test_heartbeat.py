"""Heartbeats, the session, and the application's polls (behaviours 68 to 76)."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from consumer_coord.errors import CoordinatorError
from consumer_coord.simulation import loop as virtual
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.support.group.classic import classic
from tests.support.group.fake import PASS, SILENCE, FakeBrokers, Pass, RealCoordinator
from tests.support.group.member import EAGER, at, member, new_cluster, new_member, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


@pytest.mark.behaviour(68)
@in_virtual_time
async def test_heartbeats_go_out_at_their_interval() -> None:
    brokers = FakeBrokers()
    async with member(brokers, EAGER, heartbeat_interval_ms=3_000) as one:
        await one.join()
        await pause(60_000)
        assert one.stable
    beats = brokers.times(HeartbeatRequest)
    assert len(beats) in (19, 20)
    assert all(after - before == pytest.approx(3_000, abs=20) for before, after in pairwise(beats))
    assert {(beat.generation_id, beat.member_id) for beat in brokers.all(HeartbeatRequest)} == {(1, "member-1")}


@pytest.mark.behaviour(69)
@in_virtual_time
async def test_a_session_without_answers_leads_to_rediscovery() -> None:
    brokers = FakeBrokers(brokers=2)
    async with member(brokers, session_timeout_ms=10_000, request_timeout_ms=30_000) as one:
        await one.join()
        await pause(500)
        lookups = len(brokers.all(FindCoordinatorRequest))
        brokers.answer(HeartbeatRequest, SILENCE)
        brokers.coordinator = 1
        started = now_ms()
        await eventually_async(lambda: len(brokers.all(FindCoordinatorRequest)) > lookups)
        assert now_ms() - started <= 10_000 + 3_000 + 100
        await eventually_async(lambda: brokers.seen[-1].node == 1 and isinstance(brokers.seen[-1].message, HeartbeatRequest))
        assert one.stable, "the coordinator may have kept the session"


@pytest.mark.behaviour(70, 75)
@in_virtual_time
async def test_a_member_that_does_not_poll_leaves_and_comes_back_with_its_next_poll() -> None:
    brokers = FakeBrokers()
    async with member(brokers, max_poll_interval_ms=20_000) as one:
        await one.join()
        await one.stop()
        started = now_ms()
        await eventually_async(lambda: brokers.all(LeaveGroupRequest))
        assert 20_000 <= now_ms() - started <= 20_000 * 1.11
        identity = brokers.last(LeaveGroupRequest).members[0]
        assert (identity.member_id, identity.reason) == ("member-1", "consumer poll timeout has expired")
        joins = len(brokers.all(JoinGroupRequest))
        await pause(120_000)
        assert len(brokers.all(JoinGroupRequest)) == joins, "it joined again although the application did not poll"
        assert one.held == frozenset()
        await one.poll()
        assert one.callbacks[-1] == ("lost", parts("t", 0, 1, 2, 3))
        one.start()
        await eventually_async(lambda: one.stable and one.held)
        assert one.coordinator.member_id == "member-2"
        await pause(60_000)
        assert one.stable
        assert len(brokers.all(LeaveGroupRequest)) == 1


@pytest.mark.behaviour(70)
@in_virtual_time
async def test_joins_in_the_background_count_as_no_polls() -> None:
    brokers = FakeBrokers()
    async with member(brokers, max_poll_interval_ms=20_000) as one:
        await one.join()
        await one.stop()
        started = now_ms()
        while not brokers.all(LeaveGroupRequest):
            one.coordinator.enforce_rebalance()
            await pause(1_000)
            assert now_ms() - started < 25_000
        assert brokers.last(LeaveGroupRequest).members[0].reason == "consumer poll timeout has expired"


@pytest.mark.behaviour(71)
@in_virtual_time
async def test_a_static_member_that_does_not_poll_stays_in_the_group_until_its_session_ends() -> None:
    brokers = FakeBrokers()
    async with member(brokers, max_poll_interval_ms=20_000, group_instance_id="till-1") as one:
        await one.join()
        await one.stop()
        await pause(60_000)
        assert not brokers.all(LeaveGroupRequest)
        beats = len(brokers.all(HeartbeatRequest))
        await pause(60_000)
        assert len(brokers.all(HeartbeatRequest)) == beats, "it kept a session alive for an application that hangs"
        assert one.held == frozenset()
        one.start()
        await eventually_async(lambda: one.stable and one.held)


@pytest.mark.behaviour(72)
@in_virtual_time
async def test_heartbeats_go_out_while_the_join_completes() -> None:
    """The session runs after JoinGroup, and the leader's plan may take longer than the session timeout."""
    brokers = FakeBrokers()

    async def slowly(_: SyncGroupRequest) -> Pass:
        await asyncio.sleep(20)
        return PASS

    brokers.answer(SyncGroupRequest, slowly)
    async with member(brokers, session_timeout_ms=30_000) as one:
        await one.join()
        [sync] = brokers.times(SyncGroupRequest)
        during = [moment for moment in brokers.times(HeartbeatRequest) if sync < moment < sync + 20_000]
        assert len(during) >= 5
        assert max(after - before for before, after in pairwise([sync, *during])) < 3_100


@pytest.mark.behaviour(72)
@in_virtual_time
async def test_heartbeats_go_out_while_the_join_waits_at_the_coordinator() -> None:
    """Java's members send no heartbeats then. Our members hold partitions, and heartbeats renew their lease (see lease.py)."""
    brokers = FakeBrokers()

    async def slowly(_: JoinGroupRequest) -> Pass:
        await asyncio.sleep(20)
        return PASS

    async with member(brokers, session_timeout_ms=30_000) as one:
        await one.join()
        await pause(500)
        brokers.answer(JoinGroupRequest, slowly)
        brokers.always(HeartbeatRequest, codes.REBALANCE_IN_PROGRESS)
        started = now_ms()
        one.coordinator.enforce_rebalance()
        await pause(19_900)
        beats = [moment for moment in brokers.times(HeartbeatRequest) if started + 5 < moment]
        assert len(beats) in (6, 7)
        assert len(brokers.all(JoinGroupRequest)) == 3
        brokers.always(HeartbeatRequest, None)
        await eventually_async(lambda: one.stable)


@pytest.mark.behaviour(73)
@in_virtual_time
async def test_rebalance_in_progress_is_joined_at_once_and_costs_nothing() -> None:
    brokers = FakeBrokers()
    brokers.answer(HeartbeatRequest, codes.REBALANCE_IN_PROGRESS)
    async with member(brokers) as one:
        await one.join()
        await eventually_async(lambda: one.coordinator.generation == 2)
        beat, join = brokers.times(HeartbeatRequest)[0], brokers.times(JoinGroupRequest)[-1]
        assert join - beat < 10
        assert [what for what, _ in one.callbacks] == ["assigned"]
        assert not one.errors
        assert (
            "failed-rebalance-total" not in one.coordinator.metrics()
            or one.coordinator.metrics()["failed-rebalance-total"] == 0
        )


@pytest.mark.behaviour(74)
@pytest.mark.parametrize("where", ["heartbeat", "driver", "commit"])
def test_a_crash_in_the_background_surfaces_and_harms_no_other_member(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in any task: waiters fail, the member leaves, the next poll raises, and the other members continue."""

    async def story() -> None:
        brokers = FakeBrokers()
        cluster = new_cluster(brokers)
        one, other = new_member(brokers, cluster=cluster), new_member(brokers, cluster=cluster, group_id="payments")
        await one.join()
        await other.join()

        def bug(*_: Any, **__: Any) -> Any:
            raise LookupError("a planted bug")

        commit: asyncio.Future[Any] | None = None
        if where == "heartbeat":
            monkeypatch.setattr(classic(one.coordinator).session, "send_heartbeat", bug)
        elif where == "driver":
            monkeypatch.setattr(one.coordinator.protocol, "on_join_complete", bug)
            one.coordinator.enforce_rebalance()
        else:
            monkeypatch.setattr(one.coordinator.commits, "_request", bug)
            commit = one.coordinator.start_commit(at("t", 0, 1), timeout_ms=5_000)
        await eventually_async(lambda: one.errors)
        assert "a planted bug" in str(one.errors[0])
        assert "please report" in str(one.errors[0])
        assert isinstance(one.errors[0].__cause__, CoordinatorError)
        if commit is not None:
            with pytest.raises(CoordinatorError, match="a planted bug"):
                await commit
        await pause(100)
        assert len(one.errors) > 3, "later polls raised nothing"
        one.coordinator.subscribe(["t"])
        with pytest.raises(CoordinatorError, match="a planted bug"):
            await one.coordinator.join_group_if_needed(5_000)
        left = [identity.member_id for request in brokers.all(LeaveGroupRequest) for identity in request.members]
        assert left == ["member-1"]
        assert one.held == frozenset()
        await pause(30_000)
        assert other.stable
        assert not other.errors
        await one.stop()
        await other.stop()
        await one.coordinator.close(1_000)
        await other.coordinator.close(1_000)
        await cluster.close()

    virtual.run(story(), seed=1, max_time_s=600)


@pytest.mark.behaviour(75)
@in_virtual_time
async def test_a_poll_after_a_gap_in_which_the_session_ended_recovers() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        await one.stop()
        brokers.answer(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
        await pause(60_000)
        assert one.held == frozenset(), "a lost partition counts as owned"
        assert one.coordinator.generation > 0, "it joined again while the application did not poll"
        one.start()
        await eventually_async(lambda: one.stable and one.held)
        assert [what for what, _ in one.callbacks] == ["assigned", "lost", "assigned"]
        assert not one.errors


@pytest.mark.behaviour(76)
@in_virtual_time
async def test_close_ends_every_task() -> None:
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    await one.close(1_000)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, virtual.VirtualTimeLoop)
    await pause(100)
    assert not [task for task in loop.leaks().tasks if "fake broker" not in task]
    beats = len(brokers.all(HeartbeatRequest))
    await pause(60_000)
    assert len(brokers.all(HeartbeatRequest)) == beats


async def _beats_of_a_process(members: int, *, static: bool = False) -> dict[str, list[float]]:
    """Return the heartbeats that a stable process sends in ten seconds: milliseconds by member id."""
    brokers = RealCoordinator({"t": members})
    cluster = new_cluster(brokers)
    group = [
        new_member(
            brokers,
            cluster=cluster,
            heartbeat_interval_ms=1_000,
            session_timeout_ms=9_000,
            group_instance_id=f"static-{number}" if static else None,
        )
        for number in range(members)
    ]
    for one in group:
        one.coordinator.subscribe(["t"])
        one.start()
    await eventually_async(lambda: all(one.stable and len(one.held) == 1 for one in group))
    for one in group:
        await one.stop()
    await pause(5_000)
    began = now_ms()
    await pause(10_000)
    beats: dict[str, list[float]] = {}
    for seen in brokers.seen:
        if isinstance(seen.message, HeartbeatRequest) and seen.at_ms >= began:
            beats.setdefault(seen.message.member_id, []).append(seen.at_ms)
    assert all(one.stable for one in group)
    for one in group:
        await one.coordinator.close(1_000)
    await cluster.close()
    assert len(beats) == members
    return beats


@in_virtual_time
async def test_members_of_a_large_process_listen_for_each_other() -> None:
    beats = await _beats_of_a_process(36)
    for times in beats.values():
        gaps = [after - before for before, after in pairwise(times)]
        assert min(gaps) > 2_500, "three times the interval, since three members share each time"
        assert max(gaps) <= 3_100, "three heartbeats a session"
    all_ = sorted(at for times in beats.values() for at in times)
    assert max(after - before for before, after in pairwise(all_)) <= 1_000 * 3 / 12, "three members share each time"


@in_virtual_time
async def test_members_of_a_small_process_and_static_ones_beat_at_their_interval() -> None:
    for beats in (await _beats_of_a_process(20), await _beats_of_a_process(48, static=True)):
        for times in beats.values():
            assert max(after - before for before, after in pairwise(times)) <= 1_100
