"""The custom assignor of the documentation, in a group of processes on the embedded Kafka."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing.processes import end, spawn
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.behaviour(30)
def test_members_share_by_capacity(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def shares() -> list[int]:
        """Return how many partitions the last assignment of each capacity had."""
        told = dict(re.findall(r"capacity (\d) gets \[(.*)\]", out.read_text()))
        return [len(told[capacity].split(", ")) if told.get(capacity) else 0 for capacity in "13"]

    with EmbeddedKafka(topics={"orders": 8}) as kafka, out.open("wb") as output:
        processes = []
        try:
            for capacity in "13":
                command = [sys.executable, "-m", "examples.custom_assignor", kafka.bootstrap_servers, "orders", "g", capacity]
                processes.append(spawn(command, cwd=ROOT, stdout=output, stderr=output))
            eventually(lambda: shares() == [2, 6], f"shares of 2 and 6 in {out.read_text()!r}")
            for process in processes:
                process.send_signal(signal.SIGINT)
                assert process.wait(180) == 130, out.read_text()
        finally:
            for process in processes:
                end(process)
