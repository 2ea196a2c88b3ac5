"""A command's output reaches its reader, in every encoding, or the exit code reports that it did not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.cli import main

_NAME = "b\u00fcro \u2713 \U0001f600"


def start(*arguments: str | bytes, stdout: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Run consumer-coord in a process whose standard output is buffered, as in a shell."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "PYTHONUTF8")}
    command = [sys.executable, "-m", "consumer_coord", *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, env={**environment, **env})


@pytest.mark.parametrize("arguments", [("completion", "bash"), ("describe", "--help")])
def test_a_closed_pipe(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*arguments, stdout=writer, env={})
    os.close(writer)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_group_whose_name_the_encoding_cannot_represent(encoding: str) -> None:
    with EmbeddedKafka({"t": 1}) as kafka:
        address = ["--bootstrap-server", kafka.bootstrap_servers]
        assert main(["reset", _NAME, "--to-latest", "--topic", "t", "--execute", *address]) == 0
        table = start("list", *address, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": encoding})
        document = start("list", "--json", *address, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": encoding})
        lines, groups = table.communicate()[0].decode(encoding), document.communicate()[0].decode(encoding)
    assert json.loads(f'"{lines.strip()}"') == _NAME
    assert [group["group"] for group in json.loads(groups)["groups"]] == [_NAME]


@pytest.mark.parametrize(
    "arguments",
    [
        (b"describe", b"gr\xff"),
        (b"lag", b"--group", b"gr\xff"),
        (b"watch", b"gr\xff"),
        (b"delete-offsets", b"g", b"--topic", b"gr\xff"),
    ],
)
def test_a_name_that_is_not_utf8(arguments: tuple[bytes, ...]) -> None:
    process = start(*arguments, b"--bootstrap-server", b"127.0.0.1:1", stdout=subprocess.PIPE, env={})
    _, err = process.communicate()
    assert process.returncode == 2
    assert b"gr\\udcff is not UTF-8" in err
