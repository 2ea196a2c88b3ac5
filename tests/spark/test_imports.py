"""The imports of Spark's Python processes: each import makes every query, or every worker's first task, start later."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from consumer_coord.spark.launcher import write_python_launcher
from consumer_coord.spark.requirements import MODULES, check, check_python

PLANNER = ("consumer_coord.spark.source", "consumer_coord.spark.query_membership")
WORKER = ("consumer_coord.spark.source", "consumer_coord.spark.reader", "consumer_coord.spark.range_reader")


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        pytest.param(
            PLANNER,
            {
                "confluent_kafka",
                "consumer_coord.spark.reader",
                "consumer_coord.wire.messages.admin",
                "consumer_coord.wire.messages.consumer_group",
                "consumer_coord.wire.messages.log",
            },
            id="a planner has no librdkafka, and no messages of others",
        ),
        pytest.param(
            WORKER,
            {"assignors.base", "consumer_coord.group.coordinator", "consumer_coord.wire.messages.group"},
            id="a worker has no control plane",
        ),
    ],
)
def test_a_process_imports_what_it_needs_and_no_more(imported: tuple[str, ...], unwanted: set[str]) -> None:
    code = f"import sys, {', '.join(imported)}; print(*sys.modules, sep='\\n')"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True).stdout
    modules = set(listed.splitlines())
    assert modules.issuperset(imported)
    assert not modules & unwanted


def test_a_python_without_what_is_needed_is_named_with_the_remedy() -> None:
    check(MODULES)
    with pytest.raises(ImportError, match=r"no-such-package, which the Python of this process.*PYSPARK_PYTHON") as caught:
        check({**MODULES, "no_such_module": "no-such-package"})
    assert sys.executable in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("echo 3.11; echo pyarrow consumer_coord", "does not have pyarrow, consumer-coord; set PYSPARK_PYTHON"),
        ("echo 2.7; echo", "Python 2.7, but the driver runs Python"),
        ("echo broken >&2; exit 3", "does not start: broken"),
    ],
)
def test_another_python_for_the_workers_is_told_at_register(tmp_path: Path, answer: str, told: str) -> None:
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\n{answer}\n")
    other.chmod(0o755)
    with pytest.raises(ImportError, match=re.escape(told)) as caught:
        check_python(str(other))
    assert str(other) in str(caught.value)


def test_a_python_that_has_everything_or_is_elsewhere_is_no_mistake(tmp_path: Path) -> None:
    check_python(sys.executable)
    check_python(write_python_launcher(str(tmp_path)))
    check_python(str(tmp_path / "on-the-executors-alone"))


def run_with_launcher(tmp_path: Path, path: str, *arguments: str, **more: str) -> list[str]:
    code = "import os; print(os.environ['PYTHONPATH'], os.environ.get('OPENBLAS_NUM_THREADS'), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": path, **more}
    command = [write_python_launcher(str(tmp_path)), "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=True).stdout.splitlines()


def test_the_launcher_takes_sparks_archives_off_the_path_and_nothing_else(tmp_path: Path) -> None:
    archives = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/spark/jars/spark-core_2.13-4.2.0.jar"
    assert run_with_launcher(tmp_path, f"{archives}:/of/the/user.zip:/of/the user")[0] == "/of/the/user.zip:/of/the user"


def test_a_planner_starts_no_threads_for_arithmetic(tmp_path: Path) -> None:
    planner = "pyspark.sql.streaming.python_streaming_source_runner"
    assert run_with_launcher(tmp_path, "/a", planner) == ["/a", "1"]
    assert run_with_launcher(tmp_path, "/a", planner, OPENBLAS_NUM_THREADS="4") == ["/a", "4"]
    assert run_with_launcher(tmp_path, "/a", "pyspark.daemon") == ["/a", "None"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_forked_worker_has_the_modules_and_no_thread_of_the_daemon(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "false"}
    command = [write_python_launcher(str(tmp_path)), "-m", "pyspark.daemon", "pyspark.worker"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # The worker reports that it never got its first message.
        env=environment,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        # The worker waits for the secret that authenticates this connection, so it has imported nothing since the fork.
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
            of_worker = Path(f"/proc/{pid}")
            assert "libarrow" in (of_worker / "maps").read_text()
            assert "consumer_coord.spark.daemon" in (of_worker / "cmdline").read_text()
            assert len(list((of_worker / "task").iterdir())) == 1
        daemon.stdin.close()
        daemon.wait(timeout=60)
