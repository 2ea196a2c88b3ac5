"""Fixtures for users' test suites. pytest loads them if ``consumer-coord[testing]`` is installed.

``embedded_kafka``
    An :class:`~consumer_coord.broker.EmbeddedKafka` that lives as long as the test session.  The cluster starts in milliseconds
    when a test first uses the fixture.  Tests with separate topics and groups do not affect each other.
``kafka_topic``
    A function that creates a topic with a unique name: ``kafka_topic(partitions=3)``.  The topic is deleted after the test.

To configure the cluster, override ``embedded_kafka_options`` in your ``conftest.py``: a session fixture that returns the
keyword arguments of ``EmbeddedKafka``.

Where pytest loads no plugins automatically (``PYTEST_DISABLE_PLUGIN_AUTOLOAD``), name the plugin in your root
``conftest.py``: ``pytest_plugins = ["consumer_coord.pytest_plugin"]``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from consumer_coord.extras import missing

if TYPE_CHECKING:
    from consumer_coord.broker import EmbeddedKafka

try:
    import pytest
except ImportError as _error:
    raise missing("testing", _error) from _error

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def embedded_kafka_options() -> Mapping[str, Any]:
    """Keyword arguments of ``EmbeddedKafka`` for ``embedded_kafka``; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def embedded_kafka(embedded_kafka_options: Mapping[str, Any]) -> Iterator[EmbeddedKafka]:
    """Start a Kafka cluster in this process, for the whole test session."""
    # Imported here, because pytest loads this module in every test session, but most sessions use none of its fixtures.
    from consumer_coord.broker import EmbeddedKafka

    with EmbeddedKafka(**embedded_kafka_options) as kafka:
        yield kafka


@pytest.fixture
def kafka_topic(embedded_kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Return ``kafka_topic(partitions=1, configs=None)``, which creates a topic named after the test and returns the name."""
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
