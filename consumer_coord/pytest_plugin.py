"""Fixtures for users' test suites. pytest loads them if ``consumer-coord[testing]`` is installed.

``kafka``
    The Kafka that ``--kafka`` names: ``embedded`` (the default), a version of Apache Kafka such as ``4.4.0``, or ``host:port``
    of a cluster of yours. Its calls are those of :class:`~consumer_coord.testing.KafkaUnderTest`. It lives as long as the test
    session, in each worker of pytest-xdist. To choose brokers, TLS, SASL or ACLs, override ``kafka_options``: a session fixture
    that returns the arguments of :class:`~consumer_coord.testing.KafkaOptions`.
``embedded_kafka``
    An :class:`~consumer_coord.broker.EmbeddedKafka` that lives as long as the test session.  The cluster starts in milliseconds
    when a test first uses the fixture.  Tests with separate topics and groups do not affect each other.
``kafka_topic``
    A function that creates a topic with a unique name: ``kafka_topic(partitions=3)``. The topic is deleted after the test. It
    is in the cluster of ``kafka`` if the test uses this fixture, otherwise in ``embedded_kafka``.

To configure the cluster, override ``embedded_kafka_options`` in your ``conftest.py``: a session fixture that returns the
keyword arguments of ``EmbeddedKafka``.

Where pytest loads no plugins automatically (``PYTEST_DISABLE_PLUGIN_AUTOLOAD``), name the plugin in your root
``conftest.py``: ``pytest_plugins = ["consumer_coord.pytest_plugin"]``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumer_coord.extras import missing

if TYPE_CHECKING:
    from consumer_coord.broker import EmbeddedKafka
    from consumer_coord.testing import KafkaUnderTest

try:
    import pytest
except ImportError as _error:
    raise missing("testing", _error) from _error

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--kafka`` and ``--kafka-home``."""
    group = parser.getgroup("consumer-coord", "Kafka for tests")
    group.addoption(
        "--kafka",
        default="embedded",
        metavar="WHERE",
        help="what the fixture kafka returns: embedded (default), a version of Apache Kafka such as 4.4.0 (needs Java 17; its"
        " jars are fetched once), or host:port of a cluster of yours",
    )
    group.addoption(
        "--kafka-home", type=Path, metavar="DIR", help="an unpacked Apache Kafka for --kafka VERSION, in place of fetched jars"
    )


@pytest.fixture(scope="session")
def kafka_options() -> Mapping[str, Any]:
    """Arguments of :class:`~consumer_coord.testing.KafkaOptions` for ``kafka``; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def kafka(kafka_options: Mapping[str, Any], pytestconfig: pytest.Config) -> Iterator[KafkaUnderTest]:
    """Open the Kafka that ``--kafka`` names; if it cannot be had, or cannot do what the options ask for, skip the tests."""
    from consumer_coord.testing import KafkaOptions, UnsupportedError
    from consumer_coord.testing.under_test import open_kafka

    with contextlib.ExitStack() as stack:
        try:
            where, home = pytestconfig.getoption("kafka"), pytestconfig.getoption("kafka_home")
            found = stack.enter_context(open_kafka(where, KafkaOptions(**kafka_options), home))
        except UnsupportedError as error:
            pytest.skip(str(error))
        yield found


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
def kafka_topic(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Return ``kafka_topic(partitions=1, configs=None)``, which creates a topic named after the test and returns the name."""
    if "kafka" in request.fixturenames:
        cluster: KafkaUnderTest = request.getfixturevalue("kafka")
        topics: list[str] = []

        def make_there(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
            topics.append(cluster.topic(partitions, name=request.node.name, configs=configs))
            return topics[-1]

        yield make_there
        for name in topics:
            cluster.delete_topic(name)
        return
    embedded_kafka: EmbeddedKafka = request.getfixturevalue("embedded_kafka")
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
