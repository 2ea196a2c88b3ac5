"""The three Kafkas of the table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from consumer_coord.broker import EmbeddedKafka
from consumer_coord.testing.jars import ensure_jars
from consumer_coord.testing.real_kafka import RealKafka
from tests.support.go import go_program
from tests.support.line_process import LineProcess

EMBEDDED, KFAKE, KAFKA = "embedded", "kfake", "kafka"


@contextlib.contextmanager
def _embedded() -> Iterator[str]:
    with EmbeddedKafka(brokers=3) as kafka:
        yield kafka.bootstrap_servers


@contextlib.contextmanager
def _kfake() -> Iterator[str]:
    with LineProcess([str(go_program("kfake"))], name="kfake") as process:
        yield process.receive()


@contextlib.contextmanager
def _kafka() -> Iterator[str]:
    with RealKafka(ensure_jars(), brokers=3) as kafka:
        yield kafka.bootstrap_servers


#: Each starts three brokers, and gives their addresses.
KAFKAS: Mapping[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    EMBEDDED: _embedded,
    KFAKE: _kfake,
    KAFKA: _kafka,
}
#: These start in less than a second, so each row gets a new one; all rows share the other.
QUICK = (EMBEDDED, KFAKE)
