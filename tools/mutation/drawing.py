"""Draw random mutants of some files."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

#: The engine, and the core of the group with both protocols.
FILES = (
    "consumer_coord/confluent/*.py",
    "consumer_coord/consumer/*.py",
    "consumer_coord/consumer/librdkafka/*.py",
    "consumer_coord/group/**/*.py",
)

#: Calls that only log or count, so a mutant without such a call does not fail.
_TELLING = ("log", "logger", "metrics", "record", "debug", "info", "warning", "error", "exception", "gauge", "note")
_FLIPPED = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip

#: The function that a mutant calls when it is executed.
PROBE = "mutant_executed"

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """A planted bug."""

    file: str
    #: The first and the last line that must be executed for the bug to matter.
    first_line: int
    last_line: int
    kind: str
    before: str
    after: str
    #: The whole file with the bug in it. The bug calls ``mutant_executed()``, which the judges define as a built-in function.
    text: str

    @property
    def name(self) -> str:
        """The name that distinguishes the mutant from the others of a run."""
        return f"{self.file}:{self.first_line} {self.kind}: {self.before[:90]} -> {self.after[:90]}"


class _Place(NamedTuple):
    node: ast.expr | ast.stmt
    statement: ast.stmt
    kind: str
    after: str


def _matters(value: ast.expr) -> bool:
    call = value.value if isinstance(value, ast.Await) else value
    return isinstance(call, ast.Call) and not any(word in ast.unparse(call.func).split(".") for word in _TELLING)


def _changes(node: ast.AST, statement: ast.stmt) -> Iterator[_Place]:
    if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, ast.Constant):
        yield _Place(node.test, statement, "negate a condition", f"not ({ast.unparse(node.test)})")
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        right = ast.unparse(node.comparators[0])
        yield _Place(node, statement, "flip a comparison", f"({ast.unparse(node.left)} {_FLIPPED[type(node.ops[0])]} {right})")
    elif isinstance(node, ast.BoolOp):
        joined = " and " if isinstance(node.op, ast.Or) else " or "
        swapped = "(" + joined.join(f"({ast.unparse(value)})" for value in node.values) + ")"
        yield _Place(node, statement, "swap and, or", swapped)
    elif isinstance(node, ast.Expr) and _matters(node.value):
        yield _Place(node, statement, "drop a call", "pass")
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        yield _Place(node, statement, "drop an assignment", "pass")
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        # For a large number, a difference of one would have no effect, so multiply by ten.
        change = "+ 1" if abs(node.value) < 100 else "* 10"
        yield _Place(node, statement, "move a number", f"({node.value!r} {change})")


def _below(node: ast.AST, statement: ast.stmt | None, in_init: bool) -> Iterator[_Place]:
    """Yield the places to change in the functions below a node."""
    for child in _children(node):
        if isinstance(child, type_of_function):
            yield from _below(child, child, child.name == "__init__")
            continue
        inside = statement
        if isinstance(child, ast.ClassDef):
            inside = None
        elif isinstance(child, ast.stmt) and statement is not None:
            inside = child
        if inside is not None:
            yield from [place for place in _changes(child, inside) if not (in_init and place.kind == "drop an assignment")]
        yield from _below(child, inside, in_init)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield functions, and the child nodes that run when functions run: no default, decorator or annotation."""
    for name, value in ast.iter_fields(node):
        on_import = isinstance(node, type_of_function) and name != "body"
        if not on_import and not (isinstance(node, ast.AnnAssign) and name == "annotation"):
            yield from [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]


def mutants(count: int, seed: int, patterns: Sequence[str] = FILES) -> list[Mutant]:
    """Draw mutants; all places have the same probability. A larger ``count`` with the same seed begins with the same mutants.

    The results are stored by name, so only the first of several mutants with the same name is drawn.
    """
    places = []
    for file in sorted({file for pattern in patterns for file in ROOT.glob(pattern)}):
        places += [(file, place) for place in _below(ast.parse(file.read_text()), None, False)]
    random.Random(seed).shuffle(places)
    drawn: dict[str, Mutant] = {}
    for file, place in places:
        if len(drawn) == count:
            break
        mutant = _mutant(file, place)
        drawn.setdefault(mutant.name, mutant)
    return list(drawn.values())


def _mutant(file: Path, place: _Place) -> Mutant:
    raw = file.read_bytes()
    lines = raw.splitlines(keepends=True)
    node = place.node
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    compound = isinstance(
        place.statement, (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.Match)
    )
    last = node.end_lineno if compound else max(node.end_lineno, place.statement.end_lineno or 0)
    planted = f"{PROBE}()" if isinstance(node, ast.stmt) else f"({PROBE}(), {place.after})[1]"
    return Mutant(
        str(file.relative_to(ROOT)),
        min(node.lineno, place.statement.lineno) if not isinstance(place.statement, (ast.Try, ast.Match)) else node.lineno,
        last,
        place.kind,
        " ".join(raw[start:end].decode().split()),
        place.after,
        (raw[:start] + planted.encode() + raw[end:]).decode(),
    )
