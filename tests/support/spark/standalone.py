"""A standalone Spark cluster on loopback: a master and two workers of one core each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from consumer_coord.testing.processes import end, spawn
from consumer_coord.testing.real_kafka import free_ports
from tests.support.waiting import eventually

_MEMORY = "2g"


@contextlib.contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Start the cluster and yield the master's URL; all processes end with the context."""
    home = importlib.util.find_spec("pyspark")
    assert home is not None
    assert home.origin is not None
    spark_class = str(Path(home.origin).parent / "bin" / "spark-class")
    port, *ports = free_ports(6)
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_HOST": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    package = "org.apache.spark.deploy"
    local = ["--host", "127.0.0.1", "--port"]
    commands = [[f"{package}.master.Master", *local, str(port), "--webui-port", str(ports.pop())]]
    for _ in range(2):
        places = [str(ports.pop()), "--webui-port", str(ports.pop()), "--cores", "4", "--memory", _MEMORY]
        commands.append([f"{package}.worker.Worker", *local, *places, f"spark://127.0.0.1:{port}"])
    started = []
    try:
        for number, command in enumerate(commands):
            with (directory / f"standalone-{number}.log").open("ab") as log:
                started.append(spawn([spark_class, *command], stdout=log, stderr=subprocess.STDOUT, env=environment))
            if number == 0:
                eventually(lambda: _listens(port), "Spark's master")
        eventually(
            lambda: all("Successfully registered" in (directory / f"standalone-{number}.log").read_text() for number in (1, 2)),
            "Spark's workers",
        )
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            end(process, grace_s=10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
