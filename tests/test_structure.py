"""Rules for the files of the project: permitted imports, and forbidden contents."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.scheduling import misplaced

ROOT = Path(__file__).parents[1]

#: Pure modules and the wire, which may import only `assignors` and each other.
PURE = (
    "consumer_coord.errors",
    "consumer_coord.lazy_attrs",
    "consumer_coord.runtime.locks",
    "consumer_coord.log_text",
    "consumer_coord.topic_partition",
    "consumer_coord.offsets",
    "consumer_coord.group.assignment",
    "consumer_coord.group.subscription",
    "consumer_coord.config",
    "consumer_coord.assignor_loading",
    "consumer_coord.final_errors",
    "consumer_coord.setting_names",
    "consumer_coord.settings",
    "consumer_coord.net.client_config",
    "consumer_coord.net.metadata",
    "consumer_coord.wire",
)
#: Packages above the core.  The rest runs in three homes (thread, loop, simulation) and knows none of them.
ABOVE_CORE = (
    "consumer_coord.confluent",
    "consumer_coord.consumer",
    "consumer_coord.process",
    "consumer_coord.threads",
    "consumer_coord.net.shared_clusters",
    "consumer_coord.net.oauth",
    "consumer_coord.spark",
    "consumer_coord.cli",
    "consumer_coord.admin",
    "consumer_coord.__main__",
    "consumer_coord.monitoring",
    "consumer_coord.health",
    "consumer_coord.simulation",
    "consumer_coord.broker",
    "consumer_coord.pytest_plugin",
    "consumer_coord.testing",
    "consumer_coord.watch",
    "consumer_coord.scaling",
    "consumer_coord.migration",
)
#: Modules that read with this package's own Fetch requests.
READ_COLUMNS = (
    "consumer_coord.fetch",
    "consumer_coord.columns",
    "consumer_coord.consumer.arrow_arguments",
    "consumer_coord.consumer.thread_columns",
    "consumer_coord.consumer.arrow_reads",
    "consumer_coord.consumer.deliveries",
    "consumer_coord.consumer.engine",
    "consumer_coord.consumer.reading",
    "consumer_coord.consumer.thread_access",
    "consumer_coord.consumer.thread_turns",
    "consumer_coord.consumer.thread_waits",
    "consumer_coord.spark",
)
#: Modules that the broker may import. The client is not among them; assignors are, because the broker assigns under the
#: consumer protocol (KIP-848).
BROKER_MAY_IMPORT = (
    "consumer_coord.broker",
    "assignors",
    "consumer_coord.wire",
    "consumer_coord.errors",
    "consumer_coord.log_text",
    "consumer_coord.topic_partition",
    "consumer_coord.environment",
    "consumer_coord.runtime.locks",
    "consumer_coord.runtime.outcome",
)
#: Modules of the clock, randomness and connections, which the core receives from outside.
RECEIVED = ("time", "random", "socket")
#: Modules that create the real ones.
CREATORS = {
    "consumer_coord.environment",
    "consumer_coord.net.tcp",
    "consumer_coord.broker.command",
    "consumer_coord.broker.server",
}


def tracked_files() -> Sequence[Path]:
    """Return every file that git tracks or would add; in a source distribution, every file that is not a product of a run."""
    if not (ROOT / ".git").exists():
        made = {".venv", ".pythons", "build", "dist", "artifacts", "__pycache__"}
        files = (file for file in ROOT.rglob("*") if file.is_file())
        inside = ((file, file.relative_to(ROOT).parts) for file in files)
        return [file for file, parts in inside if not made & set(parts) and not parts[0].endswith((".egg-info", "_cache"))]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


@functools.cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text())


def module_name(file: Path) -> str:
    """Return the name of a file's module: ``consumer_coord/net/tcp.py`` -> ``consumer_coord.net.tcp``."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_below(package: str) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a package in the root directory."""
    for file in sorted((ROOT / package).rglob("*.py")):
        yield module_name(file), file


def imports_of(file: Path) -> Iterator[str]:
    """Yield every module that a file imports, also inside functions; ``from a import b`` counts as ``a`` and as ``a.b``."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            if node.level:
                parents = module_name(file).split(".")
                keep = len(parents) - node.level + (file.name == "__init__.py")
                package = ".".join([*parents[:keep], *([node.module] if node.module else [])])
            yield package
            yield from (f"{package}.{one.name}" for one in node.names)


def within(module: str, packages: Sequence[str]) -> bool:
    """Return whether a module is one of these packages, or inside one of them."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def ours(module: str) -> bool:
    """Return whether a module belongs to the project."""
    return within(module, ("consumer_coord", "assignors", "examples", "tests", "benchmarks"))


def is_core(module: str) -> bool:
    """Return whether a module of ``consumer_coord`` belongs to the core, including the pure modules and the wire."""
    return module != "consumer_coord" and not within(module, ABOVE_CORE)


def shadowed(tree: ast.AST, name: str) -> set[int]:
    """Return the nodes inside functions with a parameter of that name, where the name is not the module."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = node.args
            if name in {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}:
                found.update(map(id, ast.walk(node)))
    return found


def module_calls(file: Path, modules: Sequence[str]) -> set[str]:
    """Return calls of functions of these modules, such as ``time.monotonic``."""
    tree = parsed(file)
    hidden = {module: shadowed(tree, module) for module in modules}
    return {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in modules
        and id(node) not in hidden[node.func.value.id]
    }


def test_assignors_import_only_the_standard_library_and_attrs_classes() -> None:
    for name, file in modules_below("assignors"):
        allowed = {*sys.stdlib_module_names, "assignors"}
        if name == "assignors.testing":
            allowed.add("hypothesis")
        foreign = {one for one in imports_of(file) if one.partition(".")[0] not in allowed}
        foreign -= {"consumer_coord", "consumer_coord.lazy_attrs"}
        assert not foreign, f"{name} imports {foreign}"


def test_pure_modules_and_the_wire_import_nothing_above_them() -> None:
    for name, file in modules_below("consumer_coord"):
        if within(name, PURE):
            above = {one for one in imports_of(file) if ours(one) and not within(one, (*PURE, "assignors"))}
            above -= {"consumer_coord"}  # the package itself, of `from consumer_coord import errors`
            assert not above, f"{name} imports {above}"


def test_the_core_imports_nothing_above_it() -> None:
    for name, file in modules_below("consumer_coord"):
        if is_core(name):
            above = {one for one in imports_of(file) if within(one, (*ABOVE_CORE, "confluent_kafka", "pyspark"))}
            assert not above, f"{name} imports {above}"


def test_confluent_kafkas_types_know_no_consumer() -> None:
    for name, file in modules_below("consumer_coord/confluent"):
        found = {one for one in imports_of(file) if within(one, ("consumer_coord.consumer", "consumer_coord.spark"))}
        assert not found, f"{name} imports {found}"


def test_confluent_kafka_is_imported_in_one_package() -> None:
    """Except librdkafka's plane, and what administers a real Kafka for tests; and examples, which import it with a producer."""
    for package in ("consumer_coord", "assignors"):
        for name, file in modules_below(package):
            users = ("consumer_coord.confluent", "consumer_coord.consumer.librdkafka.handle", "consumer_coord.testing")
            if not within(name, users):
                found = {one for one in imports_of(file) if within(one, ("confluent_kafka",))}
                assert not found, f"{name} imports {found}"
    for name, file in modules_below("examples"):
        found = {one for one in imports_of(file) if within(one, ("confluent_kafka",))}
        assert not found or found & {"confluent_kafka.Producer", "confluent_kafka.admin.AdminClient"}, f"{name} imports {found}"


def test_what_reads_columns_does_not_know_librdkafka() -> None:
    for name, file in modules_below("consumer_coord"):
        if within(name, READ_COLUMNS):
            found = {one for one in imports_of(file) if within(one, ("consumer_coord.consumer.librdkafka",))}
            assert not found, f"{name} imports {found}"


def test_the_broker_imports_the_wire_and_nothing_of_the_client() -> None:
    for name, file in modules_below("consumer_coord/broker"):
        client = {one for one in imports_of(file) if ours(one) and not within(one, BROKER_MAY_IMPORT)}
        client -= {"consumer_coord", "consumer_coord.net"}
        assert not client, f"{name} imports {client}"


def test_nothing_of_production_imports_the_simulation_or_the_tests() -> None:
    for package in ("assignors", "consumer_coord"):
        for name, file in modules_below(package):
            if not within(name, ("consumer_coord.simulation", "consumer_coord.testing")):
                found = {one for one in imports_of(file) if within(one, ("consumer_coord.simulation", "tests"))}
                assert not found, f"{name} imports {found}"


def test_benchmarks_import_the_testbed_and_no_other_tests() -> None:
    for name, file in modules_below("benchmarks"):
        found = {one for one in imports_of(file) if within(one, ("tests",)) and not within(one, ("tests.support",))}
        assert not found, f"{name} imports {found}"


def test_core_and_broker_receive_clock_randomness_and_connections() -> None:
    for name, file in modules_below("consumer_coord"):
        if name not in CREATORS and (is_core(name) or within(name, ("consumer_coord.broker",))):
            calls = module_calls(file, RECEIVED) - {"random.Random"}  # the type, or one with a given seed
            assert not calls, f"{name} calls {calls}"


def test_nobody_calls_writelines() -> None:
    """On CPython 3.12, and 3.13 before 3.13.8, a closing transport registers a writer in ``writelines`` that nothing removes.

    The next connection with the same file number is then never read (CPython gh-136234). ``write`` has no such fault.
    """
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for package in ("assignors", "consumer_coord", "tests", "examples", "benchmarks")
        for _, file in modules_below(package)
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Attribute) and node.attr == "writelines"
    ]
    assert not found


def core_classes(packages: Sequence[str]) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the module and the definition of every class at the top of a module of these packages."""
    for package in packages:
        for module, file in modules_below(package):
            for node in parsed(file).body:
                if isinstance(node, ast.ClassDef):
                    yield module, node


def test_the_steps_of_kafka_are_public() -> None:
    steps = {"ensure_coordinator_ready", "join_group_if_needed", "on_join_prepare", "perform_assignment", "on_join_complete"}
    facade = next(cls for _, cls in core_classes(["consumer_coord/group"]) if cls.name == "ConsumerCoordinator")
    assert steps <= {node.name for node in facade.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_no_two_classes_of_the_client_have_the_same_name() -> None:
    """The rule covers the core and the application's half, except private classes of one file."""
    places: dict[str, list[str]] = {}
    for module, cls in core_classes(["consumer_coord/group", "consumer_coord/net", "consumer_coord/consumer"]):
        if not cls.name.startswith("_"):
            places.setdefault(cls.name, []).append(module)
    # The broker has both classes; the client once had them, too.
    assert not places.keys() & {"GroupMember", "ConsumerGroupMember"}
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_every_directory_of_tests_is_a_package() -> None:
    """With packages, two test files may share a name, and ``tests/integration/kafka`` does not hide kafka-python."""
    directories = {file.parent for file in (ROOT / "tests").rglob("*.py")}
    assert not [str(one.relative_to(ROOT)) for one in directories if not (one / "__init__.py").exists()]


#: Reads of private attributes in tests. Lower it with the count; a new read needs a function of ``tests/support/white_box.py``.
PRIVATE_READS = 58
#: Public names that begin with an underscore: librdkafka's error codes, and functions of the standard library.
PUBLIC_IN_SPITE_OF_ITS_NAME = re.compile(r"(\w+\.)?KafkaError\._[A-Z_]+|os\._exit|sys\._getframe|.*\._(replace|asdict)")
#: The parts of a consumer, which only ``tests/support/white_box.py`` reads.
PARTS_OF_A_CONSUMER = {"_core", "_engine", "_reader", "_librdkafka"}


def private_reads(file: Path) -> Iterator[str]:
    """Yield every ``object._name`` of a file, except on ``self``, ``cls`` and ``super()``."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            read = ast.unparse(node)
            own = ast.unparse(node.value) in {"self", "cls", "super()"}
            if not own and not PUBLIC_IN_SPITE_OF_ITS_NAME.fullmatch(read):
                yield read


def test_tests_read_private_attributes_in_few_places() -> None:
    found = {file.relative_to(ROOT): list(private_reads(file)) for file in sorted((ROOT / "tests").rglob("*.py"))}
    story = "\n".join(f"{file}: {', '.join(reads)}" for file, reads in found.items() if reads)
    assert sum(map(len, found.values())) <= PRIVATE_READS, story
    inside = {file for file, reads in found.items() if PARTS_OF_A_CONSUMER & {read.rpartition(".")[2] for read in reads}}
    assert inside == {Path("tests/support/white_box.py")}


def test_the_configuration_of_tests_is_in_one_file() -> None:
    """With ``[tool.pytest.ini_options]`` in pyproject.toml, pytest would silently ignore setup.cfg."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert not tools.keys() & {"pytest", "mypy"}
    assert not [name for name in ("pytest.ini", ".pytest.ini", "tox.ini", "mypy.ini", ".mypy.ini") if (ROOT / name).exists()]


def test_the_contributors_guide_names_every_directory_of_tests() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    _, _, table = guide.partition("| code | tests |")
    table = table.partition("\n\n")[0]
    named = set(re.findall(r"`(?:tests/)?(\w+)/`", table))
    packages = {file.parent.name for file in (ROOT / "consumer_coord").glob("*/__init__.py")}
    here = {file.relative_to(ROOT / "tests").parts[0] for file in (ROOT / "tests").glob("*/**/test_*.py")}
    assert not here - named - packages


def test_tests_with_a_jvm_are_comparisons_or_integration() -> None:
    """So the tests of a package run without Java, and ``make quick`` omits few of them."""
    mark = re.compile(r"mark\.(kafka|spark)\b")
    files = {file.relative_to(ROOT / "tests"): file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    assert not [
        name for name, text in files.items() if mark.search(text) and name.parts[0] not in ("conformance", "integration")
    ]


def test_fixtures_with_a_jvm_are_used_only_in_the_files_of_one_worker(request: pytest.FixtureRequest) -> None:
    assert not misplaced(request.session.items), "list the file in tests/support/scheduling.py"


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        # Assembled here, so that this file does not contain the forbidden texts.
        ("a package registry's host", "|".join(("pypi" + r"\.org", "pythonhosted" + r"\.", "repo1" + r"\.maven"))),
        ("a package registry's host", "|".join(("crates" + r"\.io", "npmjs" + r"\.", "proxy" + r"\.golang"))),
        ("a path of one machine", "|".join((r"(?<![\w.])/work" + "/", "/root" + "/", "/home" + r"/\w", "/Users" + "/"))),
        ("work left undone", "|".join((r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bXX" + r"X\b"))),
    ],
)
def test_no_file_contains(what: str, pattern: str) -> None:
    forbidden = re.compile(pattern)
    found = []
    for file in tracked_files():
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue  # a picture, for instance
        for number, line in enumerate(text.splitlines(), 1):
            if forbidden.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, f"{what}:\n" + "\n".join(found)


@pytest.mark.thorough
def test_exceptions_are_not_swallowed() -> None:
    """``except …: pass`` for everything hides errors that must be handled; `contextlib.suppress` of a named one is allowed."""
    found = []
    for package in ("assignors", "consumer_coord", "examples", "benchmarks", "tests"):
        for _, file in modules_below(package):
            for node in ast.walk(parsed(file)):
                if isinstance(node, ast.ExceptHandler) and all(isinstance(one, ast.Pass) for one in node.body):
                    caught = ast.unparse(node.type) if node.type is not None else "everything"
                    if caught in {"everything", "Exception", "BaseException"}:
                        found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not found
