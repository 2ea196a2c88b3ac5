"""The command under test, run in this process, and Kafka's own tool beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from consumer_coord.cli import main
from tests.support.java import ToolJars, run_kafka_tool
from tests.support.kafka_cluster import KafkaCluster


@attrs.frozen
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as one document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """The output's lines that are not empty, without blanks at their ends."""
        return [line.rstrip() for line in self.out.splitlines() if line.strip()]


Run = Callable[..., Ran]


def run_command(capsys: pytest.CaptureFixture[str], servers: str, *arguments: str) -> Ran:
    """consumer-coord in this process."""
    capsys.readouterr()
    try:
        code = main([*arguments, "--bootstrap-server", servers])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    out, err = capsys.readouterr()
    return Ran(code, out, err)


@pytest.fixture
def run(kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("describe", "group", …)``: consumer-coord on the shared broker."""

    def run(*arguments: str) -> Ran:
        return run_command(capsys, kafka.bootstrap_servers, *arguments)

    return run


@pytest.fixture
def kafka_tool(kafka: KafkaCluster, tool_jars: ToolJars) -> Run:
    """``kafka_tool("--describe", …)``: ``kafka-consumer-groups.sh`` on the shared broker."""

    def run(*arguments: str) -> Ran:
        command = "consumer.group.ConsumerGroupCommand"
        ran = run_kafka_tool(tool_jars, command, "--bootstrap-server", kafka.bootstrap_servers, *arguments)
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return run
