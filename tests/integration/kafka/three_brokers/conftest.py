"""A cluster that is there as long as tests of this folder run: three idle brokers take a sixth of a core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer_coord.testing.real_kafka import RealKafka


@pytest.fixture(scope="package")
def kafka3(kafka_libs: Path) -> Iterator[RealKafka]:
    """Three real brokers: a test that ends or pauses one restarts or resumes it."""
    with RealKafka(kafka_libs, brokers=3, outlives_test=True) as cluster:
        yield cluster
