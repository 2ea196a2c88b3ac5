"""The health in a file, and the command that an exec probe runs."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.errors import ClosedError
from consumer_coord.health import Health
from consumer_coord.health.__main__ import main
from consumer_coord.health.file import HealthFile, read_health, write_health
from tests.health.test_asgi import FINE, SICK, STUCK, Async, Blocking
from tests.support.waiting import eventually, eventually_async


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


@pytest.mark.parametrize(("answer", "ready", "live"), [(FINE, 0, 0), (SICK, 1, 0), (STUCK, 1, 1)])
def test_the_command_fails_if_the_consumer_is_unhealthy(
    path: Path, capsys: pytest.CaptureFixture[str], answer: Health, ready: int, live: int
) -> None:
    write_health(path, answer, every_s=5.0)
    assert main([str(path)]) == ready
    assert capsys.readouterr().out.splitlines() == list(answer.problems)
    assert main(["--live", str(path)]) == live


def test_the_command_runs_as_an_exec_probe(path: Path) -> None:
    write_health(path, SICK, every_s=5.0)
    probe = subprocess.run([sys.executable, "-m", "consumer_coord.health", path], capture_output=True, text=True, check=False)
    assert probe.returncode == 1
    assert "orders-3: unknown whether there are records for 14.0 s (leader does not answer" in probe.stdout


def test_a_missing_file_is_unhealthy(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path)]) == main(["--live", str(path)]) == 1
    assert f"no health in {path}: No such file or directory" in capsys.readouterr().out


def age(path: Path, by_s: float) -> None:
    """Make a file older."""
    told = json.loads(path.read_text())
    told["written"] -= by_s
    path.write_text(json.dumps(told))


def test_an_old_file_is_unhealthy(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After three intervals, but not before 5 s; and a file of the time before a reboot is from the future."""
    write_health(path, FINE, every_s=5.0)
    age(path, 8.0)
    assert main([str(path)]) == 0
    age(path, 8.0)
    assert main([str(path)]) == main(["--live", str(path)]) == 1
    assert "16 s old: the process no longer writes it" in capsys.readouterr().out
    write_health(path, FINE, every_s=0.1)
    age(path, 3.0)
    assert read_health(path)["healthy"]
    age(path, -60.0)
    assert not read_health(path)["healthy"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"written": "x"}',
        '{"written": 1e308, "old_after_s": 1, "health": {}}',
        '{"written": 0, "old_after_s": 1e300, "health": {"healthy": "yes", "live": true}}',
        '{"written": 0, "old_after_s": 1e300, "health": []}',
    ],
)
def test_a_file_that_is_no_health_is_unhealthy(path: Path, content: str) -> None:
    path.write_text(content)
    assert not read_health(path)["healthy"]
    assert main([str(path)]) == 1


def test_a_group_consumer_s_health_is_written_until_the_end(path: Path) -> None:
    one = Blocking(FINE)
    with HealthFile(one, path, limit=30.0, every=0.01):
        eventually(lambda: main([str(path)]) == 0)
        one.answer = SICK
        eventually(lambda: read_health(path)["problems"] == list(SICK.problems))
        one.answer = ClosedError("Consumer closed")
        eventually(lambda: read_health(path)["problems"] == ["Consumer closed"])
        assert set(one.limits) == {30.0}
    assert not list(path.parent.iterdir()), "the file is removed, and no other is left"


def test_an_asyncio_consumer_s_health_is_written_until_the_end(path: Path) -> None:
    async def run() -> None:
        one = Async(FINE)
        async with HealthFile(one, path, every=0.01):
            await eventually_async(lambda: read_health(path)["healthy"])
            one.answer = ClosedError("Consumer closed")
            await eventually_async(lambda: read_health(path)["problems"] == ["Consumer closed"])
        assert not list(path.parent.iterdir())

    asyncio.run(run())
    with pytest.raises(TypeError, match="use 'async with"), HealthFile(Async(FINE), path):
        raise AssertionError("not reached")


def test_a_crash_of_the_asyncio_writer_is_raised_at_the_end(path: Path) -> None:
    async def run() -> None:
        one = Async(KeyError("a bug"))
        async with HealthFile(one, path):
            await eventually_async(lambda: one.limits)

    with pytest.raises(KeyError, match="a bug"):
        asyncio.run(run())


def test_a_file_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere: Any = tmp_path / "missing" / "health.json"
    with caplog.at_level(logging.WARNING), HealthFile(Blocking(FINE), nowhere, every=0.01):
        eventually(lambda: "could not write the health to" in caplog.text)
    assert main([str(nowhere)]) == 1
