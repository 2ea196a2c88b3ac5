"""``make pythons`` finds each version of Python once, and reports those with which the tests failed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import pythons


def fake(folder: Path, name: str, prints: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / name
    python.write_text(f"#!/bin/sh\n{prints}\n")
    python.chmod(0o755)
    return python


def test_each_version_counts_once_and_only_if_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    fake(first, "python3.13", "echo 3.13.0 True")
    fake(first, "python3", "echo 3.13.0 True")
    fake(first, "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    fake(first, "python3-config", "echo 3.12.9 True")
    older = fake(pyenv / "versions" / "3.11.7" / "bin", "python3", "echo 3.11.7 True")
    fake(pyenv / "versions" / "3.10.13" / "bin", "python3", "echo 3.10.13 True")
    fake(pyenv / "versions" / "an-environment" / "bin", "python3.14", "echo 3.14.1 False")
    monkeypatch.setenv("PATH", str(first))
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    assert pythons.pythons(pythons.candidates()) == {(3, 11, 7): older, (3, 13, 0): first / "python3"}


def test_this_python_is_one_of_those_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.base_prefix) / "bin"))
    assert sys.version_info[:3] in pythons.pythons(pythons.candidates())


def test_it_fails_if_the_tests_fail_with_one_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {(3, 12, 99): tmp_path / "a", (3, 13, 99): tmp_path / "b", sys.version_info[:3]: tmp_path / "c"}
    monkeypatch.setattr(pythons, "pythons", lambda _: found)
    monkeypatch.setattr(pythons, "run", lambda python, environment, runs: int(python.name == "b"))
    assert pythons.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "failed with Python 3.13.99"
    del found[3, 13, 99]
    assert pythons.main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "passed with Python 3.12.99"
