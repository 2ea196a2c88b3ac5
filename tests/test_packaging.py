"""The published packages, tried in environments without this checkout: the wheel, its extras, and the source distribution."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import consumer_coord
from tests.test_structure import tracked_files
from tools.release import RESERVED, URLS, missing

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = pytest.mark.slow

#: Reads two records as a member of a group, on an embedded Kafka.
PROGRAM = """
import assignors, consumer_coord, sys
from confluent_kafka import Producer
from consumer_coord import GroupConsumer
from consumer_coord.broker import EmbeddedKafka
with EmbeddedKafka(topics={"orders": 2}) as kafka:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition in (0, 1):
        producer.produce("orders", b"order", partition=partition)
    assert producer.flush(90) == 0
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    with GroupConsumer(config) as consumer:
        consumer.subscribe(["orders"])
        got = []
        for _ in range(300):
            got += consumer.consume(10, 0.1)
            if len(got) == 2:
                break
assert len(got) == 2, got
print(consumer_coord.__version__, consumer_coord.__file__)
"""

#: extra -> code that uses it; without the extra, the code fails with an error that names the extra.
USES = {
    "spark": "import consumer_coord.spark; consumer_coord.spark.KafkaGroupSource",
    "prometheus": "from consumer_coord.monitoring.prometheus import CoordinatorCollector;"
    " list(CoordinatorCollector().collect())",
    "opentelemetry": "import opentelemetry.metrics as m; from consumer_coord.monitoring.opentelemetry import"
    " CoordinatorInstruments; CoordinatorInstruments(m.get_meter('x'))",
    "testing": "import consumer_coord.pytest_plugin; from assignors import RangeAssignor;"
    " from assignors.testing import check_assignor; check_assignor(RangeAssignor(), examples=3, sizes=())",
    "cli": "from consumer_coord.admin.lag import _Live; _Live()",
    "web": "import consumer_coord.watch.server",
}
#: Errors of the same code without the extra.  (``lag --count`` then prints plain lines; tests/admin checks them.)
MISSING = {
    "spark": "kafka_group needs",
    "prometheus": "pip install 'consumer-coord[prometheus]'",
    "opentelemetry": "pip install 'consumer-coord[opentelemetry]'",
    "testing": "pip install 'consumer-coord[testing]'",
    "web": "pip install 'consumer-coord[web]'",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from it; return their directory."""
    # A copy, because a build writes next to the sources, and workers of one run build at the same time.
    out, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("copy")
    for file in tracked_files():
        place = copy / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def source(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the source distribution, and return its directory."""
    (archive,) = built.glob("*.tar.gz")
    place = tmp_path_factory.mktemp("source")
    with tarfile.open(archive) as opened:
        opened.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def environment() -> dict[str, str]:
    """Return the environment variables for processes that must not use this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}


def run(python: Path, program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", program]
    return subprocess.run(command, cwd=directory, env=environment(), capture_output=True, text=True, check=False, timeout=360)


def needed(requirement: str, seen: set[str]) -> Iterator[str]:
    """Yield the installed distributions that a requirement brings, including itself."""
    match = re.match(r"([\w.-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?", requirement)
    assert match is not None
    name, extras, marker = match.groups()
    if marker is not None and "extra" in marker:
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # a marker excludes the distribution here
    if distribution.name in seen:
        return
    seen.add(distribution.name)
    assert extras is None, requirement
    yield distribution.name
    for one in distribution.requires or ():
        yield from needed(one, seen)


def new_environment(directory: Path, requirements: Iterable[str]) -> Path:
    """Make an environment with only these distributions and their requirements, linked to the installed ones: no network."""
    venv.create(directory, with_pip=False)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    seen: set[str] = set()
    for name in (name for requirement in requirements for name in needed(requirement, seen)):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            target = packages / top
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))
    return directory / "bin" / "python"


def pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_wheel_installs_into_a_blank_environment_and_reads(wheel: Path, tmp_path: Path) -> None:
    """The environment has only the requirements of the wheel."""
    python = new_environment(tmp_path / "blank", PROJECT["dependencies"])
    pip(python, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel))
    # The metadata of the wheel requires only distributions that are installed.
    pip(python, "check")
    ran = run(python, PROGRAM, tmp_path)
    assert ran.returncode == 0, ran.stderr
    version, place = ran.stdout.split()
    assert version == PROJECT["version"]
    assert str(tmp_path) in place
    ran = subprocess.run([str(python.with_name("consumer-coord")), "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"consumer-coord {version}\n"
    instead = {"opentelemetry": "import consumer_coord.monitoring.opentelemetry"}
    program = [f"import os, sys\nos.chdir({str(tmp_path)!r})"]
    for extra in (one for one in MISSING if one != "web"):
        program.append(
            f"try: exec({instead.get(extra, USES[extra])!r})\nexcept Exception as error: print({extra!r}, repr(error))"
        )
    program.append("from consumer_coord.cli import main")
    program.append("print('web', end=' ', flush=True); main(['watch', '--bootstrap-server', '127.0.0.1:1'])")
    ran = subprocess.run(
        [str(python), "-c", "\n".join(program)],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=360,
    )
    for message in MISSING.values():
        assert message in ran.stdout.replace("\\", ""), ran.stdout


@pytest.mark.parametrize("extra", USES)
def test_each_extra_alone_is_enough(extra: str, wheel: Path, tmp_path: Path) -> None:
    """The environment has the wheel, the distributions that the extra names, and their requirements."""
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    python = new_environment(tmp_path / "env", wanted)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(packages)
    ran = run(python, USES[extra], tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_pytest_finds_the_fixtures_of_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """No file of the inner test suite names the plugin."""
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["testing"]]
    python = new_environment(tmp_path / "env", wanted)
    pip(python, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel))
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(scope='session')\ndef embedded_kafka_options():\n    return {'brokers': 2}\n"
    )
    (tmp_path / "suite" / "test_one.py").write_text(
        "def test_one(embedded_kafka, kafka_topic):\n    topic = kafka_topic(3)\n"
        "    assert embedded_kafka.topics() == {topic: 3}\n    assert len(embedded_kafka.brokers) == 2\n"
    )
    command = [str(python), "-m", "pytest", "-q", "-W", "error"]
    ran = subprocess.run(
        command, cwd=tmp_path / "suite", env=environment(), capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr


#: The tests of a user.
SIMULATED = """
import billing
from consumer_coord.testing import simulated


@simulated(seeds=5, handled="billing.handle")
async def test_right(world):
    await world.produce("orders", 100)
    await world.run(billing.main)
    await world.settled()
    assert world.lost() == []


@simulated(seeds=20, handled="billing.handle")
async def test_hasty(world):
    await world.produce("orders", 100)
    await world.run(billing.hasty)
    await world.settled()
    assert world.lost() == []
"""


def test_a_users_program_is_simulated_with_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """The project has its program and a test; a program that commits before it processes is found within 20 seeds."""
    python = new_environment(tmp_path / "env", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["testing"]])
    pip(python, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel))
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(ROOT / "tests" / "support" / "simulation" / "billing.py", project)
    (project / "test_billing.py").write_text(SIMULATED)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]

    def ran(**more: str) -> str:
        done = subprocess.run(
            command, cwd=project, env=environment() | more, capture_output=True, text=True, check=False, timeout=600
        )
        return done.stdout + done.stderr

    text = ran()
    assert "1 failed, 1 passed" in text, text[-3000:]
    replay = re.search(r"CONSUMER_COORD_SIMULATED='(.*)' python -m pytest 'test_billing.py::test_hasty'", text)
    assert replay is not None, text[-3000:]
    assert "was killed at" in text
    command.append("test_billing.py::test_hasty")
    assert "1 failed" in ran(CONSUMER_COORD_SIMULATED=replay[1])


def test_the_source_distribution_has_every_file_of_the_repository(source: Path) -> None:
    missing = [str(file.relative_to(ROOT)) for file in tracked_files() if not (source / file.relative_to(ROOT)).is_file()]
    assert not missing


def test_the_source_distribution_passes_its_tests(source: Path) -> None:
    """A few quick tests run from its files; a complete set of files makes the others pass, too."""
    files = ["tests/docs/test_links.py", "tests/wire/test_frames.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    ran = subprocess.run(command, cwd=source, env=environment(), capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert re.search(r"^\d+ passed", ran.stdout, re.MULTILINE), ran.stdout


def test_the_wheel_has_the_packages_with_their_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {"consumer_coord/py.typed", "assignors/py.typed"} <= set(names)
    info = f"consumer_coord-{PROJECT['version']}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"consumer_coord", "assignors", info}
    data = [file for file in (ROOT / "consumer_coord").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert not [str(file) for file in data if str(file.relative_to(ROOT)) not in names]


def test_a_source_install_without_a_compiler_decodes_in_python(source: Path, tmp_path: Path) -> None:
    """The same install with a compiler has the kernel; one wheel serves every Python with a GIL."""
    program = "from consumer_coord.columns import KERNEL, Columns; print(KERNEL, len(Columns().finish()))"
    for compiler, kernel in (("no-such-compiler", "python"), (None, "c")):
        if compiler is None and shutil.which(sysconfig.get_config_var("CC").split()[0]) is None:
            pytest.skip("no C compiler")
        out = tmp_path / kernel
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--wheel-dir", str(out), str(source)]
        variables = environment() | ({"CC": compiler} if compiler else {})
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=variables)
        assert ran.returncode == 0, ran.stderr
        (wheel,) = out.glob("*.whl")
        assert "-cp311-abi3-" in wheel.name or sysconfig.get_config_var("Py_GIL_DISABLED")
        python = new_environment(tmp_path / f"env-{kernel}", PROJECT["dependencies"])
        pip(python, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel))
        found = run(python, program, tmp_path)
        assert found.stdout == f"{kernel} 0\n", found.stderr


def test_the_metadata_is_what_an_index_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"consumer_coord-{PROJECT['version']}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    assert set(metadata.get_all("Provides-Extra") or ()) >= set(USES)
    # No addresses are better than wrong ones; tools/release.py requires them for a release.
    hosts = [urlsplit(one.split(", ", 1)[1]).hostname or "" for one in metadata.get_all("Project-URL") or ()]
    assert not [host for host in hosts if host.rpartition(".")[2] in RESERVED]
    pythons = {one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier") or () if "Python :: 3." in one}
    assert pythons == {"3.11", "3.12", "3.13", "3.14"}
    assert metadata["Requires-Python"] == ">=3.11"


def test_there_is_one_version() -> None:
    assert PROJECT["version"] == consumer_coord.__version__
    assert (
        "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
        or f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    )


def test_a_release_needs_a_version_a_day_and_addresses() -> None:
    addresses = dict.fromkeys(URLS, "https://kafka.apache.org/")
    project = {"version": "1.2.0", "urls": addresses}
    changelog = "## [Unreleased]\n\n## [1.2.0] - 2026-11-22\n"
    assert list(missing(project, "1.2.0", changelog)) == []
    assert list(missing(project, "1.1.0", changelog)) == ["consumer_coord/version.py says 1.1.0, but pyproject.toml says 1.2.0"]
    assert list(missing(project, "1.2.0", "## [Unreleased]\n")) == ["CHANGELOG.md has no line '## [1.2.0] - YYYY-MM-DD'"]
    assert list(missing(project, "1.2.0", "## [1.2.0] - soon\n")) == ["CHANGELOG.md: soon is not a date"]
    placeholder = {**project, "urls": {**addresses, "Issues": "https://project.example/issues"}}
    assert list(missing(placeholder, "1.2.0", changelog)) == ["pyproject.toml: project.example is a reserved name (Issues)"]
    addresses.pop("Issues")
    assert list(missing(project, "1.2.0", changelog)) == ["pyproject.toml has no https address for Issues in [project.urls]"]
