"""Benchmark: processor time of reading records as Arrow columns, ``consume_arrow`` next to other clients.

``python -m benchmarks.columns [--records 2000000] [--rounds 3] [--rows "100 B" "100 B, lz4" ...]``

Each measurement is a separate process that joins a group and reads its first batch. Then the benchmark measures the processor
time of all threads for reading the rest of the topic. The clients run in turns within each round. Cases with ``+ pa.array``
also build the columns of ``consume_arrow``: key, value, offset and timestamp. ``--split`` divides the time of
``consume_arrow``.

Topics have 4 partitions and keys of 8 bytes, and their batches have up to 10,000 records; the name of a row says what differs.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from confluent_kafka import Consumer, Producer

from benchmarks.first_message import tls_broker
from benchmarks.results import Results, add_options, from_options
from benchmarks.table import markdown, median, number
from consumer_coord import GroupConsumer
from consumer_coord.testing.real_kafka import RealKafka

TAKEN = 10_000
COLUMNS = ("key", "value", "offset", "timestamp")
CASES = ("consume_arrow", "consume", "consume + pa.array", "aiokafka + pa.array")
#: Maximum number of bytes of values in one topic. So rows of large records have fewer records.
MOST_BYTES = 600_000_000
_groups = itertools.count(1)


@attrs.frozen
class Row:
    """A kind of topic, and how it is read."""

    size: int = 100
    codec: str = "none"
    headers: int = 0
    partitions: int = 4
    #: Maximum number of records in a producer's batch.
    batch_records: int = 10_000
    batch_bytes: int = 1_000_000
    tls: bool = False
    #: The number of records in the topic, as a fraction of ``--records``.
    share: float = 1.0

    def records(self, records: int) -> int:
        """Return the number of records in the topic."""
        return min(int(records * self.share), MOST_BYTES // self.size)


ROWS: Mapping[str, Row] = {
    "100 B": Row(),
    "100 B, lz4": Row(codec="lz4"),
    "100 B, zstd": Row(codec="zstd"),
    "100 B, snappy": Row(codec="snappy"),
    "100 B, gzip": Row(codec="gzip"),
    "100 B, 2 headers": Row(headers=2),
    "100 B, 64 partitions": Row(partitions=64),
    "100 B, batches of 16 KB": Row(batch_bytes=16_384),
    "100 B, batches of one record": Row(batch_records=1, share=0.1),
    "100 B, TLS": Row(tls=True),
    "1 KB": Row(size=1_000),
    "1 KB, lz4": Row(size=1_000, codec="lz4"),
    "1 KB, zstd": Row(size=1_000, codec="zstd"),
    "10 KB": Row(size=10_000),
    "10 KB, lz4": Row(size=10_000, codec="lz4"),
}


def _columns(keys: Sequence[Any], values: Sequence[Any], offsets: Sequence[Any], timestamps: Sequence[Any]) -> None:
    import pyarrow as pa

    pa.array(keys, pa.binary())
    pa.array(values, pa.binary())
    pa.array(offsets, pa.int64())
    pa.array(timestamps, pa.timestamp("ms"))


class Clock:
    """Wall-clock time and processor time since the first batch."""

    def __init__(self) -> None:
        self.seen = self._first = 0
        self._began = self._used = 0.0

    def count(self, records: int) -> None:
        """Count the records of a batch."""
        self.seen += records
        if self.seen and not self._first:
            self._first, self._began, self._used = self.seen, time.monotonic(), time.process_time()

    def rates(self) -> tuple[float, float]:
        """Return (records per second, records per second of processor time)."""
        records = self.seen - self._first
        return records / (time.monotonic() - self._began), records / (time.process_time() - self._used)


def _read_arrow(settings: Mapping[str, Any], topic: str, records: int) -> Clock:
    clock = Clock()
    with GroupConsumer(settings) as consumer:
        consumer.subscribe([topic])
        while clock.seen < records:
            clock.count(len(consumer.consume_arrow(timeout=1.0, columns=COLUMNS)))
        return clock


def _read_messages(settings: Mapping[str, Any], topic: str, records: int, *, columns: bool) -> Clock:
    clock, consumer = Clock(), Consumer(dict(settings))
    consumer.subscribe([topic])
    while clock.seen < records:
        messages = [message for message in consumer.consume(TAKEN, 1.0) if message.error() is None]
        if columns and messages:
            _columns(
                [message.key() for message in messages],
                [message.value() for message in messages],
                [message.offset() for message in messages],
                [message.timestamp()[1] for message in messages],
            )
        clock.count(len(messages))
    return clock


async def _read_aiokafka(settings: Mapping[str, Any], topic: str, records: int) -> Clock:
    import aiokafka
    from aiokafka.helpers import create_ssl_context

    clock, tls = Clock(), {}
    if "ssl.ca.location" in settings:
        tls = {"security_protocol": "SSL", "ssl_context": create_ssl_context(cafile=settings["ssl.ca.location"])}
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=settings["bootstrap.servers"],
        group_id=settings["group.id"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **tls,
    )
    await consumer.start()
    while clock.seen < records:
        rows = [row for part in (await consumer.getmany(timeout_ms=1000, max_records=TAKEN)).values() for row in part]
        if rows:
            _columns(
                [row.key for row in rows],
                [row.value for row in rows],
                [row.offset for row in rows],
                [row.timestamp for row in rows],
            )
        clock.count(len(rows))
    await consumer.stop()
    return clock


def read(case: str, settings: Mapping[str, Any], topic: str, records: int) -> tuple[float, float]:
    """Return (records per second, records per second of processor time) from the first batch on."""
    if case == "consume_arrow":
        return _read_arrow(settings, topic, records).rates()
    if case.startswith("aiokafka"):
        return asyncio.run(_read_aiokafka(settings, topic, records)).rates()
    return _read_messages(settings, topic, records, columns=case != "consume").rates()


def split(settings: Mapping[str, Any], topic: str, records: int) -> dict[str, float]:
    """Return nanoseconds of processor time per record: of each step on the reading thread, and of the loop with its socket."""
    from consumer_coord.columns import batch

    used: dict[str, float] = dict.fromkeys(("CRC", "decompression", "decoding"), 0.0)

    def timed(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> Any:
            began, inner = time.thread_time(), used["decompression"]
            try:
                return function(*arguments, **keywords)
            finally:
                used[step] += time.thread_time() - began - (used["decompression"] - inner if step == "decoding" else 0.0)

        return run

    batch.CompletedFetch.__init__ = timed("CRC", batch.CompletedFetch.__init__)  # type: ignore[method-assign]
    batch.CompletedFetch._decompress = timed("decompression", batch.CompletedFetch._decompress)  # type: ignore[method-assign]
    batch.CompletedFetch.append_to = timed("decoding", batch.CompletedFetch.append_to)  # type: ignore[method-assign]
    with GroupConsumer(settings) as consumer:
        consumer.subscribe([topic])
        first = seen = len(consumer.consume_arrow(timeout=60.0, columns=COLUMNS))
        used.update(dict.fromkeys(used, 0.0))
        process, thread = time.process_time(), time.thread_time()
        while seen < records:
            seen += len(consumer.consume_arrow(timeout=1.0, columns=COLUMNS))
        thread, process = time.thread_time() - thread, time.process_time() - process
    used["calls"] = thread - sum(used.values())
    used["socket and loop"] = process - thread
    return {step: spent / (seen - first) * 1e9 for step, spent in used.items()}


def fill(kafka: RealKafka, row: Row, records: int) -> str:
    """Write a topic with values that compress to about a half, and with keys of eight bytes."""
    topic = kafka.new_topic(row.partitions)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "linger.ms": 20,
            "batch.size": row.batch_bytes,
            "batch.num.messages": row.batch_records,
            "compression.type": row.codec,
        }
    )
    headers = [(f"header-{at}", b"text of a header") for at in range(row.headers)]
    for at in range(records):
        value = (b"%016x" % (at * 0x9E3779B97F4A7C15 % 2**64) + b"order of a customer") * (row.size // 35 + 1)
        while True:
            try:
                producer.produce(topic, value[: row.size], b"%08d" % at, partition=at % row.partitions, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return topic


def _in_a_process(option: str, *arguments: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.columns", option, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _settings(plain: str, tls: Mapping[str, str], row: Row) -> dict[str, Any]:
    return {
        **(tls if row.tls else {"bootstrap.servers": plain}),
        "group.id": f"columns-{next(_groups)}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 1,
    }


def _compared(
    kafka: RealKafka, tls: Mapping[str, str], wanted: Sequence[str], records: int, rounds: int, results: Results
) -> str:
    table = []
    for name in wanted:
        row = ROWS[name]
        count = row.records(records)
        topic = fill(kafka, row, count)

        def once(case: str, row: Row = row, topic: str = topic, count: int = count) -> Mapping[str, float]:
            settings = _settings(kafka.bootstrap_servers, tls, row)
            rate, cpu_rate = _in_a_process("--one", case, settings, topic, count)
            return {"per_s": rate, "cpu_ns": 1e9 / cpu_rate}

        results.complete("columns", name, CASES, rounds, once)
        ns = {case: results.figure("columns", name, case, "cpu_ns").median for case in CASES}
        ratios = [ns[case] / ns["consume_arrow"] for case in CASES[1:]]
        rate = number(results.figure("columns", name, "consume_arrow", "per_s").median)
        table.append([name, rate, *(f"{one:.0f}" for one in ns.values()), *(f"{ratio:.1f}" for ratio in ratios)])
    head = ["topic", "records/s", *(f"{case}, ns" for case in CASES), *(f"/ {case}" for case in CASES[1:])]
    return markdown(head, table)


def _divided(kafka: RealKafka, tls: Mapping[str, str], wanted: Sequence[str], records: int, rounds: int) -> str:
    table = []
    for name in wanted:
        row = ROWS[name]
        count = row.records(records)
        topic = fill(kafka, row, count)
        runs = [_in_a_process("--one-split", _settings(kafka.bootstrap_servers, tls, row), topic, count) for _ in range(rounds)]
        table.append([name, *(f"{median([run[step] for run in runs]):.0f}" for step in runs[0])])
    return markdown(["topic", "CRC, ns", "decompression", "decoding", "calls", "socket and loop"], table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.columns", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    parser.add_argument("--split", action="store_true", help="divide the time of consume_arrow, and compare nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--one-split", help=argparse.SUPPRESS)
    add_options(parser, "columns")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(read(*json.loads(options.one))))
    elif options.one_split:
        print(json.dumps(split(*json.loads(options.one_split))))
    else:
        with tempfile.TemporaryDirectory() as directory, tls_broker(Path(directory)) as (kafka, tls):
            asked = kafka, tls, options.rows, options.records, options.rounds
            print(_divided(*asked) if options.split else _compared(*asked, from_options(options)))


if __name__ == "__main__":
    main()
