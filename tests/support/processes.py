"""Child processes of the tests: each dies with the test run, and what is left over can be listed."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

_LEASH = Path(__file__).with_name("leash.py")
_spawns: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_spawner_lock = threading.Lock()
_spawner: threading.Thread | None = None

#: Processes that are meant to outlive a single test (a session's broker).
lasting: set[int] = set()


def spawn(
    command: Sequence[str],
    *,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = subprocess.DEVNULL,
    stderr: int | IO[bytes] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    outlives_test: bool = False,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, on a leash: it is killed when this process ends, however it ends.

    Ctrl-C in the terminal does not reach it: its starter ends it.  Raises FileNotFoundError when the command
    cannot be run.
    """
    result: Future[tuple[subprocess.Popen[bytes], int]] = Future()

    def start() -> None:
        reading, writing = os.pipe()
        try:
            leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), str(writing)]
            process = subprocess.Popen(
                [*leash, *command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                pass_fds=[writing],
                start_new_session=True,
            )
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who waits for it
            os.close(reading)
            result.set_exception(error)
        else:
            result.set_result((process, reading))
        finally:
            os.close(writing)

    _start_spawner()
    _spawns.put(start)
    process, reading = result.result()
    with os.fdopen(reading, "rb") as started:
        problem = started.read().decode()  # returns when the command runs, so it can be stopped or killed at once
    if problem:
        process.wait()
        raise FileNotFoundError(problem)
    if outlives_test:
        lasting.add(process.pid)
    return process


def _start_spawner() -> None:
    """The kernel's leash is held by a *thread*: a child must come from one that lives as long as the process."""
    global _spawner

    def run() -> None:
        while True:
            _spawns.get()()

    with _spawner_lock:
        if _spawner is None or not _spawner.is_alive():
            _spawner = threading.Thread(target=run, name="spawner", daemon=True)
            _spawner.start()


def end(process: subprocess.Popen[bytes], *, grace_s: float = 0.0) -> int:
    """End a process: SIGTERM and ``grace_s`` seconds to follow it, then SIGKILL.  Returns its exit code."""
    if process.poll() is None and grace_s > 0:
        process.send_signal(signal.SIGCONT)  # a stopped process does not see its SIGTERM
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    elif process.poll() is None:
        process.kill()
    code = process.wait()
    lasting.discard(process.pid)
    return code


def running() -> frozenset[int]:
    """Every process of the machine (empty where the system has no ``/proc``)."""
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdecimal()) if Path("/proc").is_dir() else frozenset()


def children(besides: Collection[int] = ()) -> Mapping[int, str]:
    """Living child processes of this process, without those of ``besides``: pid -> command line."""
    found = {}
    for pid in running().difference(besides):
        entry = Path("/proc", str(pid))
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended while we looked
        state, parent = after_name[0], int(after_name[1])
        if parent == os.getpid() and state != "Z":
            found[pid] = command
    return found


def processor_s(task: str) -> float:
    """Processor time in seconds of a process, ``123``, or of one of its threads, ``123/task/456``."""
    fields = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
