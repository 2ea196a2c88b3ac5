"""Finding the coordinator, and detecting its loss (behaviours 1 to 8)."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from consumer_coord.errors import (
    AuthenticationError,
    AuthorizationError,
    CommitFailedError,
    CoordinatorNotAvailableError,
    RequestTimedOutError,
)
from consumer_coord.retry import Backoff, Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.cluster import MetadataRequest
from consumer_coord.wire.messages.group import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest
from consumer_coord.wire.messages.offsets import ListOffsetsRequest, OffsetCommitRequest
from tests.support.group.fake import DROP, SILENCE, FakeBrokers, Reply
from tests.support.group.member import at, member, new_cluster, new_member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async


@pytest.mark.behaviour(1)
@in_virtual_time
async def test_a_lookup_goes_to_the_broker_with_the_least_in_flight() -> None:
    brokers = FakeBrokers(brokers=3)
    async with member(brokers) as one:
        cluster = one.cluster
        await cluster.refresh(Deadline.after(1_000))
        known = cluster.metadata.brokers
        brokers.always(ListOffsetsRequest, SILENCE)
        # Every broker has an open connection; two of them are busy.
        for broker in known.values():
            await cluster.request(broker, MetadataRequest(topics=()), timeout_ms=1_000)
        busy = [asyncio.ensure_future(cluster.request(known[node], ListOffsetsRequest(), timeout_ms=60_000)) for node in (0, 2)]
        await pause(10)
        for _ in range(5):
            await one.coordinator.ensure_coordinator_ready(1_000)
            await one.coordinator.ensure_coordinator_ready(1_000)
            one.forget_coordinator()
        for task in busy:
            task.cancel()
        assert {seen.node for seen in brokers.seen if isinstance(seen.message, FindCoordinatorRequest)} == {1}


@pytest.mark.behaviour(1)
@in_virtual_time
async def test_lookups_back_off_exponentially_with_jitter() -> None:
    brokers = FakeBrokers()
    brokers.always(FindCoordinatorRequest, codes.COORDINATOR_NOT_AVAILABLE)
    async with member(brokers) as one:
        with pytest.raises(CoordinatorNotAvailableError):
            await one.coordinator.ensure_coordinator_ready(10_000)
    gaps = [after - before for before, after in pairwise(brokers.times(FindCoordinatorRequest))]
    for retries, gap in enumerate(gaps[:3]):
        middle = 100 * 2**retries
        assert 0.8 * middle <= gap <= 1.2 * middle + 10, gaps
    assert max(gaps) <= 1_000 + 10
    assert len({round(gap - 100 * 2**index, 3) for index, gap in enumerate(gaps[:3])}) == 3, "no jitter"


@pytest.mark.behaviour(1)
@in_virtual_time
async def test_a_broker_that_is_down_is_passed_over() -> None:
    brokers = FakeBrokers(brokers=3)
    brokers.down = {0, 1}
    brokers.coordinator = 2
    async with member(brokers) as one:
        found = await one.coordinator.ensure_coordinator_ready(5_000)
    assert found.id == 2
    assert {seen.node for seen in brokers.seen} == {2}


@pytest.mark.behaviour(2)
@pytest.mark.parametrize(
    "reply", [codes.COORDINATOR_NOT_AVAILABLE, codes.COORDINATOR_LOAD_IN_PROGRESS, codes.REQUEST_TIMED_OUT, DROP]
)
@in_virtual_time
async def test_retriable_errors_of_a_lookup_are_retried(reply: Reply) -> None:
    brokers = FakeBrokers()
    brokers.answer(FindCoordinatorRequest, reply, reply, reply)
    async with member(brokers) as one:
        found = await one.coordinator.ensure_coordinator_ready(5_000)
    assert found.id == 0
    assert len(brokers.all(FindCoordinatorRequest)) == 4


@pytest.mark.behaviour(2)
@in_virtual_time
async def test_a_lookup_ends_at_the_callers_time_limit_and_names_the_obstacle() -> None:
    brokers = FakeBrokers()
    brokers.always(FindCoordinatorRequest, codes.COORDINATOR_NOT_AVAILABLE)
    async with member(brokers) as one:
        with pytest.raises(CoordinatorNotAvailableError, match="COORDINATOR_NOT_AVAILABLE") as raised:
            await one.coordinator.ensure_coordinator_ready(700)
        assert now_ms() == pytest.approx(700, abs=1)
        assert "bootstrap.servers" in str(raised.value)


@pytest.mark.behaviour(2)
@in_virtual_time
async def test_unreachable_brokers_are_named_within_the_time_limit() -> None:
    brokers = FakeBrokers(brokers=2)
    brokers.down = {0, 1}
    async with member(brokers) as one:
        with pytest.raises(CoordinatorNotAvailableError, match="orders"):
            await one.coordinator.ensure_coordinator_ready(2_000)
        assert now_ms() == pytest.approx(2_000, abs=1)
        with pytest.raises(RequestTimedOutError, match=r"broker-0:9092, broker-1:9092.* 1000 ms.*refused") as raised:
            await one.cluster.request_any(MetadataRequest(topics=()), Deadline.after(1_000))
        last = raised.value.__cause__
        assert last is not None
        assert last.__cause__ is not last, "a chain of causes ends"


@pytest.mark.behaviour(3)
@in_virtual_time
async def test_an_authorization_error_is_raised_at_once() -> None:
    brokers = FakeBrokers()
    brokers.answer(FindCoordinatorRequest, codes.GROUP_AUTHORIZATION_FAILED)
    async with member(brokers) as one:
        with pytest.raises(AuthorizationError, match=r"orders.*GROUP_AUTHORIZATION_FAILED.*READ on the group"):
            await one.coordinator.ensure_coordinator_ready(60_000)
        assert now_ms() < 100
    assert len(brokers.all(FindCoordinatorRequest)) == 1


@pytest.mark.behaviour(3)
@in_virtual_time
async def test_an_authentication_error_is_raised_at_once() -> None:
    brokers = FakeBrokers()

    class Refusing:
        """A connector whose TLS handshake fails."""

        bootstrap = brokers.bootstrap

        async def connect(self, host: str, port: int) -> object:
            raise AuthenticationError(f"{host}:{port} refused our certificate")

    one = new_member(Refusing())
    with pytest.raises(AuthenticationError, match="refused our certificate"):
        await one.coordinator.ensure_coordinator_ready(60_000)
    assert now_ms() < 100
    one.coordinator.subscribe(["t"])
    with pytest.raises(AuthenticationError, match="refused our certificate"):
        await one.coordinator.join_group_if_needed(60_000)
    await one.close(100)


@pytest.mark.behaviour(3)
@pytest.mark.parametrize("moment", ["heartbeat", "commit"])
@in_virtual_time
async def test_losing_the_right_to_use_the_group_reaches_the_application_not_the_log(moment: str) -> None:
    """The look-up after the loss of a coordinator is refused: the application gets the broker's error, and no task crashes."""
    brokers = FakeBrokers()
    one = new_member(brokers)
    await one.join()
    brokers.always(FindCoordinatorRequest, codes.GROUP_AUTHORIZATION_FAILED)
    if moment == "heartbeat":
        brokers.answer(HeartbeatRequest, codes.NOT_COORDINATOR)
    else:
        brokers.answer(OffsetCommitRequest, codes.NOT_COORDINATOR)
        # The look-up raises the error, or a heartbeat received it first.
        [outcome] = await asyncio.gather(one.coordinator.commit(at("t", 0, 5)), return_exceptions=True)
        error = outcome if isinstance(outcome, BaseException) else next(iter(outcome.values()))
        assert isinstance(error, (AuthorizationError, CommitFailedError))
    await eventually_async(lambda: one.errors)
    assert isinstance(one.errors[0], AuthorizationError)
    # The permission is granted again, and the member continues.
    brokers.always(FindCoordinatorRequest, None)
    await eventually_async(lambda: one.stable and one.held)
    assert not [error for error in one.errors if "please report" in str(error)]
    await one.close()


@pytest.mark.behaviour(4, 5)
@pytest.mark.parametrize("code", [codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE])
@pytest.mark.parametrize("request_class", [JoinGroupRequest, HeartbeatRequest, OffsetCommitRequest])
@in_virtual_time
async def test_a_coordinator_that_is_none_is_looked_up_again(code: int, request_class: type) -> None:
    brokers = FakeBrokers(brokers=2)

    def moved(_: object) -> int:
        brokers.coordinator = 1
        return code

    brokers.answer(request_class, moved)
    async with member(brokers) as one:
        await one.join()
        if request_class is OffsetCommitRequest:
            assert await one.coordinator.commit(at("t", 0, 5)) == {next(iter(at("t", 0, 5))): None}
        await pause(10_000)
        assert one.stable
        assert (await one.coordinator.ensure_coordinator_ready()).id == 1
        assert not one.errors
    asked = [seen.node for seen in brokers.seen if isinstance(seen.message, request_class)]
    assert asked[0] == 0
    assert set(asked[1:]) == {1}
    assert len(brokers.all(FindCoordinatorRequest)) == 2


@pytest.mark.behaviour(6)
@in_virtual_time
async def test_a_disconnect_fails_what_is_in_flight_and_leads_to_rediscovery() -> None:
    brokers = FakeBrokers(brokers=2)
    async with member(brokers) as one:
        await one.join()
        brokers.answer(OffsetCommitRequest, SILENCE)
        commit = asyncio.ensure_future(one.coordinator.commit(at("t", 0, 5)))
        await pause(50)
        assert not commit.done()
        brokers.coordinator = 1
        brokers.disconnect()
        assert list((await commit).values()) == [None]
    asked = [seen.node for seen in brokers.seen if isinstance(seen.message, OffsetCommitRequest)]
    assert asked == [0, 1]


@pytest.mark.behaviour(7)
@in_virtual_time
async def test_a_coordinator_that_loads_is_waited_for_and_kept() -> None:
    brokers = FakeBrokers()
    brokers.answer(JoinGroupRequest, *[codes.COORDINATOR_LOAD_IN_PROGRESS] * 3)
    async with member(brokers) as one:
        await one.join()
        brokers.answer(HeartbeatRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
        brokers.answer(OffsetCommitRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
        assert list((await one.coordinator.commit(at("t", 0, 5))).values()) == [None]
        await pause(5_000)
        assert one.stable
    assert len(brokers.all(FindCoordinatorRequest)) == 1
    gaps = [after - before for before, after in pairwise(brokers.times(JoinGroupRequest)[:4])]
    assert all(gap >= 80 for gap in gaps), gaps


@pytest.mark.behaviour(8)
@in_virtual_time
async def test_no_lookup_while_nothing_needs_the_group() -> None:
    brokers = FakeBrokers()
    async with member(brokers):
        await pause(600_000)
    assert not brokers.all(FindCoordinatorRequest)


@pytest.mark.behaviour(8)
@in_virtual_time
async def test_one_lookup_serves_all_who_wait_for_it() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await asyncio.gather(*(one.coordinator.ensure_coordinator_ready(1_000) for _ in range(10)))
    assert len(brokers.all(FindCoordinatorRequest)) == 1


@pytest.mark.behaviour(1)
@in_virtual_time
async def test_a_callers_short_patience_breaks_no_connection_that_others_use() -> None:
    """A commit with 50 ms left must not close the connection that the other members of the process share."""
    brokers = FakeBrokers()
    cluster = new_cluster(brokers)
    one, two = new_member(brokers, cluster=cluster), new_member(brokers, cluster=cluster)
    await one.join()
    opened = len(brokers.opened)

    async def slowly(request: OffsetCommitRequest) -> object:
        await asyncio.sleep(1)
        return brokers.usual(request)

    brokers.answer(OffsetCommitRequest, slowly)
    with pytest.raises(RequestTimedOutError):
        await one.coordinator.commit(at("t", 0, 5), timeout_ms=50)
    assert (await two.coordinator.ensure_coordinator_ready(5_000)).id == 0
    await pause(2_000)
    assert len(brokers.opened) == opened
    await one.stop()
    for each in (one, two):
        await each.coordinator.close(1_000)
    await cluster.close()


def test_a_backoff_never_leaves_its_bounds() -> None:
    backoff = Backoff(100, 1_000, random.Random(3))
    for retries in (0, 1, 5, 10_000):
        waits = [backoff.ms(retries) for _ in range(100)]
        assert min(waits) >= 80
        assert max(waits) <= 1_000
        assert len(set(waits)) > 10, "members with equal pauses would stay in step"
