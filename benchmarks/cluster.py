"""The broker that a benchmark uses: a real broker started here, or an existing one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from consumer_coord.testing import jars as kafka_jars
from consumer_coord.testing.real_kafka import RealKafka


def libs() -> Path:
    """Return the directory with Apache Kafka's jars."""
    return kafka_jars.ensure_jars(kafka_jars.KAFKA)


@contextlib.contextmanager
def broker(brokers: int = 1, properties: Mapping[str, str] | None = None, heap: str = "1g") -> Iterator[RealKafka]:
    """Run a broker with the full JIT compiler, because a slow broker would hide differences between clients."""
    with RealKafka(libs(), brokers=brokers, properties=properties, jvm_arguments=(f"-Xmx{heap}",)) as cluster:
        yield cluster
