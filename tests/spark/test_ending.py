"""The ends of a planner process: whatever comes when, it ends after the leave is over, and not before."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumer_coord.testing.processes import end, spawn

Planner = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def planner() -> Iterator[Planner]:
    started: list[subprocess.Popen[bytes]] = []

    def start(case: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.support.spark.ending", case]
        started.append(spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parents[2]))
        return started[-1]

    yield start
    for process in started:
        end(process)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def told(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 30)[0], "nothing was said within 30 s"
    return process.stdout.readline().decode().strip()


def tell(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go on\n")
    process.stdin.flush()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_makes_it_leave_and_end(planner: Planner, number: signal.Signals) -> None:
    process = planner("idle")
    assert told(process) == "ready"
    process.send_signal(number)
    assert told(process) == "leaving"
    tell(process)
    assert told(process) == "left"
    assert process.wait(90) == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_for_the_leave_that_is_under_way(planner: Planner, number: signal.Signals) -> None:
    """Spark closes the planner's input, which makes it leave, and sends SIGTERM at the same moment."""
    process = planner("leaving")
    assert told(process) == "leaving"
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    tell(process)
    assert told(process) == "left"
    process.wait(90)


def test_a_signal_does_not_wait_on_top_of_a_lock_that_the_leave_needs(planner: Planner) -> None:
    process = planner("in the lock")
    assert told(process) == "ready"
    process.send_signal(signal.SIGTERM)
    tell(process)
    assert told(process) == "leaving"
    tell(process)
    assert told(process) == "left"
    assert process.wait(90) == 128 + signal.SIGTERM


def test_it_ends_when_the_leave_hangs(planner: Planner) -> None:
    process = planner("the leave hangs")
    assert told(process) == "ready"
    process.send_signal(signal.SIGTERM)
    assert told(process) == "leaving"
    assert process.wait(90) == 128 + signal.SIGTERM


def test_it_ends_when_python_does_not(planner: Planner) -> None:
    """The process has left the group because its input ended, and Python waits for a thread that never ends."""
    process = planner("the end hangs")
    assert told(process) == "ready"
    assert process.wait(90) == 1


def test_it_leaves_when_its_parent_is_gone(planner: Planner) -> None:
    parent = planner("orphan")
    assert told(parent) == "ready"
    parent.kill()
    assert told(parent) == "leaving"
    tell(parent)
    assert told(parent) == "left"
    assert told(parent) == "", "it has ended"
