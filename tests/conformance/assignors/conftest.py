"""Fixtures of the assignors' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.java_assignors import JavaAssignors


@pytest.fixture(scope="session")
def java_assignors(kafka_libs: Path) -> Iterator[JavaAssignors]:
    """Apache Kafka's assignors in one JVM."""
    java = JavaAssignors(kafka_libs)
    yield java
    java.close()
