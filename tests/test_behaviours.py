"""Every numbered behaviour has a test that claims it, or a reason why there is none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.behaviours import known, reasons

CONFTEST = """
from tests.support.behaviours import BehaviourTable

def pytest_addoption(parser):
    parser.addoption("--behaviours", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "behaviour(*numbers)")
    config.pluginmanager.register(BehaviourTable(config))
"""
TESTS = """
import pytest

@pytest.mark.behaviour(1, 2)
@pytest.mark.parametrize("number", range(3))
def test_one(number): pass

@pytest.mark.behaviour(2)
def test_two(): assert False

@pytest.mark.behaviour(3)
def test_three(): pass
"""


def claimed() -> set[int]:
    """Return the numbers in every ``@pytest.mark.behaviour(…)`` of the tests, even in tests that cannot be collected here."""
    numbers: set[int] = set()
    for file in sorted(Path(__file__).parent.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "behaviour":
                numbers.update(one.value for one in node.args if isinstance(one, ast.Constant) and type(one.value) is int)
    return numbers


def test_the_list_is_numbered_without_gaps() -> None:
    assert list(known()) == list(range(1, 199))


def test_every_behaviour_has_a_test_or_a_reason() -> None:
    assert sorted(known().keys() - claimed() - reasons().keys()) == []


def test_only_behaviours_without_a_test_have_a_reason() -> None:
    assert sorted(reasons().keys() & claimed()) == []
    assert reasons().keys() <= known().keys()


@pytest.mark.slow
@pytest.mark.parametrize("how", [("-p", "no:xdist"), ("-n", "2")], ids=["alone", "side by side"])
def test_the_table_has_claims_and_outcomes(
    how: tuple[str, ...], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(CONFTEST)
    file = pytester.makepyfile(TESTS)
    ran = pytester.runpytest_subprocess("--behaviours", "-p", "no:cacheprovider", *how)
    ran.stdout.fnmatch_lines_random(
        [
            "  1 *passed",
            f"*{file.name}::test_one (3 passed)",
            "  2 *FAILED",
            f"*{file.name}::test_two (1 failed)",
            "  3 *passed",
            f"*{file.name}::test_three (1 passed)",
            "  4 *NO TEST",
            "2 of 198 shown by tests that passed in this run",
        ]
    )
