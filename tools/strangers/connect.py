"""Rows of Kafka Connect; its connectors are in ``tests/support/programs/java/LinesConnectors.java``."""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from consumer_coord.testing.jars import KAFKA_VERSION, Coordinate, fetch_unpinned
from consumer_coord.testing.jvm import java_command
from consumer_coord.testing.kafka_cluster import unique_name
from consumer_coord.testing.real_kafka import free_ports
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess
from tests.support.waiting import eventually
from tools.strangers.rows import CONNECT, committed_records, expect, new_topic, row

_DEADLINE_S = 300
_WAIT_S = 120.0
_LINES = 500
_JARS = (
    Coordinate("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
    Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
)


def _properties(file: Path, values: Mapping[str, str]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(file)


class _Worker:
    """A worker of Connect, standalone or distributed, with its directory and its REST interface."""

    def __init__(self, servers: str, directory: Path, mode: str, settings: Mapping[str, str]) -> None:
        (self._port,) = free_ports(1)
        self._directory = directory
        libs = fetch_unpinned(f"connect-{KAFKA_VERSION}", _JARS)
        connectors = JavaProgram(libs, "LinesConnectors").compiled()
        config = {
            "bootstrap.servers": servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": f"http://127.0.0.1:{self._port}",
            "offset.flush.interval.ms": "500",
            "plugin.discovery": "only_scan",
            "consumer.auto.offset.reset": "earliest",
            **settings,
        }
        properties = _properties(directory / "worker.properties", config)
        command = [*java_command(libs), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{libs}/*:{connectors}"]
        command += [f"org.apache.kafka.connect.cli.Connect{mode}", properties]
        self.process = LineProcess(command, name="connect")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the worker's REST interface; return None while it is not ready."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"{}") or True
        except urllib.error.HTTPError as error:
            if error.code in (404, 409, 500, 503):  # it starts, or rebalances
                return None
            raise
        except urllib.error.URLError:
            if self.process.process.poll() is not None:
                raise AssertionError(f"Connect ended: {self._error()}") from None
            return None

    def _error(self) -> str:
        """Return the cause of the first error in the worker's log."""
        lines = self.process.stderr_tail(1000).splitlines()
        first = next((number for number, line in enumerate(lines) if "Exception" in line), 0)
        causes = (line for line in lines[first:] if line.startswith("Caused by"))
        return next(causes, lines[first] if lines else "no reason given")

    def add(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector, and wait until its task runs."""
        eventually(
            lambda: self.ask("PUT", f"/connectors/{name}/config", config), "the connector", within_s=_WAIT_S, every_s=0.5
        )

        def running() -> bool:
            status = self.ask("GET", f"/connectors/{name}/status") or {}
            for task in status.get("tasks", ()):
                if task["state"] == "FAILED":
                    raise AssertionError(task["trace"].strip().splitlines()[-1])
            return [task["state"] for task in status.get("tasks", ())] == ["RUNNING"]

        eventually(running, f"the task of {name}", within_s=_WAIT_S, every_s=0.5)


@contextmanager
def _worker(servers: str, mode: str, settings: Mapping[str, str]) -> Iterator[tuple[_Worker, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        if mode == "Standalone":
            settings = {**settings, "offset.storage.file.filename": str(at / "offsets")}
        worker = _Worker(servers, at, mode, settings)
        try:
            yield worker, at
        finally:
            worker.process.kill()


def _source_and_sink(servers: str, mode: str, settings: Mapping[str, str]) -> str:
    """Run a worker, and for ``Distributed`` a second one that goes on where the first was killed; return the topic."""
    topic, source, sink = new_topic(servers), unique_name("source"), unique_name("sink")
    for lines in (_LINES,) if mode == "Standalone" else (_LINES, 2 * _LINES):
        with _worker(servers, mode, settings) as (worker, directory):
            file = directory / "lines"
            common = {"tasks.max": "1", "topic": topic, "file": str(file)}
            worker.add(source, {**common, "connector.class": "LinesConnectors$Source", "lines": str(lines)})
            worker.add(sink, {**common, "connector.class": "LinesConnectors$Sink", "topics": topic})
            _await_line(file, f"line {lines - 1}")
    return topic


def _await_line(file: Path, line: str) -> None:
    def written() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    eventually(lambda: line in written(), f"{line} in the file of the sink", within_s=_WAIT_S, shows=lambda: len(written()))


def _distributed() -> dict[str, str]:
    topics = {f"{kind}.storage.topic": unique_name(kind) for kind in ("config", "offset", "status")}
    return {"group.id": unique_name("connect"), **topics, "offset.storage.partitions": "5"}


@row(CONNECT, "standalone: source and sink", _DEADLINE_S)
def standalone(servers: str) -> None:
    """Bring lines from a source to a sink."""
    _source_and_sink(servers, "Standalone", {})


@row(CONNECT, "distributed: source and sink, a second worker goes on", _DEADLINE_S)
def distributed(servers: str) -> None:
    """Keep settings, offsets and states in compacted topics."""
    _source_and_sink(servers, "Distributed", _distributed())


@row(CONNECT, "distributed: exactly-once source", _DEADLINE_S)
def exactly_once(servers: str) -> None:
    """Write records and offsets of the source in transactions."""
    topic = _source_and_sink(servers, "Distributed", {**_distributed(), "exactly.once.source.support": "enabled"})
    values = [value for _, value in committed_records(servers, topic, 2 * _LINES)]
    expect(values, [b"line %d" % number for number in range(2 * _LINES)], "lines, each once and in order")
