"""How large the parts of the client's core may be: files, mutable attributes, public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.test_structure import ROOT, modules_below, parsed

#: Packages of the core.
CORE = ("consumer_coord/group", "consumer_coord/net")

MOST_FILES_AT_THE_TOP = 16
MOST_MUTABLE_ATTRIBUTES = 12
#: Of the facade, which applications know; and of any other class of the core.
MOST_PUBLIC_NAMES_OF_THE_FACADE = 29
MOST_PUBLIC_NAMES = 25

#: Classes that may have more mutable attributes, with how many; the list shrinks.
STILL_MANY_ATTRIBUTES: dict[str, int] = {}

#: Calls and displays that make an object which changes in place.
_CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_CONTAINER_CALLS = {"dict", "list", "set", "deque", "defaultdict", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary"}


def _stored(function: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Each ``self.name`` that a function binds, and the value."""
    for node in ast.walk(function):
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    yield part.attr, value if isinstance(value, ast.expr) else None


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in _CONTAINER_CALLS
    return isinstance(value, _CONTAINERS)


def _methods(cls: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in cls.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def mutable_attributes(cls: ast.ClassDef) -> set[str]:
    """Attributes that a method other than ``__init__`` binds, or that are containers from the start; all fields of a class that
    ``attrs.define`` makes."""
    if any(ast.unparse(decorator).startswith("attrs.define") for decorator in cls.decorator_list):
        return {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    found = set()
    for method in _methods(cls):
        for name, value in _stored(method):
            if method.name != "__init__" or _is_container(value):
                found.add(name)
    return found


def public_names(cls: ast.ClassDef) -> set[str]:
    """Methods, properties and attributes without an underscore; not the fields of values and of typing's protocols."""
    names = {method.name for method in _methods(cls)}
    names |= {name for method in _methods(cls) for name, _ in _stored(method)}
    return {name for name in names if not name.startswith("_")}


def is_value(cls: ast.ClassDef) -> bool:
    """Whether its objects are immutable: what it offers then changes nothing."""
    return any(ast.unparse(decorator).startswith("attrs.frozen") for decorator in cls.decorator_list)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class of the core."""
    for package in CORE:
        for module, file in modules_below(package):
            for node in ast.walk(parsed(file)):
                if isinstance(node, ast.ClassDef):
                    yield f"{module}.{node.name}", node


def test_few_files_stand_at_the_top() -> None:
    files = [file.name for file in (ROOT / "consumer_coord").glob("*.py")]
    assert len(files) <= MOST_FILES_AT_THE_TOP, f"put {len(files) - MOST_FILES_AT_THE_TOP} of {sorted(files)} into a package"


def test_no_class_of_the_core_has_many_mutable_attributes() -> None:
    found = {name: sorted(mutable_attributes(cls)) for name, cls in classes()}
    most = {name: STILL_MANY_ATTRIBUTES.get(name, MOST_MUTABLE_ATTRIBUTES) for name in found}
    assert not {name: names for name, names in found.items() if len(names) > most[name]}
    assert not {name for name in STILL_MANY_ATTRIBUTES if len(found[name]) <= MOST_MUTABLE_ATTRIBUTES}, "take it off the list"


def test_no_class_of_the_core_has_many_public_names() -> None:
    facade = "consumer_coord.group.coordinator.ConsumerCoordinator"
    found = {name: sorted(public_names(cls)) for name, cls in classes() if not is_value(cls)}
    assert len(found[facade]) <= MOST_PUBLIC_NAMES_OF_THE_FACADE, found.pop(facade)
    found.pop(facade)
    assert not {name: names for name, names in found.items() if len(names) > MOST_PUBLIC_NAMES}


def test_the_steps_of_kafka_are_public() -> None:
    steps = {
        "ensure_coordinator_ready",
        "join_group_if_needed",
        "on_join_prepare",
        "perform_assignment",
        "on_join_complete",
    }
    facade = next(cls for name, cls in classes() if name.endswith(".ConsumerCoordinator"))
    assert steps <= public_names(facade)


def test_a_class_name_of_the_client_means_one_thing() -> None:
    """In the core and in the application's half; classes of one file for its own use aside."""
    places: dict[str, list[str]] = {}
    for package in (*CORE, "consumer_coord/consumer"):
        for module, file in modules_below(package):
            for node in parsed(file).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(module)
    # Both are of the broker, and the client had them once.
    assert not places.keys() & {"GroupMember", "ConsumerGroupMember"}
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


@pytest.mark.parametrize(
    ("source", "mutable", "public"),
    [
        ("class A:\n def __init__(self):\n  self.a = 1\n  self._b = {}\n  self._c = frozenset()", {"_b"}, {"a"}),
        ("class A:\n def __init__(self):\n  self.a: int = 1\n def f(self):\n  self.a += 1", {"a"}, {"a", "f"}),
        ("class A:\n def _f(self):\n  self._a, self.b = 1, 2", {"_a", "b"}, {"b"}),
        ("@attrs.define\nclass A:\n x: int\n y: int = 0", {"x", "y"}, set()),
    ],
)
def test_attributes_are_counted(source: str, mutable: set[str], public: set[str]) -> None:
    cls = ast.parse(source).body[0]
    assert isinstance(cls, ast.ClassDef)
    assert mutable_attributes(cls) == mutable
    assert public_names(cls) == public
