"""Benchmark: records per second of processor time as Arrow columns, ``consume_arrow`` next to confluent-kafka's ``consume``.

``python -m benchmarks.columns [--records 500000] [--rounds 3] [--sizes 100 1000] [--codecs none lz4 zstd]``

Each measurement is a separate process that joins a group, reads its first batch, and then reads the rest of the topic against
the process's clock, all threads included. The clients take turns within each round. ``consume + pa.array`` builds the columns
that ``consume_arrow`` builds here: key, value, offset and timestamp.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer

from benchmarks import cluster
from benchmarks.table import markdown, median, number
from consumer_coord import GroupConsumer
from tests.support.real_kafka import RealKafka

PARTITIONS = 4
BATCH = 10_000
COLUMNS = ("key", "value", "offset", "timestamp")
CASES = ("consume_arrow", "consume", "consume + pa.array")
_groups = itertools.count(1)


def _columns(messages: Sequence[Any]) -> None:
    import pyarrow as pa

    pa.array([message.key() for message in messages], pa.binary())
    pa.array([message.value() for message in messages], pa.binary())
    pa.array([message.offset() for message in messages], pa.int64())
    pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms"))


def read(case: str, bootstrap_servers: str, group: str, topic: str, records: int) -> tuple[float, float]:
    """Return (records per second, records per second of processor time) from the first batch on."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 1,
    }
    consumer: Any = GroupConsumer(config) if case == "consume_arrow" else Consumer(config)
    consumer.subscribe([topic])
    seen = first = 0
    began = used = 0.0
    while seen < records:
        if case == "consume_arrow":
            seen += len(consumer.consume_arrow(timeout=1.0, columns=COLUMNS))
        else:
            messages = [message for message in consumer.consume(BATCH, 1.0) if message.error() is None]
            seen += len(messages)
            if case != "consume" and messages:
                _columns(messages)
        if seen and not first:
            first, began, used = seen, time.monotonic(), time.process_time()
    wall, cpu = time.monotonic() - began, time.process_time() - used
    consumer.close()
    return (seen - first) / wall, (seen - first) / cpu


def fill(kafka: RealKafka, records: int, size: int, codec: str) -> str:
    """Write a topic: values that compress to about a half, keys of eight bytes."""
    topic = kafka.new_topic(PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": 1_000_000, "compression.type": codec}
    )
    for at in range(records):
        value = (b"%016x" % (at * 0x9E3779B97F4A7C15 % 2**64) + b"order of a customer") * (size // 35 + 1)
        while True:
            try:
                producer.produce(topic, value[:size], b"%08d" % at, partition=at % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return topic


def _in_a_process(case: str, kafka: RealKafka, topic: str, records: int) -> tuple[float, float]:
    arguments = json.dumps([case, kafka.bootstrap_servers, f"columns-{next(_groups)}", topic, records])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.columns", "--one", arguments], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    wall, cpu = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.columns", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4", "zstd"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(read(*json.loads(options.one))))
        return
    rows = []
    with cluster.broker() as kafka:
        for size, codec in itertools.product(options.sizes, options.codecs):
            topic = fill(kafka, options.records, size, codec)
            found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
            for _, case in itertools.product(range(options.rounds), CASES):
                found[case].append(_in_a_process(case, kafka, topic, options.records))
            base = median([cpu for _, cpu in found["consume_arrow"]])
            for case, runs in found.items():
                wall, cpu = median([one for one, _ in runs]), median([one for _, one in runs])
                rows.append([f"{size} B", codec, case, number(wall), number(cpu), f"{1e9 / cpu:.0f}", f"{base / cpu:.1f}"])
                print(*rows[-1], file=sys.stderr, flush=True)
    head = [
        "values",
        "codec",
        "client",
        "records/s",
        "records/CPU s",
        "ns of CPU per record",
        "CPU speed of consume_arrow relative to this",
    ]
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
