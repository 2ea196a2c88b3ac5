"""Start Spark's Python processes in a third of the time, and planners in a twentieth.

Spark puts ``pyspark.zip`` first on the path of each Python process. The archive has no compiled modules, so each process
spends a second on compiling PySpark, and on a busy machine a planner misses Spark's ten seconds to connect back. Spark also
adds one of its jars, whose directory Python reads as a whole. The launcher removes both from the path; the PySpark package
that is installed with pip replaces them.

The rest of a planner's start are imports. A fork server does them once: see ``fork_server.py``.
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
case "$*" in
    *streaming_source_runner*)
        # A planner computes nothing, and numpy would start a thread for each core that waits busily for work.
        export OPENBLAS_NUM_THREADS="${{OPENBLAS_NUM_THREADS:-1}}"
        if [ -S "{socket}" ]; then
            exec "{python}" -I -S "{front}" "{socket}" "$@"
        fi
        ;;
esac
exec "{python}" "$@"
"""

_END_WITHIN_S = 12.0


def fast_python(directory: str | Path, *, fork_server: bool = False) -> str:
    """Write a launcher of this very Python into ``directory``; its path is for ``PYSPARK_PYTHON``.

    ``fork_server``: start a process, too, that imports PySpark and this package now and forks planners from then on, until
    this process ends.  Planners start plainly where it is not: before it is ready, on other machines, and with other
    settings of Python.  Linux only; ignored elsewhere.
    """
    launcher = Path(directory) / "python"
    # Where there is no such socket Python starts plainly.
    socket = Path(directory) / "no-fork-server"
    if fork_server and sys.platform == "linux":
        # mkdtemp's directory is this user's alone.
        socket = Path(tempfile.mkdtemp(prefix="kafka-group-fork-")) / "socket"
        atexit.register(end_server, start_server(socket))
    front = Path(__file__).with_name("fork_front.py")
    launcher.write_text(_SCRIPT.format(python=sys.executable, socket=socket, front=front))
    launcher.chmod(0o755)
    return str(launcher)


def start_server(path: Path) -> subprocess.Popen[bytes]:
    """Start a fork server that listens at ``path`` when it is ready; the server's directory is removed at its end."""
    # As Spark and the launcher set it for planners.
    environment = {**os.environ, "PYTHONUNBUFFERED": "YES"}
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    # In a new session: a terminal's signals are for the processes that Spark started, which pass them on.
    return subprocess.Popen(
        [sys.executable, "-m", "consumer_coord.spark.fork_server", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def end_server(server: subprocess.Popen[bytes]) -> None:
    """Exit at the end of standard input; the system does the same where this is not called."""
    assert server.stdin is not None
    server.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_END_WITHIN_S)
