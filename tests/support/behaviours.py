"""``pytest --behaviours``: which numbered behaviours of ``docs/behaviours.md`` have a passing test, and which have none."""

from __future__ import annotations

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_LIST = _ROOT / "docs" / "behaviours.md"
_WITHOUT_TEST = _ROOT / "tests" / "behaviours_without_test.toml"
_TEXT_WIDTH = 76


@functools.cache
def known() -> Mapping[int, str]:
    """Return the numbered behaviours of the list: number -> text."""
    return {int(number): text for number, text in re.findall(r"^(\d+)\. (.+)$", _LIST.read_text(), re.MULTILINE)}


def reasons() -> Mapping[int, str]:
    """Return the reasons why behaviours have no test: number -> reason."""
    return {int(number): reason for number, reason in tomllib.loads(_WITHOUT_TEST.read_text()).items()}


def shown_by(item: pytest.Item) -> Sequence[int]:
    """Return the behaviours that a test claims to show; raise UsageError for a marker without numbers or with unknown ones."""
    numbers: list[int] = []
    for marker in item.iter_markers("behaviour"):
        unknown = [number for number in marker.args if number not in known()]
        if unknown or not marker.args:
            raise pytest.UsageError(f"{item.nodeid}: behaviour{marker.args} names no behaviour of {_LIST.name}")
        numbers.extend(marker.args)
    return numbers


class BehaviourTable:
    """Collect the tests of each behaviour and their outcomes, and print the table if ``--behaviours`` is set.

    With ``-n``, only the workers collect tests, and only the process that started them receives all outcomes and prints.
    So each worker sends its claims when it ends. The claims of all workers are the same.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._wanted: bool = config.getoption("--behaviours")
        self._only_collected: bool = config.getoption("--collect-only")
        self._claims: dict[int, list[str]] = {}
        self._outcomes: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Collect the claims of every test, selected or not."""
        for item in items:
            for number in shown_by(item):
                self._claims.setdefault(number, []).append(item.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the claims of this worker to the process that prints the table."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["claims"] = list(self._claims.items())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the claims of a worker that ended; a worker that crashed has sent none."""
        self._claims |= dict(getattr(node, "workeroutput", {}).get("claims", ()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome among the phases of a test."""
        worst = self._outcomes.get(report.nodeid)
        if report.failed or worst == "failed":
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped or worst == "skipped":
            self._outcomes[report.nodeid] = "skipped"
        else:
            self._outcomes[report.nodeid] = "passed"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        if not self._wanted:
            return
        excuses = reasons()
        terminalreporter.section("behaviours")
        for number, text in known().items():
            terminalreporter.write_line(f"{number:3} {text[:_TEXT_WIDTH]:{_TEXT_WIDTH}} {self._verdict(number)}")
            for line in self._tests(number):
                terminalreporter.write_line(f"      {line}")
            if number in excuses:
                terminalreporter.write_line(f"      no test: {excuses[number]}")
        shown = sum(self._verdict(number) == "passed" for number in known())
        none = [number for number in known() if number not in self._claims and number not in excuses]
        if not self._only_collected:
            terminalreporter.write_line(f"{shown} of {len(known())} shown by tests that passed in this run")
        terminalreporter.write_line(f"with neither a test nor a reason: {', '.join(map(str, none)) or 'none'}")

    def _verdict(self, number: int) -> str:
        tests = self._claims.get(number)
        if not tests:
            return "NO TEST"
        if self._only_collected:
            return f"{len(tests)} tests"
        ran = Counter(self._outcomes.get(test, "not run") for test in tests)
        if ran["failed"]:
            return "FAILED"
        return "passed" if ran["passed"] else "not run" if ran["not run"] else "skipped"

    def _tests(self, number: int) -> Sequence[str]:
        """Return one line for each test function that claims the behaviour; outcomes of its parameters are counted together."""
        functions: dict[str, Counter[str]] = {}
        for test in self._claims.get(number, ()):
            functions.setdefault(test.partition("[")[0], Counter())[self._outcomes.get(test, "not run")] += 1
        if self._only_collected:
            return [f"{function} ({outcomes.total()})" for function, outcomes in functions.items()]
        return [
            f"{function} ({', '.join(f'{count} {outcome}' for outcome, count in sorted(outcomes.items()))})"
            for function, outcomes in functions.items()
        ]
