"""No numbered behaviour is forgotten: each has a test that claims it, or a reason why there is none."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.behaviours import known, reasons


def claimed() -> set[int]:
    """The numbers in every ``@pytest.mark.behaviour(…)`` of the tests, whether they could be collected here or not."""
    numbers: set[int] = set()
    for file in sorted(Path(__file__).parent.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "behaviour":
                numbers.update(one.value for one in node.args if isinstance(one, ast.Constant) and type(one.value) is int)
    return numbers


def test_the_list_is_numbered_without_gaps() -> None:
    assert list(known()) == list(range(1, 133))


def test_every_behaviour_has_a_test_or_a_reason() -> None:
    assert sorted(known().keys() - claimed() - reasons().keys()) == []


def test_a_reason_stands_only_where_there_is_no_test() -> None:
    assert sorted(reasons().keys() & claimed()) == []
    assert reasons().keys() <= known().keys()
