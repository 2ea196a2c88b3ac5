"""Run tests with the oldest version of a package that ``pyproject.toml`` allows: ``python -m tools.oldest PACKAGE``.

``PACKAGE`` is ``confluent-kafka`` or ``pyspark``; further arguments go to pytest. The tests run in the present environment, but
a directory with the old version of the package is first on the path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Package -> the tests to run if no tests are given as arguments.
TESTS: Mapping[str, Sequence[str]] = {
    "confluent-kafka": [
        "-n",
        "4",
        "-m",
        "not kafka and not spark and not thorough",
        "tests/net",
        "tests/runtime",
        "tests/group",
        "tests/confluent",
        "tests/consumer",
        "tests/test_config.py",
        "tests/conformance/confluent_kafka",
    ],
    "pyspark": [
        "-n",
        "2",
        "tests/integration/spark/test_query.py",
        "tests/integration/spark/test_triggers.py",
        "tests/spark/test_fork_server.py",
    ],
}


def oldest(package: str, python: tuple[int, int] = sys.version_info[:2]) -> str:
    """Return the lower bound of a package's version, such as ``2.8``, for a version of Python."""
    for requirement in _requirements():
        match = re.fullmatch(rf"{package}>=([\d.]+),<\d+(?:; python_version (<|>=) '3\.(\d+)')?", requirement)
        if match is not None and (match[2] is None or (python < (3, int(match[3]))) == (match[2] == "<")):
            return match[1]
    raise SystemExit(f"pyproject.toml has no requirement of {package} for Python {python[0]}.{python[1]}")


def _requirements() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from project["dependencies"]
    for extra in project["optional-dependencies"].values():
        yield from extra


def main(arguments: Sequence[str]) -> int:
    """Install the oldest version if it is missing, and return pytest's exit code."""
    if not arguments or arguments[0] not in TESTS:
        raise SystemExit(f"usage: python -m tools.oldest {{{','.join(TESTS)}}} [pytest's arguments]")
    package, *rest = arguments
    version = oldest(package)
    place = Path(sys.prefix) / f"{package}-{version}"
    if not place.is_dir():
        unfinished = place.with_suffix(".partial")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(unfinished), f"{package}=={version}"], check=True)
        unfinished.rename(place)
    print(f"{package} {version}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *(rest or TESTS[package])], cwd=ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
