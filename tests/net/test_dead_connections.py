"""Dead connections without a sign of it: bytes vanish, and no reset arrives (a firewall dropped their state)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from consumer_coord.group.classic_protocol.waiting_requests import AbandonedError, WaitingRequest
from consumer_coord.net.metadata import Broker
from consumer_coord.net.tcp import TcpConnector, TcpTransport
from consumer_coord.retry import Deadline
from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from tests.support.group.classic import classic
from tests.support.group.fake import SILENCE, FakeBrokers
from tests.support.group.member import TestMember, member
from tests.support.group.virtual import in_virtual_time, now_ms, pause
from tests.support.waiting import eventually_async

SESSION_MS = 10_000
BEAT_MS = 3_000


def _connections(brokers: FakeBrokers, request: type[Any]) -> list[int]:
    """Return the connection of each request of a kind."""
    return [seen.connection for seen in brokers.seen if isinstance(seen.message, request)]


async def _lose_join_group(brokers: FakeBrokers, one: TestMember, heartbeats: int) -> float:
    """Drop the JoinGroup of a stable member, answer its heartbeats with this error, and return the time of the JoinGroup."""
    await one.join()
    await pause(4_000)
    brokers.answer(JoinGroupRequest, SILENCE)
    brokers.always(HeartbeatRequest, heartbeats)
    one.coordinator.enforce_rebalance()
    await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 3)
    return now_ms()


async def _joined_again(brokers: FakeBrokers, one: TestMember) -> None:
    await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 4)
    brokers.always(HeartbeatRequest, None)
    await eventually_async(lambda: one.stable and one.held)
    dead, again = _connections(brokers, JoinGroupRequest)[2:4]
    assert dead != again


@in_virtual_time
async def test_a_join_is_sent_again_on_another_connection_once_a_session() -> None:
    """The others rebalance and wait for this member, which still sends heartbeats: this must not take the rebalance timeout."""
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=300_000) as one:
        sent = await _lose_join_group(brokers, one, codes.REBALANCE_IN_PROGRESS)
        await _joined_again(brokers, one)
        assert now_ms() - sent < SESSION_MS + 100
        assert [what for what, _ in one.callbacks] == ["assigned"], "it lost nothing"
        assert not one.errors


@in_virtual_time
async def test_a_lost_join_times_out_when_heartbeats_find_no_rebalance() -> None:
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=30_000, heartbeat_interval_ms=BEAT_MS) as one:
        sent = await _lose_join_group(brokers, one, codes.NONE)
        await _joined_again(brokers, one)
        assert now_ms() - sent < 2 * BEAT_MS + 500
        assert [what for what, _ in one.callbacks] == ["assigned"]
        assert not one.errors


@pytest.mark.parametrize("code", [codes.UNKNOWN_MEMBER_ID, codes.ILLEGAL_GENERATION])
@in_virtual_time
async def test_a_join_whose_generation_is_gone_is_abandoned(code: int) -> None:
    """25: the group completed the rebalance without this member.

    22 twice: it completed, and the JoinGroup response was lost.
    """
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=30_000, heartbeat_interval_ms=BEAT_MS) as one:
        sent = await _lose_join_group(brokers, one, code)
        await _joined_again(brokers, one)
        assert now_ms() - sent < (2 if code == codes.UNKNOWN_MEMBER_ID else 3) * BEAT_MS + 500
        lost = [what for what, _ in one.callbacks].count("lost")
        assert lost == (1 if code == codes.UNKNOWN_MEMBER_ID else 0)


@in_virtual_time
async def test_a_join_at_a_former_coordinator_is_abandoned() -> None:
    brokers = FakeBrokers(brokers=2)
    async with member(brokers, session_timeout_ms=30_000, heartbeat_interval_ms=BEAT_MS) as one:
        sent = await _lose_join_group(brokers, one, codes.NOT_COORDINATOR)
        brokers.coordinator = 1
        await eventually_async(lambda: len(brokers.all(FindCoordinatorRequest)) > 1)
        brokers.always(HeartbeatRequest, None)
        await _joined_again(brokers, one)
        assert now_ms() - sent < 2 * BEAT_MS + 500
        assert brokers.seen[-1].node == 1


@in_virtual_time
async def test_a_lost_sync_is_abandoned_when_the_group_rebalances_again() -> None:
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=30_000, heartbeat_interval_ms=BEAT_MS) as one:
        await one.join()
        await pause(4_000)
        brokers.answer(SyncGroupRequest, SILENCE)
        brokers.always(HeartbeatRequest, codes.REBALANCE_IN_PROGRESS)
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: classic(one.coordinator).session.syncing)
        sent = now_ms()
        await eventually_async(lambda: len(brokers.all(JoinGroupRequest)) == 4)
        assert now_ms() - sent < 2 * BEAT_MS + 500


@in_virtual_time
async def test_a_connection_that_was_silent_for_seconds_carries_no_join_and_is_closed() -> None:
    brokers = FakeBrokers()
    async with member(brokers) as one:
        await one.join()
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.coordinator.generation == 2 and one.stable)
        assert len(set(_connections(brokers, JoinGroupRequest)[1:])) == 1, "a new connection carries the next join, too"
        before = brokers.open
        await pause(3_500)
        assert brokers.open == before - 1
        one.coordinator.enforce_rebalance()
        await eventually_async(lambda: one.coordinator.generation == 3 and one.stable)
        assert len(set(_connections(brokers, JoinGroupRequest)[1:])) == 2


@in_virtual_time
async def test_a_join_may_be_abandoned_in_the_moment_in_which_it_is_to_be_sent_again() -> None:
    waiting, sent = WaitingRequest(), 0

    async def send(_: float) -> None:
        nonlocal sent
        sent += 1
        try:
            await asyncio.Event().wait()
        finally:
            # A heartbeat response arrives while the connection is being closed.
            waiting.abandon("the generation is gone")

    with pytest.raises(AbandonedError, match="the generation is gone"):
        await waiting.ask(Broker(0, "b", 9092), send, Deadline.after(60_000), 1_000)
    assert sent == 1
    assert not waiting.active


@in_virtual_time
async def test_a_heartbeat_that_is_swallowed_is_followed_by_another_before_the_session_ends() -> None:
    brokers = FakeBrokers()
    async with member(brokers, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=BEAT_MS, request_timeout_ms=30_000) as one:
        await one.join()
        await pause(1_000)
        last = brokers.times(HeartbeatRequest)[-1]
        brokers.answer(HeartbeatRequest, SILENCE)
        await eventually_async(lambda: len(set(_connections(brokers, HeartbeatRequest))) == 2)
        assert now_ms() - last < SESSION_MS
        await pause(1_000)
        assert one.coordinator.metrics()["lease-suspended-total"] == 0


def test_the_kernel_notices_a_peer_that_acknowledges_nothing() -> None:
    async def story() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport = await TcpConnector().connect("127.0.0.1", port)
        assert isinstance(transport, TcpTransport)
        under = transport._transport
        assert under is not None
        raw = under.get_extra_info("socket")
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option, at_most in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_USER_TIMEOUT", 15_000)):
            if hasattr(socket, option):
                assert 0 < raw.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) <= at_most
        transport.close()
        server.close()

    asyncio.run(story())
