"""The package with confluent-kafka 2.x, with its successor 4.x, and without confluent-kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.environments import ENVIRONMENTS, variables
from tests.test_structure import ROOT

#: Tests of the consumers, of which few are about librdkafka.
WITHOUT_LIBRDKAFKA = (
    "tests/confluent/reading_without_librdkafka.py",
    "tests/consumer/test_async_consume_arrow.py",
    "tests/consumer/test_async_finished_records.py",
    "tests/consumer/test_bad_input.py",
    "tests/consumer/test_both_consumers.py",
    "tests/consumer/test_consume_arrow.py",
    "tests/consumer/test_finished_records.py",
    "tests/consumer/test_positions_behind_markers.py",
    "tests/consumer/test_read_ahead.py",
    "tests/consumer/test_stored_offsets.py",
    "tests/consumer/test_subscription.py",
    "tests/consumer/test_security_errors.py",
    "tests/consumer/test_which_plane.py",
)

PLUGIN = "tests.support.environments.skipping"

EVERY_MODULE = """
import importlib, json, pkgutil
import consumer_coord, assignors
for package in (consumer_coord, assignors):
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not one.name.endswith("__main__"):
            importlib.import_module(one.name)
from consumer_coord import confluent
print(json.dumps({name: str(getattr(confluent, name)) for name in confluent.__all__}))
"""


def run(environment: str, limit_s: float, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments in an environment."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=variables(environment), capture_output=True, text=True, timeout=limit_s, check=False
    )


def program(environment: str, code: str) -> Any:
    """Run a program in an environment, and return the JSON that it prints."""
    ran = run(environment, 180, "-c", code)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_module_can_be_imported(environment: str) -> None:
    exported = program(environment, EVERY_MODULE)
    ours = "consumer_coord.confluent" in exported["Message"]
    assert ours == (environment != "installed")
    assert all("confluent_kafka" not in text for text in exported.values()) == ours


def test_with_confluent_kafka_the_own_classes_are_not_loaded() -> None:
    code = "import json, sys, consumer_coord.consumer.deserializing; print(json.dumps(list(sys.modules)))"
    loaded = program("installed", code)
    assert "confluent_kafka.cimpl" in loaded
    assert not [name for name in loaded if name.startswith("consumer_coord.confluent.own_") or name.endswith(".error_table")]


def pytest_in(environment: str, *arguments: str) -> None:
    """Run tests in an environment; fail with their output if one fails or none passes."""
    ran = run(environment, 840, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, *arguments)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    assert " passed" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("environment", [one for one in ENVIRONMENTS if one != "installed"])
def test_what_needs_no_librdkafka_works(environment: str) -> None:
    """A test that needs librdkafka is skipped as soon as it does."""
    pytest_in(environment, *WITHOUT_LIBRDKAFKA)


@pytest.mark.slow
def test_the_consumers_read_with_librdkafka_as_well() -> None:
    # librdkafka has no columns.
    pytest_in("installed", "--librdkafka", *(one for one in WITHOUT_LIBRDKAFKA[1:] if not one.endswith("_arrow.py")))
