"""Fixtures and options for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import kafka_jars


def unavailable(reason: str) -> None:
    """Skip what cannot run here, with one clear line; on CI that is an error."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The directory with Apache Kafka's jars."""
    try:
        return kafka_jars.ensure_jars(kafka_jars.KAFKA)
    except kafka_jars.UnavailableError as error:
        unavailable(str(error))
        raise


@pytest.fixture(scope="session")
def spark_connector_jars() -> Path:
    """The directory with the jars of Spark's own Kafka connector."""
    try:
        return kafka_jars.ensure_jars(kafka_jars.SPARK_CONNECTOR)
    except kafka_jars.UnavailableError as error:
        unavailable(str(error))
        raise
