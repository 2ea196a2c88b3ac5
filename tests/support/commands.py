"""Runs of consumer-coord in this process, and of Kafka's own tool for comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest

from consumer_coord.admin.documents import LiveLine
from consumer_coord.admin.json_schema import schema_of
from consumer_coord.cli import KAFKA_ACTIONS, main
from consumer_coord.command_table import COMMANDS, named
from consumer_coord.testing.kafka_cluster import KafkaCluster
from tests.support.java import JavaProgram, ToolJars
from tests.support.line_process import LineProcess


@attrs.frozen
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the output as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """The lines of the output that are not empty, without blanks at their ends."""
        return [line.rstrip() for line in self.out.splitlines() if line.strip()]


Run = Callable[..., Ran]


def run_command(capsys: pytest.CaptureFixture[str], servers: str, *arguments: str) -> Ran:
    """Run consumer-coord in this process."""
    capsys.readouterr()
    try:
        code = main([*arguments, "--bootstrap-server", servers])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    out, err = capsys.readouterr()
    if "--json" in arguments and out:
        check_json(out, arguments)
    return Ran(code, out, err)


def check_json(out: str, arguments: Sequence[str]) -> None:
    """Raise an error if a command printed anything but the documents that its schema describes."""
    live = not {"--interval-ms", "--count"}.isdisjoint(arguments)
    document = LiveLine if live else named(COMMANDS[KAFKA_ACTIONS.get(arguments[0], arguments[0])].document)
    schema = closed(schema_of(document))
    for text in out.splitlines() if live else [out]:
        jsonschema.validate(json.loads(text), schema)


def closed(schema: Any) -> Any:
    """Return the schema without the permission for properties that it does not name."""
    if not isinstance(schema, dict):
        return schema
    open_to = {"additionalProperties": False} if "properties" in schema else {}
    return {**{name: [closed(one) for one in of] if name == "anyOf" else closed(of) for name, of in schema.items()}, **open_to}


@pytest.fixture
def run(kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return ``run("describe", "group", …)``, which runs consumer-coord on the shared broker."""

    def run(*arguments: str) -> Ran:
        return run_command(capsys, kafka.bootstrap_servers, *arguments)

    return run


@pytest.fixture(scope="session")
def tool_server(kafka_libs: Path, tool_jars: ToolJars) -> Iterator[LineProcess]:
    """Start one JVM that runs ``kafka-consumer-groups.sh`` for all tests: most of a run's time is the start of a JVM."""
    program = JavaProgram(kafka_libs, "ToolServer")
    command = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    with program.start(command, also=tool_jars.tools) as process:
        yield process


@pytest.fixture
def kafka_tool(kafka: KafkaCluster, tool_server: LineProcess) -> Run:
    """Return ``kafka_tool("--describe", …)``, which runs ``kafka-consumer-groups.sh`` on the shared broker."""

    def run(*arguments: str) -> Ran:
        answer = tool_server.request(json.dumps(["--bootstrap-server", kafka.bootstrap_servers, *arguments]))
        return Ran(**json.loads(answer))

    return run
