"""Benchmark (a): messages per second from one topic, and processor time per million messages.

``python -m benchmarks.throughput [--records 1000000] [--rounds 5] [--only ours:consume ...]``

Each measurement is a separate process that joins a group and reads its first batch. Then the time for reading the rest of the
topic counts. The process reads the values, and does nothing else. The clients run in turns within each round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from confluent_kafka import Producer

from benchmarks import cluster
from benchmarks.results import Results, add_options, from_options, spread
from benchmarks.table import markdown, number
from consumer_coord.testing.real_kafka import RealKafka

PARTITIONS = 8
BATCH = 500
SIZES = (100, 1000)
#: librdkafka stops fetching for a second, by default, when its queue is full. With any client, a run of 400,000 small records
#: takes as long as one or two such pauses, so the number of pauses would determine the rate.
QUEUE_BACKOFF_MS = 1
#: Clients that implement the protocol in Python.
PURE_PYTHON = ("kafka-python", "aiokafka")
CASES = (
    "confluent-kafka:consume",
    "ours-librdkafka:consume",
    "confluent-kafka:poll",
    "ours-librdkafka:poll",
    "ours:consume",
    "ours:poll",
    "ours-no-lease:consume",
    "ours-no-lease:poll",
    "AIOConsumer:consume",
    "ours-async-librdkafka:consume",
    "AIOConsumer:poll",
    "ours-async-librdkafka:poll",
    "ours-async-librdkafka:iterate",
    "ours-async-librdkafka:getmany",
    "ours-async:consume",
    "ours-async:poll",
    "ours-async:iterate",
    "ours-async:getmany",
    "kafka-python",
    "aiokafka",
)
#: Case -> the case to compare with, and the goal for the ratio.
GOALS = {
    "ours-librdkafka:consume": ("confluent-kafka:consume", 0.98),
    "ours-librdkafka:poll": ("confluent-kafka:poll", 1.03),
    "ours:consume": ("confluent-kafka:consume", 3.0),
    "ours:poll": ("confluent-kafka:poll", 3.0),
    "ours-async:iterate": ("aiokafka", 2.0),
    "ours-async:getmany": ("aiokafka", 2.0),
    "ours-no-lease:consume": ("ours:consume", 1.0),
    "ours-no-lease:poll": ("ours:poll", 1.0),
    "ours-async-librdkafka:consume": ("AIOConsumer:consume", 1.0),
    "ours-async-librdkafka:poll": ("AIOConsumer:poll", 1.0),
}
#: Cases of asyncio consumers that have confluent-kafka's interface.
ASYNC = ("AIOConsumer", "ours-async", "ours-async-librdkafka")
#: Cases that read fewer records, because they are ten times slower than the others.
SLOW = (*PURE_PYTHON, "AIOConsumer:poll")
_groups = itertools.count(1)


@attrs.frozen
class Run:
    """A measurement."""

    per_s: float
    cpu_s_per_million: float


def _librdkafka(case: str) -> bool:
    """Return whether librdkafka reads the messages of a case."""
    return "-librdkafka:" in case


def _consumer(case: str, config: Mapping[str, Any]) -> Any:
    if case.startswith("ours"):
        from consumer_coord import GroupConsumer

        ours = {"group.lease.enable": not case.startswith("ours-no-lease"), "librdkafka.enable": _librdkafka(case)}
        return GroupConsumer({**config, **ours})
    from confluent_kafka import Consumer

    return Consumer(dict(config))


def _read_batches(consumer: Any, first: Callable[[], None], records: int) -> int:
    seen = 0
    while seen < records:
        for message in consumer.consume(BATCH, 1.0):
            if message.error() is None:
                message.value()
                seen += 1
        if seen:
            first()
    return seen


def _read_singly(consumer: Any, first: Callable[[], None], records: int) -> int:
    seen = 0
    while seen < records:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        message.value()
        seen += 1
        if seen == 1:
            first()
    return seen


def _read_kafka_python(config: Mapping[str, Any], topic: str, first: Callable[[], None], records: int) -> int:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, **{name.replace(".", "_"): value for name, value in config.items()})
    seen = 0
    while seen < records:
        for rows in consumer.poll(timeout_ms=1000, max_records=BATCH).values():
            for row in rows:
                assert row.value is not None
                seen += 1
        if seen:
            first()
    consumer.close(autocommit=False)
    return seen


def _read_aiokafka(config: Mapping[str, Any], topic: str, first: Callable[[], None], records: int) -> int:
    import asyncio

    from aiokafka import AIOKafkaConsumer

    async def read() -> int:
        consumer = AIOKafkaConsumer(topic, **{name.replace(".", "_"): value for name, value in config.items()})
        await consumer.start()
        seen = 0
        while seen < records:
            for rows in (await consumer.getmany(timeout_ms=1000, max_records=BATCH)).values():
                for row in rows:
                    assert row.value is not None
                    seen += 1
            if seen:
                first()
        await consumer.stop()
        return seen

    return asyncio.run(read())


async def _async_singly(consumer: Any, first: Callable[[], None], records: int) -> int:
    seen = 0
    while seen < records:
        message = await consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        message.value()
        seen += 1
        if seen == 1:
            first()
    return seen


async def _async_batches(consumer: Any, first: Callable[[], None], records: int) -> int:
    seen = 0
    while seen < records:
        for message in await consumer.consume(BATCH, 1.0):
            if message.error() is None:
                message.value()
                seen += 1
        if seen:
            first()
    return seen


async def _async_iteration(consumer: Any, first: Callable[[], None], records: int) -> int:
    seen = 0
    async for message in consumer:
        message.value()
        seen += 1
        if seen == 1:
            first()
        if seen == records:
            break
    return seen


async def _async_many(consumer: Any, first: Callable[[], None], records: int) -> int:
    seen = 0
    while seen < records:
        for messages in (await consumer.getmany(timeout_ms=1000, max_records=BATCH)).values():
            for message in messages:
                message.value()
                seen += 1
        if seen:
            first()
    return seen


_ASYNC_WAYS = {"poll": _async_singly, "consume": _async_batches, "iterate": _async_iteration, "getmany": _async_many}


def _read_async(
    case: str, config: Mapping[str, Any], topic: str, first: Callable[[], None], records: int
) -> tuple[int, float, float]:
    """Read the topic; return the number of records, and both clocks at the end."""
    import asyncio

    client, way = case.split(":")

    async def read() -> tuple[int, float, float]:
        consumer: Any
        if client == "AIOConsumer":
            from confluent_kafka.aio import AIOConsumer

            consumer = AIOConsumer(dict(config))
        else:
            from consumer_coord import AsyncGroupConsumer

            consumer = AsyncGroupConsumer({**config, "librdkafka.enable": _librdkafka(case)})
        await consumer.subscribe([topic])
        seen = await _ASYNC_WAYS[way](consumer, first, records)
        ended, used = time.monotonic(), time.process_time()
        await consumer.close()
        return seen, ended, used

    return asyncio.run(read())


def read(case: str, bootstrap_servers: str, group: str, topic: str, records: int) -> Run:
    """Read the topic in a separate process, and measure the time from the first batch on."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if case not in PURE_PYTHON:
        config["fetch.queue.backoff.ms"] = QUEUE_BACKOFF_MS
    began: list[float] = []

    def first() -> None:
        if not began:
            began.extend((time.monotonic(), time.process_time()))

    if case in PURE_PYTHON:
        seen = (_read_kafka_python if case == "kafka-python" else _read_aiokafka)(config, topic, first, records)
        ended, used = time.monotonic(), time.process_time()
    elif case.split(":")[0] in ASYNC:
        seen, ended, used = _read_async(case, config, topic, first, records)
    else:
        consumer = _consumer(case, config)
        consumer.subscribe([topic])
        seen = (_read_batches if case.endswith("consume") else _read_singly)(consumer, first, records)
        ended, used = time.monotonic(), time.process_time()
        consumer.close()
    return Run(seen / (ended - began[0]), (used - began[1]) / seen * 1e6)


def fill(kafka: RealKafka, records: int, size: int) -> str:
    """Fill a topic with ``records`` records."""
    topic = kafka.new_topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": 1_000_000})
    value = bytes(range(256)) * (size // 256 + 1)
    for index in range(records):
        while True:
            try:
                producer.produce(topic, value[:size], partition=index % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return topic


def compare(kafka: RealKafka, size: int, records: int, rounds: int, cases: Sequence[str], results: Results) -> None:
    """Measure what is missing of all cases."""
    topic = fill(kafka, records, size)

    def once(case: str) -> Mapping[str, float]:
        wanted = records // 10 if case in SLOW else records
        child = [sys.executable, "-m", "benchmarks.throughput", "--child", case, kafka.bootstrap_servers]
        child += [f"throughput-{size}-{next(_groups)}", topic, str(wanted)]
        answer = subprocess.run(child, capture_output=True, text=True, check=True, timeout=300).stdout
        found: Mapping[str, float] = json.loads(answer)
        return found

    results.complete("throughput", f"{size} bytes", cases, rounds, once)


def table(results: Results, size: int, cases: Sequence[str]) -> str:
    """Return the medians, and for the goals the median of the ratios of all rounds, with the lowest and the highest ratio."""
    place, rows = ("throughput", f"{size} bytes"), []
    for case in cases:
        ratio, cpu, goal = "", "", ""
        if case in GOALS and GOALS[case][0] in cases:
            peer, least = GOALS[case]
            ratio = spread(results.ratio(*place, case, peer, "per_s"))
            cpu = spread(results.ratio(*place, case, peer, "cpu_s_per_million"))
            goal = f"{least}"
        per_s, cpu_s = (results.figure(*place, case, name).median for name in ("per_s", "cpu_s_per_million"))
        rows.append([case, f"{per_s:,.0f}", number(cpu_s), ratio, goal, cpu])
    return markdown(["case", "messages/s", "CPU s per million", "speed, of the peer's", "goal", "CPU, of the peer's"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes; of 1,000 bytes a quarter of that")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    add_options(parser, "throughput")
    options = parser.parse_args(arguments)
    if options.child:
        case, bootstrap_servers, group, topic, records = options.child
        print(json.dumps(attrs.asdict(read(case, bootstrap_servers, group, topic, int(records)))))
        return
    results, cases = from_options(options), options.only or CASES
    with cluster.broker() as kafka:
        for size in SIZES:
            records = options.records if size == SIZES[0] else options.records // 4
            compare(kafka, size, records, options.rounds, cases, results)
            print(
                f"\n{size} bytes, {records:,} records, medians of {options.rounds}:\n\n{table(results, size, cases)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
