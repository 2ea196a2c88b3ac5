"""Fixtures and options of all tests."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from consumer_coord.consumer import which_plane
from consumer_coord.consumer.arrow_arguments import NO_COLUMNS
from consumer_coord.errors import IllegalStateError
from consumer_coord.testing import jars as kafka_jars
from consumer_coord.testing.kafka_cluster import KafkaCluster, NewTopicFactory, unique_name
from consumer_coord.testing.real_kafka import RealKafka
from tests.support import jar_sets
from tests.support.behaviours import BehaviourTable
from tests.support.browser import HOW, Browser, chromium
from tests.support.class_archive import ensure_class_archive
from tests.support.java import ToolJars
from tests.support.leaks import LoggingSetUp, left_behind
from tests.support.members import Members
from tests.support.processes import running
from tests.support.secrets import SecretWatch
from tests.support.shared import Shared, directory_of_the_run

# A slow example is no failure, because the machine may be busy. All runs of a commit draw the same examples, except with
# ``--hypothesis-profile=fresh``.
settings.register_profile("fresh", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("fixed")

#: Tests of this suite's plugins run pytest inside a test.
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this test suite."""
    parser.addoption(
        "--librdkafka",
        action="store_true",
        help="let consumers read messages with librdkafka wherever a test does not choose",
    )
    parser.addoption(
        "--behaviours",
        action="store_true",
        help="print which numbered behaviours (docs/behaviours.md) have a passing test, and which have none",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the table of behaviours and the search for secrets for every run."""
    if config.getoption("librdkafka"):
        which_plane.BY_DEFAULT = True
    config.pluginmanager.register(BehaviourTable(config))
    config.pluginmanager.register(SecretWatch())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """With ``--librdkafka``, skip a test as soon as it reads columns, which librdkafka does not have."""
    try:
        yield
    except IllegalStateError as error:
        if item.config.getoption("librdkafka") and NO_COLUMNS in str(error):
            pytest.skip("needs columns")
        raise


@pytest.fixture
def messages_of_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers read messages with librdkafka wherever the test does not choose."""
    monkeypatch.setattr(which_plane, "BY_DEFAULT", True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler for ``-n``, unless ``--dist`` selects another one."""
    from tests.support.scheduling import Scheduling

    return Scheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start slow tests early in a worker, so that no worker is left alone with one at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collection, because they live as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Fail a test that leaves threads that keep the interpreter alive, child processes, or changed logging."""
    threads, processes, logs = set(threading.enumerate()), running(), LoggingSetUp.now()
    yield
    found = [*left_behind(threads, processes), *logs.changes()]
    assert not found, "the test left behind:\n" + "\n".join(found)


class _OfThisProject(logging.Filter):
    """Passes only records of this project's loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in {"consumer_coord", "assignors"}


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Restrict ``caplog`` to this project's loggers: the threads of a shared Spark session may log at any time."""
    with caplog.filtering(_OfThisProject()):
        yield caplog


def fetched_or_skipped(fetch: Callable[[], Path]) -> Path:
    """Return the result of ``fetch``; if it is unavailable, skip the test with one clear line, or fail it on CI."""
    try:
        return fetch()
    except kafka_jars.UnavailableError as error:
        reason = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def fetched(jars: kafka_jars.JarSet) -> Path:
    """Return the directory with these jars, for tests that have a Java to run them."""

    def fetch() -> Path:
        kafka_jars.java_executable()
        return kafka_jars.ensure_jars(jars)

    return fetched_or_skipped(fetch)


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """Return the directory with Apache Kafka's jars."""
    libs = fetched(kafka_jars.KAFKA)
    ensure_class_archive(libs)
    return libs


@pytest.fixture(scope="session")
def tool_jars(kafka_libs: Path) -> ToolJars:
    """Return the jars for Kafka's own tools."""
    return ToolJars(kafka_libs, fetched(jar_sets.KAFKA_TOOLS))


@pytest.fixture(scope="session")
def spark_connector_jars() -> Path:
    """Return the directory with the jars of Spark's own Kafka connector."""
    return fetched(jar_sets.SPARK_CONNECTOR)


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Return the services that the workers of a run share."""
    found = Shared(directory_of_the_run(request.config, tmp_path_factory.getbasetemp()))
    # Not at the end of the last test: the wait for other workers would count as time of that test.
    request.config.add_cleanup(found.close)
    return found


@pytest.fixture(scope="session")
def kafka(kafka_libs: Path, shared: Shared) -> KafkaCluster:
    """Return a real broker, shared by all tests of the run: use separate topics and groups, and leave the broker running."""
    return KafkaCluster.at(shared.use("kafka", lambda: RealKafka(kafka_libs, outlives_test=True).start()))


@pytest.fixture
def topic(kafka: KafkaCluster) -> NewTopicFactory:
    """Return ``topic(partitions=1, prefix="topic", config=None)``, which makes a topic on ``kafka`` with a unique name."""
    return kafka.new_topic


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """Yield a headless Chromium; without one, skip the test, or fail it if ``BROWSER`` is ``required``."""
    path = chromium()
    if path is None:
        if os.environ.get("BROWSER") == "required":
            pytest.fail(HOW, pytrace=False)
        pytest.skip(HOW)
    with Browser(path, tmp_path / "profile") as running:
        yield running


@pytest.fixture
def group() -> str:
    """Return the name of a group that no other test uses."""
    return unique_name("group")


@pytest.fixture
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    """Yield ``members.start(client, group, topics, …)``, which starts members of any client; all end with the test.

    The members connect to ``kafka`` unless the call names other brokers.
    """

    def libs() -> Path:
        found: Path = request.getfixturevalue("kafka_libs")
        return found

    def bootstrap_servers() -> str:
        cluster: KafkaCluster = request.getfixturevalue("kafka")
        return cluster.bootstrap_servers

    started = Members(libs, bootstrap_servers)
    try:
        yield started
    finally:
        started.close()
