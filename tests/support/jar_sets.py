"""Jars of other programs, which tests, benchmarks and tools compare with; see :mod:`consumer_coord.testing.jars`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from consumer_coord.testing.jars import KAFKA_VERSION, Coordinate, JarSet

_HASHES: Final = Path(__file__).parent / "hashes"

#: The log libraries of brokers 2.x: slf4j, and log4j's API, which they call directly.
LOGGING = (Coordinate("org.slf4j", "slf4j-simple", "1.7.36"), Coordinate("ch.qos.reload4j", "reload4j", "1.2.25"))

#: The oldest version that this library supports; its brokers need ZooKeeper.
KAFKA_2_4 = JarSet("kafka-2.4.1", (Coordinate("org.apache.kafka", "kafka_2.13", "2.4.1"), *LOGGING), _HASHES)

#: Kafka's command line tools, which none of its other modules needs; they run with the jars of `KAFKA`.
KAFKA_TOOLS = JarSet(
    f"kafka-tools-{KAFKA_VERSION}",
    (
        Coordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION, transitive=False),
        # The broker's version of this library; since 4.4 the broker itself does not need it.
        Coordinate("com.fasterxml.jackson.dataformat", "jackson-dataformat-csv", "2.21.7", transitive=False),
    ),
    _HASHES,
)

#: Spark's own Kafka connector, for side-by-side runs with PySpark 4.2.
SPARK_CONNECTOR = JarSet(
    "spark-kafka-4.2.0",
    (
        Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", transitive=False),
        Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", transitive=False),
        Coordinate("org.apache.kafka", "kafka-clients", "3.9.1", transitive=False),
        Coordinate("org.apache.commons", "commons-pool2", "2.12.1", transitive=False),
    ),
    _HASHES,
)

#: Confluent's Parallel Consumer, which ``benchmarks.parallel`` compares with. One by one: its POM names a module that the
#: repository does not have (``io.stubbs.truth:truth-generator-api``, which only its tests use).
PARALLEL_CONSUMER = JarSet(
    "parallel-consumer-0.5.3.2",
    tuple(
        Coordinate(organisation, name, revision, transitive=False)
        for organisation, name, revision in (
            ("io.confluent.parallelconsumer", "parallel-consumer-core", "0.5.3.2"),
            ("io.micrometer", "micrometer-core", "1.13.0"),
            ("io.micrometer", "micrometer-observation", "1.13.0"),
            ("io.micrometer", "micrometer-commons", "1.13.0"),
            ("pl.tlinkowski.unij", "pl.tlinkowski.unij.api", "0.1.3"),
            ("pl.tlinkowski.unij", "pl.tlinkowski.unij.service.api", "0.1.3"),
            ("pl.tlinkowski.unij", "pl.tlinkowski.unij.service.collect.jdk8", "0.1.3"),
            ("pl.tlinkowski.unij", "pl.tlinkowski.unij.service.misc.jdk8", "0.1.3"),
            ("org.hdrhistogram", "HdrHistogram", "2.2.1"),
            ("org.latencyutils", "LatencyUtils", "2.0.3"),
            ("org.apache.kafka", "kafka-clients", "3.7.0"),
            ("org.slf4j", "slf4j-api", "2.0.13"),
            ("org.slf4j", "slf4j-simple", "2.0.13"),
            ("org.lz4", "lz4-java", "1.8.0"),
            ("com.github.luben", "zstd-jni", "1.5.5-4"),
            ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
        )
    ),
    _HASHES,
)
