"""Driver processes of queries: started, observed, and killed in each way in which they can die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consumer_coord.spark.launcher import write_python_launcher
from consumer_coord.testing.processes import end, spawn
from tests.support.waiting import eventually

PLANNER = "python_streaming_source_runner"
JVM = "org.apache.spark.deploy.SparkSubmit"
WORKER = "spark.daemon"

#: With these options, a driver's JVM starts with half the processor time.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"}


class Driver:
    """A run of a query; ``setup`` is the argument of ``tests.support.spark.driver``."""

    def __init__(self, setup: Mapping[str, Any], log: Path) -> None:
        self.setup = {**setup, "conf": {**QUICK_JVM, **setup.get("conf", {})}}
        self.name = str(setup["name"])
        self.events: list[Mapping[str, Any]] = []
        self.killed: str | None = None
        self.unfinished = unfinished_batch(Path(setup["checkpoint"]))
        self._log = log
        self._lock = threading.Lock()
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": write_python_launcher(log.parent),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with log.open("ab") as errors:
            self.process = spawn(
                [sys.executable, "-m", "tests.support.spark.driver", json.dumps(self.setup)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).resolve().parents[3],
                env=environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.startswith(b"{"):
                    with self._lock:
                        self.events.append(json.loads(line))

    def named(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of that name, in order."""
        with self._lock:
            return [one for one in self.events if one["event"] == event]

    @property
    def owned(self) -> set[tuple[str, int]]:
        """The partitions that the query owns, from the events of its listener."""
        found: set[tuple[str, int]] = set()
        with self._lock:
            for one in self.events:
                if one["event"] == "restarting":
                    found = set()
                elif one["event"] in ("owned", "revoked", "lost"):
                    partitions = {(topic, number) for topic, numbers in one["partitions"].items() for number in numbers}
                    found = found | partitions if one["event"] == "owned" else found - partitions
        return found

    def wait_for(self, event: str, deadline_s: float = 120, *, count: int = 1) -> None:
        """Wait until the driver has reported ``event`` ``count`` times; raise with the tail of its log if it ends before."""

        def reported() -> bool:
            if len(self.named(event)) >= count:
                return True
            if self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")
            return False

        def story() -> str:
            return f"{self.events[-10:]}\n{self.log_tail()}"

        eventually(reported, f"{event} of {self.name}", within_s=deadline_s, shows=story)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the driver's standard error."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def processes(self) -> Mapping[int, str]:
        """Return the processes of this driver, with all descendants: pid -> command line."""
        return descendants(self.process.pid)

    def pids_of(self, kind: str) -> list[int]:
        """Return the process ids whose command line contains ``kind``: PLANNER, JVM or WORKER."""
        return [pid for pid, command in self.processes().items() if kind in command]

    def kill(self, what: str) -> None:
        """Kill with SIGKILL: ``what`` is driver, jvm, planner or executor (its Python workers)."""
        self.killed = what
        if what == "driver":
            targets = [self.process.pid]
        else:
            targets = self.pids_of({"jvm": JVM, "planner": PLANNER, "executor": WORKER}[what])
        assert targets, f"{self.name} has no {what} to kill: {self.processes()}"
        for pid in targets:
            os.kill(pid, signal.SIGKILL)

    def restart(self, deadline_s: float = 60) -> None:
        """Stop the query in good order and start it again at once, in the same driver."""
        assert self.process.stdin is not None
        before = len(self.named("restarting"))
        self.process.stdin.write(b"again\n")
        self.process.stdin.flush()
        self.wait_for("restarting", deadline_s, count=before + 1)

    def stop(self, deadline_s: float = 60) -> None:
        """Stop the query in good order, and wait for the end of the driver."""
        self.killed = self.killed or "stop"
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self.wait(deadline_s)

    def wait(self, deadline_s: float = 60) -> None:
        """Wait for the end of the driver, and for its last events."""
        self.process.wait(deadline_s)
        self._reader.join(60)

    def close(self) -> None:
        """End the driver and all its descendants, in any state."""
        family = list(self.processes())
        end(self.process)
        if self.process.stdin is not None:
            self.process.stdin.close()
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def unfinished_batch(checkpoint: Path) -> int | None:
    """Return the batch that a query with this checkpoint will run again, from Spark's logs of planned and finished batches."""
    planned, finished = (
        max((int(one.name) for one in (checkpoint / log).glob("*") if one.name.isdecimal()), default=-1)
        for log in ("offsets", "commits")
    )
    return planned if planned > finished else None


def descendants(root: int) -> Mapping[int, str]:
    """Return ``root`` and all its descendants: pid -> command line."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended since the directory was listed
        if state != "Z":
            parents[int(entry.name)], commands[int(entry.name)] = int(parent), command
    found = {root} & parents.keys()
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid: commands[pid] for pid in found}
