"""The tool that plants random bugs (``tools/mutation``): its mutants, its record of executed lines, and the ends of checks."""

from __future__ import annotations

import ast
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tools.mutation import warm
from tools.mutation.__main__ import table
from tools.mutation.drawing import PROBE, ROOT, mutants
from tools.mutation.executed import ExecutedLines


@pytest.mark.thorough
def test_mutants_are_python_that_differs_and_calls_the_probe() -> None:
    drawn = mutants(60, 3)
    assert len({mutant.name for mutant in drawn}) == 60
    for mutant in drawn:
        before = (ROOT / mutant.file).read_text()
        assert ast.dump(ast.parse(mutant.text)) != ast.dump(ast.parse(before)), mutant.name
        assert mutant.text.count(f"{PROBE}()") == 1
        line = next(number for number, text in enumerate(mutant.text.splitlines(), 1) if PROBE in text)
        assert mutant.first_line <= line <= mutant.last_line


@pytest.mark.thorough
def test_a_seed_draws_the_same_mutants_for_every_count() -> None:
    assert [mutant.name for mutant in mutants(20, 5)] == [mutant.name for mutant in mutants(30, 5)[:20]]
    assert mutants(20, 5) != mutants(20, 6)


def _taken(way: bool) -> int:
    if way:
        return 1
    return 2


def test_the_lines_executed_since_the_last_call() -> None:
    watcher = ExecutedLines({__file__})
    first = _taken.__code__.co_firstlineno
    former = sys.gettrace()
    try:
        for way, lines in ((True, {1, 2}), (False, {1, 3}), (True, {1, 2})):
            watcher.watch()
            _taken(way)
            sys.settrace(None)
            assert {line - first for name, line in watcher.take() if 0 < line - first < 4} == lines
    finally:
        sys.settrace(former)
        threading.settrace(None)


@pytest.mark.thorough
def test_how_a_check_ends(tmp_path: Path) -> None:
    def spin() -> None:
        while True:
            pass

    def wrong() -> None:
        raise ValueError("as planted")

    (tmp_path / "named").write_text("here")
    assert warm.in_child(tmp_path, lambda: Path("named").read_text(), processor_s=10, wall_s=60) == ("here", None)
    broken = warm.in_child(tmp_path, wrong, processor_s=10, wall_s=60)
    assert broken.value is None
    assert "as planted" in (broken.broke or "")
    spinning = warm.in_child(tmp_path, spin, processor_s=0.1, wall_s=60)
    assert spinning == (None, f"ended by signal {signal.SIGXCPU}")
    assert warm.in_child(tmp_path, lambda: time.sleep(600), processor_s=10, wall_s=1).broke == "hung for 1 s"


def test_the_table_counts_by_kind_and_lists_unnoticed_mutants() -> None:
    rows = [
        {"kind": "drop a call", "by": "simulation", "name": "a"},
        {"kind": "drop a call", "by": "unnoticed", "name": "b"},
        {"kind": "move a number", "by": "unit tests", "name": "c"},
    ]
    assert table(rows).splitlines()[2:] == [
        "| drop a call | 1 | 0 | 1 | 2 |",
        "| move a number | 0 | 1 | 0 | 1 |",
        "| all | 1 | 1 | 1 | 3 |",
        "",
        "* b",
    ]
