"""Errors that the application receives, and when: a group that cannot be joined, and missing topics."""

from __future__ import annotations

from collections import deque

import pytest

from consumer_coord.errors import FencedError, RetriableError, UnknownTopicError
from consumer_coord.group.failures import Failures
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest
from tests.support.group.fake import DROP, SILENCE, FakeBrokers, Reply
from tests.support.group.member import member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

PATIENCE_MS = 20_000


@pytest.mark.parametrize("answer", [SILENCE, DROP, codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE])
@in_virtual_time
async def test_a_stable_member_gets_no_error_for_an_unavailable_coordinator(answer: Reply) -> None:
    """The member keeps its generation and its partitions, and need not join (Java and librdkafka are silent, too)."""
    brokers = FakeBrokers()
    async with member(brokers, default_api_timeout_ms=PATIENCE_MS) as one:
        await one.join()
        await pause(5 * PATIENCE_MS)
        brokers.always(HeartbeatRequest, answer)
        brokers.always(FindCoordinatorRequest, codes.COORDINATOR_NOT_AVAILABLE)
        await pause(3 * PATIENCE_MS)
        assert not one.errors
        brokers.always(HeartbeatRequest, None)
        brokers.always(FindCoordinatorRequest, None)
        await pause(PATIENCE_MS)
        assert not one.errors
        assert one.stable


@in_virtual_time
async def test_an_obstacle_to_a_join_is_reported_when_it_lasts_too_long() -> None:
    """The time runs from the first obstacle, not from the member's last join."""
    brokers = FakeBrokers()
    async with member(brokers, default_api_timeout_ms=PATIENCE_MS) as one:
        await one.join()
        await pause(5 * PATIENCE_MS)
        brokers.always(JoinGroupRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
        one.coordinator.enforce_rebalance()
        started = now_ms()
        await eventually_async(lambda: one.errors)
        assert now_ms() - started == pytest.approx(PATIENCE_MS, rel=0.1)
        assert isinstance(one.errors[0], RetriableError)
        assert "could not be joined for 20 s" in str(one.errors[0])
        assert len(one.errors) == 1
        brokers.always(JoinGroupRequest, None)
        await eventually_async(lambda: one.stable)


@in_virtual_time
async def test_a_topic_that_is_missing_for_a_moment_is_no_error() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    async with member(brokers, default_api_timeout_ms=PATIENCE_MS) as one:
        await one.join(["t", "u"])
        await pause(5 * PATIENCE_MS)
        brokers.topic_errors["u"] = codes.UNKNOWN_TOPIC_OR_PARTITION
        one.cluster.refresh_soon()
        await pause(PATIENCE_MS / 2)
        assert not one.errors
        del brokers.topic_errors["u"]
        await pause(2 * PATIENCE_MS)
        assert not one.errors
        # Missing for a while, back, and missing again: the clock restarts.
        brokers.topic_errors["u"] = codes.UNKNOWN_TOPIC_OR_PARTITION
        one.cluster.refresh_soon()
        await eventually_async(lambda: "u" not in one.cluster.metadata.topics)
        started = now_ms()
        await eventually_async(lambda: one.errors)
        assert now_ms() - started == pytest.approx(PATIENCE_MS, rel=0.1)
        assert isinstance(one.errors[0], UnknownTopicError)
        await pause(5 * PATIENCE_MS)
        assert len(one.errors) == 1


@pytest.mark.parametrize("progress", [True, False], ids=["progress", "nothing to join"])
@in_virtual_time
async def test_the_time_of_a_former_obstacle_does_not_count(progress: bool) -> None:
    told: list[float] = []
    failures = Failures("g", PATIENCE_MS, lambda: told.append(now_ms()))
    failures.note_obstacle("the coordinator is away", wanted=True)
    await pause(0.9 * PATIENCE_MS)
    if progress:
        failures.clear_obstacle()
    else:
        failures.note_obstacle("a heartbeat was lost", wanted=False)
    await pause(PATIENCE_MS)
    failures.note_obstacle("the coordinator is away again", wanted=True)
    assert not told
    await pause(1.1 * PATIENCE_MS)
    failures.note_obstacle("the coordinator is away again", wanted=True)
    assert len(told) == 1


@in_virtual_time
async def test_a_poll_after_the_join_gets_no_error_for_a_former_obstacle() -> None:
    failures = Failures("g", PATIENCE_MS, lambda: None)
    failures.note_obstacle("the coordinator is away", wanted=True)
    await pause(1.1 * PATIENCE_MS)
    failures.note_obstacle("the coordinator is away", wanted=True)
    assert "could not be joined" in str(failures.current)
    failures.clear_obstacle()
    assert failures.take() is None
    refused = FencedError("fenced")
    failures.set(refused)
    failures.clear_obstacle()
    assert failures.take() is refused, "another failure is reported all the same"


@pytest.mark.parametrize("final", [False, True], ids=["once", "final"])
def test_only_a_final_failure_is_raised_by_every_poll(final: bool) -> None:
    failures = Failures("g", PATIENCE_MS, lambda: None)
    error = FencedError("fenced") if final else RetriableError("the coordinator is away")
    failures.set(error)
    assert failures.take() is error
    assert failures.take() is (error if final else None)


@pytest.mark.parametrize("as_note", [False, True], ids=["failure", "note"])
def test_a_missing_topic_of_the_former_subscription_is_not_reported(as_note: bool) -> None:
    failures = Failures("g", PATIENCE_MS, lambda: None)
    failures.notes = deque()
    failures.set_missing(UnknownTopicError("subscribed topics do not exist: t"), as_note=as_note)
    failures.subscription_changed()
    assert failures.take() is None
    assert not failures.notes
    fenced = FencedError("fenced")
    failures.set(fenced)
    failures.subscription_changed()
    assert failures.take() is fenced, "only failures about topics belong to a subscription"


@in_virtual_time
async def test_a_change_of_the_subscription_clears_a_failure_that_no_poll_has_raised() -> None:
    brokers = FakeBrokers({"t": 2, "u": 2})
    async with member(brokers, default_api_timeout_ms=PATIENCE_MS) as one:
        await one.join(["t", "u"])
        brokers.topic_errors["u"] = codes.UNKNOWN_TOPIC_OR_PARTITION
        one.cluster.refresh_soon()
        failures = one.coordinator.application.failures
        await eventually_async(lambda: failures.current)
        one.coordinator.subscribe(["t"])
        assert failures.current is None
