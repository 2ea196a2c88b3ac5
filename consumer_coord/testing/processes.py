"""Child processes that end with this process at the latest, whatever ends it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

_LEASH = Path(__file__).with_name("leash.py")
_spawns: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_spawner_lock = threading.Lock()
_spawner: threading.Thread | None = None

#: Processes that may outlive a single test (a session's broker).
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
    """Start ``command`` in a separate session; the kernel kills it when this process ends for any reason.

    Ctrl-C in the terminal does not reach the command: this process ends it.  Raise FileNotFoundError if the command cannot run.
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
        except BaseException as error:  # noqa: BLE001 - raised in the caller, which waits for it
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
        problem = started.read().decode()  # returns when the command runs, so that it can be stopped or killed at once
    if problem:
        process.wait()
        raise FileNotFoundError(problem)
    if outlives_test:
        lasting.add(process.pid)
    return process


def _start_spawner() -> None:
    """Start the thread that starts all children: the kernel kills a child when the *thread* that started it ends."""
    global _spawner

    def run() -> None:
        while True:
            _spawns.get()()

    with _spawner_lock:
        if _spawner is None or not _spawner.is_alive():
            _spawner = threading.Thread(target=run, name="spawner", daemon=True)
            _spawner.start()


def end(process: subprocess.Popen[bytes], *, grace_s: float = 0.0) -> int:
    """End a process: SIGTERM, ``grace_s`` seconds for its end, then SIGKILL.  Return its exit code."""
    if process.poll() is None and grace_s > 0:
        process.send_signal(signal.SIGCONT)  # a stopped process does not receive SIGTERM
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
