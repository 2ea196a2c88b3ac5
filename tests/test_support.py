"""The helpers of the tests, as far as they need no broker."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer_coord.simulation import loop as virtual
from consumer_coord.testing import jars as kafka_jars
from consumer_coord.testing.jvm import class_archive, java_command
from consumer_coord.testing.processes import end, spawn
from tests.support.class_archive import ensure_class_archive
from tests.support.leaks import left_behind
from tests.support.line_process import LineProcess, LineProcessError
from tests.support.processes import running
from tests.support.shared import Shared
from tests.support.waiting import DEADLINE_S, eventually, eventually_async

ECHO = "import sys\nfor line in sys.stdin: print(line.strip()[::-1], flush=True)"


def test_a_line_process_answers_and_ends_with_its_input() -> None:
    process = LineProcess([sys.executable, "-c", ECHO], name="echo")
    assert process.request("drawer") == "reward"
    process.close()
    assert process.process.returncode == 0


def test_the_error_of_a_dead_line_process_has_its_standard_error() -> None:
    with LineProcess([sys.executable, "-c", "raise SystemExit('no Kafka here')"], name="sick") as process:
        process.process.wait(30)
        with pytest.raises(LineProcessError, match="sick has closed its output; it ended with code 1:\nno Kafka here"):
            process.receive()


def test_children_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    """A killed parent ends its children, too, and so does a parent with a stopped child."""
    script = "import sys, os, signal\nfrom consumer_coord.testing.processes import spawn\n"
    script += "child = spawn([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    script += "os.kill(child.pid, signal.SIGSTOP)\nprint(child.pid, flush=True)\nsys.stdin.read()"
    with LineProcess([sys.executable, "-c", script], name="parent") as parent:
        child = int(parent.receive())
        assert Path(f"/proc/{child}").exists()
        parent.kill()
        eventually(lambda: not is_running(child), f"the end of {child}")


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_leftovers_of_a_test_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.leaks._GRACE_S", 0)
    threads, processes = set(threading.enumerate()), running()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    process = spawn([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        found = left_behind(threads, processes)
    finally:
        stop.set()
        thread.join()
        end(process)
    assert found[0] == "thread forgotten"
    assert found[1].startswith(f"process {process.pid}: ")
    assert left_behind(threads, processes) == []


def test_a_command_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-command"):
        spawn(["no-such-command"])


def test_end_kills_a_process_that_ignores_sigterm() -> None:
    deaf = "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('', flush=True)\ntime.sleep(600)"
    process = spawn([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as ready:
        ready.readline()
        assert end(process, grace_s=0.2) == -signal.SIGKILL


def test_damaged_missing_and_unexpected_jars_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"a")
    expected = {"a.jar": hashlib.sha256(b"a").hexdigest()}
    assert kafka_jars.mismatch(tmp_path, expected) is None
    assert kafka_jars.mismatch(tmp_path, {**expected, "b.jar": "00"}) == "b.jar is missing"
    assert kafka_jars.mismatch(tmp_path, {}) == "a.jar is not expected"
    (tmp_path / "a.jar").write_bytes(b"b")
    assert "a.jar has SHA-256" in (kafka_jars.mismatch(tmp_path, expected) or "")


def test_without_java_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(kafka_jars.UnavailableError, match="Java >= 17 is needed"):
        kafka_jars.java_executable()


@pytest.fixture
def helpless_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install a Java that prints its version, and fails otherwise."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("""#!/bin/sh\n[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit\nexit 1\n""")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


@pytest.mark.usefixtures("helpless_java")
def test_without_an_archive_of_classes_jvms_start_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    libs = tmp_path / "kafka" / "libs"
    libs.mkdir(parents=True)
    ensure_class_archive(libs)
    assert "JVMs start slower" in capsys.readouterr().err
    assert [one.suffix for one in libs.parent.iterdir() if one != libs] == [".lock"]
    assert not [option for option in java_command(libs) if "SharedArchiveFile" in option]


@pytest.mark.usefixtures("helpless_java")
def test_an_archive_of_classes_is_used_for_the_jars_that_it_was_made_from(tmp_path: Path) -> None:
    libs = tmp_path / "libs"
    libs.mkdir()
    (libs / "a.jar").write_bytes(b"a")
    archive = class_archive(libs)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in java_command(libs)
    os.utime(libs / "a.jar", (1, 1))
    assert class_archive(libs) != archive
    assert not [option for option in java_command(libs) if "SharedArchiveFile" in option]


class Served:
    """A service without a process."""

    address = "where"

    def __init__(self) -> None:
        self.ended = False

    def close(self) -> None:
        self.ended = True


def never() -> Served:
    raise AssertionError("another worker has started it")


def test_a_shared_service_is_started_once_and_ended_after_its_last_user(tmp_path: Path) -> None:
    served = Served()
    first, second = Shared(tmp_path), Shared(tmp_path)
    assert first.use("any", lambda: served) == "where"
    assert second.use("any", never) == "where"
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    assert not served.ended
    second.close()
    closing.join()
    assert served.ended


def test_workers_that_use_services_of_each_other_both_end(tmp_path: Path) -> None:
    ones = [Shared(tmp_path), Shared(tmp_path)]
    served = [Served(), Served()]
    for number, one in enumerate(ones):
        one.use(str(number), lambda number=number: served[number])  # type: ignore[misc]  # mypy cannot infer it
    ones[0].use("1", never)
    ones[1].use("0", never)
    closing = [threading.Thread(target=one.close) for one in ones]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    assert all(one.ended for one in served)


def test_the_next_worker_starts_a_service_that_failed_to_start(tmp_path: Path) -> None:
    def fails() -> Served:
        raise OSError("no room")

    one = Shared(tmp_path)
    with pytest.raises(OSError, match="no room"):
        one.use("any", fails)
    one.close()
    another = Shared(tmp_path)
    assert another.use("any", Served) == "where"
    another.close()


def test_a_wait_returns_the_first_true_value() -> None:
    values: Iterator[object] = iter([None, [], "found", "later"])
    assert eventually(lambda: next(values), every_s=0) == "found"


def test_the_error_of_a_wait_names_the_condition_and_the_last_value() -> None:
    steps: list[int] = []
    with pytest.raises(TimeoutError, match=r"^a record: not within 0 s; last value: \[\]$"):
        eventually(lambda: [], "a record", within_s=0, step=lambda: steps.append(1))
    with pytest.raises(TimeoutError, match=r"last value: 3 of 5$"):
        eventually(lambda: False, within_s=0, shows=lambda: "3 of 5")
    assert steps == [], "no step follows the last evaluation"


def test_a_wait_runs_its_steps_between_evaluations_and_raises_their_errors() -> None:
    polled: list[int] = []
    assert eventually(lambda: len(polled) == 3, step=lambda: polled.append(1)) is True

    def fails() -> None:
        raise ValueError("the poll failed")

    with pytest.raises(ValueError, match="the poll failed"):
        eventually(lambda: False, step=fails)


def test_a_wait_in_a_coroutine_takes_the_time_of_its_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def hours() -> int:
            return int((loop.time() - began) / 3600)

        assert await eventually_async(hours, within_s=7_000, every_s=60) == 1
        with pytest.raises(TimeoutError, match=rf"^more: not within {DEADLINE_S:g} s; last value: 0$"):
            await eventually_async(lambda: 0, "more")
        polls: list[int] = []

        async def poll() -> None:
            polls.append(1)

        assert await eventually_async(lambda: len(polls) > 1, step=poll)

    virtual.run(main(), seed=1)
