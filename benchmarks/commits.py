"""Benchmark (k): the cost of committing each message.

``python -m benchmarks.commits [--rounds 3] [--records 20000]``

*asynchronous*: ``commit(message)`` after each ``poll``, with an ``on_commit`` callback for each commit. *synchronous*: with
``asynchronous=False``, for a twentieth of the records. *stored*: ``store_offsets(message)`` after each ``poll``, and one commit
at the end. *and reported*: like *asynchronous*, but until ``on_commit`` was called for the last commit. *reported after*: the
time from an asynchronous commit until ``on_commit`` is called by a ``poll`` that waits for messages of a topic without new
records. All clients run in one process and alternate within each round. The processor time is that of the whole process,
including librdkafka's threads and our loop, until all commits are reported.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import cluster
from benchmarks.results import add_options, from_options
from benchmarks.table import markdown, median, number
from consumer_coord import GroupConsumer
from consumer_coord.testing.kafka_cluster import KafkaCluster, unique_name

KINDS: dict[str, Any] = {"confluent-kafka": Consumer, "ours": GroupConsumer}
_DEADLINE_S = 60.0
_FIGURES = ("per_s", "reported_per_s", "cpu_us")


@attrs.frozen
class Measured:
    """The figures of one run."""

    per_s: float
    reported_per_s: float
    cpu_us: float


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def measure(kafka: KafkaCluster, kind: Any, topic: str, records: int, case: str) -> Measured:
    """Poll and commit ``records`` messages one by one."""
    reported = 0
    asynchronous = case == "asynchronous"

    def on_commit(error: object, rows: object) -> None:
        nonlocal reported
        assert error is None, error
        reported += 1

    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": unique_name("commits"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": case != "stored",
        "partition.assignment.strategy": "range",
        "on_commit": on_commit,
    }
    consumer = kind(settings)
    consumer.subscribe([topic])
    assert consumer.poll(_DEADLINE_S) is not None
    began, cpu_s = time.perf_counter(), _cpu_s()
    taken = 0
    while taken < records:
        message = consumer.poll(_DEADLINE_S)
        assert message is not None
        assert message.error() is None
        if case == "stored":
            consumer.store_offsets(message)
        else:
            consumer.commit(message, asynchronous=asynchronous)
        taken += 1
    if case == "stored":
        consumer.commit(asynchronous=False)
    took_s = time.perf_counter() - began
    while asynchronous and reported < records:
        assert time.perf_counter() - began < _DEADLINE_S, f"{reported} of {records} commits were reported"
        assert consumer.poll(0.05) is None
    reported_s, cpu_s = time.perf_counter() - began, _cpu_s() - cpu_s
    consumer.close()
    return Measured(records / took_s, records / reported_s, cpu_s / records * 1e6)


def measure_report(kafka: KafkaCluster, kind: Any, topic: str, times: int) -> float:
    """Return the median time from ``commit`` to ``on_commit`` of ``times`` commits, in milliseconds."""
    reported: list[float] = []

    def on_commit(error: object, rows: object) -> None:
        assert error is None, error
        reported.append(time.perf_counter())

    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": unique_name("reported"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "on_commit": on_commit,
    }
    consumer = kind(settings)
    consumer.subscribe([topic])
    message = consumer.poll(_DEADLINE_S)
    while consumer.poll(1.0) is not None:
        pass
    took_ms = []
    for offset in range(1, times + 1):
        began = time.perf_counter()
        consumer.commit(offsets=[TopicPartition(topic, message.partition(), offset)])
        while len(reported) < offset:
            assert consumer.poll(0.5) is None
        took_ms.append((reported[-1] - began) * 1000)
    consumer.close()
    return median(took_ms)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.commits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=20_000)
    add_options(parser, "commits")
    chosen = parser.parse_args(arguments)
    cases = {"asynchronous": chosen.records, "synchronous": max(1, chosen.records // 20), "stored": chosen.records}
    results = from_options(chosen)
    with cluster.broker() as kafka:
        topic = unique_name("records")
        kafka.create_topic(topic, 4)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for record in range(chosen.records + 1):
            producer.produce(topic, b"x" * 100, partition=record % 4)
            producer.poll(0)
        assert producer.flush(_DEADLINE_S) == 0
        for case, records in cases.items():

            def once(name: str, case: str = case, records: int = records) -> Mapping[str, float]:
                return attrs.asdict(measure(kafka, KINDS[name], topic, records, case))

            results.complete("commits", case, list(KINDS), chosen.rounds, once)

        def reported(name: str) -> Mapping[str, float]:
            return {"ms": measure_report(kafka, KINDS[name], topic, 20)}

        results.complete("commits", "report", list(KINDS), chosen.rounds, reported)
    rows = [
        [f"{name}, {case}", *(number(results.figure("commits", case, name, one).median) for one in _FIGURES)]
        for case in cases
        for name in KINDS
    ]
    print(markdown(["client", "messages/s", "and reported", "CPU us a message"], rows))
    print()
    lines = [[name, number(results.figure("commits", "report", name, "ms").median)] for name in KINDS]
    print(markdown(["client", "reported after, ms"], lines))


if __name__ == "__main__":
    main()
