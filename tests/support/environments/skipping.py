"""A plugin of pytest for environments without librdkafka: skips a test as soon as it needs librdkafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def _skip(error: ImportError) -> None:
    if (error.name or "").partition(".")[0] == "confluent_kafka":
        pytest.skip(f"needs confluent-kafka 2.x: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test of which a fixture needs librdkafka."""
    try:
        yield
    except ImportError as error:
        _skip(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs librdkafka."""
    try:
        yield
    except ImportError as error:
        _skip(error)
        raise
