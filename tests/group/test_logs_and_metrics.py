"""Logs and metrics for operators: log lines that name their member, and figures under Java's names."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from consumer_coord.wire import error_codes as codes
from consumer_coord.wire.messages.group import HeartbeatRequest, JoinGroupRequest
from consumer_coord.wire.messages.offsets import OffsetCommitRequest
from tests.support.group.consumer_protocol import Broker
from tests.support.group.fake import PASS, FakeBrokers, Pass
from tests.support.group.member import at, member
from tests.support.group.virtual import in_virtual_time, pause
from tests.support.waiting import eventually_async

_PREFIX = re.compile(r"^\[group=orders member=(\S+|new member) generation=(-?\d+)\] ")


def test_every_line_of_a_member_carries_group_member_and_generation(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def story() -> None:
        brokers = FakeBrokers()
        async with member(brokers) as one:
            await one.join()
            brokers.answer(HeartbeatRequest, codes.UNKNOWN_MEMBER_ID)
            brokers.answer(JoinGroupRequest, brokers.usual, codes.GROUP_MAX_SIZE_REACHED)
            await eventually_async(lambda: one.errors)
            await eventually_async(lambda: one.stable)

    with caplog.at_level(logging.INFO, logger="consumer_coord"):
        story()
    lines = [record.getMessage() for record in caplog.records if "coordinator" in record.name or "member" in record.name]
    assert len(lines) > 5
    assert [line for line in lines if not _PREFIX.match(line)] == []
    said = {(match[1], int(match[2])) for line in lines if (match := _PREFIX.match(line))}
    assert ("member-1", 1) in said
    assert any(generation == -1 for _, generation in said)
    levels = {record.levelname for record in caplog.records if "GROUP_MAX_SIZE_REACHED" in record.getMessage()}
    assert "ERROR" in levels


def test_a_static_member_is_named_by_its_instance(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def story() -> None:
        async with member(FakeBrokers(), group_instance_id="till-1") as one:
            await one.join()

    with caplog.at_level(logging.INFO, logger="consumer_coord"):
        story()
    assert "[group=orders member=till-1 generation=1]" in caplog.text
    # The same data as attributes, for structured logs.
    told = [vars(record) for record in caplog.records]
    assert ("orders", "till-1", 1) in {(one.get("group"), one.get("member"), one.get("generation")) for one in told}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("refused", [True, False])
def test_only_a_loss_of_partitions_against_ones_will_is_a_warning(
    protocol: str, holds: bool, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @in_virtual_time
    async def story() -> None:
        brokers = Broker()
        async with member(brokers, group_protocol=protocol) as one:
            await one.join()
            await one.stop()
            if not holds:
                one.coordinator.release(one.held)
            if refused:
                brokers.answer(OffsetCommitRequest, codes.UNKNOWN_MEMBER_ID)
                await one.coordinator.commit(at("t", 0, 5))
            else:
                await one.coordinator.leave_group()

    with caplog.at_level(logging.INFO, logger="consumer_coord"):
        story()
    first, *_ = [record for record in caplog.records if "out of the group" in record.getMessage()]
    assert first.levelname == ("WARNING" if holds and refused else "INFO")


@in_virtual_time
async def test_finding_and_losing_a_coordinator_is_logged_once_each() -> None:
    brokers = FakeBrokers(brokers=2)
    async with member(brokers) as one:
        steps: list[tuple[str, str]] = []
        one.coordinator.show_steps(lambda step, text: steps.append((step, text)))
        await one.join()
        brokers.coordinator = 1
        brokers.always(HeartbeatRequest, lambda _: codes.NONE if brokers.seen[-1].node == 1 else codes.NOT_COORDINATOR)
        await pause(10_000)
        told = [(step, text) for step, text in steps if step in ("CGRPCOORD", "COORDCLEAR")]
        assert [step for step, _ in told] == ["CGRPCOORD", "COORDCLEAR", "CGRPCOORD"]
        assert [node in text for (_, text), node in zip(told, ["broker-0", "broker-0", "broker-1"], strict=True)] == [True] * 3
        assert "NOT_COORDINATOR" in told[1][1]


@in_virtual_time
async def test_figures_are_there_from_the_start_under_javas_names() -> None:
    names = {
        "join-total",
        "join-rate",
        "join-time-avg",
        "join-time-max",
        "sync-total",
        "sync-time-avg",
        "heartbeat-total",
        "heartbeat-rate",
        "rebalance-total",
        "rebalance-latency-avg",
        "rebalance-latency-max",
        "rebalance-rate-per-hour",
        "failed-rebalance-total",
        "commit-total",
        "commit-latency-avg",
        "commit-latency-max",
        "last-heartbeat-seconds-ago",
        "last-poll-seconds-ago",
        "last-rebalance-seconds-ago",
        "assigned-partitions",
    }
    brokers = FakeBrokers()

    async def slowly(_: OffsetCommitRequest) -> Pass:
        await asyncio.sleep(0.25)
        return PASS

    async with member(brokers) as one:
        assert names <= one.coordinator.metrics().keys()
        await one.join()
        brokers.answer(OffsetCommitRequest, slowly)
        await one.coordinator.commit(at("t", 0, 5))
        brokers.answer(JoinGroupRequest, codes.COORDINATOR_LOAD_IN_PROGRESS)
        one.coordinator.enforce_rebalance()
        await pause(10_000)
        await one.stop()
        await pause(7_000)
        figures = one.coordinator.metrics()
    assert names <= figures.keys()
    counts = {name: figures[f"{name}-total"] for name in ("join", "sync", "rebalance", "failed-rebalance", "commit")}
    assert counts == {"join": 2, "sync": 2, "rebalance": 2, "failed-rebalance": 1, "commit": 1}
    assert figures["assigned-partitions"] == 4
    assert 250 <= figures["commit-latency-max"] == figures["commit-latency-avg"] <= 260
    assert figures["join-time-max"] >= figures["join-time-avg"] > 0
    assert 0 < figures["last-heartbeat-seconds-ago"] <= 3.1
    # Polls are counted, and the count is checked with each heartbeat.
    assert 4 - 0.1 <= figures["last-poll-seconds-ago"] <= 7.1
    assert figures["last-rebalance-seconds-ago"] > 10
