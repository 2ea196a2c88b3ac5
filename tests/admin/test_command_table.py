"""The table of commands, and what is derived from it."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Annotated, TypedDict

import jsonschema
import pytest

from consumer_coord import GroupConsumer
from consumer_coord.admin.commands import ExitCode
from consumer_coord.admin.completion import flags_of
from consumer_coord.admin.json_schema import schema_of, schemas
from consumer_coord.broker import EmbeddedKafka
from consumer_coord.cli import main
from consumer_coord.command_table import COMMANDS, add_flags
from tests.support.commands import closed, run_command

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_times_are_in_milliseconds_and_their_flags_say_so(name: str) -> None:
    parser = argparse.ArgumentParser()
    add_flags(COMMANDS[name], parser)
    for flag in flags_of(parser):
        name = flag.names[0]
        in_ms = name.endswith("-ms") or name == "--timeout"
        assert (flag.metavar == "MS") == in_ms, name
        if re.search("second|minute|interval|duration|limit|timeout", name) and flag.takes_value:
            # --by-duration is Kafka's, with a unit in the value.
            assert in_ms or name in ("--max-lag-seconds", "--by-duration"), name


def test_the_page_lists_every_command() -> None:
    rows = re.findall(r"^\| `([a-z-]+)[^`]*` \| [a-z]", PAGE.read_text().partition("The commands work on")[0], re.MULTILINE)
    assert set(rows) == set(COMMANDS)


def test_a_schema_names_required_fields_their_types_and_their_meaning() -> None:
    class Inner(TypedDict):
        n: Annotated[int | None, "a number"]

    class Outer(TypedDict):
        rows: list[Inner]
        by_name: dict[str, list[str]]

    # The types of a module are resolved by name, so these are given as they are.
    Inner.__annotations__ = {"n": Annotated[int | None, "a number"]}
    Outer.__annotations__ = {"rows": list[Inner], "by_name": dict[str, list[str]]}
    schema = schema_of(Outer)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["rows", "by_name"]
    assert schema["properties"]["rows"]["items"]["properties"]["n"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "description": "a number",
    }
    valid = jsonschema.Draft202012Validator(closed(schema))
    assert valid.is_valid({"rows": [{"n": None}], "by_name": {"a": ["b"]}})
    assert not valid.is_valid({"rows": [{}], "by_name": {}})
    assert not valid.is_valid({"rows": [{"n": 1, "m": 2}], "by_name": {}})


def test_every_command_with_json_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(schemas()) == {*(name for name, command in COMMANDS.items() if command.asks_kafka), "migrate"}
    for name, schema in schemas().items():
        assert main(["schema", name]) == 0
        assert json.loads(capsys.readouterr().out) == schema
        jsonschema.Draft202012Validator.check_schema(schema)


def test_documents_fit_their_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    """``run_command`` compares every document with its schema, in which no field may be missing or unknown."""
    with EmbeddedKafka({"t": 2}) as kafka:
        with GroupConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"}) as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment():
                consumer.poll(0.1)
            for arguments in (["list"], ["describe", "g", "none"], ["lag", "g", "none"], ["lag", "g", "--count", "2"]):
                ran = (
                    run_command(capsys, kafka.bootstrap_servers, *arguments, "--interval-ms", "1", "--json")
                    if "--count" in arguments
                    else run_command(capsys, kafka.bootstrap_servers, *arguments, "--json")
                )
                assert ran.code == (ExitCode.NOT_FOUND if "none" in arguments else ExitCode.DONE), ran.err
                assert '"g"' in ran.out
        for arguments in (
            ["reset", "g", "none", "--to-offset", "0", "--topic", "t", "--execute"],
            ["delete-offsets", "g", "--topic", "t"],
            ["delete", "g", "none"],
        ):
            assert run_command(capsys, kafka.bootstrap_servers, *arguments, "--json").out


def test_a_live_lag_is_compared_with_no_limit(capsys: pytest.CaptureFixture[str]) -> None:
    for limit in ("--max-lag", "--max-lag-seconds"):
        arguments = ["lag", "g", limit, "5", "--count", "1", "--bootstrap-server", "127.0.0.1:1"]
        assert main(arguments) == ExitCode.USAGE
        assert "remove --interval-ms and --count" in capsys.readouterr().err
