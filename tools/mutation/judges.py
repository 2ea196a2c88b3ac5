"""The checks of a mutant: simulated histories, and the unit tests that need no JVM and are not slow."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence, Set
from typing import Any

from tools.mutation.drawing import PROBE
from tools.mutation.executed import ExecutedLines

#: Number of histories: at first, and again when the unit tests detect nothing either.
HISTORIES, MORE_HISTORIES = 24, 72
#: Maximum time of the unit tests for a mutant, in seconds, measured without a bug.
TESTS_S = 120.0
#: The seeds of the histories, and how they are drawn, in turn: with the faults of every flag of ``simulate``.
SEEDS = range(1, 201)
_DRAWN: Sequence[Mapping[str, Any]] = (
    {},
    {"protocol": "any"},
    {"protocol": "any", "calls": "several"},
    {"protocol": "any", "reads": "any"},
    {"protocol": "any", "answers": "edited"},
    {"protocol": "any", "reads": "process", "links": "partitioned"},
    {"reads": "any", "calls": "several"},
    {"protocol": "any", "clocks": "drifting"},
)
#: Number of histories after which the check ends if none of them has executed the mutant.
_UNTIL_EXECUTED = 12
TESTS = ("tests/net", "tests/runtime", "tests/group", "tests/consumer", "tests/process")
_QUICK = "not kafka and not spark and not slow"
#: The parent process has imported modules ahead (``warm.py``), whose assertions pytest can then not rewrite.
_PYTEST = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def play_one(seed: int) -> str | None:
    """Return the rule that the history of a seed breaks, or None."""
    from consumer_coord.simulation.command import Drawing
    from consumer_coord.simulation.play import play

    outcome = play(Drawing(**_DRAWN[seed % len(_DRAWN)]).scenario(seed))
    return None if outcome.violation is None else str(outcome.violation)


def histories(first: int, count: int) -> dict[str, Any]:
    """Play up to ``count`` histories until one breaks a rule; return the violation and the number played.

    End early when no history executes the mutant.
    """
    import logging

    logging.disable(logging.CRITICAL)
    executed = watch_mutant()
    number = first
    for number in range(first, min(first + count, len(SEEDS))):
        if number >= _UNTIL_EXECUTED and not executed:
            break
        broken = play_one(SEEDS[number])
        if broken is not None:
            return {"played": number, "broken": f"seed {SEEDS[number]}: {broken}", "executed": True}
    return {"played": number + 1, "broken": None, "executed": bool(executed)}


def watch_mutant() -> list[bool]:
    """Install the built-in that the mutant calls; return a list that is not empty after a call."""
    executed: list[bool] = []
    setattr(builtins, PROBE, lambda: executed.__setitem__(slice(None), [True]))
    return executed


class _Watching:
    """A pytest plugin that records the lines that each test executes, including set-up and tear-down."""

    def __init__(self, watcher: ExecutedLines) -> None:
        self._watcher = watcher
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self.found: list[dict[str, Any]] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._watcher.take()
        self._watcher.watch()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid not in self._failed:
            lines = sorted(self._watcher.take())
            self.found.append({"test": nodeid, "seconds": self._seconds[nodeid], "lines": lines})


def executed_by_tests(test_file: str, files: Set[str]) -> list[dict[str, Any]]:
    """Return the seconds and lines of each unit test of a file. Tests that fail while they are watched are left out."""
    import pytest

    plugin = _Watching(ExecutedLines(files))
    pytest.main([*_PYTEST, "-m", _QUICK, test_file], plugins=[plugin])
    return plugin.found


class _FirstFailure:
    """A pytest plugin that records the first test that failed."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid


def unit_tests(names: Sequence[str]) -> str | None:
    """Return the first of these tests that fails."""
    import pytest

    watch_mutant()
    plugin = _FirstFailure()
    code = pytest.main([*_PYTEST, "-x", "--timeout", "90", *names], plugins=[plugin])
    return None if code == 0 else plugin.name or f"pytest ended with {code}"
