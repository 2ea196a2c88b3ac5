"""Run tests with the oldest confluent-kafka that ``pyproject.toml`` allows: ``python -m tools.oldest [PYTEST ARGUMENTS]``.

The environment is the one this runs in. Only confluent-kafka is another, in a directory that precedes it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What is run without arguments.
TESTS = [
    "-n",
    "4",
    "-m",
    "not kafka and not spark and not thorough",
    "tests/client",
    "tests/aio",
    "tests/dropin",
    "tests/security",
]


def oldest(python: tuple[int, int] = sys.version_info[:2]) -> str:
    """Return the lower bound of confluent-kafka's version for a version of Python, such as ``2.8``."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in requirements:
        match = re.fullmatch(r"confluent-kafka>=([\d.]+),<\d+; python_version (<|>=) '3\.(\d+)'", requirement)
        if match is not None and (python < (3, int(match[3]))) == (match[2] == "<"):
            return match[1]
    raise SystemExit(f"pyproject.toml has no requirement of confluent-kafka for Python {python[0]}.{python[1]}")


def main(arguments: list[str]) -> int:
    """Install that version if need be, and return pytest's exit code."""
    version = oldest()
    place = Path(sys.prefix) / f"confluent-kafka-{version}"
    if not place.is_dir():
        unfinished = place.with_suffix(".partial")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(unfinished), f"confluent-kafka=={version}"], check=True)
        unfinished.rename(place)
    print(f"confluent-kafka {version}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *(arguments or TESTS)], cwd=ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
