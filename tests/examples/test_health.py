"""The Kubernetes example: the program runs, and is probed, as its manifest says."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from confluent_kafka import Producer

from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka
from consumer_coord.testing.processes import end, spawn
from consumer_coord.wire.codec import Request
from consumer_coord.wire.messages.log import FetchRequest
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "examples" / "health" / "deployment.yml"

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Pod:
    """One container of the manifest: its process, and its probes. Values that depend on the machine are replaced."""

    def __init__(self, manifest: Mapping[str, Any], servers: str, directory: Path) -> None:
        (self._container,) = manifest["spec"]["template"]["spec"]["containers"]
        (mount,) = self._container["volumeMounts"]
        self._mounted = mount["mountPath"], str(directory)
        self._port = free_port()
        self.output = directory / "output"
        given = {one["name"]: one.get("value", "127.0.0.1") for one in self._container["env"]}
        (port,) = self._container["ports"]
        assert given["PORT"] == str(port["containerPort"])
        self._port_name = port["name"]
        given |= {"KAFKA": servers, "PORT": str(self._port), "LIMIT_S": "1"}
        environment = {name: self._here(value) for name, value in given.items()}
        with self.output.open("wb") as output:
            command = self._command(self._container["command"])
            self.process: Popen[bytes] = spawn(
                command, cwd=ROOT, stdout=output, stderr=output, env={**os.environ, **environment}
            )

    def _here(self, text: str) -> str:
        return text.replace(*self._mounted)

    def _command(self, command: Sequence[str]) -> list[str]:
        assert command[0] == "python"
        return [sys.executable, *map(self._here, command[1:])]

    def probe(self, name: str) -> tuple[bool, str]:
        """Run a probe as the kubelet does; return whether it succeeds, and what it printed or answered."""
        probe = self._container[name]
        if "exec" in probe:
            done = subprocess.run(
                self._command(probe["exec"]["command"]), cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
            )
            return done.returncode == 0, done.stdout
        get = probe["httpGet"]
        assert get["port"] == self._port_name
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", get["path"])
            response = connection.getresponse()
            return 200 <= response.status < 400, response.read().decode()
        except ConnectionRefusedError as error:
            return False, str(error)
        finally:
            connection.close()


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(10):
            producer.produce("orders", f"order {number}", partition=number % 2)
        assert producer.flush(60) == 0
        yield running


@pytest.fixture
def pod(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Pod]:
    deployment, budget = importlib.import_module("yaml").safe_load_all(MANIFEST.read_text())
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    one = Pod(deployment, kafka.bootstrap_servers, tmp_path)
    yield one
    end(one.process)


def test_the_probes_of_the_manifest_tell_a_frozen_broker_from_a_healthy_consumer(kafka: EmbeddedKafka, pod: Pod) -> None:
    frozen: list[bool] = []

    def fault(_: int, request: Request) -> Fault | None:
        return Fault(wait_until=lambda: not frozen) if frozen and isinstance(request.message, FetchRequest) else None

    kafka.add_request_hook(fault)
    eventually(lambda: pod.output.read_text().count("orders ") == 10, "the orders", shows=pod.output.read_text)

    def ready() -> bool:
        succeeds, answer = pod.probe("readinessProbe")
        return succeeds and all(part["owed"] == "no" for one in json.loads(answer)["consumers"] for part in one["partitions"])

    eventually(ready)
    assert pod.probe("livenessProbe")[0]
    eventually(lambda: pod.probe("startupProbe")[0], "the exec probe")

    frozen.append(True)
    answer = eventually(lambda: (found := pod.probe("readinessProbe")) and not found[0] and found[1])
    assert isinstance(answer, str)
    problems = json.loads(answer)["consumers"][0]["problems"]
    assert any(text.startswith("orders-") and "leader does not answer" in text for text in problems)
    assert pod.probe("livenessProbe")[0], "a restart would not wake the broker"
    assert pod.probe("startupProbe")[0], "nor does the exec probe of life restart the pod"
    frozen.clear()
    eventually(ready)

    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(120) == 0, pod.output.read_text()
    assert not pod.probe("readinessProbe")[0]
    succeeds, told = pod.probe("startupProbe")
    assert not succeeds
    assert "No such file or directory" in told
