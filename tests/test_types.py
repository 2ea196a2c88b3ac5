"""Type errors in programs that use the packages, and complete types of the public names."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attr
import attrs
import pytest

from tests.test_structure import ROOT

PROGRAM = """
from consumer_coord import AsyncGroupConsumer, GroupConsumer
from consumer_coord.testing import SimulatedWorld, simulated

def called(consumer: object, partitions: object) -> None: ...
def too_few(consumer: object) -> None: ...
def too_many(consumer: object, partitions: object, more: object) -> None: ...
async def later(consumer: object, partitions: object) -> None: ...

async def use(consumer: GroupConsumer, other: AsyncGroupConsumer, names: list[str]) -> None:
    consumer.subscribe(names, on_assign=called)
    consumer.subscribe(("orders",))
    await other.subscribe({"orders"}, on_assign=later)
    consumer.subscribe("orders")  # wrong
    await other.subscribe("orders")  # wrong
    consumer.subscribe(names, on_assigned=called)  # wrong
    consumer.subscribe(names, on_assign=too_few)  # wrong
    consumer.subscribe(names, on_revoke=too_many)  # wrong
    await other.subscribe(names, on_assign=too_few)  # wrong
    await other.subscribe(names, on_assigned=later)  # wrong
    consumer.commit(asynchronous=False)
    consumer.commit(asynchron=False)  # wrong

@simulated(seeds=3, faults=["kill"], handled="billing.handle", topics={"orders": 2})
async def test_program(world: SimulatedWorld, count: int) -> None:
    await world.produce("orders", count)
    await world.produce("orders", [("key", b"value"), (None, None)], at_once=True)
    await world.run(program, "orders")
    await world.settled()
    lost: str = world.lost()  # wrong
    reasons: list[str] = [one.reason for one in world.repeated()]
    await world.run(called)  # wrong

async def program(topic: str) -> int: return 0

test_program(3)
test_program()  # wrong
test_program("3")  # wrong
simulated(seed=3)  # wrong
@simulated()  # wrong
def test_wrong(world: SimulatedWorld) -> None: ...
"""


@pytest.mark.slow
def test_wrong_topics_keywords_and_callbacks_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in ran.stdout.splitlines() if ": error:" in line and "program.py" in line}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of packages as an installation makes it; pyright cannot read the finder of an editable one.

    attrs is in it, too, because pyright asks the interpreter where its packages are. If the answer is late, on a busy machine,
    it takes the packages of another interpreter on the path.
    """
    packages = tmp_path_factory.mktemp("site")
    for name in ("assignors", "consumer_coord"):
        (packages / name).symlink_to(ROOT / name)
    for module in (attr, attrs):
        folder = Path(module.__path__[0])
        (packages / folder.name).symlink_to(folder)
    return packages


def completeness(package: str, site: Path) -> dict[str, Any]:
    """Return pyright's report on the public names of an installed package."""
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable),
            *("--ignoreexternal", "--outputjson", "--verifytypes", package),
        ],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.startswith("{"), ran.stdout + ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)["typeCompleteness"]
    assert report["symbols"], ran.stdout
    return report


@pytest.mark.slow
@pytest.mark.parametrize(("package", "least"), [("assignors", 1.0), ("consumer_coord", 0.99)])
def test_the_public_names_are_typed_completely(package: str, least: float, site: Path) -> None:
    report = completeness(package, site)
    untyped = [symbol["name"] for symbol in report["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert report["completenessScore"] >= least, "\n".join(untyped)


@pytest.mark.parametrize("package", ["assignors", "consumer_coord"])
def test_a_package_shows_the_names_that_it_exports_and_its_modules(package: str) -> None:
    module = importlib.import_module(package)
    shown = {name for name in dir(module) if not name.startswith("_")}
    modules = {file.stem for file in (ROOT / package).iterdir()}
    assert set(module.__all__) <= shown
    assert shown - set(module.__all__) <= modules
