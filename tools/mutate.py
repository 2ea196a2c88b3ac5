"""How tight the net of checks is: plant one-point bugs, each in a copy of the tree, and see which check notices.

    python tools/mutate.py --count 100 --seed 1 --json mutants.json

A mutant negates a condition, flips a comparison, swaps ``and`` and ``or``, drops a call or an assignment, or moves a number by
one, at a place that is drawn from the seed.  Each is given to the simulation (fixed seeds) and, when that finds nothing, to the
unit tests.  What neither notices is listed with its line: each needs a test, or a reason why it makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: The engine and the core of the group.
FILES = ("consumer_coord/consumer", "consumer_coord/group")
_HISTORIES = ("simulate", "--seeds", "70", "--first-seed", "1", "--jobs", "1", "--no-shrink")
#: Checks in their order: name, command, limit in seconds of processor time.  One that spins or hangs has noticed, too.
CHECKS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("simulation", ("-m", "consumer_coord", *_HISTORIES), 240),
    ("unit tests", ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/client", "tests/aio"), 600),
)
#: A check that waits for what never comes uses no processor time: after so many times its limit it has hung.
_WALL_PER_PROCESSOR_S = 10

#: Calls of these only log or count: without them nothing goes wrong.
_TELLING = ("log", "logger", "metrics", "record", "debug", "info", "warning", "error", "exception", "gauge")
_FLIPPED = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


class Mutant(NamedTuple):
    """One planted bug."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    text: str


def places(file: Path) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Where a file can be changed: the node, what kind of change, and what stands there then."""
    source = file.read_text()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, ast.Constant):
                yield node.test, "negate a condition", f"not ({ast.unparse(node.test)})"
            elif isinstance(node, ast.Compare) and len(node.ops) == 1:
                flipped = _FLIPPED[type(node.ops[0])]
                yield node, "flip a comparison", f"({ast.unparse(node.left)} {flipped} {ast.unparse(node.comparators[0])})"
            elif isinstance(node, ast.BoolOp):
                joined = " and " if isinstance(node.op, ast.Or) else " or "
                yield node, "swap and, or", "(" + joined.join(f"({ast.unparse(value)})" for value in node.values) + ")"
            elif isinstance(node, ast.Expr) and _matters(node.value):
                yield node, "drop a call", "pass"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and function.name != "__init__":
                yield node, "drop an assignment", "pass"
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
                yield node, "move a number", f"({node.value!r} + 1)"


def _matters(value: ast.expr) -> bool:
    call = value.value if isinstance(value, ast.Await) else value
    return isinstance(call, ast.Call) and not any(word in ast.unparse(call.func).split(".") for word in _TELLING)


def mutants(count: int, seed: int, below: Sequence[str]) -> list[Mutant]:
    """Draw them, all places alike."""
    found = []
    for name in below:
        for file in sorted((ROOT / name).rglob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]:
            source = file.read_text()
            lines = source.splitlines(keepends=True)
            for node, kind, after in places(file):
                start = len("".join(lines[: node.lineno - 1]).encode()) + node.col_offset
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                end = len("".join(lines[: node.end_lineno - 1]).encode()) + node.end_col_offset
                raw = source.encode()
                text = (raw[:start] + after.encode() + raw[end:]).decode()
                before = " ".join(raw[start:end].decode().split())
                found.append(Mutant(str(file.relative_to(ROOT)), node.lineno, kind, before, after, text))
    return random.Random(seed).sample(found, min(count, len(found)))


def noticed(tree: Path, command: Sequence[str], limit_s: float) -> bool:
    """Whether a check fails on a tree, spins for more than ``limit_s`` of processor time, or hangs.

    Processor time is the same beside other work; the kernel ends each process of the check that uses more.
    """
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s) + 1)),
    ) as process:
        try:
            return process.wait(limit_s * _WALL_PER_PROCESSOR_S) != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def first_to_notice(make_tree: Callable[[], Path], mutant: Mutant | None) -> str:
    """The name of the first check that notices, ``none`` when no check does."""
    tree = make_tree()
    try:
        if mutant is not None:
            (tree / mutant.file).write_text(mutant.text)
        return next((name for name, command, limit_s in CHECKS if noticed(tree, command, limit_s)), "none")
    finally:
        shutil.rmtree(tree)


def main() -> int:
    """Plant, run, and tell; the exit code says only whether that could be done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, metavar="N", help="mutants (default: 100)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="draws them (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here, as it is found")
    parser.add_argument("files", nargs="*", default=FILES, help=f"where (default: {' '.join(FILES)})")
    arguments = parser.parse_args()
    drawn = mutants(arguments.count, arguments.seed, arguments.files)
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    def make_tree() -> Path:
        tree = Path(tempfile.mkdtemp(prefix="mutant-"))
        for name in names:
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        return tree

    if (noticing := first_to_notice(make_tree, None)) != "none":
        print(f"the {noticing} fail without a planted bug: mend that first", file=sys.stderr)
        return 1
    results = []
    began = time.monotonic()

    def run(mutant: Mutant) -> None:
        by = first_to_notice(make_tree, mutant)
        results.append({**mutant._asdict(), "text": "", "noticed": by})
        print(f"{len(results):4d} {time.monotonic() - began:6.0f} s  {by:10s}  {mutant.file}:{mutant.line}  {mutant.kind}: "
              f"{mutant.before[:70]} -> {mutant.after[:70]}", flush=True)  # fmt: skip
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, drawn))
    for name in (*(name for name, _, _ in CHECKS), "none"):
        print(f"{name}: {sum(one['noticed'] == name for one in results)} of {len(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
