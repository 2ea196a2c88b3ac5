"""For the Spark tests: messages in, and one session for all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consumer_coord.spark.launcher import write_python_launcher
from consumer_coord.testing.kafka_cluster import KafkaCluster
from tests.support.spark import assignors
from tests.support.spark.drivers import QUICK_JVM
from tests.support.spark.producing import produce
from tests.support.spark.queries import Queries


@pytest.fixture
def fill(kafka: KafkaCluster) -> Callable[..., None]:
    """``fill(topic, partition, count, first=0)``: records with key k<n> and value v<n>."""

    def write(topic: str, partition: int, count: int, first: int = 0) -> None:
        produce(
            kafka.bootstrap_servers,
            topic,
            [{"partition": partition, "key": f"k{number}", "value": f"v{number}"} for number in range(first, first + count)],
        )

    return write


def install_assignor(site: Path) -> None:
    """A package with an assignor, as pip would leave it in ``site``."""
    code = Path(assignors.__file__).read_text()
    (site / "installed_assignors.py").write_text(code.replace('"to-the-first"', '"of-a-package"'))
    described = site / "installed_assignors-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-assignors\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[consumer_coord.assignors]\nof-a-package = installed_assignors:ToTheFirst\n")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_connector_jars: Path) -> Iterator[Any]:
    """One session for all tests, on two cores, with Spark's own connector; its processes run in this very environment."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    site = tmp_path_factory.mktemp("site")
    install_assignor(site)
    # For the processes of Spark only.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYSPARK_PYTHON"] = write_python_launcher(tmp_path_factory.mktemp("python"), fork_server=True)
    from pyspark.sql import SparkSession

    from consumer_coord.spark import KafkaGroupSource

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("consumer-coord tests")
        .config("spark.jars", ",".join(str(jar) for jar in sorted(spark_connector_jars.glob("*.jar"))))
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.noDataProgressEventInterval", "500")
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    for key, value in QUICK_JVM.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(KafkaGroupSource)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def queries(spark: Any, kafka: KafkaCluster, group: str, tmp_path: Path) -> Iterator[Queries]:
    """Queries of a group of the test's own; they end with it."""
    found = Queries(spark, kafka.bootstrap_servers, group, tmp_path, kafka.admin)
    try:
        yield found
    finally:
        found.stop()
