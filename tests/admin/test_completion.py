"""Completion: the shells run the scripts made for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from consumer_coord.cli import main
from consumer_coord.command_table import COMMANDS


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def ran(shell: str, text: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    return subprocess.run([shell, "-c", text], capture_output=True, text=True, check=True, timeout=180).stdout


def in_bash(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the words that bash offers at the end of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    call = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _consumer_coord; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return ran("bash", script("bash", capsys) + call).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("consumer-coord des", ["describe"]),
        ("consumer-coord delete", ["delete", "delete-offsets"]),
        ("consumer-coord describe --st", ["--state"]),
        ("consumer-coord reset --to-e", ["--to-earliest"]),
        ("consumer-coord simulate --churn dep", ["deploy"]),
        ("consumer-coord completion f", ["fish"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert in_bash(line, capsys) == offered


def test_bash_completes_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "client.properties").touch()
    offered = in_bash(f"consumer-coord list --command-config {tmp_path}/cl", capsys)
    assert offered == [f"{tmp_path}/client.properties"]


def test_bash_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    offered = in_bash("consumer-coord ", capsys)
    assert set(offered) == {*COMMANDS, "--help", "--version"}


def test_zsh_takes_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = ran("zsh", script("zsh", capsys) + 'print "$_comps[consumer-coord]"')
    assert "_consumer_coord" in loaded


def test_fish_completes(capsys: pytest.CaptureFixture[str]) -> None:
    offered = ran("fish", script("fish", capsys) + "complete -C 'consumer-coord describe --st'")
    assert offered.startswith("--state\t")
