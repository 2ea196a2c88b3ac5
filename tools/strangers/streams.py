"""Rows of Kafka Streams; its program is ``tests/support/programs/java/StreamsProgram.java``."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from consumer_coord.testing.jars import KAFKA_VERSION, Coordinate, fetch_unpinned
from consumer_coord.testing.kafka_cluster import unique_name
from tests.support.java import JavaProgram
from tests.support.line_process import LineProcess
from tests.support.waiting import eventually
from tools.strangers.rows import STREAMS, committed_records, expect, new_topic, row

_DEADLINE_S = 300
_WAIT_S = 90.0
_WORDS = ("kafka", "streams", "kafka", "table", "kafka", "streams")
_COUNTS = {"kafka": 3, "streams": 2, "table": 1}
_JARS = (
    Coordinate("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
)


def _write(servers: str, topic: str, words: Sequence[str] = _WORDS) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers})
    for word in words:
        producer.produce(topic, word)
    expect(producer.flush(30), 0, "records that were not acknowledged")


@contextmanager
def _streams(servers: str, *arguments: str) -> Iterator[LineProcess]:
    """Run the program until the block ends: operation, application, topics, directory, settings."""
    program = JavaProgram(fetch_unpinned(f"streams-{KAFKA_VERSION}", _JARS), "StreamsProgram")
    operation, *others = arguments
    with program.start(operation, servers, *others) as process:
        line = process.receive(_WAIT_S)
        expect(line, "running", "the first line")
        yield process
        process.close(grace_s=60)
    expect(process.process.returncode, 0, f"exit code: {process.stderr_tail(3)}")


def _run(servers: str, operation: str, *settings: str) -> list[tuple[Any, bytes]]:
    source, sink, application = new_topic(servers, 2), new_topic(servers), unique_name("streams")
    _write(servers, source)
    with tempfile.TemporaryDirectory() as state, _streams(servers, operation, application, source, sink, state, *settings):
        return committed_records(servers, sink, len(_COUNTS))


def _count(servers: str, *settings: str) -> None:
    """Count words, end, and count on with the state from the changelog, not from the directory."""
    source, sink, application = new_topic(servers, 2), new_topic(servers), unique_name("streams")
    for counted in (1, 2):
        expected = {word: str(counted * count) for word, count in _COUNTS.items()}
        with tempfile.TemporaryDirectory() as state:
            _write(servers, source)
            with _streams(servers, "count", application, source, sink, state, *settings) as process:
                eventually(
                    lambda process=process, expected=expected: {word: process.request(word) for word in expected} == expected,  # type: ignore[misc]
                    f"the counts of {counted} runs",
                    within_s=_WAIT_S,
                )
    latest = dict(committed_records(servers, sink, len(_COUNTS)))
    sums = {word.encode(): 2 * count for word, count in _COUNTS.items()}
    expect({key: int.from_bytes(value, "big") for key, value in latest.items()}, sums, "sums")


@row(STREAMS, "stateless", _DEADLINE_S)
def stateless(servers: str) -> None:
    """Filter and map."""
    values = Counter(value for _, value in _run(servers, "stateless")[: len(_WORDS)])
    assert values, "no records"
    assert set(values) <= {word.upper().encode() for word in _WORDS}, values


@row(STREAMS, "stateful: a store with its changelog, restored", _DEADLINE_S)
def stateful(servers: str) -> None:
    """Count words; the second run restores the counts."""
    _count(servers)


@row(STREAMS, "stateful: windows", _DEADLINE_S)
def windows(servers: str) -> None:
    """Count words in windows."""
    latest = dict(_run(servers, "windows"))
    assert latest.get(b"table") == b"1", latest


@row(STREAMS, "exactly-once, stateful, restored", _DEADLINE_S)
def exactly_once(servers: str) -> None:
    """Count words in transactions; the second run restores the counts."""
    _count(servers, "processing.guarantee=exactly_once_v2")


@row(STREAMS, "a streams group (KIP-1071)", _DEADLINE_S)
def streams_group(servers: str) -> None:
    """Share tasks by the group protocol of Kafka Streams itself."""
    _count(servers, "group.protocol=streams")
