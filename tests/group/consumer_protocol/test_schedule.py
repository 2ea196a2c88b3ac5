"""The times of heartbeats: staggered between members, and early while more partitions may arrive."""

from __future__ import annotations

import itertools
import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_coord.environment import now
from consumer_coord.group.consumer_protocol.schedule import Schedule, early_moments
from consumer_coord.net.cluster import ClusterClient
from tests.support.group.consumer_protocol import (
    Broker,
    HeartbeatRequest,
    joined,
    modern_member,
    shared,
    target,
    topic_id_of,
)
from tests.support.group.member import COOPERATIVE, TestMember, new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

DEFAULT_INTERVAL_MS = 5_000


@given(interval_ms=st.integers(100, 60_000), crowd=st.integers(1, 1_000))
def test_early_heartbeats_last_for_an_interval_and_the_time_between_two_targets(interval_ms: int, crowd: int) -> None:
    moments = early_moments(interval_ms, crowd)
    apart = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert min(apart) > 0
    assert max(apart) <= max(350, interval_ms / 10) + 0.001
    assert moments[-1] >= interval_ms + 1_000
    assert moments[-2] <= interval_ms + 1_050.001, "and no longer"
    assert len(moments) <= 40


@pytest.mark.parametrize(
    ("interval_ms", "crowd", "apart"),
    [(100, 1, 50), (100, 3, 150), (2_000, 1, 200), (2_000, 50, 350), (5_000, 1, 500), (5_000, 50, 500)],
)
def test_members_that_wake_each_other_ask_less_often_each(interval_ms: int, crowd: int, apart: int) -> None:
    moments = early_moments(interval_ms, crowd)
    assert {round(later - earlier) for earlier, later in itertools.pairwise(moments[3:])} == {apart}


@pytest.mark.behaviour(197)
@in_virtual_time
async def test_an_early_heartbeat_moves_no_regular_one() -> None:
    began = now()
    schedule = Schedule(0.25, lambda due, interval_s: due)
    schedule.joined(1_000)
    due = []
    for early_ms in (None, 100, None, 900):
        if early_ms is not None:
            await pause(early_ms)
            schedule.early((0,))
        at = schedule.at(urgent=False)
        due.append(round(at - began, 3))
        await pause((at - now()) * 1000)
        schedule.sends()
        schedule.answered(at, 1_000)
    assert due == [0.25, 0.35, 1.25, 2.15]
    assert schedule.at(urgent=False) == pytest.approx(began + 2.25)


@in_virtual_time
async def test_a_changed_interval_restarts_the_schedule() -> None:
    schedule = Schedule(1.0, lambda due, interval_s: due)
    schedule.joined(1_000)
    schedule.answered(now() + 1, 3_000)
    assert schedule.at(urgent=False) == pytest.approx(now() + 4)


@in_virtual_time
async def test_a_target_that_is_another_one_in_each_answer_makes_no_storm() -> None:
    """New partitions are reported at once, but at most twenty times a second."""
    broker = Broker()
    one = await joined(broker)
    await one.stop()
    epoch, topic_id, numbers = one.coordinator.generation, topic_id_of(one), itertools.count()
    broker.always(HeartbeatRequest, lambda _: target(epoch, {topic_id: range(4, 5 + next(numbers) % 2)}))
    one.coordinator.release(one.held)
    await pause(1_000)
    before = len(broker.heartbeats)
    await pause(100_000)
    assert len(broker.heartbeats) - before == pytest.approx(2_000, abs=45)
    broker.always(HeartbeatRequest, None)
    await one.close()


def _process(broker: Broker) -> ClusterClient:
    """Return the client that the members of one process share."""
    cluster = new_cluster(broker, metadata_max_age_ms=60_000)
    cluster.environment = attrs.evolve(cluster.environment, random=random.Random(7))
    return cluster


@pytest.mark.behaviour(197)
@in_virtual_time
async def test_a_new_member_is_noticed_soon_even_after_simultaneous_heartbeats() -> None:
    broker = Broker({"t": 32}, group_consumer_heartbeat_interval_ms=DEFAULT_INTERVAL_MS)
    process = _process(broker)
    members: list[TestMember] = []
    for _ in range(8):
        one = modern_member(broker, cluster=process)
        one.coordinator.subscribe(["t"])
        one.start()
        members.append(one)
    await shared(*members, partitions=32)
    for _ in range(2):
        await pause(2 * DEFAULT_INTERVAL_MS)
        began = now_ms()
        newcomer = await joined(broker)
        await shared(*members, newcomer, partitions=32)
        assert now_ms() - began < DEFAULT_INTERVAL_MS / 3, "all heartbeats are sent at one time"
        members.append(newcomer)
    for one in members:
        await one.close()


@pytest.mark.behaviour(198)
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_new_member_does_not_wait_for_its_interval_after_the_owners(protocol: str) -> None:
    @in_virtual_time
    async def run() -> None:
        broker = Broker({"t": 6}, group_consumer_heartbeat_interval_ms=DEFAULT_INTERVAL_MS)
        owners = [await joined(broker, ("t",))]
        await pause(1_700)
        owners.append(await joined(broker, ("t",)))
        await shared(*owners, partitions=6)
        await pause(2 * DEFAULT_INTERVAL_MS)
        newcomer = modern_member(broker) if protocol == "consumer" else new_member(broker, COOPERATIVE)
        newcomer.coordinator.subscribe(["t"])
        newcomer.start()
        await eventually_async(lambda: sum(len(one.held) for one in owners) == 4)
        given_up = now_ms()
        await shared(*owners, newcomer, partitions=6)
        assert now_ms() - given_up < DEFAULT_INTERVAL_MS / 8
        for one in (*owners, newcomer):
            await one.close()

    run()
