"""Fixtures for users' own suites: ``pytest_plugins = ["consumer_coord.pytest_plugin"]``.

``embedded_kafka``
    An :class:`~consumer_coord.broker.EmbeddedKafka` that lives as long as the session: it starts in milliseconds, and tests
    that use topics and groups of their own do not meet.
``kafka_topic``
    A function that makes a topic with a name of its own on it: ``kafka_topic(partitions=3)``.

To configure the cluster override ``embedded_kafka_options`` in your ``conftest.py``: a session fixture that returns the
keyword arguments of ``EmbeddedKafka``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.extras import missing

try:
    import pytest
except ImportError as error:
    raise missing("testing", error) from error

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def embedded_kafka_options() -> Mapping[str, Any]:
    """The keyword arguments with which ``embedded_kafka`` is made; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def embedded_kafka(embedded_kafka_options: Mapping[str, Any]) -> Iterator[EmbeddedKafka]:
    """A Kafka cluster in this process, for the whole session."""
    with EmbeddedKafka(**embedded_kafka_options) as kafka:
        yield kafka


@pytest.fixture
def kafka_topic(embedded_kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """``kafka_topic(partitions=1, configs=None)`` makes a topic named after the test; it goes with the test."""
    made = []

    def make(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        words = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:200]
        name = f"{words or 'topic'}-{next(_numbers)}"
        embedded_kafka.create_topic(name, partitions, configs=configs)
        made.append(name)
        return name

    yield make
    for name in made:
        if name in embedded_kafka.topics():
            embedded_kafka.delete_topic(name)
