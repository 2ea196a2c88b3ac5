"""The command under test, run in this process, and Kafka's own tool beside it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from consumer_coord.cli import main
from tests.conftest import fetched
from tests.support import kafka_jars
from tests.support.kafka_jars import java_executable
from tests.support.real_kafka import RealKafka

_DEADLINE_S = 120


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


@pytest.fixture
def run(kafka: RealKafka, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("describe", "group", …)``: consumer-coord on the shared broker."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        try:
            code = main([*arguments, "--bootstrap-server", kafka.bootstrap_servers])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture(scope="session")
def tool_jars(kafka_libs: Path) -> str:
    """The class path of Kafka's tools."""
    return f"{kafka_libs}/*:{fetched(kafka_jars.KAFKA_TOOLS)}/*"


@pytest.fixture
def kafka_tool(kafka: RealKafka, tool_jars: str) -> Run:
    """``kafka_tool("--describe", …)``: ``kafka-consumer-groups.sh`` on the shared broker."""

    def run(*arguments: str) -> Ran:
        jvm = [java_executable(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        jvm += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", tool_jars]
        command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        ran = subprocess.run(
            [*jvm, command, "--bootstrap-server", kafka.bootstrap_servers, *arguments],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return run
