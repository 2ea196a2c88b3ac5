"""Benchmark (i): time to the first message from distant brokers, in round trips.

``python -m benchmarks.far_away [--rounds 3] [--delay-ms 200] [--only start ...]``

An embedded Kafka delays each response by ``--delay-ms`` and serves one request per connection at a time, as Kafka does. The
time from ``subscribe()`` to the first message, divided by the delay, is the number of requests that follow one another. A busy
machine hardly changes this number. The cases are those of ``benchmarks.first_message``. The clients run in turns within each
round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Producer

from benchmarks.first_message import CLIENTS, Reader, commit_all, table
from benchmarks.results import add_options, from_options
from consumer_coord.broker.faults import Fault
from consumer_coord.broker.server import EmbeddedKafka

CASES = {"start": 1, "start-100-topics": 100, "committed": 1}
PARTITIONS = 4
_DEADLINE_S = 180.0


def measure(client: str, case: str, delay_ms: int) -> float:
    """Return the round trips to the first message."""
    topics = [f"topic-{one}" for one in range(CASES[case])]
    config = {"group.initial.rebalance.delay.ms": 0}
    with EmbeddedKafka(topics=dict.fromkeys(topics, PARTITIONS), config=config) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for topic in topics:
            for partition in range(PARTITIONS):
                producer.produce(topic, b"record", partition=partition)
        producer.flush()
        settings: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "far",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        if case == "committed":
            commit_all(settings, topics)
        kafka.add_request_hook(lambda broker, request: Fault(delay_ms=delay_ms))
        reader = Reader(client, settings)
        began = time.monotonic()
        reader.subscribe(topics)
        took = reader.first(within_s=_DEADLINE_S) - began
        kafka.clear_faults()
        reader.close()
    return took * 1000 / delay_ms


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.far_away", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    add_options(parser, "far_away")
    options = parser.parse_args(arguments)
    if options.child:
        case, client = options.child
        print(json.dumps(measure(client, case, options.delay_ms)))
        return
    results = from_options(options)
    for case in options.only:

        def once(client: str, case: str = case) -> Mapping[str, float]:
            child = [sys.executable, "-m", "benchmarks.far_away", "--delay-ms", str(options.delay_ms), "--child", case, client]
            answer = subprocess.run(child, capture_output=True, text=True, check=True, timeout=300).stdout
            return {"trips": float(json.loads(answer))}

        results.complete("far away", case, CLIENTS, options.rounds, once)
    print(f"\nround trips of {options.delay_ms} ms, medians of {options.rounds} (least-most):\n", flush=True)
    print(table(results, "far away", options.only, "trips"), flush=True)


if __name__ == "__main__":
    main()
