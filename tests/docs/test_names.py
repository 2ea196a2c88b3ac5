"""Files, classes and functions that documentation and docstrings mention exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.test_structure import ROOT, module_name, parsed, tracked_files

#: Files that a reader creates, and those of confluent-kafka's test suite.
NOT_OURS = {
    *("consume.py", "produce.py", "service.py", "test_billing.py", "worker.py"),
    *("integration_test.py", "test_transactions.py", "test_Consumer.py", "test_Wakeable.py", "test_log.py"),
    *("test_misc.py", "test_oauth_cb.py"),
}
#: Members of Java's classes whose names also exist in this package.
JAVA = {("Topic", "validate")}
#: A file in backticks, with or without its directories.
_FILE = re.compile(r"`+([\w./-]*\w\.py)`+")
#: ``Engine.ticket`` in backticks; members of Java's classes have capital letters in them.
_MEMBER = re.compile(r"`+([A-Z]\w+)\.([a-z_][a-z_0-9]*)(?:\(\))?`+")
#: A role of Sphinx with a full path.
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?((?:consumer_coord|assignors)[\w.]+)`")


def _documents() -> Iterator[tuple[Path, str]]:
    for file in tracked_files():
        parts = file.relative_to(ROOT).parts
        if file.suffix == ".md" and parts[0] not in ("tests", "CHANGELOG.md"):
            yield file, file.read_text()
        elif file.suffix == ".py" and parts[0] in ("consumer_coord", "assignors"):
            text = file.read_text()
            nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            docs = [ast.get_docstring(node) or "" for node in ast.walk(parsed(file)) if isinstance(node, nodes)]
            yield file, "\n".join([*docs, *re.findall(r"#:? .*", text)])


def _names_in(node: ast.ClassDef) -> set[str]:
    """Return the methods and attributes of a class."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(one.name)
        elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
            found.add(one.attr)
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
    return found


def _classes() -> dict[str, set[str]]:
    """Return the names in all classes of one name, including those of their bases."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in tracked_files():
        if file.suffix == ".py":
            for node in ast.walk(parsed(file)):
                if isinstance(node, ast.ClassDef):
                    own.setdefault(node.name, set()).update(_names_in(node))
                    bases.setdefault(node.name, set()).update(ast.unparse(base).rpartition(".")[2] for base in node.bases)
    for name in own:
        waiting = list(bases[name])
        while waiting:
            base = waiting.pop()
            if base in own and not own[base] <= own[name]:
                own[name] |= own[base]
                waiting += bases[base]
    return own


def test_files_that_are_mentioned_exist() -> None:
    files = [f"/{file.relative_to(ROOT)}" for file in tracked_files()]
    missing = [
        f"{document.relative_to(ROOT)}: {name}"
        for document, text in _documents()
        for name in _FILE.findall(text)
        if Path(name).name not in NOT_OURS and not any(file.endswith(f"/{name.removeprefix('./')}") for file in files)
    ]
    assert not missing, "\n".join(missing)


def test_members_of_classes_that_are_mentioned_exist() -> None:
    classes = _classes()
    missing = [
        f"{document.relative_to(ROOT)}: {name}.{member}"
        for document, text in _documents()
        for name, member in _MEMBER.findall(text)
        if name in classes and member not in classes[name] and (name, member) not in JAVA
    ]
    assert not missing, "\n".join(missing)


def _is_inherited(path: str, classes: Mapping[str, set[str]]) -> bool:
    """Return whether a path names a member that a class inherits."""
    parts = path.split(".")
    return parts[-1] in classes.get(parts[-2], ())


def test_paths_in_roles_exist() -> None:
    known: set[str] = set()
    classes = _classes()
    for file in tracked_files():
        if file.suffix == ".py" and file.relative_to(ROOT).parts[0] in ("consumer_coord", "assignors"):
            module = module_name(file)
            known.add(module)
            for node in parsed(file).body:
                names = {node.name} if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else set()
                names |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
                if isinstance(node, ast.ImportFrom):
                    names |= {one.asname or one.name for one in node.names}
                # Names that a package imports when they are first used.
                names |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
                known |= {f"{module}.{name}" for name in names}
                if isinstance(node, ast.ClassDef):
                    known |= {f"{module}.{node.name}.{name}" for name in _names_in(node)}
    missing = [
        f"{document.relative_to(ROOT)}: {path}"
        for document, text in _documents()
        for path in _ROLE.findall(text)
        if path not in known and not _is_inherited(path, classes)
    ]
    assert not missing, "\n".join(missing)
