"""No import circles among the modules of a package, including imports for types and imports inside functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import pytest

from tests.test_structure import imports_of, modules_below


def graph() -> Mapping[str, frozenset[str]]:
    """Return module -> the imported modules of the project; a package counts only for names that it defines itself."""
    files = {name: file for root in ("assignors", "consumer_coord") for name, file in modules_below(root)}
    return {name: frozenset(_targets(tuple(imports_of(file)), set(files))) - {name} for name, file in files.items()}


def _targets(imported: Sequence[str], modules: Set[str]) -> Iterator[str]:
    """Yield the imported modules: ``from a import b`` is listed as ``a`` and ``a.b``, but means only a module ``a.b``."""
    for one in imported:
        package, _, _ = one.rpartition(".")
        if one in modules:
            names = [other for other in imported if other.rpartition(".")[0] == one]
            if not names or any(other not in modules for other in names):
                yield one
        elif package in modules:
            yield package


def circles(edges: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan's algorithm), sorted."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for target in sorted(edges[module]):
            if target not in numbers:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], numbers[target])
        if lowest[module] == numbers[module]:
            at = stack.index(module)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for module in sorted(edges):
        if module not in numbers:
            visit(module)
    return sorted(found)


@pytest.mark.thorough
def test_modules_import_each_other_in_one_direction() -> None:
    assert circles(graph()) == []


def package_of(module: str) -> str:
    """Return the package below ``consumer_coord`` of a module; a module outside any package stands for itself."""
    return module.removeprefix("consumer_coord.").partition(".")[0]


@pytest.mark.thorough
def test_packages_import_each_other_in_one_direction() -> None:
    edges = {(package_of(one), package_of(other)) for one, others in graph().items() for other in others}
    assert {(one, other) for one, other in edges if one < other and (other, one) in edges} == set()


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, [["a", "b", "c"], ["d", "e"]]),
    ],
)
def test_circles_are_found(edges: Mapping[str, Set[str]], expected: Sequence[Sequence[str]]) -> None:
    assert circles(edges) == expected
