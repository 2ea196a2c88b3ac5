"""Start Spark's Python processes in a third of the time, and planners and workers in a twentieth.

Spark puts ``pyspark.zip`` first on the path of each Python process. The archive has no compiled modules, so each process spends
a second on compiling PySpark. On a busy machine, a planner may then miss Spark's limit of ten seconds to connect back. Spark
also adds one of its jars, whose whole table of contents Python reads. The launcher removes both entries from the path, because
the PySpark package that pip installed contains the same modules.

The rest of the start is spent on imports. The daemon imports the modules of the workers once: see ``daemon.py``. A fork server
imports the modules of the planners once: see ``fork_server.py``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_SCRIPT = """#!/bin/sh
kept=
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) kept=${{kept:+$kept:}}$entry ;;
    esac
done
export PYTHONPATH="$kept"
unset IFS
case "$*" in
    *streaming_source_runner*)
        # A planner computes nothing, but numpy would start a busily waiting thread for each core.
        export OPENBLAS_NUM_THREADS="${{OPENBLAS_NUM_THREADS:-1}}"
        if [ -S "{socket}" ]; then
            exec "{python}" -I -S "{front}" "{socket}" "$@"
        fi
        ;;
    "-m pyspark.daemon "*)
        shift 2
        exec "{python}" -m consumer_coord.spark.daemon "$@"
        ;;
esac
exec "{python}" "$@"
"""

_END_WITHIN_S = 12.0


def write_python_launcher(directory: str | Path, *, fork_server: bool = False) -> str:
    """Write a launcher for this Python interpreter into ``directory``; return the launcher's path, for ``PYSPARK_PYTHON``.

    With ``fork_server``, also start a fork server, which imports PySpark and this package now, and forks planners until this
    process ends. Planners start without the fork server until it is ready, on other machines, and if their environment
    variables for Python differ. ``fork_server`` has an effect on Linux only.
    """
    launcher = Path(directory) / "python"
    # No socket exists at this path, so the launcher starts Python without the fork server.
    socket = Path(directory) / "no-fork-server"
    if fork_server and sys.platform == "linux":
        # The directory from mkdtemp is private to this user.
        socket = Path(tempfile.mkdtemp(prefix="kafka-group-fork-")) / "socket"
        atexit.register(end_server, start_server(socket))
    front = Path(__file__).with_name("fork_front.py")
    launcher.write_text(_SCRIPT.format(python=sys.executable, socket=socket, front=front))
    launcher.chmod(0o755)
    return str(launcher)


def start_server(path: Path) -> subprocess.Popen[bytes]:
    """Start a fork server, which listens at ``path`` when ready, and removes the directory of ``path`` when the server ends."""
    # Spark and the launcher set the same values for planners.
    environment = {**os.environ, "PYTHONUNBUFFERED": "YES"}
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The server gets a new session, because a terminal's signals are meant for the processes that Spark started. These
    # processes forward the signals to their planners.
    return subprocess.Popen(
        [sys.executable, "-m", "consumer_coord.spark.fork_server", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def end_server(server: subprocess.Popen[bytes]) -> None:
    """End the server by closing its standard input, and wait until the server has ended.

    A crash of this process also closes the input.
    """
    assert server.stdin is not None
    server.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_END_WITHIN_S)
