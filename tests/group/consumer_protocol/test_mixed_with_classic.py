"""Members of both protocols in one group, in virtual time: online migration, and its effects on a classic member."""

from __future__ import annotations

import logging

import pytest

from assignors import LoadAssignor
from consumer_coord.errors import InconsistentGroupProtocolError
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from tests.support.group.consumer_protocol import Broker, joined, modern_member, shared
from tests.support.group.fake import SILENCE
from tests.support.group.member import COOPERATIVE, ScriptedAssignor, TestMember, everything_to_first, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


def classic(broker: Broker, *assignors: object, **settings: object) -> TestMember:
    """Add a member of the classic protocol, with an application that polls."""
    return new_member(broker, assignors or COOPERATIVE, **settings)  # type: ignore[arg-type]


@pytest.mark.behaviour(191)
@in_virtual_time
async def test_a_group_changes_its_protocol_there_and_back_while_members_are_in_it() -> None:
    broker = Broker()
    first = classic(broker)
    await first.join()
    assert len(first.held) == 4
    second = await joined(broker)
    await shared(first, second)
    assert broker.consumer_group.members.keys() == {first.coordinator.member_id, second.coordinator.member_id}
    await second.close()
    await eventually_async(lambda: len(first.held) == 4 and first.stable)
    assert broker.state == "Stable", "a classic group again"
    assert "lost" not in [kind for kind, _ in (*first.callbacks, *second.callbacks)]
    await first.close()


@pytest.mark.behaviour(192)
@in_virtual_time
async def test_a_new_classic_member_does_not_wait_for_a_heartbeat_interval() -> None:
    broker = Broker(group_consumer_heartbeat_interval_ms=200)
    first = await joined(broker)
    await pause(1_000)
    second = classic(broker, heartbeat_interval_ms=3_000)
    began = now_ms()
    second.coordinator.subscribe(["t"])
    second.start()
    await shared(first, second)
    assert now_ms() - began < 1_500
    await first.close()
    await second.close()


@pytest.mark.behaviour(193)
@in_virtual_time
async def test_an_assignor_that_the_broker_replaces_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    first = await joined(broker)
    with caplog.at_level(logging.WARNING):
        second = classic(broker, ScriptedAssignor(everything_to_first))
        await second.join()
        await shared(first, second)
        second.coordinator.enforce_rebalance()
        await pause(5_000)
    [told] = [record.getMessage() for record in caplog.records if "group.consumer.assignors" in record.getMessage()]
    assert "Assignor 'scripted' is not used" in told
    await first.close()
    await second.close()


@in_virtual_time
async def test_kafkas_own_assignors_are_replaced_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    first = await joined(broker)
    with caplog.at_level(logging.WARNING):
        second = classic(broker)
        await second.join()
        await shared(first, second)
    assert not [record for record in caplog.records if "group.consumer.assignors" in record.getMessage()]
    await first.close()
    await second.close()


@pytest.mark.behaviour(194)
@in_virtual_time
async def test_without_migration_the_error_names_the_policy() -> None:
    broker = Broker(group_consumer_migration_policy="disabled")
    first = classic(broker)
    await first.join()
    second = modern_member(broker)
    second.coordinator.subscribe(["t"])
    with pytest.raises(InconsistentGroupProtocolError, match=r"group\.consumer\.migration\.policy"):
        await second.coordinator.join_group_if_needed(5_000)
    await second.close()
    await first.close()


@in_virtual_time
async def test_without_migration_the_error_of_a_classic_member_names_the_policy_too() -> None:
    broker = Broker(group_consumer_migration_policy="disabled")
    first = await joined(broker)
    second = classic(broker, LoadAssignor())
    second.coordinator.subscribe(["t"])
    with pytest.raises(InconsistentGroupProtocolError, match=r"group\.consumer\.migration\.policy"):
        await second.coordinator.join_group_if_needed(5_000)
    await second.close()
    await first.close()


@pytest.mark.parametrize("lease", [True, False])
@in_virtual_time
async def test_a_classic_member_that_was_dropped_has_lost_its_partitions_although_it_is_welcome(lease: bool) -> None:
    """The group accepts an unknown member id as a new member; a classic group answers UNKNOWN_MEMBER_ID."""
    broker = Broker()
    first = await joined(broker)
    second = classic(broker, group_lease_enable=lease)
    await second.join()
    await shared(first, second)
    second.callbacks.clear()
    held = second.held
    broker.always(HeartbeatRequest, SILENCE)
    await eventually_async(lambda: len(first.held) == 4)
    assert second.held == held
    before = len(broker.all(JoinGroupRequest))
    second.coordinator.enforce_rebalance()
    await eventually_async(lambda: len(broker.all(JoinGroupRequest)) > before and second.callbacks)
    assert second.callbacks[0] == ("lost", held)
    broker.always(HeartbeatRequest, None)
    await shared(first, second)
    assert "revoked" not in [kind for kind, _ in second.callbacks]
    await first.close()
    await second.close()


@in_virtual_time
async def test_a_long_session_of_a_classic_member_ends_as_the_groups_does_after_a_failover() -> None:
    """The next coordinator removes a silent classic member after the group's session timeout of 45 s, not the member's own."""
    broker = Broker()
    alone = classic(broker, session_timeout_ms=600_000, rebalance_timeout_ms=600_000, heartbeat_interval_ms=3_000)
    await alone.join()

    def left_ms() -> float:
        lease = alone.coordinator.lease
        return (lease.until - lease.clock()) * 1000

    assert left_ms() > 500_000, "in a classic group its own session timeout counts"
    first = await joined(broker)
    await shared(first, alone)
    assert 0 < left_ms() <= 45_000
    await pause(60_000)
    assert 0 < left_ms() <= 45_000, "heartbeats continue"
    broker.always(HeartbeatRequest, SILENCE)
    await eventually_async(lambda: left_ms() <= 0, within_s=50)
    broker.always(HeartbeatRequest, None)
    await first.close()
    await alone.close()
