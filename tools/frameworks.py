"""Run the tests of a framework with the consumers of this package: ``python -m tools.frameworks FRAMEWORK``.

The framework is installed in a pinned version, with the dependencies of this project, into an environment of its own in the
directory for temporary files. Its tests come from a checkout of its repository at the tag of this version (``--tests``),
because source distributions contain no tests, or only a part of them. A plugin replaces the name ``confluent_kafka.Consumer``
before the tests import it; ``--original`` runs the same tests with the consumer of confluent-kafka. The tests use an embedded
Kafka at port 9092, or the cluster that runs there already (``--running``).

This program is run by hand, because it downloads packages and takes minutes. ``docs/frameworks.md`` has the results.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from consumer_coord.broker import EmbeddedKafka

ROOT = Path(__file__).resolve().parents[1]
#: Outside this project, whose configuration of pytest would apply below it.
HOME = Path(tempfile.gettempdir()) / "consumer-coord-frameworks"
#: The frameworks' tests have this address in their code.
_PORT = 9092


@attrs.frozen
class Framework:
    """A framework: what to install, and which tests to run."""

    #: The pinned requirement.
    requirement: str
    #: Further packages that the tests import.
    others: Sequence[str]
    #: The tests that use a consumer: paths and options of pytest.
    tests: Sequence[str]


FRAMEWORKS: Mapping[str, Framework] = {
    "arroyo": Framework(
        "sentry-arroyo==2.42.2",
        ("pytest==8.4.2", "pytest-benchmark==5.1.0"),
        ("tests/backends/test_kafka.py", "tests/backends/test_kafka_commit_callback.py", "tests/test_kip848_e2e.py"),
    ),
    "faststream": Framework(
        "faststream[confluent,cli]==0.7.4",
        (
            "pytest==9.0.3",
            "pytest-asyncio==1.3.0",
            "pytest-timeout==2.4.0",
            "dirty-equals==0.11",
            "email-validator==2.3.0",
            "freezegun==1.5.5",
            "httpx==0.28.1",
            "fastapi==0.140.0",
            "msgspec==0.20.0",
            "prometheus-client==0.23.1",
            "opentelemetry-sdk==1.37.0",
            "psutil==7.2.2",
            "pydantic-settings==2.14.0",
            "python-multipart==0.0.20",
            "PyYAML==6.0.3",
            "uvicorn==0.34.3",
        ),
        # This file imports the brokers of all other systems.
        ("tests/brokers/confluent", "-m", "confluent", "--ignore", "tests/brokers/confluent/test_misconfigure.py"),
    ),
    # Its tests start Kafka in containers; the plugin gives them the cluster at the port instead. They need transactions.
    "quix": Framework(
        "quixstreams==3.25.0",
        ("pytest==8.4.2", "testcontainers==4.13.2", "fastavro", "protobuf>=5.27.2,<7", "pandas<3"),
        (
            "tests/test_quixstreams/test_app.py",
            "tests/test_quixstreams/test_internal_consumer",
            "tests/test_quixstreams/test_kafka",
            "tests/test_quixstreams/test_checkpointing.py",
            "tests/test_quixstreams/test_models/test_topics",
            "tests/test_quixstreams/test_sources/test_core/test_kafka.py",
            "-p",
            "kafka_without_containers",
        ),
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the tests of one framework, and return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.frameworks", description=__doc__.partition("\n")[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--tests", type=Path, required=True, help="the checkout that contains the directory tests")
    parser.add_argument("--original", action="store_true", help="keep confluent-kafka's consumer")
    parser.add_argument("--running", action="store_true", help=f"use the cluster at port {_PORT}")
    chosen, options = parser.parse_known_args(arguments)
    framework = FRAMEWORKS[chosen.framework]
    python = installed(framework, HOME / chosen.framework)
    plugin = [] if chosen.original else ["-p", "replaced_consumer"]
    command = [str(python), "-m", "pytest", "-rfE", *plugin, *framework.tests, *options]
    with contextlib.nullcontext() if chosen.running else EmbeddedKafka(port=_PORT):
        return subprocess.run(
            command, cwd=chosen.tests, env={**os.environ, "PYTHONPATH": str(ROOT / "tools")}, check=False
        ).returncode


def installed(framework: Framework, directory: Path) -> Path:
    """Return the interpreter of the framework's environment, which is created at the first call."""
    python = directory / "env" / "bin" / "python"
    if not python.exists():
        venv.create(directory / "env", with_pip=True)
        ours: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        wanted = [*ours, framework.requirement, *framework.others]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        (packages,) = (directory / "env" / "lib").glob("python*/site-packages")
        for package in ("assignors", "consumer_coord"):
            # With the root of this project on the path, the framework's tests would import this project's package "tests".
            (packages / package).symlink_to(ROOT / package)
    return python


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
