"""Planners by fork: to Spark a forked planner is the process that it started, and on any doubt it is one."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.spark import fork_front, fork_server
from consumer_coord.spark.fork_server import read_at_start
from consumer_coord.spark.launcher import end_server, start_server
from consumer_coord.testing.processes import spawn
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has loaded libraries")

FRONT = Path(fork_front.__file__)
DEADLINE_S = 600


class Server:
    """A fork server, and processes in the role of those that Spark starts."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "fork" / "socket"
        self.path.parent.mkdir()
        self.process = start_server(self.path)
        eventually(self.path.exists, "the fork server", within_s=DEADLINE_S)

    def start(self, case: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", str(FRONT), str(self.path), "-m", "tests.support.spark.forked", "of", case]
        ours = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OPENBLAS_NUM_THREADS": "1", "COLOR": "blü"}
        return spawn(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, **ours, **(environment or {})},
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("fork"))
    try:
        yield found
    finally:
        end_server(found.process)


@pytest.fixture
def root() -> Path:
    """Where the tests are a package."""
    return Path(__file__).resolve().parents[2]


def told(process: subprocess.Popen[bytes]) -> Any:
    """The next thing that the process behind ``process`` says."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], DEADLINE_S)[0], f"nothing was said within {DEADLINE_S} s"
    line = process.stdout.readline()
    assert line, process.stderr.read().decode() if process.stderr is not None else ""
    return json.loads(line)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forked_planner_has_streams_environment_directory_and_arguments(server: Server, root: Path) -> None:
    process = server.start("echo", root)
    assert process.stdin is not None
    process.stdin.write(b"a line\n")
    process.stdin.flush()
    first = told(process)
    assert first.pop("pid") != process.pid
    expected = {"cwd": str(root), "arguments": ["of", "echo"], "path": str(root), "color": "blü", "main": "__main__"}
    assert first == {**expected, "loaded": True, "threads": 1}
    assert told(process) == {"heard": "a line\n"}
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7
    assert errors == b"to standard error\n"


@pytest.mark.parametrize(("case", "code"), [("done", 0), ("fails", 1), ("killed", -signal.SIGKILL)])
def test_its_end_is_the_end_that_spark_sees(server: Server, root: Path, case: str, code: int) -> None:
    process = server.start(case, root)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    assert (b"RuntimeError: it fails" in errors) is (case == "fails")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_it(server: Server, root: Path, number: int) -> None:
    process = server.start("waits", root)
    pid = told(process)["pid"]
    process.send_signal(number)
    assert told(process) == {"signal": number}
    assert process.wait(DEADLINE_S) == 40 + number
    eventually(lambda: not is_alive(pid), "the end of the planner", within_s=DEADLINE_S)
    process.communicate()


def test_it_ends_with_the_process_that_spark_started(server: Server, root: Path) -> None:
    process = server.start("waits", root)
    pid = told(process)["pid"]
    process.kill()
    assert told(process) == {"signal": signal.SIGTERM}
    eventually(lambda: not is_alive(pid), "the end of the planner", within_s=DEADLINE_S)
    process.communicate()


def test_two_at_once_do_not_mix(server: Server, root: Path) -> None:
    first, second = server.start("waits", root), server.start("waits", root)
    pids = [told(one)["pid"] for one in (first, second)]
    first.terminate()
    assert first.wait(DEADLINE_S) == 40 + signal.SIGTERM
    assert is_alive(pids[1])
    second.terminate()
    assert second.wait(DEADLINE_S) == 40 + signal.SIGTERM
    for one in (first, second):
        one.communicate()


@pytest.mark.parametrize("environment", [{"PYTHONHASHSEED": "1"}, {"PYTHONPATH": "/elsewhere"}, {"LANG": "xx"}])
def test_with_other_settings_of_python_it_starts_plainly(server: Server, root: Path, environment: Mapping[str, str]) -> None:
    process = server.start("done", root, environment)
    first = told(process)
    process.communicate(timeout=DEADLINE_S)
    assert (first["pid"], first["loaded"]) == (process.pid, False)


def test_a_server_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_front, "ANSWER_S", 0.05)
    path = str(tmp_path / "socket")
    assert fork_front.ask(path, ["-m", "json"]) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert fork_front.ask(path, ["-m", "json"]) is None, "it does not listen"
        listener.listen()
        assert fork_front.ask(path, ["-m", "json"]) is None, "it does not answer"


def test_what_is_no_request_does_not_end_the_server(server: Server, root: Path) -> None:
    for sent in (b"", b"\0\0", b"\0\0\0\4abcd", b"\xff" * 100):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(server.path))
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
    process = server.start("done", root)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_the_end_of_the_driver_ends_planners_and_server(tmp_path: Path, root: Path) -> None:
    own = Server(tmp_path)
    process = own.start("waits", root)
    told(process)
    waiting = threading.Thread(target=end_server, args=(own.process,))
    waiting.start()
    assert told(process) == {"signal": signal.SIGTERM}
    assert process.wait(DEADLINE_S) == 40 + signal.SIGTERM
    waiting.join(DEADLINE_S)
    assert own.process.wait(DEADLINE_S) == 0
    assert not own.path.parent.exists()
    process.communicate()


def test_a_planner_that_never_gets_its_source_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended

    def read_command() -> None:
        # In the middle of Spark's own function of this name, and in one that it calls.
        (lambda: fork_server.end_without_source(signal.SIGALRM, sys._getframe()))()

    monkeypatch.setattr(os, "_exit", end)
    fork_server.end_without_source(signal.SIGALRM, sys._getframe())
    with pytest.raises(Ended):
        read_command()
    runner = importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
    assert all(callable(getattr(runner, name)) for name in fork_server._UNTIL_SOURCE), "Spark has other names"


def test_a_path_counts_without_its_repetitions() -> None:
    assert read_at_start({"PYTHONPATH": "/a::/b:/a", "PYTHON_WORKER_FACTORY_PORT": "1", "HOME": "/"}) == {"PYTHONPATH": "/a:/b"}
    assert read_at_start({"PYTHONPATH": "", "PYTHONOPTIMIZE": "1"}) == {"PYTHONOPTIMIZE": "1"}
