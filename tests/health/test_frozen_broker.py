"""A broker in a process of its own is stopped with SIGSTOP for 14 seconds: its connections stay open, and it says nothing."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator

import pytest

from consumer_coord import GroupConsumer
from consumer_coord.health import Health, Owed, Reason
from tests.support.line_process import LineProcess
from tests.support.waiting import eventually

FROZEN_S, LIMIT_S = 14.0, 5.0


@pytest.fixture
def broker() -> Iterator[tuple[LineProcess, str]]:
    command = [sys.executable, "-m", "consumer_coord", "embedded-kafka", "--topics", "orders:2"]
    with LineProcess(command, name="a broker") as process:
        yield process, process.receive().partition("=")[2]


@pytest.mark.slow
@pytest.mark.parametrize("librdkafka", [False, True])
def test_a_broker_that_is_frozen_for_14_s_is_named(broker: tuple[LineProcess, str], librdkafka: bool) -> None:
    process, servers = broker
    settings = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "librdkafka.enable": librdkafka}
    with GroupConsumer(settings) as consumer:
        consumer.subscribe(["orders"])

        def look() -> Health:
            consumer.poll(0.05)
            return consumer.health(LIMIT_S)

        def all_known() -> bool:
            partitions = look().partitions
            return len(partitions) == 2 and all(one.owed is Owed.NO for one in partitions)

        eventually(all_known, step=lambda: None)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            sick = eventually(lambda: (health := look()).problems and health, step=lambda: None)
            assert isinstance(sick, Health)
            for one in sick.partitions:
                assert (one.owed, one.records, one.reason) == (Owed.UNKNOWN, None, Reason.LEADER_SILENT)
                assert one.since_s > LIMIT_S
                assert "broker 0 has not answered for" in one.detail
            assert {text.split(":")[0] for text in sick.problems} == {"orders-0", "orders-1"}
            # The whole 14 s: it stays unhealthy, and the time grows.
            late = eventually(lambda: (health := look()).partitions[0].since_s > FROZEN_S and health, step=lambda: None)
            assert isinstance(late, Health)
            assert not late.healthy
            assert late.live, "a restart would not wake the broker"
        finally:
            os.kill(process.pid, signal.SIGCONT)
        eventually(all_known, step=lambda: None)
        assert consumer.health(LIMIT_S).healthy
