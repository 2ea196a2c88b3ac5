"""Commits with a member epoch, transactions, and the lease of a member of the consumer protocol."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from consumer_coord.errors import CommitFailedError, CoordinatorError, FencedError
from consumer_coord.group.consumer_protocol import session
from consumer_coord.group.consumer_protocol.heartbeats import ConsumerMember
from consumer_coord.group.consumer_protocol.states import State
from consumer_coord.offsets import OffsetAndMetadata
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from consumer_coord.wire.messages.cluster import MetadataRequest
from consumer_coord.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from tests.support.group.consumer_protocol import (
    INTERVAL_MS,
    SESSION_MS,
    Broker,
    HeartbeatRequest,
    HeartbeatResponse,
    joined,
    modern_member,
    shared,
    state_of,
    target,
    topic_id_of,
)
from tests.support.group.fake import SILENCE, commit_answer, held_until
from tests.support.group.member import TestMember, at, parts
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


def left_ms(one: TestMember) -> float:
    """Return the milliseconds until the lease expires; negative after that."""
    return (one.coordinator.lease.until - one.coordinator.lease.clock()) * 1000


# -- commits


@pytest.mark.behaviour(175)
@in_virtual_time
async def test_a_commit_carries_the_member_epoch() -> None:
    broker = Broker()
    one = await joined(broker)
    await one.coordinator.commit(at("t", 0, 5))
    request = broker.last(OffsetCommitRequest)
    assert request.member_id == one.coordinator.member_id
    assert request.generation_id_or_member_epoch == one.coordinator.generation > 0
    assert (await one.coordinator.committed(parts("t", 0)))[next(iter(parts("t", 0)))].offset == 5  # type: ignore[union-attr]
    await one.close()


def _stale(request: OffsetCommitRequest) -> object:
    rows = dict.fromkeys(parts("t", 0, 1, 2, 3), codes.STALE_MEMBER_EPOCH)
    return commit_answer(request, rows)


@pytest.mark.behaviour(176)
@in_virtual_time
async def test_a_commit_with_a_stale_epoch_is_sent_again_with_the_present_one() -> None:
    """Brokers before 4.3 accept only the current epoch."""
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    broker.answer(OffsetCommitRequest, _stale)
    began, sent = now_ms(), len(broker.heartbeats)
    assert set((await one.coordinator.commit(at("t", 0, 5))).values()) == {None}
    assert now_ms() - began < 500, "it does not wait for the heartbeat interval"
    assert broker.heartbeats[sent].rebalance_timeout_ms != -1, "the coordinator knows all partitions"
    assert one.coordinator.metrics()["commit-resent-total"] == 1
    await one.close()


@pytest.mark.behaviour(177)
@in_virtual_time
async def test_a_stale_commit_of_a_released_partition_fails() -> None:
    broker = Broker()
    one = await joined(broker)
    await one.stop()

    def stale_after_release(request: OffsetCommitRequest) -> object:
        one.coordinator.release(parts("t", 3))
        return _stale(request)

    broker.answer(OffsetCommitRequest, stale_after_release)
    results = await one.coordinator.commit({**at("t", 0, 5), **at("t", 3, 5)})
    [kept, given_up] = [results[partition] for partition in sorted(results)]
    assert kept is None
    assert isinstance(given_up, CommitFailedError)
    assert given_up.code == codes.STALE_MEMBER_EPOCH
    await one.close()


@pytest.mark.behaviour(178)
@in_virtual_time
async def test_an_epoch_that_stays_stale_makes_no_storm() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    broker.always(OffsetCommitRequest, _stale)
    sent = len(broker.heartbeats)
    with pytest.raises(Exception, match="did not finish in time"):
        await one.coordinator.commit(at("t", 0, 5), timeout_ms=10_000)
    assert len(broker.heartbeats) - sent < 300
    broker.always(OffsetCommitRequest, None)
    assert set((await one.coordinator.commit(at("t", 0, 5))).values()) == {None}
    await one.close()


@pytest.mark.behaviour(179)
@pytest.mark.parametrize("code", [codes.UNKNOWN_MEMBER_ID, codes.GROUP_ID_NOT_FOUND])
def test_a_commit_of_a_member_that_is_not_counted_fails_and_it_joins_again(code: int) -> None:
    @in_virtual_time
    async def run() -> None:
        broker = Broker()
        one = await joined(broker)
        broker.answer(OffsetCommitRequest, code)
        [error] = (await one.coordinator.commit(at("t", 0, 5))).values()
        assert isinstance(error, CommitFailedError)
        assert error.code == code
        await eventually_async(lambda: [kind for kind, _ in one.callbacks] == ["assigned", "lost", "assigned"])
        await one.close()

    run()


@in_virtual_time
async def test_a_commit_that_is_refused_to_a_fenced_instance_partition_by_partition_fails_the_member_once() -> None:
    broker = Broker()
    one = await joined(broker, group_instance_id="i")
    await one.stop()
    fenced = dict.fromkeys(parts("t", 0, 1, 2, 3), codes.FENCED_INSTANCE_ID)
    broker.answer(OffsetCommitRequest, lambda request: commit_answer(request, fenced))
    results = await one.coordinator.commit({**at("t", 0, 5), **at("t", 1, 5)})
    assert all(isinstance(error, FencedError) for error in results.values())
    sent = len(broker.heartbeats)
    await pause(2 * INTERVAL_MS)
    with pytest.raises(FencedError, match="OffsetCommit of group"):
        await one.poll()
    assert state_of(one) is State.FATAL
    assert len(broker.heartbeats) == sent, "it must not affect the member that replaced it"
    await one.close()


@pytest.mark.behaviour(180)
@in_virtual_time
async def test_without_membership_nothing_is_committed() -> None:
    broker = Broker()
    one = await joined(broker)
    broker.always(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
    await eventually_async(lambda: one.coordinator.generation < 0)
    [error] = (await one.coordinator.commit(at("t", 0, 5))).values()
    assert isinstance(error, CommitFailedError)
    assert not broker.all(OffsetCommitRequest)
    await one.close()


@in_virtual_time
async def test_metadata_before_the_notification_does_not_acknowledge_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application's thread releases partitions and notifies the loop in two steps; metadata may arrive between them."""
    broker = Broker()
    one = await joined(broker)
    await one.stop()
    broker.always(OffsetCommitRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
    commit = asyncio.ensure_future(one.coordinator.commit({partition: OffsetAndMetadata(7) for partition in one.held}))
    wanted = {topic_id_of(one): (0, 1), uuid.UUID(int=7): (0,)}
    broker.always(HeartbeatRequest, target(one.coordinator.generation + 1, wanted))
    await eventually_async(lambda: one.coordinator.assignment.to_revoke)
    told: list[Callable[[], object]] = []
    with monkeypatch.context() as patch:
        patch.setattr(one.coordinator.application, "call", told.append)
        one.coordinator.release(parts("t", 2, 3))
    # At this time the client looks up the topic that it does not know.
    looked = len(broker.all(MetadataRequest))
    await eventually_async(lambda: len(broker.all(MetadataRequest)) > looked + 1)
    for tell in told:
        tell()
    await pause(1_000)

    def owned() -> list[list[int]]:
        said = [request.topic_partitions for request in broker.of(one) if request.topic_partitions]
        return [sorted(number for row in rows for number in row.partitions) for rows in said]

    assert set(map(tuple, owned())) == {(0, 1, 2, 3)}, "the commit is not answered yet"
    broker.always(OffsetCommitRequest, commit_answer)
    assert set((await commit).values()) == {None}
    await eventually_async(lambda: owned()[-1] == [0, 1])
    broker.always(HeartbeatRequest, None)
    await one.close()


# -- committed offsets


def _fetch_refused(code: int) -> OffsetFetchResponse:
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="orders", topics=[], error_code=code)])


@pytest.mark.behaviour(195)
@in_virtual_time
async def test_a_fetch_of_committed_offsets_names_the_member_and_its_epoch() -> None:
    broker = Broker()
    one = await joined(broker)
    two = await joined(broker)
    await shared(one, two)
    await one.coordinator.committed(parts("t", 0))
    [asked] = broker.last(OffsetFetchRequest).groups
    assert (asked.member_id, asked.member_epoch) == (one.coordinator.member_id, one.coordinator.generation)
    assert asked.member_epoch > 1
    await one.close()
    await two.close()


@pytest.mark.behaviour(195)
@in_virtual_time
async def test_outside_the_group_a_fetch_names_no_member() -> None:
    broker = Broker()
    one = modern_member(broker)
    assert await one.coordinator.committed(parts("t", 0)) == dict.fromkeys(parts("t", 0))
    [asked] = broker.last(OffsetFetchRequest).groups
    assert (asked.member_id, asked.member_epoch) == (None, -1)
    await one.close()


@pytest.mark.behaviour(196)
@in_virtual_time
async def test_a_fetch_with_a_stale_epoch_is_sent_again_with_the_present_one() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    await one.coordinator.commit(at("t", 0, 5))
    broker.answer(OffsetFetchRequest, _fetch_refused(codes.STALE_MEMBER_EPOCH))
    began, sent = now_ms(), len(broker.heartbeats)
    [found] = (await one.coordinator.committed(parts("t", 0))).values()
    assert found is not None
    assert found.offset == 5
    assert now_ms() - began < 500, "it does not wait for the heartbeat interval"
    assert broker.heartbeats[sent].rebalance_timeout_ms != -1, "the coordinator knows all partitions"
    assert [kind for kind, _ in one.callbacks] == ["assigned"], "no partition is lost"
    await one.close()


@pytest.mark.behaviour(196)
@in_virtual_time
async def test_an_offset_fetch_reveals_that_the_member_was_removed() -> None:
    """Otherwise the member would learn of it at its next heartbeat, and read from offsets that another member moves."""
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    broker.answer(OffsetFetchRequest, _fetch_refused(codes.UNKNOWN_MEMBER_ID))
    began = now_ms()
    await one.coordinator.committed(parts("t", 0))
    await eventually_async(lambda: [kind for kind, _ in one.callbacks] == ["assigned", "lost", "assigned"])
    assert now_ms() - began < INTERVAL_MS / 2
    await one.close()


# -- transactions


@pytest.mark.behaviour(181)
@in_virtual_time
async def test_a_transaction_holds_the_epoch_until_the_next_poll() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    await one.stop()
    generation = await one.coordinator.hold_joins()
    assert generation == one.coordinator.protocol.generation_state
    second = modern_member(broker)
    second.coordinator.subscribe(["t"])
    second.start()
    sent = len(broker.of(one))
    await pause(INTERVAL_MS + 500)
    assert len(broker.of(one)) == sent
    assert one.coordinator.protocol.generation_state == generation
    one.start()
    await shared(one, second)
    await one.close()
    await second.close()


@in_virtual_time
async def test_a_transaction_waits_for_the_heartbeat_that_is_under_way_and_takes_the_epoch_that_it_brings() -> None:
    broker = Broker()
    one = await joined(broker)
    await one.stop()
    newer = target(one.coordinator.generation + 1, {topic_id_of(one): (0, 1, 2, 3)})

    async def late(_: HeartbeatRequest) -> HeartbeatResponse:
        await asyncio.sleep(1)
        return newer

    broker.answer(HeartbeatRequest, late)
    sent = len(broker.heartbeats)
    await eventually_async(lambda: len(broker.heartbeats) > sent)
    assert (await one.coordinator.hold_joins()).generation_id == newer.member_epoch
    await one.close()


@pytest.mark.behaviour(182)
@in_virtual_time
async def test_a_transaction_holds_the_epoch_no_longer_than_half_a_session() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(2_000)
    await one.stop()
    await one.coordinator.hold_joins()
    sent = len(broker.heartbeats)
    await pause(SESSION_MS / 2 + 100)
    assert len(broker.heartbeats) > sent
    assert left_ms(one) > 0
    await one.close()


@pytest.mark.behaviour(183)
@in_virtual_time
async def test_after_a_loss_a_transaction_is_fenced_by_the_lost_epoch() -> None:
    broker = Broker()
    one = await joined(broker)
    before = one.coordinator.protocol.generation_state
    await one.stop()
    broker.answer(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
    await eventually_async(lambda: one.coordinator.assignment.any_lost and one.coordinator.generation > 0)
    assert await one.coordinator.hold_joins() == before
    await one.close()


# -- leases


@pytest.mark.behaviour(184)
@in_virtual_time
async def test_a_lease_is_the_brokers_session_from_the_last_answered_heartbeat() -> None:
    broker = Broker()
    one = await joined(broker)
    await pause(3 * INTERVAL_MS)
    assert SESSION_MS - INTERVAL_MS - 100 < left_ms(one) < SESSION_MS
    broker.always(HeartbeatRequest, SILENCE)
    last_ms = broker.heartbeat_times[-1]
    await eventually_async(lambda: left_ms(one) <= 0)
    assert now_ms() - last_ms == pytest.approx(SESSION_MS * 0.999, abs=10)
    assert one.coordinator.metrics()["lease-suspended-total"] == 1
    broker.always(HeartbeatRequest, None)
    broker.disconnect()
    await eventually_async(lambda: left_ms(one) > 0)
    assert one.coordinator.metrics()["lease-suspended-seconds-total"] > 0
    await one.close()


@pytest.mark.behaviour(185)
@in_virtual_time
async def test_an_unknown_session_timeout_is_taken_to_be_three_intervals() -> None:
    broker = Broker(group_consumer_session_timeout_ms=30_000)
    broker.always(DescribeConfigsRequest, codes.CLUSTER_AUTHORIZATION_FAILED)
    one = await joined(broker)
    assert 3 * INTERVAL_MS - 1_500 < left_ms(one) <= 3 * INTERVAL_MS
    await one.close()


@pytest.mark.behaviour(186)
@in_virtual_time
async def test_the_lease_of_what_the_group_wants_back_ends_with_the_rebalance_timeout() -> None:
    broker = Broker()
    one = await joined(broker, rebalance_timeout_ms=8_000, max_poll_interval_ms=100_000)
    await one.stop()
    second = modern_member(broker)
    second.coordinator.subscribe(["t"])
    second.start()
    await eventually_async(lambda: one.coordinator.assignment.to_revoke)
    wanted_ms = now_ms()
    await eventually_async(lambda: left_ms(one) <= 0)
    assert now_ms() - wanted_ms <= 8_000, "before the coordinator takes the partitions away"
    assert not second.held
    # The topic appears now; the application learns of the loss at its next poll.
    await eventually_async(lambda: second.held)
    assert one.coordinator.assignment.any_lost
    assert one.held.isdisjoint(second.held)
    one.start()
    await shared(one, second)
    assert "lost" in [kind for kind, _ in one.callbacks]
    await one.close()
    await second.close()


@in_virtual_time
async def test_nothing_is_delivered_after_a_loss() -> None:
    broker = Broker()
    one = await joined(broker)
    broker.always(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
    await eventually_async(lambda: one.coordinator.generation < 0)
    assert left_ms(one) < 0
    assert state_of(one) is State.JOINING
    await one.close()


def _configs(**values: str) -> DescribeConfigsResponse:
    rows = tuple(
        DescribeConfigsResourceResult(name=name.replace("_", "."), value=value, read_only=True, is_sensitive=False)
        for name, value in values.items()
    )
    return DescribeConfigsResponse(
        results=(DescribeConfigsResult(error_code=0, error_message=None, resource_type=32, resource_name="g", configs=rows),)
    )


def test_the_groups_own_session_timeout_counts_before_the_brokers() -> None:
    group, broker = "consumer_session_timeout_ms", "group_consumer_session_timeout_ms"
    assert session.configured_ms(_configs(**{group: "7000", broker: "45000"})) == 7_000
    assert session.configured_ms(_configs(**{broker: "45000"})) == 45_000
    assert session.configured_ms(_configs()) is None
    assert session.configured_ms(_configs(**{group: "soon"})) is None


@in_virtual_time
async def test_waiting_commits_fail_when_the_member_closes() -> None:
    broker = Broker()
    one = await joined(broker)
    release = asyncio.Event()
    broker.answer(OffsetCommitRequest, held_until(release))
    committing = asyncio.ensure_future(one.coordinator.commit(at("t", 0, 5), timeout_ms=2_000))
    await pause(10)
    await one.close(500)
    [outcome] = await asyncio.gather(committing, return_exceptions=True)
    assert isinstance(outcome, CoordinatorError)
    release.set()


@in_virtual_time
async def test_before_the_interval_is_known_a_session_is_three_of_kafkas_default() -> None:
    one = modern_member(Broker({"t": 1}))
    protocol = one.coordinator.protocol
    assert isinstance(protocol, ConsumerMember)
    assert protocol._session.timeout_ms == 15_000
    await one.close(1_000)


@in_virtual_time
async def test_a_changed_subscription_is_sent_before_the_next_regular_heartbeat() -> None:
    broker = Broker({"t": 2, "u": 2})
    one = await joined(broker)
    await pause(3 * INTERVAL_MS)
    before = len(broker.of(one))
    one.coordinator.subscribe(["t", "u"])
    await pause(100)
    assert [request.subscribed_topic_names for request in broker.of(one)[before:]][:1] == [("t", "u")]
    await one.close(1_000)
