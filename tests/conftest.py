"""Fixtures and options for every test."""

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

from tests.support import kafka_jars
from tests.support.behaviours import BehaviourTable
from tests.support.browser import HOW, Browser, chromium
from tests.support.class_archive import ensure_class_archive
from tests.support.java import ToolJars
from tests.support.kafka_cluster import KafkaCluster, NewTopicFactory, unique_name
from tests.support.leaks import LoggingSetUp, left_behind
from tests.support.members import Members
from tests.support.processes import running
from tests.support.real_kafka import RealKafka
from tests.support.secrets import SecretWatch
from tests.support.shared import Shared, directory_of_the_run

# No example is too slow on a busy machine, and a commit gets the same ones each time: ``--hypothesis-profile=fresh`` draws
# others.
settings.register_profile("fresh", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("fixed")

#: A plugin of this suite is tested by running pytest inside a test.
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this test suite."""
    parser.addoption(
        "--behaviours",
        action="store_true",
        help="print which numbered behaviours (docs/behaviours.md) have a passing test, and which have none",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The table of behaviours watches every run, and so does the search for secrets."""
    config.pluginmanager.register(BehaviourTable(config))
    config.pluginmanager.register(SecretWatch())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, and unless ``--dist`` says otherwise."""
    from tests.support.scheduling import Scheduling

    return Scheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For a worker: what takes long begins early, so that at the end all have something to do."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Modules and tests live as long as the run: the garbage collector leaves them out from here on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """A test fails when threads that would keep the interpreter alive, child processes or changed logging outlive it."""
    threads, processes, logs = set(threading.enumerate()), running(), LoggingSetUp.now()
    yield
    found = [*left_behind(threads, processes), *logs.changes()]
    assert not found, "the test left behind:\n" + "\n".join(found)


class _OfThisProject(logging.Filter):
    """Lets through what this project's loggers say."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in {"consumer_coord", "assignors"}


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What this project's loggers said: the threads of a Spark session that other tests use log at any time."""
    with caplog.filtering(_OfThisProject()):
        yield caplog


def fetched_or_skipped(fetch: Callable[[], Path]) -> Path:
    """Return what ``fetch`` brings; what cannot be had is a skip with one clear line, and an error on CI."""
    try:
        return fetch()
    except kafka_jars.UnavailableError as error:
        reason = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def fetched(jars: kafka_jars.JarSet) -> Path:
    """The directory with these jars, for tests that have a Java to run them."""

    def fetch() -> Path:
        kafka_jars.java_executable()
        return kafka_jars.ensure_jars(jars)

    return fetched_or_skipped(fetch)


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The directory with Apache Kafka's jars."""
    libs = fetched(kafka_jars.KAFKA)
    ensure_class_archive(libs)
    return libs


@pytest.fixture(scope="session")
def tool_jars(kafka_libs: Path) -> ToolJars:
    """What Kafka's own tools run with."""
    return ToolJars(kafka_libs, fetched(kafka_jars.KAFKA_TOOLS))


@pytest.fixture(scope="session")
def spark_connector_jars() -> Path:
    """The directory with the jars of Spark's own Kafka connector."""
    return fetched(kafka_jars.SPARK_CONNECTOR)


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """What the workers of a run use together."""
    found = Shared(directory_of_the_run(request.config, tmp_path_factory.getbasetemp()))
    # Not at the end of the last test: the wait for other workers would count as that test's time.
    request.config.add_cleanup(found.close)
    return found


@pytest.fixture(scope="session")
def kafka(kafka_libs: Path, shared: Shared) -> KafkaCluster:
    """A real broker, shared by all tests of the run: use topics and groups of your own, and leave it running."""
    return KafkaCluster.at(shared.use("kafka", lambda: RealKafka(kafka_libs, outlives_test=True).start()))


@pytest.fixture
def topic(kafka: KafkaCluster) -> NewTopicFactory:
    """``topic(partitions=1, prefix="topic", config=None)`` makes a topic on ``kafka`` and returns its unique name."""
    return kafka.new_topic


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A headless Chromium; without one the test is skipped, and fails where ``BROWSER`` is ``required``."""
    path = chromium()
    if path is None:
        if os.environ.get("BROWSER") == "required":
            pytest.fail(HOW, pytrace=False)
        pytest.skip(HOW)
    with Browser(path, tmp_path / "profile") as running:
        yield running


@pytest.fixture
def group() -> str:
    """The name of a group that nobody else uses."""
    return unique_name("group")


@pytest.fixture
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    """``members.start(client, group, topics, …)`` starts group members of any client; all end with the test.

    They connect to ``kafka`` unless told otherwise.
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
