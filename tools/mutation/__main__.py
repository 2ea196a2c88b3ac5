"""``python -m tools.mutation``: plant bugs, judge them, and report. The exit code does not depend on the findings."""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tools.mutation
from tools.mutation import judges, warm
from tools.mutation.drawing import FILES, PROBE, ROOT, Mutant, mutants

#: Time limit for measuring a test file, in seconds. A test that is watched takes longer, and unit tests mostly wait.
_WATCHING_S = 1_800.0
_UNNOTICED = "unnoticed"
_NOT_YET = "not the simulation"


def _copy_of_the_tree() -> Path:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    tree = Path(tempfile.mkdtemp(prefix="mutant-"))
    for name in names:
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    # Defines the built-in that mutants call, for processes that tests start.
    (tree / "sitecustomize.py").write_text(f"import builtins\nbuiltins.{PROBE} = lambda: None\n")
    return tree


def _executed(tree: Path, cache: Path) -> list[dict[str, Any]]:
    """Return the lines that each unit test executes, measured once and cached for each test file."""
    kept: dict[str, list[dict[str, Any]]] = {}
    if cache.exists():
        kept = {row["file"]: row["tests"] for row in map(json.loads, cache.read_text().splitlines())}
    files = frozenset(str(tree / mutant.file) for mutant in mutants(10**6, 0))
    for folder in judges.TESTS:
        for test_file in sorted(str(path.relative_to(tree)) for path in (tree / folder).rglob("test_*.py")):
            if test_file in kept:
                continue
            check = functools.partial(judges.executed_by_tests, test_file, files)
            end = warm.in_child(tree, check, processor_s=_WATCHING_S, wall_s=_WATCHING_S)
            tests = [
                {**one, "lines": [f"{Path(file).relative_to(tree)}:{line}" for file, line in one["lines"]]}
                for one in end.value or ()
            ]
            kept[test_file] = tests
            with cache.open("a") as file:
                file.write(json.dumps({"file": test_file, "tests": tests}) + "\n")
            seconds = sum(one["seconds"] for one in tests)
            print(f"watched {test_file}: {len(tests)} tests, {seconds:.0f} s {end.broke or ''}", flush=True)
    return [one for tests in kept.values() for one in tests]


def _execute(mutant: Mutant, candidates: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    wanted = {f"{mutant.file}:{line}" for line in range(mutant.first_line, mutant.last_line + 1)}
    return [one for one in candidates if not wanted.isdisjoint(one["lines"])]


def _quickest(tests: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the tests to run: the quickest tests, as many as the time permits."""
    chosen, left = [], judges.TESTS_S
    for one in sorted(tests, key=lambda one: float(one["seconds"])):
        left -= one["seconds"]
        if left < 0:
            break
        chosen.append(str(one["test"]))
    return chosen


#: A mutant whose histories need more processor time than this makes the client spin, in seconds.
_MOST_S = 240.0


def _by_histories(tree: Path, first: int, count: int) -> dict[str, Any]:
    """Return the violation of the first history that breaks a rule, and the number of histories played."""
    check = functools.partial(judges.histories, first, count)
    end = warm.in_child(tree, check, processor_s=_MOST_S, wall_s=10 * _MOST_S)
    found: dict[str, Any] = end.value or {"played": first, "broken": end.broke, "executed": True}
    return found


def _by_unit_tests(tree: Path, names: Sequence[str]) -> str | None:
    """Return the first test that fails twice, the second time alone: a single failure may come from a busy machine."""
    while names:
        check = functools.partial(judges.unit_tests, names)
        end = warm.in_child(tree, check, processor_s=4 * judges.TESTS_S, wall_s=6 * judges.TESTS_S)
        if end.broke is not None or end.value is None:
            return end.broke
        if end.value not in names:
            return str(end.value)
        again = warm.in_child(tree, functools.partial(judges.unit_tests, [end.value]), processor_s=120, wall_s=300)
        if again.broke is not None or again.value is not None:
            return str(end.value)
        names = names[names.index(end.value) + 1 :]
    return None


def judge(tree: Path, mutant: Mutant, tests: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return which check detects the mutant, and how. If ``tests`` is None, only the simulation runs."""
    original = tree / mutant.file
    shutil.copy2(original, tree / "original")
    try:
        original.write_text(mutant.text)
        played = _by_histories(tree, 0, judges.HISTORIES)
        found = {"histories": played["played"], "executed": played["executed"]}
        if played["broken"] is not None:
            return {**found, "by": "simulation", "how": played["broken"]}
        if tests is None:
            return {**found, "by": _NOT_YET, "how": ""}
        names = _quickest(_execute(mutant, tests))
        failed = _by_unit_tests(tree, names)
        if failed is not None:
            return {**found, "by": "unit tests", "how": failed}
        if played["executed"]:
            played = _by_histories(tree, played["played"], judges.MORE_HISTORIES)
        by = _UNNOTICED if played["broken"] is None else "simulation"
        return {**found, "tests": len(names), "by": by, "how": played["broken"] or ""}
    finally:
        shutil.copy2(tree / "original", original)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as Markdown: figures, and each mutant that nothing detected."""
    lines = ["| | simulation | unit tests | unnoticed | all |", "| --- | ---: | ---: | ---: | ---: |"]
    for kind in [*sorted({row["kind"] for row in rows}), None]:
        of_kind = [row for row in rows if kind in (None, row["kind"])]
        counts = [sum(row["by"] == by for row in of_kind) for by in ("simulation", "unit tests", _UNNOTICED)]
        lines.append(f"| {kind or 'all'} | {' | '.join(map(str, counts))} | {len(of_kind)} |")
    return "\n".join([*lines, "", *(f"* {row['name']}" for row in rows if row["by"] == _UNNOTICED)])


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=tools.mutation.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, metavar="N", help="number of mutants (default: 100)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed from which the mutants are drawn (default: 1)")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), metavar="FILE", help="append results to FILE")
    parser.add_argument("--table", action="store_true", help="print the table of the results at the end")
    parser.add_argument("--list", action="store_true", help="print the mutants, and plant none")
    parser.add_argument("--simulation", action="store_true", help="run only the simulation; a later run can run the unit tests")
    parser.add_argument("--watch", action="store_true", help="only measure which lines the unit tests execute, for later runs")
    parser.add_argument("--only", action="append", metavar="TEXT", help="judge only mutants whose name contains TEXT")
    parser.add_argument("files", nargs="*", default=FILES, help=f"patterns of files (default: {' '.join(FILES)})")
    arguments = parser.parse_args()
    drawn = mutants(arguments.count, arguments.seed, arguments.files)
    if arguments.only:
        drawn = [mutant for mutant in drawn if any(text in mutant.name for text in arguments.only)]
    if arguments.list:
        print("\n".join(mutant.name for mutant in drawn))
        return 0
    done: dict[str, dict[str, Any]] = {}
    if arguments.results.exists():
        done = {row["name"]: row for row in map(json.loads, arguments.results.read_text().splitlines())}
    if not arguments.simulation:
        done = {name: row for name, row in done.items() if row["by"] != _NOT_YET}
    missing = [mutant for mutant in drawn if mutant.name not in done]
    if missing:
        tree = _copy_of_the_tree()
        try:
            warm.import_ahead()
            tests = None if arguments.simulation else _executed(tree, arguments.results.with_suffix(".tests.jsonl"))
            for mutant in [] if arguments.watch else missing:
                began = time.monotonic()
                row = {**mutant._asdict(), "text": "", "name": mutant.name, **judge(tree, mutant, tests)}
                row["seconds"] = round(time.monotonic() - began, 1)
                done[mutant.name] = row
                with arguments.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    f"{len(done):4d} {row['seconds']:6.0f} s  {row['by']:10s}  {mutant.name}\n       {row['how'][-300:]}",
                    flush=True,
                )
        finally:
            shutil.rmtree(tree)
    if arguments.table and not arguments.watch:
        print(table([done[mutant.name] for mutant in drawn]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
